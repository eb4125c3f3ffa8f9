// SPDX-License-Identifier: Apache-2.0
//
// Plans of reads: the rows of tests/facts/checkpoint.md, which are in testdata/reads.tsv, the
// choice between kDirect and kOnce, and errors.
#include "checkpoint/read_plan.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/testing/saved.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "mesh/mesh.h"
#include "tests/support/matchers.h"

namespace tessera::checkpoint {
namespace {

using tessera::testing::StatusIs;
using testing::boxes_text;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kDataBegin;
using testing::parse_dtype;
using testing::parse_layout;
using testing::parse_shape;
using testing::read_table;
using testing::saved_info;
using Reads = RestoreOptions::Reads;

struct Totals {
  int64_t reads = 0;
  int64_t bytes = 0;
  int64_t max_reads = 0;
  int64_t max_bytes = 0;
};

Totals totals_of(const RestorePlan& plan) {
  Totals totals;
  for (int64_t position = 0; position < plan.targets()[0].read.mesh().size(); ++position) {
    const std::vector<FileRead> reads = plan.reads(position);
    int64_t bytes = 0;
    for (const FileRead& read : reads) bytes += read.bytes;
    EXPECT_EQ(plan.num_reads(position), static_cast<int64_t>(reads.size()));
    EXPECT_EQ(plan.bytes(position), bytes);
    totals.reads += static_cast<int64_t>(reads.size());
    totals.bytes += bytes;
    totals.max_reads = std::max(totals.max_reads, static_cast<int64_t>(reads.size()));
    totals.max_bytes = std::max(totals.max_bytes, bytes);
  }
  return totals;
}

// "0: 0@0:48; 2: 1@0:24": the reads of each device, with the devices that wrote the files. A device
// that reads nothing is "nothing", except under a partial layout, whose other terms are left out.
std::string ranges_text(const RestorePlan& plan) {
  const Layout& layout = plan.targets()[0].read;
  std::vector<std::string> devices;
  for (int64_t position = 0; position < layout.mesh().size(); ++position) {
    if (layout.partial_index(position) != 0) {
      EXPECT_THAT(plan.reads(position), IsEmpty());
      continue;
    }
    const std::string reads =
        absl::StrJoin(plan.reads(position), ", ", [&](std::string* out, const FileRead& read) {
          const int64_t begin = read.offset - kDataBegin;
          absl::StrAppend(out, plan.info().files[read.file].name, "@", begin, ":",
                          begin + read.bytes);
        });
    devices.push_back(
        absl::StrCat(*layout.mesh().device_at(position), ": ", reads.empty() ? "nothing" : reads));
  }
  return absl::StrJoin(devices, "; ");
}

int64_t number(const std::string& text) {
  int64_t result = -1;
  EXPECT_TRUE(absl::SimpleAtoi(text, &result)) << text;
  return result;
}

TEST(ReadPlanTest, RowsOfTheFacts) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto rows, read_table("reads.tsv", 16));
  EXPECT_EQ(rows.size(), 50u);
  for (const std::vector<std::string>& row : rows) {
    SCOPED_TRACE(row[0]);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Layout saved, parse_layout(row[1], row[5]));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Layout wanted, parse_layout(row[2], row[6]));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Shape shape, parse_shape(row[3]));
    TESSERA_ASSERT_OK_AND_ASSIGN(const DType dtype, parse_dtype(row[4]));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Info info,
                                 saved_info(saved, shape, dtype, "t1", number(row[7])));
    if (row[8] == "64 files") {
      EXPECT_EQ(info.files.size(), 64u);
    } else {
      EXPECT_EQ(boxes_text(info), row[8]);
    }
    const auto planned = [&](int64_t join_gap_bytes) {
      return *plan_restore(info, {{"t1", wanted}},
                           {.reads = Reads::kDirect, .join_gap_bytes = join_gap_bytes});
    };
    const RestorePlan runs = planned(0);
    const Totals totals = totals_of(runs);
    EXPECT_EQ(totals.reads, number(row[9]));
    EXPECT_EQ(totals.bytes, number(row[10]));
    EXPECT_EQ(totals.max_reads, number(row[11]));
    EXPECT_EQ(totals.max_bytes, number(row[12]));
    const Totals joined = totals_of(planned(2048));
    EXPECT_EQ(joined.reads, number(row[13]));
    EXPECT_EQ(joined.bytes, number(row[14]));
    if (row[15] == "-") continue;
    EXPECT_EQ(ranges_text(runs), row[15]);
  }
}

Info info_of(absl::string_view mesh, absl::string_view layout, const Shape& shape) {
  return *saved_info(*parse_layout(mesh, layout), shape, DType::kFloat32, "w", 1 << 16);
}

// The layout in which plan_restore() reads.
std::string layout_read(const Info& info, const StatusOr<Layout>& target, Reads reads,
                        const Topology& topology = Topology()) {
  const StatusOr<RestorePlan> plan =
      plan_restore(info, {{"w", target}}, {.reads = reads}, topology);
  return plan.ok() ? plan->targets()[0].read.to_string() : plan.status().ToString();
}

TEST(ReadPlanTest, OnceWhereClientsWantTheSameBytes) {
  const Info info = info_of("{x=4}", "[x, -]", {64, 512});
  const StatusOr<Layout> whole = parse_layout("{x=4}", "[-, -]");
  EXPECT_EQ(layout_read(info, whole, Reads::kAuto), "[x, -]");
  EXPECT_EQ(layout_read(info, whole, Reads::kOnce), "[x, -]");
  EXPECT_EQ(layout_read(info, whole, Reads::kDirect), "[-, -]");
  // One client with four devices reads a box once for all of them.
  EXPECT_EQ(layout_read(info, whole, Reads::kAuto, *Topology::uniform(4, 4)), "[-, -]");
  EXPECT_EQ(layout_read(info, whole, Reads::kAuto, *Topology::uniform(2, 4)), "[x, -]");
  // Hosts that share nothing.
  EXPECT_EQ(layout_read(info, whole, Reads::kAuto, *Topology::uniform(1, 1)), "[-, -]");
  EXPECT_EQ(layout_read(info, whole, Reads::kAuto, *Topology::uniform(1, 2)), "[x:(2)2, -]");
  // Listed devices: clients {0, 2} and {1, 3} on one host.
  const Topology listed = *Topology::of_devices({0, 1, 0, 1}, {0, 0, 0, 0});
  EXPECT_EQ(layout_read(info, whole, Reads::kAuto, listed), "[x, -]");
  EXPECT_EQ(
      layout_read(info, whole, Reads::kAuto, *Topology::of_devices({0, 0, 0, 0}, {0, 0, 0, 0})),
      "[-, -]");
}

TEST(ReadPlanTest, OnceWhereJoiningReadsTooMuch) {
  const StatusOr<Layout> columns = parse_layout("{x=8}", "[-, x]");
  // Runs of 256 bytes: joined, 8 times the bytes.
  const Info joined = info_of("{x=2}", "[x, -]", {4096, 512});
  EXPECT_EQ(layout_read(joined, columns, Reads::kAuto), "[x, -]");
  // On one client as well: its devices want different bytes.
  EXPECT_EQ(layout_read(joined, columns, Reads::kAuto, *Topology::uniform(8, 8)), "[x, -]");
  // Runs of 512 bytes: not joined.
  EXPECT_EQ(layout_read(info_of("{x=2}", "[x, -]", {4096, 1024}), columns, Reads::kAuto), "[-, x]");
  // On hosts of one device nothing can be moved within a host.
  EXPECT_EQ(layout_read(joined, columns, Reads::kAuto, *Topology::uniform(1, 1)), "[-, x]");
}

TEST(ReadPlanTest, OnceReadsEachByteOnce) {
  const Info info = info_of("{x=2}", "[x, -]", {4096, 512});
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RestorePlan plan,
      plan_restore(info, {{"w", parse_layout("{x=8}", "[-, x]")}}, {.reads = Reads::kOnce}));
  const Totals totals = totals_of(plan);
  EXPECT_EQ(totals.reads, 8);
  EXPECT_EQ(totals.bytes, 8388608);
}

TEST(ReadPlanTest, OnceIsRefusedWhereHostsDoNotFit) {
  const Info info = info_of("{x=4}", "[x, -]", {64, 512});
  const StatusOr<Layout> target = parse_layout("{x=3}", "[-, -]");
  const Topology topology = *Topology::uniform(1, 2);
  EXPECT_THAT(layout_read(info, target, Reads::kOnce, topology), HasSubstr("UNIMPLEMENTED"));
  EXPECT_EQ(layout_read(info, target, Reads::kAuto, topology), "[-, -]");
}

TEST(ReadPlanTest, SeveralTargets) {
  const Info info = info_of("{x=4}", "[x, -]", {8, 6});
  const StatusOr<Layout> rows = parse_layout("{x=4}", "[x, -]");
  const StatusOr<Layout> two = parse_layout("{x=2}", "[x, -]");
  // A box that two targets share is read once.
  TESSERA_ASSERT_OK_AND_ASSIGN(const RestorePlan plan,
                               plan_restore(info, {{"w", rows}, {"w", rows}, {"w", two}}));
  EXPECT_EQ(plan.targets().size(), 3u);
  EXPECT_THAT(plan.reads(1), ElementsAre(FileRead{1, kDataBegin, 48}, FileRead{2, kDataBegin, 48},
                                         FileRead{3, kDataBegin, 48}));
  EXPECT_EQ(plan.bytes(1), 144);
  // The last target has no third device.
  EXPECT_THAT(plan.reads(2), ElementsAre(FileRead{2, kDataBegin, 48}));
  EXPECT_THAT(plan.reads(4), IsEmpty());
  EXPECT_THAT(plan.reads(-1), IsEmpty());
}

TEST(ReadPlanTest, ExplainSaysWhatIsRead) {
  const Info info = info_of("{x=4}", "[x, -]", {8, 6});
  EXPECT_EQ(plan_restore(info, {{"w", parse_layout("{x=3}", "[-, x]")}})->explain(),
            "restore 1 tensors\n"
            "  \"w\", f32 [8, 6] in 4 pieces, to [-, x] on {x=3}: 12 reads, 384 bytes; most at "
            "position 0: 4 reads, 128 bytes\n");
  EXPECT_THAT(plan_restore(info, {{"w", parse_layout("{x=3}", "[-, -]")}})->explain(),
              HasSubstr("to [-, -] on {x=3}, read once per host as [x, -]: 5 reads, 192 bytes"));
}

TEST(ReadPlanTest, MissingTensor) {
  Info info = info_of("{x=2}", "[x, -]", {8, 6});
  info.tensors.push_back(info.tensors[0]);
  info.tensors[1].name = "weight";
  const StatusOr<Layout> layout = parse_layout("{x=2}", "[x, -]");
  EXPECT_THAT(plan_restore(info, {{"w", layout}, {"Weight", layout}}),
              StatusIs(absl::StatusCode::kNotFound,
                       "tensor \"Weight\" is not among the 2 tensors that were saved; did you mean "
                       "\"weight\""));
}

TEST(ReadPlanTest, Errors) {
  Info info = info_of("{x=2}", "[x, -]", {8, 6});
  const StatusOr<Layout> layout = parse_layout("{x=2}", "[x, -]");
  EXPECT_THAT(plan_restore(info, {{"w", parse_layout("{x=2}", "[x]")}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("tensor \"w\": layout [x] has 1 dim, shape [8, 6] has 2")));
  EXPECT_THAT(plan_restore(info, {{"w", parse_layout("{x=2}", "[y, -]")}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("names axis \"y\"")));
  EXPECT_THAT(plan_restore(info, {{"w", layout}}, {.join_gap_bytes = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("join_gap_bytes is -1")));
  info.tensors[0].dtype = "u16";
  EXPECT_THAT(plan_restore(info, {{"w", layout}}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("tensor \"w\" is u16")));
}

}  // namespace
}  // namespace tessera::checkpoint
