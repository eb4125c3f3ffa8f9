// SPDX-License-Identifier: Apache-2.0
//
// The Api of NCCL itself, one call per function, and open_api() of a build that has its header.
#include <dlfcn.h>
#include <nccl.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "collectives/nccl/errors.h"
#include "collectives/nccl/open_api.h"

namespace tessera::nccl {
namespace {

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId), "what ranks share");

// The functions, by the names that the library exports. X(name).
#define TESSERA_NCCL_FUNCTIONS(X) \
  X(ncclGetVersion)               \
  X(ncclGetErrorString)           \
  X(ncclGetLastError)             \
  X(ncclGetUniqueId)              \
  X(ncclCommInitRankConfig)       \
  X(ncclCommGetAsyncError)        \
  X(ncclMemAlloc)                 \
  X(ncclMemFree)                  \
  X(ncclGroupStart)               \
  X(ncclGroupEnd)                 \
  X(ncclSend)                     \
  X(ncclRecv)                     \
  X(ncclAllGather)                \
  X(ncclBroadcast)                \
  X(ncclAllReduce)                \
  X(ncclReduce)                   \
  X(ncclReduceScatter)            \
  X(ncclCommRevoke)               \
  X(ncclCommFinalize)             \
  X(ncclCommDestroy)              \
  X(ncclCommAbort)

struct Functions {
#define TESSERA_NCCL_MEMBER(name) decltype(&::name) name = nullptr;
  TESSERA_NCCL_FUNCTIONS(TESSERA_NCCL_MEMBER)
#undef TESSERA_NCCL_MEMBER
};

Status missing(absl::string_view what) {
  return absl::UnimplementedError(
      absl::StrCat(what,
                   "; groups of GPUs of several clients need NCCL 2.28.7 or later: install "
                   "it, or set LD_LIBRARY_PATH to where it is"));
}

// The library stays loaded: it has threads of its own.
StatusOr<Functions> load(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return missing(absl::StrCat("no NCCL: ", dlerror()));
  Functions functions;
#define TESSERA_NCCL_LOAD(name)                                                      \
  functions.name = reinterpret_cast<decltype(functions.name)>(dlsym(handle, #name)); \
  if (functions.name == nullptr) {                                                   \
    return missing(absl::StrCat(library, " is too old: it has no ", #name));         \
  }
  TESSERA_NCCL_FUNCTIONS(TESSERA_NCCL_LOAD)
#undef TESSERA_NCCL_LOAD
  return functions;
}

absl::StatusCode code_of(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
      return absl::StatusCode::kUnavailable;
    case ncclInvalidUsage:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

// Requires a dtype that NCCL has: not bool.
ncclDataType_t native(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
      return ncclInt8;
    case DType::kUint8:
      return ncclUint8;
    case DType::kInt32:
      return ncclInt32;
    case DType::kInt64:
      return ncclInt64;
    case DType::kFloat16:
      return ncclFloat16;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kBool:
      break;
  }
  return ncclNumTypes;
}
ncclRedOp_t native(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kProd:
      return ncclProd;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kAvg:
      return ncclAvg;
  }
  return ncclNumOps;
}
ncclComm_t native(CommHandle comm) { return reinterpret_cast<ncclComm_t>(comm); }
cudaStream_t native(StreamHandle stream) { return reinterpret_cast<cudaStream_t>(stream); }

class NcclApi : public Api {
 public:
  explicit NcclApi(const Functions& functions) : nccl_(functions) {}

  StatusOr<UniqueId> get_unique_id() override {
    ncclUniqueId native_id;
    TESSERA_RETURN_IF_ERROR(status_of(nccl_.ncclGetUniqueId(&native_id), "ncclGetUniqueId"));
    UniqueId id;
    std::memcpy(id.data(), &native_id, sizeof(native_id));
    return id;
  }

  StatusOr<CommHandle> comm_init_rank(int num_ranks, const UniqueId& id, int rank) override {
    ncclUniqueId native_id;
    std::memcpy(&native_id, id.data(), sizeof(native_id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    // The end of one communicator must not end another one.
    config.splitShare = 0;
    ncclComm_t comm = nullptr;
    const ncclResult_t result =
        nccl_.ncclCommInitRankConfig(&comm, num_ranks, native_id, rank, &config);
    TESSERA_RETURN_IF_ERROR(status_of(result, "ncclCommInitRankConfig"));
    return reinterpret_cast<CommHandle>(comm);
  }

  StatusOr<bool> poll(CommHandle comm) override {
    ncclResult_t state = ncclSuccess;
    TESSERA_RETURN_IF_ERROR(
        status_of(nccl_.ncclCommGetAsyncError(native(comm), &state), "ncclCommGetAsyncError"));
    TESSERA_RETURN_IF_ERROR(status_of(state, "NCCL"));
    return state != ncclInProgress;
  }

  StatusOr<std::byte*> mem_alloc(uint64_t size_bytes) override {
    void* memory = nullptr;
    const Status status = status_of(nccl_.ncclMemAlloc(&memory, size_bytes), "ncclMemAlloc");
    // NCCL says no more than that CUDA failed.
    if (!status.ok()) return absl::ResourceExhaustedError(status.message());
    return static_cast<std::byte*>(memory);
  }
  Status mem_free(std::byte* memory) override {
    return status_of(nccl_.ncclMemFree(memory), "ncclMemFree");
  }

  Status group_start() override { return status_of(nccl_.ncclGroupStart(), "ncclGroupStart"); }
  Status group_end() override { return status_of(nccl_.ncclGroupEnd(), "ncclGroupEnd"); }

  Status send(const std::byte* from, uint64_t num_bytes, int peer, CommHandle comm,
              StreamHandle stream) override {
    return status_of(nccl_.ncclSend(from, num_bytes, ncclUint8, peer, native(comm), native(stream)),
                     "ncclSend");
  }
  Status recv(std::byte* to, uint64_t num_bytes, int peer, CommHandle comm,
              StreamHandle stream) override {
    return status_of(nccl_.ncclRecv(to, num_bytes, ncclUint8, peer, native(comm), native(stream)),
                     "ncclRecv");
  }
  Status all_gather(const std::byte* from, std::byte* to, uint64_t num_bytes, CommHandle comm,
                    StreamHandle stream) override {
    return status_of(
        nccl_.ncclAllGather(from, to, num_bytes, ncclUint8, native(comm), native(stream)),
        "ncclAllGather");
  }
  Status broadcast(const std::byte* from, std::byte* to, uint64_t num_bytes, int root,
                   CommHandle comm, StreamHandle stream) override {
    return status_of(
        nccl_.ncclBroadcast(from, to, num_bytes, ncclUint8, root, native(comm), native(stream)),
        "ncclBroadcast");
  }
  Status all_reduce(const std::byte* from, std::byte* to, uint64_t count, DType dtype, ReduceOp op,
                    CommHandle comm, StreamHandle stream) override {
    return status_of(nccl_.ncclAllReduce(from, to, count, native(dtype), native(op), native(comm),
                                         native(stream)),
                     "ncclAllReduce");
  }
  Status reduce(const std::byte* from, std::byte* to, uint64_t count, DType dtype, ReduceOp op,
                int root, CommHandle comm, StreamHandle stream) override {
    return status_of(nccl_.ncclReduce(from, to, count, native(dtype), native(op), root,
                                      native(comm), native(stream)),
                     "ncclReduce");
  }
  Status reduce_scatter(const std::byte* from, std::byte* to, uint64_t count, DType dtype,
                        ReduceOp op, CommHandle comm, StreamHandle stream) override {
    return status_of(nccl_.ncclReduceScatter(from, to, count, native(dtype), native(op),
                                             native(comm), native(stream)),
                     "ncclReduceScatter");
  }

  Status comm_revoke(CommHandle comm) override {
    return status_of(nccl_.ncclCommRevoke(native(comm), NCCL_REVOKE_DEFAULT), "ncclCommRevoke");
  }
  Status comm_finalize(CommHandle comm) override {
    return status_of(nccl_.ncclCommFinalize(native(comm)), "ncclCommFinalize");
  }
  Status comm_destroy(CommHandle comm) override {
    return status_of(nccl_.ncclCommDestroy(native(comm)), "ncclCommDestroy");
  }
  Status comm_abort(CommHandle comm) override {
    return status_of(nccl_.ncclCommAbort(native(comm)), "ncclCommAbort");
  }

 private:
  // A call in progress is no error: poll() follows it.
  Status status_of(ncclResult_t result, absl::string_view function) const {
    if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
    return error_of(code_of(result), function, nccl_.ncclGetErrorString(result),
                    nccl_.ncclGetLastError(nullptr));
  }

  const Functions nccl_;
};

}  // namespace

StatusOr<std::shared_ptr<Api>> open_api(const std::string& library) {
  TESSERA_ASSIGN_OR_RETURN(const Functions functions, load(library));
  int version = 0;
  functions.ncclGetVersion(&version);
  if (version < NCCL_VERSION(2, 28, 7)) {
    return missing(absl::StrCat(library, " is too old: its version is ", version));
  }
  return std::make_shared<NcclApi>(functions);
}

bool has_nccl() { return true; }

}  // namespace tessera::nccl
