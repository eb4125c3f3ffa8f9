// SPDX-License-Identifier: Apache-2.0
//
// Printing tensors: to_string() under every kind of layout, and operator<< of the local shards.
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/gate.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;

class PrintingTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, PrintingTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, PrintingTest, ::testing::Values(kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, PrintingTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

std::string printed(const DTensor& tensor) {
  std::ostringstream out;
  out << tensor;
  return out.str();
}

// Texts of numpy 2.4.6.
constexpr char kSmall[] =
    "[[ 0.  1.  2.]\n"
    " [ 3.  4.  5.]\n"
    " [ 6.  7.  8.]\n"
    " [ 9. 10. 11.]]";
constexpr char kElided[] =
    "[[   0    1    2 ...   27   28   29]\n"
    " [  30   31   32 ...   57   58   59]\n"
    " [  60   61   62 ...   87   88   89]\n"
    " ...\n"
    " [1110 1111 1112 ... 1137 1138 1139]\n"
    " [1140 1141 1142 ... 1167 1168 1169]\n"
    " [1170 1171 1172 ... 1197 1198 1199]]";

TEST_P(PrintingTest, ToStringHasTheWholeValueUnderEveryLayout) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=4}"));
        for (const char* text :
             {"[-, -]", "[x, -]", "[-, y]", "[y, x]", "[(x,y), -]", "[y:(1)2, y:(2)2]",
              "[-, -] sum{x,y}", "[x, -] sum{y}", "[-, y] max{x}", "[y:(1)2, -] min{x,y:(2)2}"}) {
          const StatusOr<Layout> layout = Layout::parse(mesh, text);
          TESSERA_ASSIGN_OR_RETURN(const std::string small, to_string(iota<float>({4, 3}, layout)));
          TESSERA_REQUIRE(small == kSmall, text, small);
          TESSERA_ASSIGN_OR_RETURN(const std::string elided,
                                   to_string(iota<int32_t>({40, 30}, layout)));
          TESSERA_REQUIRE(elided == kElided, text, elided);
          TESSERA_ASSIGN_OR_RETURN(const std::string longs,
                                   to_string(iota<int64_t>({40, 30}, layout)));
          TESSERA_REQUIRE(longs == kElided, text, longs);
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// Only the sign of a zero and the kind of a NaN tell whether all bits arrive.
TEST_P(PrintingTest, ElidedValuesKeepTheirBits) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const DTensor x = from_function<double>(
                    {2001}, Layout::parse(mesh, "[x]"), [](const Box& box, absl::Span<double> out) {
                      for (int64_t i = 0; i < box.sizes[0]; ++i) {
                        out[i] = box.offsets[0] + i == 2000 ? 1.5 : -0.0;
                      }
                    });
                TESSERA_ASSIGN_OR_RETURN(const std::string text, to_string(x));
                TESSERA_REQUIRE(text == "[-0.  -0.  -0.  ... -0.  -0.   1.5]", text);
                for (const bool is_max : {false, true}) {
                  const DTensor y = full<bool>({1500}, is_max,
                                               Layout::parse(mesh, is_max ? "[-] max{x}" : "[x]"));
                  TESSERA_ASSIGN_OR_RETURN(const std::string bools, to_string(y));
                  TESSERA_REQUIRE(bools == (is_max ? "[ True  True  True ...  True  True  True]"
                                                   : "[False False False ... False False False]"),
                                  bools);
                }
                return absl::OkStatus();
              }),
              IsOk());
}

// One client's shard failed: all clients get the error, and none waits for ever.
TEST_P(PrintingTest, AnErrorOfOneShardIsTheErrorOfToString) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                for (const char* text : {"[x]", "[-] sum{x}"}) {
                  const DTensor x = local_map(Layout::parse(mesh, text), {4000}, DType::kFloat32,
                                              {}, [](LocalContext& local) -> Status {
                                                if (local.device_id() == 5)
                                                  return absl::NotFoundError("no file");
                                                if (local.cuda_stream() != nullptr)
                                                  return absl::OkStatus();
                                                for (float& y : local.output<float>().data) y = 1;
                                                return absl::OkStatus();
                                              });
                  TESSERA_RETURN_IF_ERROR(
                      expect_error(to_string(x).status(), StatusCode::kNotFound, {"no file"}));
                }
                return mesh.barrier("end", absl::Seconds(30));
              }),
              IsOk());
}

TEST_P(PrintingTest, StreamHasTheLocalShards) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        const DTensor x = iota<float>({16, 2}, Layout::parse(mesh, "[x, -]"));
        TESSERA_RETURN_IF_ERROR(x.await());
        const std::string text = printed(x);
        TESSERA_REQUIRE(absl::StartsWith(text, "f32 [16, 2] under [x, -] on {x=8}, ready\ndevice "),
                        text);
        for (const Device& device : client.local_devices()) {
          const int row = 2 * device.id;
          const std::string head =
              absl::StrCat("\ndevice ", device.id, " [", row, ":", row + 2, ", 0:2]");
          TESSERA_REQUIRE(absl::StrContains(text, head), text, head);
        }
        const bool is_gpu = client.local_devices()[0].type == DeviceType::kCuda;
        if (client.local_devices()[0].id == 0) {
          TESSERA_REQUIRE(
              absl::StrContains(text, is_gpu ? ", in memory of a GPU" : "\n[[0. 1.]\n [2. 3.]]"),
              text);
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// In one client, whose devices need no other.
Status expect_printed(const std::function<Status(Client&)>& body) {
  return run_clients({.num_clients = 1, .devices_per_client = 4}, body);
}

TEST(StreamTest, EqualShardsArePrintedOnce) {
  EXPECT_THAT(expect_printed([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2}"));
                const DTensor x = iota<int32_t>({4}, Layout::parse(mesh, "[x]"));
                TESSERA_RETURN_IF_ERROR(x.await());
                TESSERA_REQUIRE(printed(x) ==
                                    "i32 [4] under [x] on {x=2, y=2}, ready\n"
                                    "devices 0, 1 [0:2]\n[0 1]\n"
                                    "devices 2, 3 [2:4]\n[2 3]",
                                printed(x));
                const DTensor terms = ones<int32_t>({2}, Layout::parse(mesh, "[-] sum{y}"));
                TESSERA_RETURN_IF_ERROR(terms.await());
                TESSERA_REQUIRE(printed(terms) ==
                                    "i32 [2] under [-] sum{y} on {x=2, y=2}, ready\n"
                                    "devices 0, 2 [0:2], term 0\n[1 1]\n"
                                    "devices 1, 3 [0:2], term 1\n[0 0]",
                                printed(terms));
                return absl::OkStatus();
              }),
              IsOk());
}

TEST(StreamTest, PendingAndFailedShardsHaveNoValues) {
  EXPECT_THAT(
      expect_printed([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2} on 0,1"));
        Gate gate;
        const DTensor x = local_map(Layout::parse(mesh, "[x]"), {2}, DType::kInt32, {},
                                    [&gate](LocalContext& local) -> Status {
                                      if (local.device_id() == 0)
                                        return absl::NotFoundError("no file");
                                      TESSERA_RETURN_IF_ERROR(gate.wait());
                                      local.output<int32_t>().data[0] = 7;
                                      return absl::OkStatus();
                                    });
        TESSERA_REQUIRE(absl::StrContains(printed(x), "\ndevice 1 [1:2], pending"), printed(x));
        gate.open();
        TESSERA_RETURN_IF_ERROR(expect_error(x.await(), StatusCode::kNotFound, {"no file"}));
        TESSERA_REQUIRE(printed(x) ==
                            "i32 [2] under [x] on {x=2}, failed: local_map on device 0: no "
                            "file\n"
                            "device 0 [0:1], failed: local_map on device 0: no file\n"
                            "device 1 [1:2]\n[7]",
                        printed(x));
        return absl::OkStatus();
      }),
      IsOk());
}

TEST(StreamTest, EmptyAndFailedTensorsArePrinted) {
  EXPECT_EQ(printed(DTensor()), "empty DTensor");
  const StatusOr<Layout> abstract = Layout::parse(*Mesh::create({{"x", 2}}), "[x]");
  EXPECT_EQ(printed(zeros<float>({2}, abstract)).substr(0, 56),
            "f32 [2] under [x] on {x=2}, failed: mesh {x=2} is abstra");
}

}  // namespace
}  // namespace tessera::testing
