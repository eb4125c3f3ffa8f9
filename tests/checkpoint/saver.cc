// SPDX-License-Identifier: Apache-2.0
//
// A program that saves and is killed: a job of NUM_CLIENTS processes, each with one device.
//
//   saver VERB PATH STEP BASE NUM_CLIENTS [again]
//
//   save, overwrite     the tensors of BASE as checkpoint STEP of the root PATH
//   two_pending         save_async() of STEP, and of STEP + 100; then awaits both
//   dropped             save_async() of STEP; then exit(0)
//   retain              as save, by a Checkpointer that keeps one checkpoint
//   open                Checkpointer::open() of PATH
//   write_npy, write_safetensors
//                       the file PATH
//
// With `again` each client then makes the call once more with BASE + 100; save also with STEP +
// 100.
//
// Each client prints a line when the first call has returned, and one after the second:
// "first CLIENT CODE MS MESSAGE" and "again CLIENT CODE MS MESSAGE". The preloaded fault library
// counts the calls of the system between the begin of the first call and its end.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/options.h"
#include "checkpoint/pending.h"
#include "dtensor/client.h"
#include "files/array_files.h"
#include "mesh/mesh.h"
#include "tests/checkpoint/saved_values.h"
#include "tests/support/clients.h"

namespace tessera::testing {
namespace {

// Shorter than the test waits for this program.
constexpr absl::Duration kDeadline = absl::Seconds(50);

struct Arguments {
  std::string verb;
  std::string path;
  int64_t step = 0;
  int64_t base = 0;
  int num_clients = 0;
  bool again = false;
};

checkpoint::SaveOptions options_of(const Arguments& call) {
  return {.metadata = {{"base", absl::StrCat(call.base)}},
          .step = call.step,
          .overwrite = call.verb == "overwrite"};
}

Status save_two(const Client& client, const Mesh& mesh, const Arguments& call) {
  Arguments second = call;
  second.step += 100;
  second.base += 100;
  std::vector<checkpoint::Pending> saves;
  for (const Arguments& one : {call, second}) {
    TESSERA_ASSIGN_OR_RETURN(checkpoint::Pending pending,
                             checkpoint::save_async(client, step_path(one.path, one.step),
                                                    tensors_of(mesh, one.base), options_of(one)));
    saves.push_back(std::move(pending));
  }
  TESSERA_RETURN_IF_ERROR(saves[0].await());
  return saves[1].await();
}

Status save_by_checkpointer(const Mesh& mesh, checkpoint::Checkpointer& run,
                            const Arguments& call) {
  TESSERA_ASSIGN_OR_RETURN(
      const checkpoint::Pending pending,
      run.save(call.step, tensors_of(mesh, call.base), options_of(call).metadata));
  return pending.await();
}

Status act(const Client& client, const Mesh& mesh, const Arguments& call) {
  const std::vector<NamedTensor> tensors = tensors_of(mesh, call.base);
  if (call.verb == "save" || call.verb == "overwrite") {
    return checkpoint::save(client, step_path(call.path, call.step), tensors, options_of(call));
  }
  if (call.verb == "two_pending") return save_two(client, mesh, call);
  if (call.verb == "dropped") {
    TESSERA_RETURN_IF_ERROR(
        checkpoint::save_async(client, step_path(call.path, call.step), tensors, options_of(call))
            .status());
    std::exit(0);
  }
  if (call.verb == "open") return checkpoint::Checkpointer::open(client, call.path).status();
  if (call.verb == "write_npy") return write_npy(client, call.path, tensors[0].tensor);
  if (call.verb == "write_safetensors") return write_safetensors(client, call.path, tensors);
  return absl::InvalidArgumentError(absl::StrCat("no verb \"", call.verb, "\""));
}

// A function of the fault library; does nothing where it is not preloaded.
template <class... Values>
void tell_faults(const char* name, Values... values) {
  using Function = void(Values...);
  auto* const function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  if (function != nullptr) function(values...);
}

// Prints a line by one call, which the lines of other clients cannot divide.
void report(const char* word, const Client& client, const Status& status, absl::Duration took) {
  const std::string message = absl::CHexEscape(status.message()).substr(0, 3000);
  const std::string line =
      absl::StrCat(word, " ", client.client_id(), " ", static_cast<int>(status.code()), " ",
                   absl::ToInt64Milliseconds(took), " ", message, "\n");
  (void)!write(STDOUT_FILENO, line.data(), line.size());
}

template <class Call>
Status timed(const char* word, const Client& client, const Call& call) {
  const absl::Time before = steady_now();
  const Status status = call();
  report(word, client, status, steady_now() - before);
  return status;
}

Status run(Client& client, const Arguments& first) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, mesh_of_all(client));
  TESSERA_RETURN_IF_ERROR(mesh.barrier("here", kDeadline));
  Arguments second = first;
  second.base += 100;
  if (first.verb == "save") second.step += 100;
  if (first.verb == "retain") {
    TESSERA_ASSIGN_OR_RETURN(checkpoint::Checkpointer run,
                             checkpoint::Checkpointer::open(client, first.path, {.keep_last = 1}));
    tell_faults("tessera_faults_begin", client.client_id());
    TESSERA_RETURN_IF_ERROR(
        timed("first", client, [&] { return save_by_checkpointer(mesh, run, first); }));
    tell_faults("tessera_faults_end");
    return client.shutdown();
  }
  tell_faults("tessera_faults_begin", client.client_id());
  Status status = timed("first", client, [&] { return act(client, mesh, first); });
  tell_faults("tessera_faults_end");
  if (first.again) {
    status = timed("again", client, [&] { return act(client, mesh, second); });
  }
  // Client 0 hosts the coordinator: it stays until the others have their errors.
  const Status left = client.shutdown();
  return status.ok() ? left : status;
}

bool read_arguments(int argc, char** argv, Arguments& arguments) {
  if (argc < 6) return false;
  arguments.verb = argv[1];
  arguments.path = argv[2];
  arguments.again = argc > 6;
  return absl::SimpleAtoi(argv[3], &arguments.step) && absl::SimpleAtoi(argv[4], &arguments.base) &&
         absl::SimpleAtoi(argv[5], &arguments.num_clients);
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  tessera::testing::Arguments arguments;
  if (!read_arguments(argc, argv, arguments)) return 2;
  bool is_ok = true;
  for (const tessera::Status& status : tessera::testing::run_processes(
           {.setting = tessera::testing::Setting::kProcesses,
          .num_clients = arguments.num_clients,
          .deadline = tessera::testing::kDeadline},
           [&](tessera::Client& client) { return tessera::testing::run(client, arguments); })) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    is_ok = is_ok && status.ok();
  }
  return is_ok ? 0 : 1;
}
