// SPDX-License-Identifier: Apache-2.0
//
// The table of bad inputs, part 4: options of Client::connect, and calls that the clients of a job
// make differently. Each row is one input, the code and the whole message that it must give: to all
// clients the same, at once, after which the next operation works.
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tessera/tessera.h"
#include "tests/support/bad_inputs.h"
#include "tests/support/clients.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Options that connect() refuses before it contacts another process.
struct Options : ClientOptions {
  Status connect() const { return Client::connect(*this).status(); }
};

Options several(Options options = {}) {
  options.coordinator = "127.0.0.1:4000";
  options.client_id = 0;
  options.num_clients = 2;
  options.token = "secret";
  return options;
}

// Calls connect() with this field: for a job of one client, or as a client of several.
template <class T>
std::function<Status(Options&)> alone(T ClientOptions::*field, std::type_identity_t<T> value) {
  return [=](Options& options) {
    options.*field = value;
    return options.connect();
  };
}
template <class T>
std::function<Status(Options&)> of_several(T ClientOptions::*field, std::type_identity_t<T> value) {
  return [=](Options& options) {
    options = several();
    return alone(field, value)(options);
  };
}

using OptionsRow = BadInput<Options>;
const OptionsRow kOptionsRows[] = {
    {"devices_minus_one", kInvalid, "num_local_devices is -1; give 1 or more, or 0 for default",
     alone(&Options::num_local_devices, -1)},
    {"devices_70000", kInvalid, "num_local_devices is 70000; it must be from 1 to 65536",
     alone(&Options::num_local_devices, 70000)},
    {"client_5_of_2", kInvalid, "client_id is 5; a job of 2 clients has ids 0 to 1",
     of_several(&Options::client_id, 5)},
    {"client_minus_one", kInvalid, "client_id is -1; a job of 2 clients has ids 0 to 1",
     of_several(&Options::client_id, -1)},
    {"no_clients", kInvalid, "num_clients is 0; it must be from 1 to 1000000",
     of_several(&Options::num_clients, 0)},
    {"coordinator_nonsense", kInvalid,
     "the coordinator's address is \"nonsense\"; it must be HOST:PORT, as in host-a:4000, the same "
     "on all clients",
     of_several(&Options::coordinator, "nonsense")},
    {"coordinator_port_99999", kInvalid,
     "the coordinator's address is \"127.0.0.1:99999\"; it must be HOST:PORT, as in host-a:4000, "
     "the same on all clients",
     of_several(&Options::coordinator, "127.0.0.1:99999")},
    {"coordinator_of_a_colon", kInvalid,
     "the coordinator's address is \":\"; it must be HOST:PORT, as in host-a:4000, the same on all "
     "clients",
     of_several(&Options::coordinator, ":")},
    {"coordinator_of_an_escape_sequence", kInvalid,
     "the coordinator's address is \"\\x1b[2J\"; it must be HOST:PORT, as in host-a:4000, the same "
     "on all clients",
     of_several(&Options::coordinator, "\x1b[2J")},
    {"coordinator_on_another_host", absl::StatusCode::kUnavailable,
     "the coordinator cannot listen on 192.0.2.1:4000: it is not an address of this host; use a "
     "free port of this host",
     of_several(&Options::coordinator, "192.0.2.1:4000")},
    {"coordinator_that_is_not_there", absl::StatusCode::kDeadlineExceeded,
     "client 1: the coordinator at 127.0.0.1:1 (client 0) did not answer within 50 ms; see whether "
     "client 0 was started",
     [](Options& o) {
       o = several();
       o.coordinator = "127.0.0.1:1";
       o.client_id = 1;
       o.connect_timeout = absl::Milliseconds(50);
       return o.connect();
     }},
    {"coordinator_that_is_given_no_time", absl::StatusCode::kDeadlineExceeded,
     "client 1: the timeout is 0 or had already passed: the coordinator at 127.0.0.1:1 (client 0) "
     "did not answer; see whether client 0 was started",
     [](Options& o) {
       o = several();
       o.coordinator = "127.0.0.1:1";
       o.client_id = 1;
       o.connect_timeout = absl::ZeroDuration();
       return o.connect();
     }},
    {"coordinator_alone", kInvalid,
     "a job of 2 clients needs the address of its coordinator; set ClientOptions::coordinator or "
     "TESSERA_COORDINATOR to host:port of client 0",
     [](Options& o) {
       o.client_id = 0;
       o.num_clients = 2;
       return o.connect();
     }},
    {"backend_out_of_range", kInvalid, "backend is 17, which is not a value of Backend",
     alone(&Options::backend, static_cast<Backend>(17))},
    {"backend_nccl_on_cpus", kInvalid,
     "backend \"nccl\" is of GPUs; use DeviceType::kCuda with it, or \"auto\" or \"host\"",
     alone(&Options::backend, Backend::kNccl)},
    {"backend_text", kInvalid,
     "backend \"foo\" is unknown; use \"auto\", \"host\", \"ucx\", \"mpi\", \"gloo\" or \"nccl\"",
     [](Options&) { return parse_backend("foo").status(); }},
    {"backend_of_an_escape_sequence", kInvalid,
     "backend \"\\x1b[2J\" is unknown; use \"auto\", \"host\", \"ucx\", \"mpi\", \"gloo\" or "
     "\"nccl\"",
     [](Options&) { return parse_backend("\x1b[2J").status(); }},
    {"device_type_out_of_range", kInvalid, "device_type is 17, which is not a value of DeviceType",
     alone(&Options::device_type, static_cast<DeviceType>(17))},
    {"heartbeat_of_0", kInvalid,
     "heartbeat_interval is 0; give 1 ms to 1 h, the same on all clients",
     alone(&Options::heartbeat_interval, absl::ZeroDuration())},
    {"heartbeat_minus_one", kInvalid,
     "heartbeat_interval is -1s; give 1 ms to 1 h, the same on all clients",
     alone(&Options::heartbeat_interval, absl::Seconds(-1))},
    {"collective_timeout_minus_one", kInvalid, "collective_timeout is -1s; give 0 or more",
     alone(&Options::collective_timeout, absl::Seconds(-1))},
    {"connect_timeout_minus_one", kInvalid, "connect_timeout is -1s; give 0 or more",
     alone(&Options::connect_timeout, absl::Seconds(-1))},
    {"connect_timeout_minus_infinite", kInvalid, "connect_timeout is -inf; give 0 or more",
     alone(&Options::connect_timeout, -absl::InfiniteDuration())},
};

class BadOptionsTest : public ::testing::TestWithParam<OptionsRow> {};

// In a process of its own: gRPC, which some rows start, does not survive the forks of the jobs
// below.
TEST_P(BadOptionsTest, AreRefused) {
  EXPECT_THAT(run_isolated(absl::Minutes(1),
                           [] {
                             Options options;
                             return expect_refused(GetParam(), GetParam().call(options));
                           }),
              IsOk());
}
INSTANTIATE_TEST_SUITE_P(Rows, BadOptionsTest, ::testing::ValuesIn(kOptionsRows),
                         bad_input_name<Options>);

// Two clients with one device each: which two a message names is certain.
struct Member {
  Client& client;
  Mesh mesh;  // {x=2}
  int id;

  StatusOr<Layout> layout(absl::string_view text) const { return Layout::parse(mesh, text); }
  // Parses the text of client 1, or the text of client 0.
  StatusOr<Layout> layout(absl::string_view of_1, absl::string_view of_0) const {
    return layout(id == 1 ? of_1 : of_0);
  }
  DTensor rows() const { return iota<float>({12, 12}, layout("[x, -]")); }
};

using JobRow = BadInput<const Member>;
const JobRow kJobRows[] = {
    {"shapes_differ", kInvalid,
     "relayout #1: layouts differ between clients: client 0 (...) device 0 has [x, -] -> [-, x] on "
     "{x=2}, f32 [12, 4]: all_to_all{x}, client 1 (...) device 1 has [x, -] -> [-, x] on {x=2}, "
     "f32 [13, 4]: exchange{x}; it is operation 1 of the group; make the same call on every client",
     [](const Member& m) {
       return relayout(iota<float>({12 + m.id, 4}, m.layout("[x, -]")), m.layout("[-, x]")).await();
     }},
    {"dtypes_differ", kInvalid,
     "relayout #1 [x, -] -> [-, x] on {x=2}, i32 [12, 4]: all_to_all{x}: dtype differs between "
     "clients: client 0 (...) device 0 has i32, client 1 (...) device 1 has f32; it is operation 1 "
     "of the group; make the same call on every client",
     [](const Member& m) {
       const auto from = m.layout("[x, -]");
       return relayout(m.id == 1 ? iota<float>({12, 4}, from) : iota<int32_t>({12, 4}, from),
                       m.layout("[-, x]"))
           .await();
     }},
    {"targets_differ", kInvalid,
     "relayout #1: layouts differ between clients: client 0 (...) device 0 has [x, -] -> [-, x] on "
     "{x=2}, f32 [12, 12]: all_to_all{x}, client 1 (...) device 1 has [x, -] -> [-, -] on {x=2}, "
     "f32 [12, 12]: all_gather{x}; it is operation 1 of the group; make the same call on every "
     "client",
     [](const Member& m) { return relayout(m.rows(), m.layout("[-, -]", "[-, x]")).await(); }},
    {"replicas_differ", kInvalid,
     "relayout #1: layouts differ between clients: client 0 (...) device 0 has [x, -] -> [-, -] on "
     "{x=2}, f32 [12, 12]: all_gather{x}, client 1 (...) device 1 has [x, -] -> [-, -] on {x=2}, "
     "f32 [12, 12]: all_gather{x} / shared replicas; it is operation 1 of the group; make the same "
     "call on every client",
     [](const Member& m) {
       return relayout(m.rows(), m.layout("[-, -]"), m.id == 1 ? Replicas::kShared : Replicas::kOwn)
           .await();
     }},
    {"shifts_differ", kInvalid,
     "roll #1: calls differ between clients: client 0 (...) device 0 has roll(shift=1; dim=0) of "
     "operand 0, [12, 12] under [x, -], for parts [x] on {x=2}, client 1 (...) device 1 has "
     "roll(shift=2; dim=0) of operand 0, [12, 12] under [x, -], for parts [x] on {x=2}; it is "
     "operation 1 of the group; make the same call on every client",
     [](const Member& m) { return ops::roll(m.rows(), 1 + m.id, 0).await(); }},
    {"barrier_names_differ", kInvalid,
     "barrier \"a\\nb\\\"c\" on {x=2}: name differs between clients: client 0 (...) device 0 has "
     "\"a\\nb\\\"c\", client 1 (...) device 1 has \"step\"; it is operation 1 of the group; make "
     "the same call on every client",
     [](const Member& m) { return m.mesh.barrier(m.id == 1 ? "step" : "a\nb\"c"); }},
    {"barrier_against_a_relayout", kInvalid,
     "relayout #1: operation differs between clients: client 0 (...) device 0 has relayout #1 [x, "
     "-] -> [-, x] on {x=2}, f32 [12, 12]: all_to_all{x}, client 1 (...) device 1 has barrier "
     "\"epoch\" on {x=2}; it is operation 1 of the group; make the same call on every client",
     [](const Member& m) {
       if (m.id == 1) return m.mesh.barrier("epoch");
       return relayout(m.rows(), m.layout("[-, x]")).await();
     }},
    {"meshes_differ_in_an_axis", kInvalid,
     "create_mesh: clients disagree: client ...=2} of devices [0, 1], client ...=2} of devices "
     "[0, 1]; make the same call on every client",
     [](const Member& m) {
       return create_mesh(m.client, {{m.id == 1 ? "y" : "x", 2}}).status();
     }},
    {"a_local_function_fails_on_one", absl::StatusCode::kDataLoss,
     "local_map on device 1: the disk of client 1 is broken",
     [](const Member& m) {
       const int id = m.id;
       const DTensor x =
           local_map(m.layout("[x]"), {12}, DType::kFloat32, {}, [id](LocalContext&) -> Status {
             return id == 1 ? absl::DataLossError("the disk of client 1 is broken")
                            : absl::OkStatus();
           });
       return relayout(x, m.layout("[-]")).await();
     }},
    {"a_local_function_throws_on_one", absl::StatusCode::kUnknown,
     "local_map on device 1: the function raised an exception: bad row 7",
     [](const Member& m) {
       const int id = m.id;
       const DTensor x = local_map(m.layout("[x]"), {12}, DType::kFloat32, {}, [id](LocalContext&) {
         if (id == 1) {
           std::rethrow_exception(std::make_exception_ptr(std::runtime_error("bad row 7")));
         }
       });
       return relayout(x, m.layout("[-]")).await();
     }},
    {"one_shard_of_another_shape", kInvalid,
     "from_shards: the shard of device 1 under [x] has shape [5]; expected [6]",
     [](const Member& m) {
       const std::vector<HostTensor<float>> shard = {
           {{m.id == 1 ? 5 : 6}, std::vector<float>(m.id == 1 ? 5 : 6)}};
       const DTensor x = from_shards<float>({12}, m.layout("[x]"), shard);
       return x.to_host<float>().status();
     }},
};

class BadCallsTest : public ::testing::TestWithParam<JobRow> {};

TEST_P(BadCallsTest, GiveAllClientsTheSame) {
  const JobRow& row = GetParam();
  std::mutex mutex;  // guards texts; clients are threads
  std::set<std::string> texts;
  EXPECT_THAT(
      run_clients({.num_clients = 2},
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
                    const Member member = {client, mesh, client.client_id()};
                    const Status status = row.call(member);
                    TESSERA_RETURN_IF_ERROR(expect_refused(row, status));
                    {
                      std::lock_guard<std::mutex> lock(mutex);
                      texts.insert(std::string(status.message()));
                      TESSERA_REQUIRE(texts.size() == 1, *texts.begin(), *texts.rbegin());
                    }
                    client.sync_devices().IgnoreError();
                    return relayout(member.rows(), member.layout("[-, x]")).await();
                  }),
      IsOk());
}
INSTANTIATE_TEST_SUITE_P(Rows, BadCallsTest, ::testing::ValuesIn(kJobRows),
                         bad_input_name<const Member>);

}  // namespace
}  // namespace tessera::testing
