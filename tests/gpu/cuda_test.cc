// SPDX-License-Identifier: Apache-2.0
//
// Clients whose devices are GPUs, on the fakes of CUDA and NCCL: what differs from CPUs. What
// does not is in the suites that also run on them (job_forms.h).
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/group.h"
#include "collectives/nccl/fake/fake_nccl.h"
#include "collectives/nccl/open_api.h"
#include "compute/cuda/fake/fake_math.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/fake/fake_cuda.h"
#include "device/cuda/kernel_plan.h"
#include "device/cuda/open_api.h"
#include "device/device_span.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "dtensor/relayout.h"
#include "dtensor/runtime.h"
#include "dtensor/tensor_access.h"
#include "dtensor/tensor_rep.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/environment/port.h"
#include "tests/support/clients.h"
#include "tests/support/forked.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/shared.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

const cuda::CudaDevice& gpu_device(const Client& client, int ordinal) {
  return dynamic_cast<cuda::CudaDevice&>(internal::runtime_of(client)->device(ordinal));
}

using cuda::fake_libraries;
using cuda::FakeCuda;
using ::testing::AllOf;
using ::testing::HasSubstr;

ClientOptions on_gpus() { return {.device_type = DeviceType::kCuda}; }

// One client of `num_devices` on the fake.
Status run(const std::shared_ptr<FakeCuda>& api, int num_devices, const ClientBody& body) {
  return run_clients({.devices_per_client = num_devices,
                      .options = on_gpus(),
                      .hooks = {.cuda = fake_libraries(api)}},
                     [&](Client& client) -> Status {
                       TESSERA_RETURN_IF_ERROR(body(client));
                       TESSERA_REQUIRE(api->misuses().empty(), api->misuses()[0]);
                       return absl::OkStatus();
                     });
}

// A local function that adds two inputs by a kernel on the device's stream.
LocalFn add_by(std::shared_ptr<cuda::Api> api) {
  return [api = std::move(api)](LocalContext& local) -> Status {
    const ShardView<float> a = local.input<float>(0);
    const ShardView<float> b = local.input<float>(1);
    const MutableShardView<float> out = local.output<float>();
    const std::byte* const terms[] = {reinterpret_cast<const std::byte*>(a.data.data()),
                                      reinterpret_cast<const std::byte*>(b.data.data())};
    std::byte* const outs[] = {reinterpret_cast<std::byte*>(out.data.data())};
    for (const cuda::Reduce& reduce : cuda::plan_reduce(
             DType::kFloat32, ReduceOp::kSum, terms, outs, static_cast<int64_t>(a.data.size()))) {
      TESSERA_RETURN_IF_ERROR(
          api->launch(reduce, static_cast<cuda::StreamHandle>(local.cuda_stream())));
    }
    return absl::OkStatus();
  };
}

TEST(CudaClientTest, SaysWhatIsMissingWithoutAGpu) {
  if (cuda::open_api().ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(
      run_isolated(absl::Seconds(30),
                   [] {
                     ClientOptions options;
                     options.device_type = DeviceType::kCuda;
                     return Client::connect(options).status();
                   }),
      cuda::has_toolkit()
          ? StatusIs(absl::StatusCode::kFailedPrecondition,
                     HasSubstr("device_type kCuda needs an NVIDIA GPU and its driver, for CUDA "))
          : StatusIs(absl::StatusCode::kUnimplemented,
                     HasSubstr("device_type kCuda is not in this build, which found no CUDA "
                               "toolkit; install CUDA ")));
}

TEST(CudaClientTest, HasADeviceForEachGpuWhereNobodySays) {
  const auto api = FakeCuda::create({.num_gpus = 3});
  EXPECT_THAT(run_isolated(absl::Seconds(30),
                           [&]() -> Status {
                             TESSERA_ASSIGN_OR_RETURN(
                                 Client client,
                                 internal::connect(on_gpus(), {.cuda = fake_libraries(api)}));
                             TESSERA_REQUIRE(client.local_devices().size() == 3);
                             TESSERA_REQUIRE(client.local_devices()[2].type == DeviceType::kCuda);
                             TESSERA_REQUIRE(gpu_device(client, 2).gpu() == 2);
                             return client.shutdown();
                           }),
              IsOk());
}

// A context takes some 500 MB: a client makes none on GPUs that it does not use.
TEST(CudaClientTest, HasContextsOnItsOwnGpusAlone) {
  const auto api = FakeCuda::create({.num_gpus = 4});
  const auto nccl = nccl::FakeNccl::create(api);
  EXPECT_THAT(run_clients({.num_clients = 2,
                           .devices_per_client = 1,
                           .options = on_gpus(),
                           .hooks = {.cuda = fake_libraries(api), .nccl = nccl}},
                          [&](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                            const DTensor x = iota<float>({8}, Layout::parse(mesh, "[x]"));
                            TESSERA_RETURN_IF_ERROR(
                                expect_iota<float>(relayout(x, Layout::parse(mesh, "[-]"))));
                            TESSERA_REQUIRE(api->contexts() == std::set<int>({0, 1}));
                            return absl::OkStatus();
                          }),
              IsOk());
}

// On the fake and, with $TESSERA_TEST_GPU, on a GPU of the machine.
class LocalFunctionsOnGpusTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Cuda, LocalFunctionsOnGpusTest, ::testing::ValuesIn(cuda_forms()),
                         job_form_name);

TEST_P(LocalFunctionsOnGpusTest, WorkOnTheStream) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                const auto rows = Layout::parse(mesh, "[x, -]");
                const DTensor a = iota<float>({20, 3}, rows);
                const auto& device =
                    dynamic_cast<cuda::CudaDevice&>(internal::runtime_of(client)->device(0));
                const DTensor sum =
                    local_map(rows, {20, 3}, DType::kFloat32, {a, full<float>({20, 3}, 0.5f, rows)},
                              add_by(device.queue().api()));
                const DTensor columns = relayout(sum, Layout::parse(mesh, "[-, x]"));
                TESSERA_RETURN_IF_ERROR(expect_shards<float>(
                    columns, [](int64_t i) { return static_cast<float>(i) + 0.5f; }));
                TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> whole, sum.to_host<float>());
                TESSERA_REQUIRE(whole.data[59] == 59.5f);
                return client.sync_devices();
              }),
              IsOk());
}

// Terms of a partial layout from local functions: their sum has the bits of the CPU's.
TEST(CudaClientTest, SumsHaveTheBitsOfTheCpu) {
  const std::vector<float> values = {1e8f, 1.0f, -1e8f, 0.1f, 3e-5f, 7.0f, -0.3f, 1e-7f};
  for (const DeviceType type : {DeviceType::kCpu, DeviceType::kCuda}) {
    EXPECT_THAT(run_clients({.devices_per_client = 8,
                             .options = {.device_type = type},
                             .hooks = {.cuda = fake_libraries(FakeCuda::create())}},
                            [&](Client& client) -> Status {
                              TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                              std::vector<HostTensor<float>> terms;
                              for (const float value : values) terms.push_back({{1}, {value}});
                              const DTensor x =
                                  from_shards<float>({1}, Layout::parse(mesh, "[-] sum{x}"), terms);
                              TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> sum,
                                                       x.to_host<float>());
                              float want = values[0];
                              for (size_t k = 1; k < values.size(); ++k) want += values[k];
                              TESSERA_REQUIRE(sum.data[0] == want, sum.data[0]);
                              return absl::OkStatus();
                            }),
                IsOk());
  }
}

// A function is called once for a box that several GPUs hold.
TEST(CudaClientTest, ReplicasAreFilledByOneCall) {
  EXPECT_THAT(run(FakeCuda::create({.num_gpus = 2}), 4,
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2}"));
                    int calls = 0;
                    const DTensor x = from_function<int32_t>(
                        {6}, Layout::parse(mesh, "[x]"),
                        [&](const Box& box, absl::Span<int32_t> out) {
                          ++calls;
                          std::iota(out.begin(), out.end(), static_cast<int32_t>(box.offsets[0]));
                        });
                    TESSERA_REQUIRE(calls == 2, calls);
                    return expect_iota<int32_t>(x);
                  }),
              IsOk());
}

// The barrier returns only when the GPUs have done all earlier work.
TEST(CudaClientTest, BarriersAreBehindTheWorkOfTheGpu) {
  const auto api = FakeCuda::create();
  EXPECT_THAT(run(api, 2,
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                    api->hold();
                    const DTensor x = iota<float>({8}, Layout::parse(mesh, "[x]"));
                    const Status early = mesh.barrier("early", absl::Milliseconds(200));
                    api->release();
                    TESSERA_RETURN_IF_ERROR(expect_error(early, absl::StatusCode::kDeadlineExceeded,
                                                         {"barrier \"early\""}));
                    TESSERA_RETURN_IF_ERROR(mesh.barrier("late", absl::Seconds(20)));
                    TESSERA_REQUIRE(internal::TensorAccess::rep(x).buffers[0]->issued().done());
                    return expect_iota<float>(x);
                  }),
              IsOk());
}

// Calls return before the GPU has begun, however many they are, where pools need not grow: as
// CUDA's allocator does, that waits for the GPU.
TEST(CudaClientTest, NobodyWaitsForTheGpu) {
  const auto api = FakeCuda::create();
  EXPECT_THAT(run(api, 4,
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
                    const auto rows = Layout::parse(mesh, "[x, -]");
                    const auto columns = Layout::parse(mesh, "[-, x]");
                    const auto chain = [&] {
                      DTensor x = iota<int32_t>({9, 5}, rows);
                      for (int i = 0; i < 10; ++i) x = relayout(relayout(x, columns), rows);
                      return x;
                    };
                    TESSERA_RETURN_IF_ERROR(chain().await());
                    api->hold();
                    const DTensor x = chain();
                    for (const auto& buffer : internal::TensorAccess::rep(x).buffers) {
                      TESSERA_RETURN_IF_ERROR(buffer->issued().wait());
                      TESSERA_REQUIRE(!buffer->ready().done());
                    }
                    api->release();
                    return expect_iota<int32_t>(x);
                  }),
              IsOk());
}

// In a long chain of relayouts a device holds two tensors at a time.
TEST(CudaClientTest, IntermediateResultsGiveTheirMemoryBack) {
  const auto api = FakeCuda::create();
  EXPECT_THAT(run(api, 2,
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                    const int64_t shard_bytes = 512 * 1024 * 4 / 2;
                    DTensor x = iota<float>({512, 1024}, Layout::parse(mesh, "[x, -]"));
                    for (int i = 0; i < 20; ++i) {
                      x = relayout(std::move(x),
                                   Layout::parse(mesh, i % 2 == 0 ? "[-, x]" : "[x, -]"));
                    }
                    TESSERA_RETURN_IF_ERROR(expect_iota<float>(x));
                    const int64_t peak = gpu_device(client, 0).slabs()->peak_live_bytes();
                    TESSERA_REQUIRE(peak <= 2 * shard_bytes, peak);
                    return absl::OkStatus();
                  }),
              IsOk());
}

TEST(CudaClientTest, TooLittleMemoryIsTheTensorsError) {
  EXPECT_THAT(run(FakeCuda::create({.gpu_bytes = 16 << 20}), 2,
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                    const DTensor x = zeros<float>({1 << 24}, Layout::parse(mesh, "[x]"));
                    const DTensor whole = relayout(x, Layout::parse(mesh, "[-]"));
                    TESSERA_RETURN_IF_ERROR(expect_error(whole.await(),
                                                         absl::StatusCode::kResourceExhausted,
                                                         {"a buffer needs 32 MiB of GPU 0"}));
                    TESSERA_RETURN_IF_ERROR(
                        expect_error(client.sync_devices(), absl::StatusCode::kResourceExhausted));
                    return expect_iota<int32_t>(iota<int32_t>({6}, Layout::parse(mesh, "[x]")));
                  }),
              IsOk());
}

// A fault of the GPU is the error of the work under way, and of all later work.
TEST(CudaClientTest, ABrokenGpuIsEveryonesError) {
  const auto api = FakeCuda::create();
  EXPECT_THAT(run(api, 2,
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                    const DTensor x = iota<float>({8}, Layout::parse(mesh, "[x]"));
                    TESSERA_RETURN_IF_ERROR(x.await());
                    api->break_gpu(0, absl::InternalError("cudaErrorIllegalAddress"));
                    const DTensor whole = relayout(x, Layout::parse(mesh, "[-]"));
                    TESSERA_RETURN_IF_ERROR(expect_error(whole.await(), absl::StatusCode::kInternal,
                                                         {"IllegalAddress"}));
                    TESSERA_RETURN_IF_ERROR(expect_error(
                        mesh.barrier("b"), absl::StatusCode::kInternal, {"IllegalAddress"}));
                    api->break_gpu(0, absl::OkStatus());
                    return absl::OkStatus();
                  }),
              IsOk());
}

// Client 0 has CPUs, client 1 GPUs: both are told so.
Status connect_with_two_types() {
  TESSERA_ASSIGN_OR_RETURN(const ReservedPort port, ReservedPort::create());
  Status statuses[2];
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      ClientOptions options = on_gpus();
      if (i == 0) options.device_type = DeviceType::kCpu;
      options.coordinator = absl::StrCat("127.0.0.1:", port.port());
      options.client_id = i;
      options.num_clients = 2;
      options.token = "token";
      statuses[i] =
          internal::connect(options, {.cuda = fake_libraries(FakeCuda::create())}).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) {
    TESSERA_RETURN_IF_ERROR(expect_error(
        status, absl::StatusCode::kInvalidArgument,
        {"device_type differs between clients: client 0 has cpu, client 1 has cuda; give all"}));
  }
  return absl::OkStatus();
}

TEST(CudaClientTest, AllClientsHaveDevicesOfOneType) {
  EXPECT_THAT(run_isolated(absl::Seconds(60), connect_with_two_types), IsOk());
}

TEST(CudaClientTest, ReplicasDoNotShareMemory) {
  const auto api = FakeCuda::create({.num_gpus = 2});
  EXPECT_THAT(run_clients({.num_clients = 1,
                           .devices_per_client = 2,
                           .options = on_gpus(),
                           .hooks = {.cuda = fake_libraries(api)}},
                          [](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                            const DTensor x = iota<float>({8}, Layout::parse(mesh, "[x]"));
                            return expect_error(
                                relayout(x, Layout::parse(mesh, "[-]"), Replicas::kShared).await(),
                                absl::StatusCode::kUnimplemented,
                                {"replicas on GPUs do not share memory yet"});
                          }),
              IsOk());
}

// Clients of two devices, each on a GPU of its own, on the fakes of CUDA and NCCL.
struct SeveralClients {
  std::shared_ptr<FakeCuda> cuda = FakeCuda::create({.num_gpus = 4});
  std::shared_ptr<nccl::FakeNccl> nccl = nccl::FakeNccl::create(cuda);

  Status run(int num_clients, const ClientBody& body) const {
    return run_clients({.num_clients = num_clients,
                        .devices_per_client = 4 / num_clients,
                        .options = on_gpus(),
                        .hooks = {.cuda = fake_libraries(cuda), .nccl = nccl}},
                       [&](Client& client) -> Status {
                         TESSERA_RETURN_IF_ERROR(body(client));
                         TESSERA_REQUIRE(cuda->misuses().empty(), cuda->misuses()[0]);
                         TESSERA_REQUIRE(nccl->misuses().empty(), nccl->misuses()[0]);
                         return absl::OkStatus();
                       });
  }
};

TEST(CudaClientTest, GpusOfSeveralClientsMoveBytesByNccl) {
  const SeveralClients job;
  EXPECT_THAT(job.run(2,
                      [&](Client& client) -> Status {
                        // The clients of a host take its GPUs in turn.
                        TESSERA_REQUIRE(gpu_device(client, 1).gpu() == 2 * client.client_id() + 1);
                        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
                        const DTensor x = iota<float>({8, 3}, Layout::parse(mesh, "[x, -]"));
                        const DTensor columns = relayout(x, Layout::parse(mesh, "[-, x]"));
                        TESSERA_RETURN_IF_ERROR(expect_iota<float>(columns));
                        TESSERA_RETURN_IF_ERROR(
                            expect_iota<float>(relayout(columns, Layout::parse(mesh, "[-, -]"))));
                        TESSERA_RETURN_IF_ERROR(mesh.barrier("b", absl::Seconds(20)));
                        TESSERA_REQUIRE(job.nccl->num_calls("recv") > 0);
                        return client.sync_devices();
                      }),
              IsOk());
}

// A Work keeps its group, and the mover of it, which then goes after the client and its devices.
TEST(CudaClientTest, AWorkMayOutliveItsClient) {
  const SeveralClients job;
  const auto body = [](Client& client) -> Status {
    std::vector<Work> works;
    {
      Client last = std::move(client);
      const int first = 2 * last.client_id();
      std::vector<DeviceSpan<float>> memory;
      for (const int ordinal : {0, 1}) {
        TESSERA_ASSIGN_OR_RETURN(memory.emplace_back(), last.allocate<float>(ordinal, 8));
        DeviceSpan<float>& own = memory.back();
        TESSERA_ASSIGN_OR_RETURN(const Group all, last.group({0, 1, 2, 3}, ordinal));
        works.push_back(all.broadcast(own, own, 0));
        TESSERA_ASSIGN_OR_RETURN(const Group local, last.group({first, first + 1}, ordinal));
        works.push_back(local.broadcast(own, own, 0));
        if (first + ordinal == 1) works.push_back(all.send(own, 2));
        if (first + ordinal == 2) works.push_back(all.recv(own, 1));
      }
      for (const Work& work : works) TESSERA_RETURN_IF_ERROR(work.await());
      TESSERA_RETURN_IF_ERROR(last.shutdown());
    }
    return absl::OkStatus();
  };
  const JobSpec spec = {.num_clients = 2,
                        .devices_per_client = 2,
                        .options = on_gpus(),
                        .hooks = {.cuda = fake_libraries(job.cuda), .nccl = job.nccl}};
  EXPECT_THAT(run_isolated(absl::Seconds(60),
                           [&]() -> Status {
                             for (const Status& status : run_threads(spec, body)) {
                               TESSERA_RETURN_IF_ERROR(status);
                             }
                             TESSERA_REQUIRE(job.cuda->misuses().empty());
                             TESSERA_REQUIRE(job.nccl->misuses().empty());
                             return absl::OkStatus();
                           }),
              IsOk());
}

// A failure in flight is an error of the tensor, and of tensors made of it, on all clients; the
// mesh works afterwards.
TEST(CudaClientTest, AFailureInFlightIsEveryonesError) {
  const SeveralClients job;
  job.nccl->break_link(3, absl::UnavailableError("ncclRemoteError: a peer is gone"));
  EXPECT_THAT(job.run(4,
                      [&](Client& client) -> Status {
                        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
                        const auto rows = Layout::parse(mesh, "[x]");
                        const auto whole = Layout::parse(mesh, "[-]");
                        const DTensor x = iota<float>({10}, rows);
                        TESSERA_RETURN_IF_ERROR(x.await());
                        const DTensor failed = relayout(x, whole);
                        const DTensor part_of_it = relayout(failed, rows);
                        for (const DTensor& tensor : {failed, part_of_it}) {
                          TESSERA_RETURN_IF_ERROR(expect_error(
                              tensor.await(), absl::StatusCode::kUnavailable, {"ncclRemoteError"}));
                        }
                        TESSERA_RETURN_IF_ERROR(
                            expect_error(client.sync_devices(), absl::StatusCode::kUnavailable));
                        TESSERA_RETURN_IF_ERROR(expect_iota<float>(x));
                        return expect_iota<float>(relayout(x, whole));
                      }),
              IsOk());
}

// Each process of the job is another host to NCCL; without the option nothing is set.
TEST(CudaClientTest, ProcessesThatShareAGpuAreHostsOfTheirOwn) {
  for (const bool shares : {false, true}) {
    Shared<std::array<std::array<char, 64>, 2>> ids;
    JobSpec spec = {.setting = Setting::kProcesses, .num_clients = 2};
    spec.options = on_gpus();
    spec.hooks.cuda = fake_libraries(FakeCuda::create({.num_gpus = 2}));
    spec.hooks.share_gpus = shares;
    for (const Status& status : run_processes(spec, [&](Client& client) -> Status {
           const char* const id = std::getenv("NCCL_HOSTID");
           if (id != nullptr) {
             std::snprintf((*ids)[client.client_id()].data(), 64, "%s", id);
           }
           TESSERA_REQUIRE((std::getenv("NCCL_SOCKET_IFNAME") != nullptr) == (id != nullptr));
           return client.shutdown();
         })) {
      EXPECT_THAT(status, IsOk());
    }
    const std::string first = (*ids)[0].data();
    const std::string second = (*ids)[1].data();
    EXPECT_EQ(first != second, shares) << first << " and " << second;
    EXPECT_EQ(!first.empty(), shares);
  }
}

// The fact two_on_one_device: said when they connect, to both, in the same words.
TEST(CudaClientTest, TwoClientsOnOneGpuAreRefused) {
  struct Case {
    int num_gpus;
    int devices_per_client;
    const char* gpu;  // the end of its bus id
  };
  for (const Case& c : {Case{1, 1, ":00:00.0;"}, Case{3, 2, ":00:00.0;"}}) {
    const JobSpec spec = {
        .num_clients = 2,
        .devices_per_client = c.devices_per_client,
        .options = on_gpus(),
        .hooks = {.cuda = fake_libraries(FakeCuda::create({.num_gpus = c.num_gpus}))}};
    EXPECT_THAT(run_isolated(absl::Seconds(60),
                             [&]() -> Status {
                               const std::vector<Status> statuses =
                                   run_threads(spec, [](Client&) { return absl::OkStatus(); });
                               TESSERA_REQUIRE(statuses[0] == statuses[1], statuses[1].message());
                               return statuses[0];
                             }),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("client 0 ("), HasSubstr(" and client 1 ("),
                               HasSubstr(") both use GPU "), HasSubstr(c.gpu),
                               HasSubstr("; give each client GPUs of its own (num_local_devices, "
                                         "CUDA_VISIBLE_DEVICES), or, for tests, set "
                                         "TESSERA_SHARE_GPUS=1 on all clients"))));
  }
}

// Each host has GPUs of its own, which may have the same places: the clients of each take them in
// turn from the first on.
TEST(CudaClientTest, ClientsOfTwoHostsUseGpusOfEqualPlaces) {
  for (const int num_clients : {2, 4}) {
    const auto api = FakeCuda::create({.num_gpus = num_clients / 2});
    const auto nccl = nccl::FakeNccl::create(api);
    const JobSpec spec = {
        .num_clients = num_clients,
        .options = on_gpus(),
        .hooks = {.host_ids = on_hosts(num_clients, 2), .cuda = fake_libraries(api), .nccl = nccl}};
    const auto body = [](Client& client) -> Status {
      const int id = client.client_id();
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 1}}, {id}));
      const auto& gpu =
          dynamic_cast<cuda::CudaDevice&>(internal::runtime_of(client)->device(/*ordinal=*/0));
      TESSERA_REQUIRE(gpu.gpu() == id % (client.num_clients() / 2), gpu.gpu());
      return expect_iota<float>(iota<float>({8}, Layout::parse(mesh, "[x]")));
    };
    EXPECT_THAT(run_clients(spec, body), IsOk());
  }
}

// Clients 0 and 1 of one host, 2 and 3 of another: each host has one GPU for two.
TEST(CudaClientTest, TwoClientsOnOneGpuAreRefusedOnEachHost) {
  const JobSpec spec = {.num_clients = 4,
                        .options = on_gpus(),
                        .hooks = {.host_ids = on_hosts(4, 2),
                                  .cuda = fake_libraries(FakeCuda::create({.num_gpus = 1}))}};
  EXPECT_THAT(
      run_isolated(absl::Seconds(60),
                   [&]() -> Status {
                     const std::vector<Status> statuses =
                         run_threads(spec, [](Client&) { return absl::OkStatus(); });
                     for (int client = 0; client < 4; ++client) {
                       const int first = client / 2 * 2;
                       TESSERA_RETURN_IF_ERROR(expect_error(
                           statuses[client], absl::StatusCode::kFailedPrecondition,
                           {absl::StrCat("client ", first, " ("),
                            absl::StrCat(" and client ", first + 1, " ("), ") both use GPU "}));
                     }
                     return absl::OkStatus();
                   }),
      IsOk());
}

TEST(CudaClientTest, ClientsOfOneProcessShareNoGpu) {
  const auto api = FakeCuda::create({.num_gpus = 2});
  JobSpec spec = {.num_clients = 2, .options = on_gpus(), .hooks = {.cuda = fake_libraries(api)}};
  spec.hooks.share_gpus = true;
  EXPECT_THAT(
      run_clients(spec, [](Client&) { return absl::OkStatus(); }),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("TESSERA_SHARE_GPUS: clients 0 and 1 are in one process (pid "),
                     HasSubstr("clients that share GPUs need a process each"))));
}

TEST(CudaClientTest, WithoutNcclClientsMeetAtBarriersOnly) {
  if (nccl::open_api().ok()) GTEST_SKIP() << "there is NCCL";
  const auto api = FakeCuda::create({.num_gpus = 4});
  EXPECT_THAT(run_clients({.num_clients = 2,
                           .devices_per_client = 2,
                           .options = on_gpus(),
                           .hooks = {.cuda = fake_libraries(api)}},
                          [](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
                            const DTensor x = iota<float>({8}, Layout::parse(mesh, "[x]"));
                            TESSERA_RETURN_IF_ERROR(expect_iota<float>(x));
                            TESSERA_RETURN_IF_ERROR(mesh.barrier("b", absl::Seconds(20)));
                            return expect_error(relayout(x, Layout::parse(mesh, "[-]")).await(),
                                                absl::StatusCode::kUnimplemented, {"install"});
                          }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
