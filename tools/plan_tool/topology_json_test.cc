// SPDX-License-Identifier: Apache-2.0
//
// Topologies in JSON: the two forms, and a refusal for everything that can be wrong.
#include "tools/plan_tool/topology_json.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::StatusIs;
using ::testing::HasSubstr;

constexpr char kLinks[] = R"("links": {
  "process": {"latency_s": 1e-6, "bytes_per_s": 4e9},
  "host": {"latency_s": 0, "bytes_per_s": 2e9},
  "network": {"latency_s": 3e-5, "bytes_per_s": 1000000000}})";

std::string uniform() {
  return absl::StrCat(R"({"description": "d", "devices_per_process": 2, "devices_per_host": 4, )",
                      kLinks, "}");
}

TEST(TopologyJsonTest, ReadsBlocks) {
  const StatusOr<Topology> topology = parse_topology(uniform(), "a.json");
  ASSERT_TRUE(topology.ok()) << topology.status();
  const LinkCosts costs = {{1e-6, 1 / 4e9}, {0, 1 / 2e9}, {3e-5, 1 / 1e9}};
  EXPECT_EQ(*topology, *Topology::uniform(2, 4, costs));
}

TEST(TopologyJsonTest, ReadsLists) {
  const StatusOr<Topology> topology = parse_topology(
      absl::StrCat(R"({"process_of": [0, 0, 7], "host_of": [1, 1, 3], )", kLinks, "}"), "a.json");
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->link(0, 1), LinkClass::kProcess);
  EXPECT_EQ(topology->link(1, 2), LinkClass::kNetwork);
}

// A row replaces a part of uniform().
struct RefusedCase {
  std::string name, part, replacement, message;
};

const RefusedCase kRefused[] = {
    {"no_json", "{\"description", "{description",
     "topology a.json: is not valid JSON at character 2"},
    {"cut_off", "}}", "", "is not valid JSON at character"},
    {"given_twice", "\"description\": \"d\"", "\"links\": 1", "field \"links\" is given twice"},
    {"unknown_field", "devices_per_host", "device_per_host",
     "\"device_per_host\" is not a field of a topology; fields here are \"description\", "
     "\"devices_per_process\", \"devices_per_host\", \"process_of\", \"host_of\", \"links\"; did "
     "you mean \"devices_per_host\""},
    {"missing_field", "\"devices_per_process\": 2, ", "",
     "\"devices_per_process\" is missing; give a whole number from 1 to 2147483647"},
    {"count_is_text", ": 2,", ": \"2\",",
     "\"devices_per_process\" is \"2\"; give a whole number from 1 to"},
    {"count_is_fraction", ": 2,", ": 2.5,", "\"devices_per_process\" is 2.5; give a whole number"},
    {"count_is_zero", ": 2,", ": 0,", "\"devices_per_process\" is 0; give a whole number from 1"},
    {"count_beyond_int64", ": 2,", ": 18446744073709551615,",
     "\"devices_per_process\" is 18446744073709551615; give a whole number"},
    {"process_does_not_fill_host", ": 2,", ": 3,",
     "topology a.json: a topology has 3 devices per process and 4 per host"},
    {"missing_link", "\"network\"", "\"description\"", "\"links.description\" is not a field"},
    {"link_is_number", "{\"latency_s\": 0, \"bytes_per_s\": 2e9}", "7",
     "\"links.host\" is 7; give an object with \"latency_s\" and \"bytes_per_s\""},
    {"latency_is_negative", "1e-6", "-1",
     "\"links.process.latency_s\" is -1; give a number of at least 0"},
    {"rate_is_zero", "2e9", "0", "\"links.host.bytes_per_s\" is 0; give a number greater than 0"},
    {"rate_is_denormal", "2e9", "1e-310",
     "\"links.host.bytes_per_s\" is 1e-310; give a number whose inverse is finite"},
    {"rate_is_text", "2e9", "\"fast\"", "\"links.host.bytes_per_s\" is \"fast\"; give a number"},
    {"both_forms", "\"description\": \"d\"", "\"host_of\": [0]",
     "\"devices_per_process\" stands beside \"process_of\" or \"host_of\""},
    {"list_of_texts", "\"description\": \"d\", \"devices_per_process\": 2, \"devices_per_host\": 4",
     "\"process_of\": [\"a\"], \"host_of\": [0]",
     "\"process_of\" is [\"a\"]; give a list of whole numbers of at least 0, one per device"},
    {"lists_differ", "\"description\": \"d\", \"devices_per_process\": 2, \"devices_per_host\": 4",
     "\"process_of\": [0, 1], \"host_of\": [0]",
     "topology a.json: a topology has the processes of 2 devices and the hosts of 1"},
};

TEST(TopologyJsonTest, RefusesWithFileFieldAndExpectation) {
  for (const RefusedCase& row : kRefused) {
    const std::string text = absl::StrReplaceAll(uniform(), {{row.part, row.replacement}});
    ASSERT_NE(text, uniform()) << row.name;
    EXPECT_THAT(parse_topology(text, "a.json"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(row.message)))
        << row.name;
  }
  EXPECT_THAT(parse_topology("[]", "a.json"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("topology a.json: is not a JSON object")));
  EXPECT_THAT(parse_topology("", "a.json"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("topology a.json: is not valid JSON")));
}

}  // namespace
}  // namespace tessera
