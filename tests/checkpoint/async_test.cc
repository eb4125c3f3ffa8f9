// SPDX-License-Identifier: Apache-2.0
//
// Saving in the background, and the checkpoints of a run. Rows of tests/facts/checkpoint_runs.md,
// and those of tests/facts/checkpoint_kills.md that need no fault library; a row's name is the
// test's.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/pending.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "ops/variable.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/folder.h"
#include "tests/support/gate.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using checkpoint::AsyncOptions;
using checkpoint::Checkpointer;
using checkpoint::Info;
using checkpoint::Pending;
using checkpoint::restore;
using checkpoint::save;
using checkpoint::save_async;
using checkpoint::SaveOptions;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

class AsyncTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, AsyncTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, AsyncTest, ::testing::Values(kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, AsyncTest, ::testing::Values(cuda_forms()[0], cuda_forms()[1]),
                         job_form_name);

StatusOr<Layout> rows(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
  return Layout::parse(mesh, "[x, -]");
}

// 8 devices hold so many bytes together.
DTensor tensor_of(int64_t bytes, const Layout& layout, float value = 1) {
  return full<float>({8, bytes / 32}, value, layout);
}

Status expect_value(const Client& client, const std::string& path, const Layout& layout,
                    float value) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> tensors,
                           restore(client, path, {{"w", layout}}));
  return expect_shards<float>(tensors[0], [&](int64_t) { return value; });
}

TEST_P(AsyncTest, ValuesOfTheCall) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        for (const auto staging : {AsyncOptions::Staging::kHold, AsyncOptions::Staging::kCopy}) {
          Variable w("w", tensor_of(kMiB, layout, 1));
          const std::string path = folder / absl::StrCat(static_cast<int>(staging));
          TESSERA_ASSIGN_OR_RETURN(
              const Pending pending,
              save_async(client, path, {{"w", w.value()}}, {}, {.staging = staging}));
          TESSERA_RETURN_IF_ERROR(w.assign(tensor_of(kMiB, layout, 2)));
          TESSERA_RETURN_IF_ERROR(w.assign(tensor_of(kMiB, layout, 3)));
          TESSERA_RETURN_IF_ERROR(pending.await());
          TESSERA_REQUIRE(pending.done());
          TESSERA_REQUIRE(pending.bytes_written() > kMiB / client.num_clients());
          TESSERA_RETURN_IF_ERROR(expect_value(client, path, layout, 1));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// The call returns before the tensor has a value: it has waited for nothing and copied nothing.
TEST_P(AsyncTest, ReturnsAtOnce) {
  const Folder folder;
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
                Gate returned;
                const DTensor w = local_map(layout, {8, 2 * kMiB}, DType::kFloat32, {},
                                            [&](LocalContext&) { return returned.wait(); });
                const StatusOr<Pending> pending =
                    save_async(client, folder / "a", {{"w", w}}, {.sync = false});
                returned.open(client.local_devices().size());
                TESSERA_RETURN_IF_ERROR(w.await());
                TESSERA_RETURN_IF_ERROR(pending.status());
                return pending->await();
              }),
              IsOk());
}

TEST_P(AsyncTest, ThirdWaits) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        const DTensor w = tensor_of(4 * kMiB, layout);
        // A client writes 4 MiB / clients in about 0.2 s.
        const SaveOptions options = {.max_bytes_per_second = 20 * kMiB / client.num_clients()};
        std::vector<Pending> pending;
        for (int i = 0; i < 3; ++i) {
          TESSERA_ASSIGN_OR_RETURN(
              Pending next, save_async(client, folder / absl::StrCat(i), {{"w", w}}, options));
          if (i == 1) TESSERA_REQUIRE(!pending[0].done());
          if (i == 2) TESSERA_REQUIRE(pending[0].done() && !pending[1].done());
          pending.push_back(std::move(next));
        }
        TESSERA_RETURN_IF_ERROR(pending[2].await());
        TESSERA_REQUIRE(pending[1].done());
        return absl::OkStatus();
      }),
      IsOk());
}

TEST_P(AsyncTest, HeldBytes) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        const int64_t share = 4 * kMiB / client.num_clients();
        const DTensor w = tensor_of(4 * kMiB, layout);
        const AsyncOptions async = {.max_pending = 10, .max_held_bytes = share * 3 / 2};
        const SaveOptions options = {.max_bytes_per_second = 20 * kMiB / client.num_clients()};
        TESSERA_ASSIGN_OR_RETURN(const Pending first,
                                 save_async(client, folder / "1", {{"w", w}}, options, async));
        TESSERA_ASSIGN_OR_RETURN(const Pending second,
                                 save_async(client, folder / "2", {{"w", w}}, options, async));
        TESSERA_REQUIRE(first.done());
        TESSERA_RETURN_IF_ERROR(expect_error(
            save_async(client, folder / "3", {{"w", tensor_of(8 * kMiB, layout)}}, options, async)
                .status(),
            StatusCode::kResourceExhausted,
            {absl::StrCat(2 * share), absl::StrCat(share * 3 / 2)}));
        TESSERA_RETURN_IF_ERROR(second.await());
        // The error was given out, and is not kept.
        return client.sync_devices();
      }),
      IsOk());
}

TEST_P(AsyncTest, ErrorIsKeptAndErrorStaysAlone) {
  const Folder folder;
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
                const DTensor w = tensor_of(kMiB, layout);
                TESSERA_RETURN_IF_ERROR(save(client, folder / "100", {{"w", w}}));
                const auto fail = [&]() -> Status {
                  TESSERA_ASSIGN_OR_RETURN(const Pending pending,
                                           save_async(client, folder / "100", {{"w", w}}));
                  // sleep: await() would take the error.
                  while (!pending.done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                  return absl::OkStatus();
                };
                const auto exists = StatusCode::kAlreadyExists;
                TESSERA_RETURN_IF_ERROR(fail());
                TESSERA_RETURN_IF_ERROR(expect_error(client.sync_devices(), exists, {"/100"}));
                TESSERA_RETURN_IF_ERROR(client.sync_devices());
                TESSERA_RETURN_IF_ERROR(fail());
                TESSERA_RETURN_IF_ERROR(
                    expect_error(save(client, folder / "300", {{"w", w}}), exists, {"/100"}));
                TESSERA_RETURN_IF_ERROR(save(client, folder / "300", {{"w", w}}));
                TESSERA_RETURN_IF_ERROR(fail());
                TESSERA_RETURN_IF_ERROR(expect_error(
                    save_async(client, folder / "400", {{"w", w}}).status(), exists, {"/100"}));
                TESSERA_ASSIGN_OR_RETURN(const Pending pending,
                                         save_async(client, folder / "400", {{"w", w}}));
                TESSERA_RETURN_IF_ERROR(pending.await());
                TESSERA_RETURN_IF_ERROR(expect_value(client, folder / "100", layout, 1));
                TESSERA_RETURN_IF_ERROR(expect_value(client, folder / "300", layout, 1));
                TESSERA_RETURN_IF_ERROR(fail());
                TESSERA_RETURN_IF_ERROR(layout.mesh().barrier("end", absl::Seconds(30)));
                return expect_error(client.shutdown(), exists, {"/100"});
              }),
              IsOk());
}

TEST_P(AsyncTest, AwaitDeadline) {
  const Folder folder;
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
                const int last = client.num_clients() - 1;
                SaveOptions options;
                if (client.client_id() == last) {
                  options.max_bytes_per_second = 8 * kMiB / client.num_clients();
                }
                TESSERA_ASSIGN_OR_RETURN(const Pending pending,
                                         save_async(client, folder / "a",
                                                    {{"w", tensor_of(8 * kMiB, layout)}}, options));
                TESSERA_RETURN_IF_ERROR(expect_error(
                    pending.await(absl::Milliseconds(500)), StatusCode::kDeadlineExceeded,
                    {"/a", absl::StrCat("client ", last), "has written", "MiB"}));
                return pending.await();
              }),
              IsOk());
}

TEST_P(AsyncTest, ShutdownWaits) {
  const Folder folder;
  EXPECT_THAT(run(
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
                    TESSERA_RETURN_IF_ERROR(
                        save_async(client, folder / "a", {{"w", tensor_of(2 * kMiB, layout)}},
                                   {.max_bytes_per_second = 10 * kMiB / client.num_clients()})
                            .status());
                    TESSERA_RETURN_IF_ERROR(client.shutdown(absl::Seconds(30)));
                    return checkpoint::verify(folder / "a");
                  },
                  {}),
              IsOk());
}

// Dropping everything ends the client after the save.
TEST_P(AsyncTest, PendingDropped) {
  const Folder folder;
  EXPECT_THAT(
      run(
          [&](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
            return save_async(client, folder / "a", {{"w", tensor_of(kMiB, layout)}}).status();
          },
          {}),
      IsOk());
  EXPECT_THAT(checkpoint::verify(folder / "a"), IsOk());
}

TEST_P(AsyncTest, CheckpointsOfARun) {
  const Folder folder;
  const std::string root = folder / "run";
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        TESSERA_ASSIGN_OR_RETURN(
            Checkpointer checkpoints,
            Checkpointer::open(client, root, {.keep_last = 2, .keep_every = 300}));
        TESSERA_ASSIGN_OR_RETURN(const std::optional<Info> none, checkpoints.latest());
        TESSERA_REQUIRE(!none.has_value());
        for (int64_t step = 100; step <= 800; step += 100) {
          TESSERA_ASSIGN_OR_RETURN(
              const Pending pending,
              checkpoints.save(step, {{"w", tensor_of(kMiB, layout, static_cast<float>(step))}},
                               {{"step", absl::StrCat(step)}}));
          TESSERA_RETURN_IF_ERROR(pending.await());
        }
        TESSERA_ASSIGN_OR_RETURN(const std::optional<Info> last, checkpoints.latest());
        TESSERA_REQUIRE(last.has_value() && last->step == 800);
        TESSERA_REQUIRE(last->metadata.at("step") == "800");
        return expect_value(client, last->path, layout, 800);
      }),
      IsOk());
  EXPECT_THAT(names_of(root), ElementsAre("step-0000000300", "step-0000000600", "step-0000000700",
                                          "step-0000000800"));
}

// open() removes what the dead have left, and nothing else.
TEST_P(AsyncTest, CleanTwice) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        for (const char* name : {"step-0000000100", "step-0000000200", "mine"}) {
          TESSERA_RETURN_IF_ERROR(save(client, folder / name, {{"w", tensor_of(kMiB, layout)}}));
        }
        return absl::OkStatus();
      }),
      IsOk());
  const std::string dead = "0123456789abcdef";
  // Retention has begun with 100; a save over 200 was killed.
  unlink((folder / "step-0000000100/manifest.json").c_str());
  for (const std::string& name :
       {absl::StrCat("data-00000-", dead, ".safetensors"),
        absl::StrCat("data-00001-", dead, ".safetensors.partial"),
        absl::StrCat("manifest.json.", dead, ".partial"), absl::StrCat(".writing-", dead)}) {
    write_bytes(folder / ("step-0000000200/" + name), "pid 0\n");
  }
  write_bytes(folder / absl::StrCat("step-0000000200/.writing-", dead),
              absl::StrCat("host ", "no-such-host", "\nboot x\npid 1\nstart 1\n"));
  write_bytes(folder / "step-0000000200/notes.txt", "mine");
  std::filesystem::create_directory(folder / "step-0000000300");
  const auto open = [&] {
    return run([&](Client& client) -> Status {
      return Checkpointer::open(client, folder.path()).status();
    });
  };
  // The saver of another host may live.
  EXPECT_THAT(open(), IsOk());
  EXPECT_THAT(names_of(folder.path()), ElementsAre("mine", "step-0000000200"));
  EXPECT_EQ(names_of(folder / "step-0000000200").size(), 8u + 1 + 4 + 1);
  unlink((folder / absl::StrCat("step-0000000200/.writing-", dead)).c_str());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(open(), IsOk());
    EXPECT_EQ(names_of(folder / "step-0000000200").size(), 8u + 1 + 1);
  }
  EXPECT_THAT(checkpoint::verify(folder / "step-0000000200"), IsOk());
  EXPECT_THAT(checkpoint::verify(folder / "mine"), IsOk());
}

// A run that went back to an earlier step: what it saves stays, and so do the highest steps.
TEST_P(AsyncTest, ARunThatWentBack) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        TESSERA_ASSIGN_OR_RETURN(Checkpointer opened,
                                 Checkpointer::open(client, folder.path(), {.keep_last = 2}));
        Checkpointer checkpoints = std::move(opened);
        for (const int64_t step : {100, 200, 300, 150, 160}) {
          TESSERA_ASSIGN_OR_RETURN(const Pending pending,
                                   checkpoints.save(step, {{"w", tensor_of(kMiB, layout)}}));
          TESSERA_RETURN_IF_ERROR(pending.await());
        }
        TESSERA_REQUIRE(!opened.preempted(400));  // NOLINT(bugprone-use-after-move)
        return expect_error(opened.save(400, {}).status(), StatusCode::kFailedPrecondition,
                            {"moved from"});
      }),
      IsOk());
  EXPECT_THAT(names_of(folder.path()),
              ElementsAre("step-0000000160", "step-0000000200", "step-0000000300"));
}

// A thread for which a save waits cannot wait for the save.
TEST_P(AsyncTest, AwaitInAFunctionOnADevice) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        TESSERA_ASSIGN_OR_RETURN(
            const Pending pending,
            save_async(client, folder / "a", {{"w", tensor_of(4 * kMiB, layout)}},
                       {.max_bytes_per_second = 8 * kMiB / client.num_clients()}));
        const DTensor mapped = local_map(Layout::parse(layout.mesh(), "[x]"), {8}, DType::kFloat32,
                                         {}, [&](LocalContext&) { return pending.await(); });
        TESSERA_RETURN_IF_ERROR(expect_error(mapped.await(), StatusCode::kFailedPrecondition,
                                             {"Pending::await: called inside local_map"}));
        client.sync_devices().IgnoreError();
        return pending.await();
      }),
      IsOk());
}

// Runs `body` in a forked child, and returns how it ended.
int run_in_child(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

std::atomic<int> num_handled{0};
void count_signal(int, siginfo_t* info, void*) {
  if (info != nullptr) ++num_handled;
}

// The handler of the program, and children that it forks, as data loaders do.
TEST(PreemptionTest, OtherHandlersAndForkedChildren) {
  const Folder folder;
  const JobSpec spec = {.setting = Setting::kProcesses, .num_clients = 2};
  EXPECT_THAT(
      run_clients(spec,
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                    TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::parse(mesh, "[x, -]"));
                    {
                      TESSERA_ASSIGN_OR_RETURN(Checkpointer checkpoints,
                                               Checkpointer::open(client, folder.path()));
                      TESSERA_ASSIGN_OR_RETURN(
                          const Pending pending,
                          checkpoints.save(1, {{"w", full<float>({2, kMiB}, 1, layout)}}));
                      // A child ends of the signal, and the program does not see it.
                      const int ended = run_in_child([] { raise(SIGTERM); });
                      TESSERA_REQUIRE(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGTERM, ended);
                      // A child can neither wait for the save, nor end the run of the program.
                      const int left = run_in_child([&] {
                        const bool was_done = pending.done();
                        if (!was_done && !absl::IsFailedPrecondition(pending.await())) _exit(1);
                        { const Checkpointer ends = std::move(checkpoints); }
                      });
                      TESSERA_REQUIRE(WIFEXITED(left) && WEXITSTATUS(left) == 0, left);
                      TESSERA_RETURN_IF_ERROR(pending.await());
                      TESSERA_RETURN_IF_ERROR(mesh.barrier("forked", absl::Seconds(30)));
                      TESSERA_REQUIRE(!checkpoints.preempted(1));
                    }
                    struct sigaction own = {};
                    own.sa_sigaction = count_signal;
                    own.sa_flags = SA_SIGINFO;
                    sigaction(SIGUSR1, &own, nullptr);
                    {
                      TESSERA_ASSIGN_OR_RETURN(
                          Checkpointer checkpoints,
                          Checkpointer::open(client, folder.path(), {.signal = SIGUSR1}));
                      TESSERA_RETURN_IF_ERROR(
                          expect_error(Checkpointer::open(client, folder.path()).status(),
                                       StatusCode::kInvalidArgument, {"use one signal"}));
                      if (client.client_id() == 1) raise(SIGUSR1);
                      int64_t step = 0;
                      while (!checkpoints.preempted(step) && step < 10'000) {
                        // sleep: the length of a step; a client learns of the signal between steps.
                        std::this_thread::sleep_for(std::chrono::milliseconds(1));
                        ++step;
                      }
                      TESSERA_REQUIRE(step < 10'000);
                      TESSERA_REQUIRE(num_handled == client.client_id(), num_handled.load());
                    }
                    // The handler of the program is back.
                    raise(SIGUSR1);
                    TESSERA_REQUIRE(num_handled == client.client_id() + 1, num_handled.load());
                    return absl::OkStatus();
                  }),
      IsOk());
}

TEST(PreemptionTest, PreemptedByOne) {
  const Folder folder;
  const JobSpec spec = {.setting = Setting::kProcesses, .num_clients = 4};
  EXPECT_THAT(run_clients(spec,
                          [&](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
                            TESSERA_ASSIGN_OR_RETURN(const Layout layout,
                                                     Layout::parse(mesh, "[x]"));
                            TESSERA_ASSIGN_OR_RETURN(Checkpointer checkpoints,
                                                     Checkpointer::open(client, folder.path()));
                            // Steps of uneven length, some of which wait for all clients.
                            int64_t step = 0;
                            for (; step < 100'000 && !checkpoints.preempted(step); ++step) {
                              if (step == 20 && client.client_id() == 3) kill(getpid(), SIGTERM);
                              // sleep: the length of a step, which differs by client.
                              std::this_thread::sleep_for(
                                  std::chrono::microseconds(200 * (client.client_id() + 1)));
                              if (step % 16 == 0) {
                                TESSERA_RETURN_IF_ERROR(mesh.barrier("step", absl::Seconds(30)));
                              }
                            }
                            TESSERA_REQUIRE(step > 20 && step < 100'000, step);
                            TESSERA_ASSIGN_OR_RETURN(
                                const Pending pending,
                                checkpoints.save(step, {{"w", ones<float>({4}, layout)}}));
                            return pending.await();  // InvalidArgument, if the steps differed
                          }),
              IsOk());
  EXPECT_EQ(names_of(folder.path()).size(), 1u);
}

// A killed client ends the save of the others, with one error, and no manifest appears.
TEST(SaveLossTest, OneClientInTheDataAndClientZeroBeforeTheManifest) {
  for (const int killed : {2, 0}) {
    const Folder folder;
    const JobSpec spec = {.setting = Setting::kProcesses, .num_clients = 4};
    const std::vector<Status> statuses = run_processes(spec, [&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
      TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::parse(mesh, "[x, -]"));
      TESSERA_RETURN_IF_ERROR(
          save(client, folder / "100", {{"w", ones<float>({4, 8}, layout)}}, {.step = 100}));
      const DTensor large = full<float>({4, 4 * kMiB}, 2, layout);
      TESSERA_ASSIGN_OR_RETURN(const Pending pending,
                               save_async(client, folder / "200", {{"w", large}},
                                          {.step = 200, .max_bytes_per_second = 8 * kMiB}));
      if (client.client_id() == killed) {
        while (pending.bytes_written() == 0 &&
               absl::IsDeadlineExceeded(pending.await(absl::Milliseconds(1)))) {
        }
        raise(SIGKILL);
      }
      const absl::Time begin = steady_now();
      const Status status = pending.await();
      TESSERA_REQUIRE(kSanitized || steady_now() - begin < absl::Seconds(3));
      return status;
    });
    for (int client = 0; client < 4; ++client) {
      if (client == killed) continue;
      EXPECT_THAT(statuses[client],
                  StatusIs(StatusCode::kUnavailable, HasSubstr(absl::StrCat("client ", killed))));
      EXPECT_EQ(statuses[client], statuses[killed == 0 ? 1 : 0]);
    }
    EXPECT_FALSE(std::filesystem::exists(folder / "200/manifest.json"));
    EXPECT_THAT(checkpoint::verify(folder / "100"), IsOk());
  }
}

}  // namespace
}  // namespace tessera::testing
