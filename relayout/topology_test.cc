// SPDX-License-Identifier: Apache-2.0
//
// Links between devices, and topologies that are refused.
#include "relayout/topology.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/hash/hash.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::StatusIs;
using ::testing::HasSubstr;

struct LinkCase {
  std::string name;
  Topology topology;
  int a, b;
  LinkClass link;
};

TEST(TopologyTest, LinksFollowProcessesAndHosts) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Topology uniform, Topology::uniform(2, 4));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Topology listed,
                               Topology::of_devices({7, 9, 7, 3}, {1, 1, 1, 0}));
  const LinkCase rows[] = {
      {"default_is_one_host", Topology(), 0, 65535, LinkClass::kHost},
      {"itself", Topology(), 5, 5, LinkClass::kProcess},
      {"process", uniform, 0, 1, LinkClass::kProcess},
      {"host", uniform, 1, 2, LinkClass::kHost},
      {"network", uniform, 3, 4, LinkClass::kNetwork},
      {"far_network", uniform, 0, 1000000, LinkClass::kNetwork},
      {"listed_process", listed, 0, 2, LinkClass::kProcess},
      {"listed_host", listed, 0, 1, LinkClass::kHost},
      {"listed_network", listed, 2, 3, LinkClass::kNetwork},
      {"not_listed", listed, 0, 4, LinkClass::kNetwork},
  };
  for (const LinkCase& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(row.topology.link(row.a, row.b), row.link);
    EXPECT_EQ(row.topology.link(row.b, row.a), row.link);
  }
}

TEST(TopologyTest, FlatWhereThereIsOneClass) {
  EXPECT_EQ(Topology().only_link(), LinkClass::kHost);
  EXPECT_EQ(Topology::uniform(1, 1)->only_link(), LinkClass::kNetwork);
  EXPECT_EQ(Topology::uniform(2, 4)->only_link(), std::nullopt);
  EXPECT_EQ(Topology::of_devices({4, 4}, {0, 0})->only_link(), LinkClass::kProcess);
  EXPECT_EQ(Topology::of_devices({4, 5}, {0, 0})->only_link(), LinkClass::kHost);
  EXPECT_EQ(Topology::of_devices({4, 5}, {0, 1})->only_link(), LinkClass::kNetwork);
  EXPECT_EQ(Topology::of_devices({4, 5, 5}, {0, 0, 0})->only_link(), std::nullopt);
}

TEST(TopologyTest, DevicesOfOneHostHaveANumberInCommon) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Topology listed, Topology::of_devices({7, 9, 3}, {1, 1, 0}));
  for (const Topology& topology : {Topology(), *Topology::uniform(2, 4), listed}) {
    for (int a = 0; a < 6; ++a) {
      for (int b = 0; b < 6; ++b) {
        EXPECT_EQ(topology.host(a) == topology.host(b), topology.link(a, b) != LinkClass::kNetwork)
            << topology << ": " << a << ", " << b;
      }
    }
  }
}

TEST(TopologyTest, WithoutProcessesEachDeviceIsOne) {
  const LinkCosts costs{{1, 1}, {2, 2}, {3, 3}};
  EXPECT_EQ(Topology::uniform(2, 4, costs)->without_processes(), *Topology::uniform(1, 4, costs));
  EXPECT_EQ(Topology().without_processes(), Topology());
  EXPECT_EQ(Topology::of_devices({7, 7, 3}, {1, 1, 0}, costs)->without_processes(),
            *Topology::uniform(1, 2, costs));
  EXPECT_EQ(Topology::of_devices({0, 0, 1, 2, 3, 3}, {5, 5, 5, 2, 2, 2})->without_processes(),
            *Topology::uniform(1, 3));
  // Hosts that are no blocks stay a list, by whatever names.
  const Topology mixed = Topology::of_devices({0, 1, 0, 1}, {4, 3, 4, 3})->without_processes();
  EXPECT_EQ(mixed, *Topology::of_devices({0, 1, 2, 3}, {0, 1, 0, 1}));
  EXPECT_EQ(mixed, Topology::of_devices({6, 7, 8, 9}, {1, 2, 1, 2})->without_processes());
  EXPECT_EQ(Topology::of_devices({}, {})->without_processes(), *Topology::of_devices({}, {}));
}

TEST(TopologyTest, RefusesWithTheReason) {
  const double infinite = std::numeric_limits<double>::infinity();
  LinkCosts negative;
  negative.host.latency_s = -1;
  LinkCosts endless;
  endless.network.seconds_per_byte = infinite;
  const struct {
    std::string name;
    StatusOr<Topology> topology;
    std::string message;
  } rows[] = {
      {"no_devices", Topology::uniform(0, 4),
       "0 devices per process and 4 per host; give at least 1"},
      {"split_process", Topology::uniform(3, 4), "whole processes, give a multiple of 3"},
      {"negative", Topology::uniform(1, 4, negative), "the latency of host links is -1"},
      {"endless", Topology::of_devices({}, {}, endless),
       "the seconds per byte of network links is inf"},
      {"lengths", Topology::of_devices({0}, {0, 0}),
       "the processes of 1 devices and the hosts of 2"},
      {"two_hosts", Topology::of_devices({0, 3, 3}, {0, 0, 1}),
       "process 3 of the topology is on hosts 0 and 1 (device 2)"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_THAT(row.topology, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(row.message)));
  }
}

TEST(TopologyTest, EqualsByContent) {
  LinkCosts slow;
  slow.process.latency_s = 1;
  const std::vector<Topology> topologies = {
      Topology(),
      *Topology::uniform(2, 4),
      *Topology::uniform(4, 4),
      *Topology::uniform(2, 4, slow),
      *Topology::of_devices({0, 1}, {0, 0}),
      *Topology::of_devices({0, 1}, {0, 1}),
  };
  for (size_t i = 0; i < topologies.size(); ++i) {
    for (size_t j = 0; j < topologies.size(); ++j) {
      EXPECT_EQ(topologies[i] == topologies[j], i == j) << i << " " << j;
      EXPECT_EQ(topologies[i].hash() == topologies[j].hash(), i == j) << i << " " << j;
    }
  }
  EXPECT_EQ(*Topology::uniform(2, 4), topologies[1]);
  EXPECT_EQ(absl::HashOf(*Topology::uniform(2, 4)), absl::HashOf(topologies[1]));
}

// A change of this number means that clients of two versions would disagree.
TEST(TopologyTest, HashIsTheSameInEveryProcess) {
  EXPECT_EQ(Topology::uniform(2, 4)->hash(), 8837288233594462039u);
}

TEST(TopologyTest, TextNamesDevicesAndCosts) {
  EXPECT_EQ(Topology().to_string(),
            "1 device per process, one host; process 2 us, 10 GB/s, "
            "host 10 us, 5 GB/s, network 50 us, 1 GB/s");
  EXPECT_THAT(Topology::of_devices({0, 0, 1}, {5, 5, 5})->to_string(),
              HasSubstr("processes 0,0,1, hosts 5,5,5; process"));
  EXPECT_THAT(Topology::uniform(2, 4)->to_string(),
              HasSubstr("2 devices per process, 4 per host; "));
}

}  // namespace
}  // namespace tessera
