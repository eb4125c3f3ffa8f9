// SPDX-License-Identifier: Apache-2.0
//
// Shards given and taken as DLPack structures, by the rows of tests/facts/dlpack.md. A row's name
// is that of a test, or of a row of a table.
#include "files/dlpack.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "device/cpu/arena.h"
#include "device/cuda/cuda_device.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "dtensor/relayout.h"
#include "dtensor/runtime.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked.h"
#include "tests/support/gate.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;

class GiveTest : public JobFormTest {};
class TakeTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, GiveTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, GiveTest, ::testing::ValuesIn(cuda_forms()), job_form_name);
INSTANTIATE_TEST_SUITE_P(Forms, TakeTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, TakeTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

// "DLPack: the structures".

TEST(StructuresTest, DltensorFields) {
  EXPECT_EQ(sizeof(DLTensor), 48u);
  EXPECT_EQ(offsetof(DLTensor, data), 0u);
  EXPECT_EQ(offsetof(DLTensor, device), 8u);
  EXPECT_EQ(offsetof(DLDevice, device_type), 0u);
  EXPECT_EQ(offsetof(DLDevice, device_id), 4u);
  EXPECT_EQ(offsetof(DLTensor, ndim), 16u);
  EXPECT_EQ(offsetof(DLTensor, dtype), 20u);
  EXPECT_EQ(offsetof(DLDataType, code), 0u);
  EXPECT_EQ(offsetof(DLDataType, bits), 1u);
  EXPECT_EQ(offsetof(DLDataType, lanes), 2u);
  EXPECT_EQ(offsetof(DLTensor, shape), 24u);
  EXPECT_EQ(offsetof(DLTensor, strides), 32u);
  EXPECT_EQ(offsetof(DLTensor, byte_offset), 40u);
}

TEST(StructuresTest, ManagedFields) {
  EXPECT_EQ(sizeof(DLManagedTensorVersioned), 80u);
  EXPECT_EQ(offsetof(DLManagedTensorVersioned, version), 0u);
  EXPECT_EQ(offsetof(DLPackVersion, minor), 4u);
  EXPECT_EQ(offsetof(DLManagedTensorVersioned, manager_ctx), 8u);
  EXPECT_EQ(offsetof(DLManagedTensorVersioned, deleter), 16u);
  EXPECT_EQ(offsetof(DLManagedTensorVersioned, flags), 24u);
  EXPECT_EQ(offsetof(DLManagedTensorVersioned, dl_tensor), 32u);
}

// The structure before DLPack 1.0.
struct Legacy {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(Legacy* self);
};

TEST(StructuresTest, LegacyFields) {
  EXPECT_EQ(sizeof(Legacy), 64u);
  EXPECT_EQ(offsetof(Legacy, manager_ctx), 48u);
  EXPECT_EQ(offsetof(Legacy, deleter), 56u);
  EXPECT_FALSE((std::is_invocable_v<decltype(from_dlpack), const Shape&, const LayoutArg&,
                                    absl::Span<Legacy* const>>));
}

TEST(StructuresTest, Flags) {
  EXPECT_EQ(kDLFlagReadOnly, 1u);
  EXPECT_EQ(kDLFlagIsCopied, 2u);
  EXPECT_EQ(kDLFlagIsSubbyteTypePadded, 4u);
}

struct CallDeleter {
  void operator()(DLManagedTensorVersioned* managed) const { managed->deleter(managed); }
};
using Given = std::unique_ptr<DLManagedTensorVersioned, CallDeleter>;

StatusOr<Given> give(const DTensor& tensor, int local_device) {
  TESSERA_ASSIGN_OR_RETURN(DLManagedTensorVersioned* const managed,
                           to_dlpack(tensor, local_device));
  return Given(managed);
}

// The number of a global device among the local shards of a mesh; nothing where it is another
// client's.
std::optional<int> shard_on(const Client& client, const Mesh& mesh, int device_id) {
  int shard = 0;
  for (const Device& device : client.local_devices()) {
    if (device.id == device_id) return shard;
    if (mesh.position_of_device(device.id).has_value()) ++shard;
  }
  return std::nullopt;
}

bool is_on_host(const DLManagedTensorVersioned& managed) {
  return managed.dl_tensor.device.device_type == kDLCPU;
}

TEST_P(GiveTest, Devices) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        const DTensor x = iota<float>({8}, Layout::parse(mesh, "[x]"));
        for (int i = 0; i < x.num_local_shards(); ++i) {
          TESSERA_ASSIGN_OR_RETURN(const Given given, give(x, i));
          const auto* gpu =
              dynamic_cast<const cuda::CudaDevice*>(&internal::runtime_of(client)->device(i));
          TESSERA_REQUIRE(given->dl_tensor.device.device_type == (gpu == nullptr ? 1 : 2));
          TESSERA_REQUIRE(given->dl_tensor.device.device_id == (gpu == nullptr ? 0 : gpu->gpu()));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

struct DTypeRow {
  const char* name;
  DType dtype;
  DLDataType expected;
};
constexpr DTypeRow kDTypeRows[] = {
    {"dtype_bool", DType::kBool, {6, 8, 1}},      {"dtype_i8", DType::kInt8, {0, 8, 1}},
    {"dtype_u8", DType::kUint8, {1, 8, 1}},       {"dtype_i32", DType::kInt32, {0, 32, 1}},
    {"dtype_i64", DType::kInt64, {0, 64, 1}},     {"dtype_f16", DType::kFloat16, {2, 16, 1}},
    {"dtype_bf16", DType::kBFloat16, {4, 16, 1}}, {"dtype_f32", DType::kFloat32, {2, 32, 1}},
    {"dtype_f64", DType::kFloat64, {2, 64, 1}},
};

// A tensor is taken as it was given: with the same dtype and values.
TEST_P(GiveTest, EachDType) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        const StatusOr<Layout> columns = Layout::parse(mesh, "[-, x]");
        const Shape shape = {3, 11};
        for (const DTypeRow& row : kDTypeRows) {
          const Status status = visit_dtype(row.dtype, [&]<class T>() -> Status {
            const DTensor x = iota<T>(shape, columns);
            std::vector<DLManagedTensorVersioned*> shards;
            bool on_host = true;
            for (int i = 0; i < x.num_local_shards(); ++i) {
              TESSERA_ASSIGN_OR_RETURN(DLManagedTensorVersioned* const shard, to_dlpack(x, i));
              const DLDataType dtype = shard->dl_tensor.dtype;
              TESSERA_REQUIRE(dtype.code == row.expected.code && dtype.bits == row.expected.bits &&
                              dtype.lanes == row.expected.lanes);
              on_host = on_host && is_on_host(*shard);
              shards.push_back(shard);
            }
            const DTensor y = from_dlpack(shape, columns, shards);
            if (!on_host) return expect_error(y.await(), StatusCode::kUnimplemented, {"(2, "});
            TESSERA_REQUIRE(y.dtype() == row.dtype);
            return expect_iota<T>(y);
          });
          TESSERA_RETURN_IF_ERROR(with_context(status, row.name));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// "DLPack: giving a shard away".

// Checks the structure of device `device_id`, which has this dense shard; other clients pass.
template <class T>
Status expect_given(const Client& client, const DTensor& x, int device_id,
                    const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                    const std::vector<T>& elements) {
  const std::optional<int> shard = shard_on(client, x.layout().mesh(), device_id);
  if (!shard.has_value()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const Given given, give(x, *shard));
  const DLTensor& tensor = given->dl_tensor;
  TESSERA_REQUIRE(given->version.major == 1 && (given->flags & kDLFlagReadOnly) != 0);
  TESSERA_REQUIRE(tensor.ndim == static_cast<int32_t>(shape.size()) && tensor.byte_offset == 0);
  TESSERA_REQUIRE(std::vector<int64_t>(tensor.shape, tensor.shape + tensor.ndim) == shape);
  TESSERA_REQUIRE(std::vector<int64_t>(tensor.strides, tensor.strides + tensor.ndim) == strides);
  TESSERA_REQUIRE(reinterpret_cast<uintptr_t>(tensor.data) % 64 == 0);
  TESSERA_REQUIRE((tensor.data == nullptr) == elements.empty());
  if (!is_on_host(*given) || elements.empty()) return absl::OkStatus();
  TESSERA_REQUIRE(std::memcmp(tensor.data, elements.data(), elements.size() * sizeof(T)) == 0);
  return absl::OkStatus();
}

TEST_P(GiveTest, GiveRows) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
                const DTensor x = iota<float>({8, 6}, Layout::parse(mesh, "[x, -]"));
                return expect_given<float>(client, x, 1, {2, 6}, {6, 1},
                                           {12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23});
              }),
              IsOk());
}

TEST_P(GiveTest, GiveRankThree) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                const DTensor x = iota<int8_t>({4, 5, 6}, Layout::parse(mesh, "[x, -, -]"));
                std::vector<int8_t> elements(60);
                std::iota(elements.begin(), elements.end(), int8_t{0});
                return expect_given<int8_t>(client, x, 0, {2, 5, 6}, {30, 6, 1}, elements);
              }),
              IsOk());
}

TEST_P(GiveTest, GiveScalar) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                const DTensor x = full<double>({}, 2.5, Layout::parse(mesh, "[]"));
                return expect_given<double>(client, x, 1, {}, {}, {2.5});
              }),
              IsOk());
}

TEST_P(GiveTest, GiveEmpty) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
                const DTensor x = iota<float>({3, 2}, Layout::parse(mesh, "[x, -]"));
                return expect_given<float>(client, x, 3, {0, 2}, {2, 1}, {});
              }),
              IsOk());
}

// Rows 1, 3, 5 and 7 begin at bytes that are no multiples of 64 in the memory of the source.
TEST_P(GiveTest, GivesAViewAligned) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const DTensor whole = iota<float>({8, 6}, Layout::parse(mesh, "[-, -]"));
                const DTensor x = relayout(whole, Layout::parse(mesh, "[x, -]"));
                for (int d = 0; d < 8; ++d) {
                  std::vector<float> row(6);
                  std::iota(row.begin(), row.end(), static_cast<float>(6 * d));
                  TESSERA_RETURN_IF_ERROR(expect_given<float>(client, x, d, {1, 6}, {6, 1}, row));
                  if (const std::optional<int> shard = shard_on(client, mesh, d)) {
                    TESSERA_ASSIGN_OR_RETURN(const Given given, give(x, *shard));
                    const bool is_copied = (given->flags & kDLFlagIsCopied) != 0;
                    TESSERA_REQUIRE(is_copied == (d * 24 % 64 != 0), "device ", d);
                  }
                }
                return absl::OkStatus();
              }),
              IsOk());
}

// The live bytes in the memory of a device of the client.
uint64_t live_bytes(const Client& client) {
  Runtime& runtime = *internal::runtime_of(client);
  const auto* gpu = dynamic_cast<const cuda::CudaDevice*>(&runtime.device(0));
  return gpu == nullptr ? runtime.devices().host_memory()->live_bytes()
                        : gpu->slabs()->live_bytes();
}

TEST_P(GiveTest, GiveOutlivesTheTensor) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        TESSERA_RETURN_IF_ERROR(client.sync_devices());
        const uint64_t before = live_bytes(client);
        std::optional<DTensor> x = iota<float>({8 * 1024}, Layout::parse(mesh, "[x]"));
        TESSERA_ASSIGN_OR_RETURN(Given given, give(*x, 0));
        x.reset();
        TESSERA_RETURN_IF_ERROR(client.sync_devices());
        TESSERA_REQUIRE(live_bytes(client) == before + 4096, live_bytes(client) - before, " bytes");
        given.reset();
        TESSERA_REQUIRE(live_bytes(client) == before, live_bytes(client) - before, " bytes left");
        return absl::OkStatus();
      }),
      IsOk());
}

TEST(GiveOutlivesTest, TheClient) {
  const auto run_job = []() -> Status {
    std::vector<Given> all_given;
    const auto body = [&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
      const DTensor x = iota<float>({6}, Layout::parse(mesh, "[x]"));
      for (int i = 0; i < 2; ++i) {
        TESSERA_ASSIGN_OR_RETURN(Given given, give(x, i));
        all_given.push_back(std::move(given));
      }
      return client.shutdown();
    };
    TESSERA_RETURN_IF_ERROR(run_threads({.num_clients = 1, .devices_per_client = 2}, body)[0]);
    for (int i = 0; i < 2; ++i) {
      const auto* data = static_cast<const float*>(all_given[i]->dl_tensor.data);
      TESSERA_REQUIRE(std::vector<float>(data, data + 3) ==
                      std::vector<float>({i * 3.0f, i * 3.0f + 1, i * 3.0f + 2}));
    }
    return absl::OkStatus();  // the deleters are called without a client
  };
  EXPECT_THAT(run_isolated(absl::Seconds(60), run_job), IsOk());
}

TEST_P(GiveTest, GiveTwice) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        const DTensor x = iota<float>({16}, Layout::parse(mesh, "[x]"));
        for (const bool first_goes_first : {true, false}) {
          TESSERA_ASSIGN_OR_RETURN(Given first, give(x, 0));
          TESSERA_ASSIGN_OR_RETURN(Given second, give(x, 0));
          TESSERA_REQUIRE(first != second && first->dl_tensor.data == second->dl_tensor.data);
          (first_goes_first ? first : second).reset();
        }
        return absl::OkStatus();
      }),
      IsOk());
}

TEST_P(GiveTest, GiveWaits) {
  if (GetParam().num_gpus != 0) GTEST_SKIP() << "the function writes memory of the host";
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                Gate gate;
                const DTensor x =
                    local_map(Layout::parse(mesh, "[x]"), {8}, DType::kFloat32, {},
                              [&](LocalContext& local) -> Status {
                                TESSERA_RETURN_IF_ERROR(gate.wait());
                                const MutableShardView<float> out = local.output<float>();
                                out.data[0] = static_cast<float>(local.device_id() + 1);
                                return absl::OkStatus();
                              });
                std::thread opener([&] { gate.open(8); });
                const StatusOr<Given> given = give(x, 0);
                opener.join();
                TESSERA_RETURN_IF_ERROR(given.status());
                TESSERA_REQUIRE(*static_cast<const float*>((*given)->dl_tensor.data) ==
                                static_cast<float>(client.local_devices()[0].id + 1));
                return x.await();
              }),
              IsOk());
}

TEST_P(GiveTest, GiveFailed) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const DTensor no_layout = iota<float>({8}, Layout::parse(mesh, "[q]"));
                TESSERA_RETURN_IF_ERROR(expect_error(to_dlpack(no_layout, 0).status(),
                                                     StatusCode::kInvalidArgument, {"\"q\""}));
                const DTensor x = from_shards<float>({8}, Layout::parse(mesh, "[x]"), {});
                return expect_error(to_dlpack(x, 0).status(), StatusCode::kInvalidArgument,
                                    {"from_shards", "got 0"});
              }),
              IsOk());
}

TEST_P(GiveTest, GivePartial) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                const DTensor x = full<float>({2}, 7, Layout::parse(mesh, "[-] sum{x}"));
                TESSERA_RETURN_IF_ERROR(expect_given<float>(client, x, 0, {2}, {1}, {7, 7}));
                return expect_given<float>(client, x, 1, {2}, {1}, {0, 0});
              }),
              IsOk());
}

TEST_P(GiveTest, GiveBadIndex) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const DTensor x = iota<float>({8}, Layout::parse(mesh, "[x]"));
                for (const int index : {-1, x.num_local_shards()}) {
                  TESSERA_RETURN_IF_ERROR(
                      expect_error(to_dlpack(x, index).status(), StatusCode::kInvalidArgument,
                                   {absl::StrCat("to_dlpack(", index, ") is out of range")}));
                }
                return absl::OkStatus();
              }),
              IsOk());
}

// Replicas on CPUs share memory, so a library that ignores the flag would write to all of them.
TEST_P(GiveTest, ReadersAndReadOnly) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        const DTensor x = iota<float>({4}, Layout::parse(mesh, "[-]"));
        TESSERA_ASSIGN_OR_RETURN(const Given first, give(x, 0));
        TESSERA_ASSIGN_OR_RETURN(const Given last, give(x, x.num_local_shards() - 1));
        TESSERA_REQUIRE(!is_on_host(*first) || first->dl_tensor.data == last->dl_tensor.data);
        TESSERA_REQUIRE((first->flags & last->flags & kDLFlagReadOnly) != 0);
        return absl::OkStatus();
      }),
      IsOk());
}

// "DLPack: taking shards".

// An array of another library. Its deleter may be called once, and makes its elements NaN.
class Array {
 public:
  // `strides`: none for null.
  Array(std::vector<float> memory, std::vector<int64_t> shape, std::vector<int64_t> strides)
      : memory_(std::move(memory)), shape_(std::move(shape)), strides_(std::move(strides)) {
    managed_.version = {1, 0};
    managed_.manager_ctx = this;
    managed_.deleter = [](DLManagedTensorVersioned* self) {
      auto& array = *static_cast<Array*>(self->manager_ctx);
      ++array.num_deleted_;
      std::memset(array.memory_.data(), 0xff, array.memory_.size() * sizeof(float));
    };
    managed_.dl_tensor = {.data = memory_.data(),
                          .device = {kDLCPU, 0},
                          .ndim = static_cast<int32_t>(shape_.size()),
                          .dtype = {kDLFloat, 32, 1},
                          .shape = shape_.data(),
                          .strides = strides_.empty() ? nullptr : strides_.data(),
                          .byte_offset = 0};
  }
  // With the elements 0 to 31.
  explicit Array(std::vector<int64_t> shape, std::vector<int64_t> strides = {})
      : Array(std::vector<float>(32), std::move(shape), std::move(strides)) {
    std::iota(memory_.begin(), memory_.end(), 0.0f);
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  DLManagedTensorVersioned& managed() { return managed_; }
  int num_deleted() const { return num_deleted_; }

 private:
  std::vector<float> memory_;
  std::vector<int64_t> shape_;
  std::vector<int64_t> strides_;
  DLManagedTensorVersioned managed_ = {};
  int num_deleted_ = 0;
};

// The tensor whose shards are these arrays on the local devices of the mesh.
DTensor take(const Shape& shape, const LayoutArg& layout, std::list<Array>& arrays) {
  std::vector<DLManagedTensorVersioned*> local;
  for (Array& array : arrays) local.push_back(&array.managed());
  return from_dlpack(shape, layout, local);
}

Status expect_deleted_once(const std::list<Array>& arrays) {
  for (const Array& array : arrays) {
    TESSERA_REQUIRE(array.num_deleted() == 1, array.num_deleted(), " calls of a deleter");
  }
  return absl::OkStatus();
}

// The change of a row in a structure over the elements 0 to 31.
using Change = void (*)(DLManagedTensorVersioned& managed);

struct TakeRow {
  const char* name;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // none: null
  Change change;
  std::vector<float> expected;
};
const TakeRow kTakeRows[] = {
    {"take_plain", {2, 3}, {3, 1}, nullptr, {0, 1, 2, 3, 4, 5}},
    {"take_null_strides", {2, 3}, {}, nullptr, {0, 1, 2, 3, 4, 5}},
    {"take_byte_offset", {2}, {1}, [](auto& m) { m.dl_tensor.byte_offset = 8; }, {2, 3}},
    {"take_unaligned",
     {2},
     {1},
     [](auto& m) {
       std::memmove(static_cast<std::byte*>(m.dl_tensor.data) + 2, m.dl_tensor.data, 8);
       m.dl_tensor.byte_offset = 2;
     },
     {0, 1}},
    {"take_transposed", {6, 4}, {1, 6}, nullptr, {0, 6, 12, 18, 1, 7,  13, 19, 2, 8,  14, 20,
                                                  3, 9, 15, 21, 4, 10, 16, 22, 5, 11, 17, 23}},
    {"take_negative",
     {3},
     {-1},
     [](auto& m) { m.dl_tensor.data = static_cast<float*>(m.dl_tensor.data) + 2; },
     {2, 1, 0}},
    {"take_broadcast", {3}, {0}, [](auto& m) { m.dl_tensor.byte_offset = 4; }, {1, 1, 1}},
    {"take_size_one", {1, 3}, {12345, 1}, nullptr, {0, 1, 2}},
    {"take_empty", {0, 3}, {3, 1}, [](auto& m) { m.dl_tensor.data = nullptr; }, {}},
    {"take_scalar",
     {},
     {},
     [](auto& m) {
       m.dl_tensor.shape = nullptr;
       m.dl_tensor.byte_offset = 20;
     },
     {5}},
    {"take_minor", {2}, {1}, [](auto& m) { m.version.minor = 99; }, {0, 1}},
    {"take_unknown_flag", {2}, {1}, [](auto& m) { m.flags |= uint64_t{1} << 40; }, {0, 1}},
    {"take_cpu_id", {2}, {1}, [](auto& m) { m.dl_tensor.device.device_id = 3; }, {0, 1}},
    {"take_pinned", {2}, {1}, [](auto& m) { m.dl_tensor.device.device_type = 3; }, {0, 1}},
};

// Device 0 has the tensor. Clients without a device in the mesh give no arrays.
TEST_P(TakeTest, Takes) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=1}"));
        for (const TakeRow& row : kTakeRows) {
          const auto rank = static_cast<int>(row.shape.size());
          std::list<Array> arrays;
          if (client.client_id() == 0) {
            Array& array = arrays.emplace_back(row.shape, row.strides);
            if (row.change != nullptr) row.change(array.managed());
          }
          const DTensor x = take(row.shape, Layout::replicated(mesh, rank), arrays);
          TESSERA_RETURN_IF_ERROR(with_context(expect_deleted_once(arrays), row.name));
          TESSERA_REQUIRE(x.dtype() == DType::kFloat32, row.name);
          TESSERA_RETURN_IF_ERROR(with_context(
              expect_shards<float>(x, [&](int64_t i) { return row.expected[i]; }), row.name));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

TEST_P(TakeTest, TakeNullDeleter) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=1}"));
                std::list<Array> arrays;
                if (client.client_id() == 0) {
                  arrays.emplace_back(Shape{4}).managed().deleter = nullptr;
                }
                const DTensor x = take({4}, Layout::parse(mesh, "[-]"), arrays);
                return expect_iota<float>(x);
              }),
              IsOk());
}

struct RefuseRow {
  const char* name;
  Shape tensor;
  std::vector<int64_t> array;  // its shape
  Change change;
  StatusCode code;
  std::vector<std::string> texts;
};
constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
constexpr int64_t kHuge = int64_t{1} << 40;
const RefuseRow kRefuseRows[] = {
    {"refuse_major",
     {2},
     {2},
     [](auto& m) {
       m.version = {2, 0};
       std::memset(static_cast<void*>(&m.dl_tensor), 0xff, sizeof m.dl_tensor);
     },
     kInvalid,
     {"DLPack version 2.0"}},
    {"refuse_lanes", {2}, {2}, [](auto& m) { m.dl_tensor.dtype.lanes = 2; }, kInvalid, {"lanes 2"}},
    {"refuse_bit_bool",
     {2},
     {2},
     [](auto& m) {
       m.dl_tensor.dtype = {kDLBool, 1, 1};
     },
     kInvalid,
     {"a bool has 8 bits"}},
    {"refuse_code", {2}, {2}, [](auto& m) { m.dl_tensor.dtype.code = 99; }, kInvalid, {"code 99"}},
    {"refuse_u16",
     {2},
     {2},
     [](auto& m) {
       m.dl_tensor.dtype = {kDLUInt, 16, 1};
     },
     StatusCode::kUnimplemented,
     {"is u16"}},
    {"refuse_fp8",
     {2},
     {2},
     [](auto& m) {
       m.dl_tensor.dtype = {10, 8, 1};
     },
     StatusCode::kUnimplemented,
     {"float8_e4m3fn"}},
    {"refuse_device",
     {2},
     {2},
     [](auto& m) {
       m.dl_tensor.device = {77, 0};
     },
     kInvalid,
     {"(77, 0)"}},
    {"refuse_null_data",
     {2},
     {2},
     [](auto& m) { m.dl_tensor.data = nullptr; },
     kInvalid,
     {"data is null", "[2]"}},
    {"refuse_null_shape",
     {2},
     {2},
     [](auto& m) { m.dl_tensor.shape = nullptr; },
     kInvalid,
     {"shape"}},
    {"refuse_ndim", {2}, {2}, [](auto& m) { m.dl_tensor.ndim = -1; }, kInvalid, {"ndim -1"}},
    {"refuse_ndim_255", {2}, {2}, [](auto& m) { m.dl_tensor.ndim = 255; }, kInvalid, {"ndim 255"}},
    {"refuse_negative_size", {2, 3}, {-1, 3}, nullptr, kInvalid, {"[-1, 3]"}},
    {"refuse_overflow", {2, 3}, {kHuge, kHuge}, nullptr, kInvalid, {"more elements than"}},
    {"refuse_box", {2, 5}, {2, 6}, nullptr, kInvalid, {"device 0", "[0:2, 0:5]", "[2, 6]"}},
};

TEST_P(TakeTest, Refuses) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=1}"));
                if (client.client_id() != 0) return absl::OkStatus();
                for (const RefuseRow& row : kRefuseRows) {
                  const auto rank = static_cast<int>(row.tensor.size());
                  std::list<Array> arrays;
                  Array& array = arrays.emplace_back(row.array);
                  if (row.change != nullptr) row.change(array.managed());
                  const DTensor x = take(row.tensor, Layout::replicated(mesh, rank), arrays);
                  std::vector<std::string> texts = {"from_dlpack: the shard of device 0 under ["};
                  texts.insert(texts.end(), row.texts.begin(), row.texts.end());
                  Status status = expect_error(x.await(), row.code, texts);
                  status.Update(expect_deleted_once(arrays));
                  TESSERA_RETURN_IF_ERROR(with_context(status, row.name));
                }
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(TakeTest, RefuseDeviceOfAGpu) {
  const bool on_gpu = GetParam().num_gpus != 0;
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=1}"));
                if (client.client_id() != 0) return absl::OkStatus();
                std::list<Array> arrays;
                arrays.emplace_back(Shape{2}).managed().dl_tensor.device = {kDLCUDA, 0};
                const DTensor x = take({2}, Layout::parse(mesh, "[-]"), arrays);
                TESSERA_RETURN_IF_ERROR(expect_deleted_once(arrays));
                return expect_error(x.await(), on_gpu ? StatusCode::kUnimplemented : kInvalid,
                                    {"device (2, 0); give memory of the host"});
              }),
              IsOk());
}

TEST_P(TakeTest, RefuseMixed) {
  if (GetParam().devices_per_client == 1) GTEST_SKIP() << "needs two devices per client";
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                if (client.client_id() != 0) return absl::OkStatus();
                std::list<Array> arrays;
                arrays.emplace_back(Shape{1});
                arrays.emplace_back(Shape{1}).managed().dl_tensor.dtype.bits = 64;
                const DTensor x = take({2}, Layout::parse(mesh, "[x]"), arrays);
                TESSERA_RETURN_IF_ERROR(expect_deleted_once(arrays));
                return expect_error(x.await(), kInvalid, {"device 0 is f32", "device 1", "f64"});
              }),
              IsOk());
}

// Three shards in all; that of device 1 is refused. All clients learn it with the next collective.
TEST_P(TakeTest, DeletersOnError) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=3}"));
        std::list<Array> arrays;
        bool is_refused = false;
        for (const Device& device : client.local_devices()) {
          if (device.id >= 3) continue;
          Array& array = arrays.emplace_back(Shape{1});
          if (device.id == 1) array.managed().dl_tensor.data = nullptr;
          is_refused = is_refused || device.id == 1;
        }
        const DTensor x = take({3}, Layout::parse(mesh, "[x]"), arrays);
        TESSERA_RETURN_IF_ERROR(expect_deleted_once(arrays));
        if (arrays.empty()) return absl::OkStatus();
        TESSERA_REQUIRE(x.await().ok() == !is_refused);
        return expect_error(x.to_host<float>().status(), kInvalid, {"device 1", "data is null"});
      }),
      IsOk());
}

// Each error that is found before a structure is read.
TEST_P(TakeTest, DeletersOnErrorsOfTheCall) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const auto expect = [&](const Shape& shape, const LayoutArg& layout,
                                        size_t num_arrays, const std::string& text) -> Status {
                  std::list<Array> arrays;
                  for (size_t i = 0; i < num_arrays; ++i) arrays.emplace_back(Shape{1});
                  const DTensor x = take(shape, layout, arrays);
                  TESSERA_RETURN_IF_ERROR(expect_deleted_once(arrays));
                  return expect_error(x.await(), kInvalid, {text});
                };
                const size_t n = client.local_devices().size();
                const StatusOr<Layout> rows = Layout::parse(mesh, "[x]");
                TESSERA_RETURN_IF_ERROR(expect({8}, Layout::parse(mesh, "[q]"), n, "\"q\""));
                TESSERA_RETURN_IF_ERROR(expect({8, 1}, rows, n, "[8, 1]"));
                TESSERA_RETURN_IF_ERROR(expect({-8}, rows, n, "[-8]"));
                for (const size_t count : {size_t{0}, n - 1, n + 1}) {
                  TESSERA_RETURN_IF_ERROR(
                      expect({8}, rows, count, absl::StrCat("expected ", n, " shards, ")));
                }
                const std::vector<DLManagedTensorVersioned*> nulls(n, nullptr);
                TESSERA_RETURN_IF_ERROR(
                    expect_error(from_dlpack({8}, rows, nulls).await(), kInvalid, {"is null"}));
                // One structure for all devices is released once.
                Array array({1});
                const std::vector<DLManagedTensorVersioned*> same(n, &array.managed());
                TESSERA_RETURN_IF_ERROR(from_dlpack({8}, rows, same).await());
                TESSERA_REQUIRE(array.num_deleted() == 1);
                return absl::OkStatus();
              }),
              IsOk());
}

// Replicas of different strides are compared by their elements.
TEST_P(TakeTest, ReplicasMustBeEqual) {
  if (GetParam().devices_per_client == 1) GTEST_SKIP() << "needs two devices per client";
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
        if (client.client_id() != 0) return absl::OkStatus();
        const StatusOr<Layout> whole = Layout::parse(mesh, "[-]");
        std::list<Array> equal;
        equal.emplace_back(std::vector<float>{5, 0, 6}, Shape{2}, Shape{2});
        equal.emplace_back(std::vector<float>{5, 6}, Shape{2}, Shape{1});
        TESSERA_RETURN_IF_ERROR(expect_shards<float>(
            take({2}, whole, equal), [](int64_t i) { return 5.0f + static_cast<float>(i); }));
        std::list<Array> different;
        different.emplace_back(std::vector<float>{5, 0, 6}, Shape{2}, Shape{2});
        different.emplace_back(std::vector<float>{5, 7}, Shape{2}, Shape{1});
        TESSERA_RETURN_IF_ERROR(expect_error(take({2}, whole, different).await(), kInvalid,
                                             {"device 1", "device 0", "replicas must be equal"}));
        return expect_deleted_once(different);
      }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
