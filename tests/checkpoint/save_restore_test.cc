// SPDX-License-Identifier: Apache-2.0
//
// Saving and restoring by whole jobs: values under every layout, errors that all clients share.
// Rows of tests/facts/checkpoint_runs.md; a row's name is the test's.
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "checkpoint/checkpoint.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "files/safetensors.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "ops/variable.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/folder.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using checkpoint::Info;
using checkpoint::restore;
using checkpoint::restore_into;
using checkpoint::RestoreOptions;
using checkpoint::save;
using checkpoint::SaveOptions;
using checkpoint::Target;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SaveRestoreTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, SaveRestoreTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, SaveRestoreTest, ::testing::Values(kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, SaveRestoreTest, ::testing::Values(cuda_forms()[0], cuda_forms()[1]),
                         job_form_name);

StatusOr<DTensor> restore_one(const Client& client, const std::string& path,
                              const std::string& name, const LayoutArg& layout,
                              const RestoreOptions& options = {}) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<DTensor> tensors,
                           restore(client, path, {{name, layout}}, options));
  return std::move(tensors[0]);
}

// Rows on a mesh of all 8 devices.
StatusOr<Layout> rows(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
  return Layout::parse(mesh, "[x, -]");
}

// Each layout of two meshes is saved, and restored under each layout of the other.
TEST_P(SaveRestoreTest, EveryLayoutIsRestoredUnderEveryOther) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh first, live_mesh(client, "{x=4, y=2}"));
        TESSERA_ASSIGN_OR_RETURN(const Mesh second, live_mesh(client, "{z=8}"));
        const Shape shape = {13, 6};
        std::vector<NamedTensor> tensors;
        for (const Layout& layout : all_layouts(first, 2, /*partial=*/true)) {
          tensors.push_back(
              {absl::StrCat("w", tensors.size()), relayout(iota<float>(shape, layout), layout)});
        }
        const SaveOptions options = {.min_split_bytes = 0};
        TESSERA_RETURN_IF_ERROR(save(client, folder / "a", tensors, options));
        const auto verifies = {RestoreOptions::Verify::kNone, RestoreOptions::Verify::kRead,
                               RestoreOptions::Verify::kAll};
        for (const RestoreOptions::Verify verify : verifies) {
          std::vector<Target> targets;
          for (const NamedTensor& tensor : tensors) {
            for (const Layout& layout : all_layouts(second, 2, /*partial=*/true)) {
              targets.push_back({tensor.name, layout});
            }
            targets.push_back({tensor.name, tensor.tensor.layout()});
          }
          TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> restored,
                                   restore(client, folder / "a", targets, {.verify = verify}));
          for (const DTensor& tensor : restored) {
            TESSERA_RETURN_IF_ERROR(
                expect_iota<float>(relayout(tensor, tensor.layout().without_partial())));
          }
        }
        return absl::OkStatus();
      }),
      IsOk());
  EXPECT_THAT(checkpoint::verify(folder / "a"), IsOk());
}

template <class T>
Status expect_same_values(Client& client, const std::string& path, const Shape& shape,
                          const RestoreOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4, y=2}"));
  TESSERA_ASSIGN_OR_RETURN(const Layout from, Layout::parse(mesh, "[x, y]"));
  TESSERA_ASSIGN_OR_RETURN(const Layout to, Layout::parse(mesh, "[y, -]"));
  const auto value = [](int64_t i) { return T(static_cast<float>(i % 2)); };
  const DTensor tensor = from_function<T>(shape, from, [&](const Box& box, absl::Span<T> out) {
    for_each_element(box, [&](const std::vector<int64_t>& index, int64_t place) {
      out[place] = value(flat_index(shape, index));
    });
  });
  TESSERA_RETURN_IF_ERROR(save(client, path, {{"t", tensor}}));
  TESSERA_ASSIGN_OR_RETURN(const DTensor restored, restore_one(client, path, "t", to, options));
  return expect_shards<T>(restored, value);
}

TEST_P(SaveRestoreTest, EveryDtypeAndHowItIsRead) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        int number = 0;
        for (const auto reads : {RestoreOptions::Reads::kAuto, RestoreOptions::Reads::kDirect,
                                 RestoreOptions::Reads::kOnce}) {
          for (int i = 0; i < kNumDTypes; ++i) {
            const auto dtype = static_cast<DType>(i);
            TESSERA_RETURN_IF_ERROR(visit_dtype(dtype, [&]<class T>() {
              return expect_same_values<T>(client, folder / absl::StrCat(number++), {9, 5},
                                           {.reads = reads});
            }));
          }
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// Boxes of several blocks, and runs that are short, joined and long.
TEST_P(SaveRestoreTest, LargeTensors) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        TESSERA_ASSIGN_OR_RETURN(const Layout by_rows, Layout::parse(mesh, "[x, -]"));
        TESSERA_ASSIGN_OR_RETURN(const Layout by_columns, Layout::parse(mesh, "[-, x]"));
        TESSERA_ASSIGN_OR_RETURN(const Layout whole, Layout::parse(mesh, "[-, -]"));
        const Shape shape = {2050, 1031};
        const Shape one_row = {1, 3};
        TESSERA_RETURN_IF_ERROR(save(client, folder / "a",
                                     {{"w", iota<float>(shape, by_rows)},
                                      {"small", iota<int32_t>(one_row, whole)},
                                      {"whole", iota<double>(shape, whole)}}));
        for (const Layout& layout : {by_rows, by_columns, whole}) {
          TESSERA_ASSIGN_OR_RETURN(
              const std::vector<DTensor> restored,
              restore(client, folder / "a", {{"w", layout}, {"small", whole}, {"whole", layout}},
                      {.verify = RestoreOptions::Verify::kAll}));
          TESSERA_RETURN_IF_ERROR(expect_iota<float>(restored[0]));
          TESSERA_RETURN_IF_ERROR(expect_iota<int32_t>(restored[1]));
          TESSERA_RETURN_IF_ERROR(expect_iota<double>(restored[2]));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

TEST_P(SaveRestoreTest, WhatIsWritten) {
  const Folder folder;
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
                return save(
                    client, folder / "root/a",
                    {{"w", iota<float>({4, 6}, layout)}, {"none", iota<float>({0, 6}, layout)}},
                    {.metadata = {{"lr", "0.01"}}, .step = 7});
              }),
              IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const Info info, checkpoint::read_info(folder / "root/a"));
  EXPECT_EQ(info.step, 7);
  EXPECT_EQ(info.num_clients, GetParam().num_clients);
  EXPECT_EQ(info.metadata, (std::map<std::string, std::string>{{"lr", "0.01"}}));
  ASSERT_EQ(info.tensors.size(), 2u);
  EXPECT_EQ(info.tensors[0].layout, "[x, -] on {x=8}");
  EXPECT_EQ(info.tensors[0].pieces.size(), 4u);
  EXPECT_THAT(info.tensors[1].pieces, IsEmpty());
  // Four rows are on devices 0, 2, 4 and 6.
  std::vector<std::string> names;
  for (const int device : {0, 2, 4, 6}) {
    names.push_back(absl::StrCat("data-0000", device, "-", info.save_id, ".safetensors"));
  }
  names.push_back("manifest.json");
  EXPECT_EQ(names_of(folder / "root/a"), names);
  struct stat found = {};
  const mode_t mask = umask(0);
  umask(mask);
  ASSERT_EQ(stat((folder / "root/a/manifest.json").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0666 & ~mask);
}

// Every refusal is the same on all clients, and leaves nothing.
TEST_P(SaveRestoreTest, RefusedSaves) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        const DTensor w = iota<float>({8, 6}, layout);
        const std::string path = folder / "a";
        TESSERA_RETURN_IF_ERROR(expect_error(save(client, path, {{"w", w}, {"w", w}}),
                                             StatusCode::kInvalidArgument, {"\"w\""}));
        TESSERA_RETURN_IF_ERROR(expect_error(save(client, path, {{"__metadata__", w}}),
                                             StatusCode::kInvalidArgument, {"__metadata__"}));
        for (const auto& [key, value] : {std::pair("\xff", "v"), {"k", "\xc0\x80"}}) {
          TESSERA_RETURN_IF_ERROR(
              expect_error(save(client, path, {{"w", w}}, {.metadata = {{key, value}}}),
                           StatusCode::kInvalidArgument, {"metadata", "UTF-8"}));
        }
        const DTensor failed = iota<float>({8}, layout);
        TESSERA_RETURN_IF_ERROR(
            expect_error(save(client, path, {{"w", failed}}), StatusCode::kInvalidArgument, {"w"}));
        TESSERA_RETURN_IF_ERROR(expect_error(save(client, "/proc/no/such", {{"w", w}}),
                                             StatusCode::kNotFound, {"/proc"}));
        if (client.num_clients() > 1) {
          const std::string name = client.client_id() == 2 ? "v" : "w";
          TESSERA_RETURN_IF_ERROR(expect_error(save(client, path, {{name, w}}),
                                               StatusCode::kInvalidArgument,
                                               {"client 0", "client 2", "\"w\"", "\"v\""}));
          TESSERA_RETURN_IF_ERROR(
              expect_error(save(client, absl::StrCat(path, client.client_id()), {{"w", w}}),
                           StatusCode::kInvalidArgument, {"client 0", "client 1"}));
        }
        // One client's shard has failed: known only when it is written.
        const DTensor broken =
            from_function<float>({8, 6}, layout, [&](const Box& box, absl::Span<float> out) {
              std::fill(out.begin(), out.end(), 0.0f);
              // NOTIDY(banned): what a function of the user's may do
              if (box.offsets[0] == 7) throw std::out_of_range("the last row");
            });
        return expect_error(save(client, path, {{"w", broken}}), StatusCode::kUnknown,
                            {"the last row"});
      }),
      IsOk());
  EXPECT_THAT(names_of(folder.path()), IsEmpty());
}

TEST_P(SaveRestoreTest, Overwrite) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        const std::string path = folder / "a";
        TESSERA_RETURN_IF_ERROR(save(client, path, {{"w", iota<float>({8, 6}, layout)}}));
        const DTensor ones_of_w = ones<float>({8, 6}, layout);
        TESSERA_RETURN_IF_ERROR(expect_error(save(client, path, {{"w", ones_of_w}}),
                                             StatusCode::kAlreadyExists, {path}));
        TESSERA_ASSIGN_OR_RETURN(const DTensor old, restore_one(client, path, "w", layout));
        TESSERA_RETURN_IF_ERROR(expect_iota<float>(old));
        TESSERA_RETURN_IF_ERROR(save(client, path, {{"w", ones_of_w}}, {.overwrite = true}));
        TESSERA_ASSIGN_OR_RETURN(const DTensor now, restore_one(client, path, "w", layout));
        return expect_shards<float>(now, [](int64_t) { return 1.0f; });
      }),
      IsOk());
  // The files of the first save are gone.
  EXPECT_EQ(names_of(folder / "a").size(), 9u);
}

TEST_P(SaveRestoreTest, MissingTensor) {
  const Folder folder;
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
                const DTensor w = iota<float>({8, 6}, layout);
                TESSERA_RETURN_IF_ERROR(save(client, folder / "a", {{"layer0.w", w}, {"x", w}}));
                TESSERA_RETURN_IF_ERROR(expect_error(
                    restore(client, folder / "a", {{"x", layout}, {"layer0.v", layout}}).status(),
                    StatusCode::kNotFound, {"\"layer0.v\"", "\"layer0.w\""}));
                return expect_error(restore(client, folder / "b", {{"layer0.w", layout}}).status(),
                                    StatusCode::kNotFound, {"/b"});
              }),
              IsOk());
}

TEST_P(SaveRestoreTest, OtherRank) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        TESSERA_RETURN_IF_ERROR(save(client, folder / "a", {{"w", iota<float>({8, 6}, layout)}}));
        const StatusOr<Layout> one = Layout::parse(layout.mesh(), "[x]");
        return expect_error(restore_one(client, folder / "a", "w", one).status(),
                            StatusCode::kInvalidArgument, {"\"w\"", "[x]", "[8, 6]"});
      }),
      IsOk());
}

TEST_P(SaveRestoreTest, IntoOtherShapeAndIntoOtherDtype) {
  const Folder folder;
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
                const DTensor w = iota<float>({8, 6}, layout);
                TESSERA_RETURN_IF_ERROR(save(client, folder / "a", {{"v", w}, {"w", w}}));
                const DTensor before = ones<float>({8, 6}, layout);
                std::vector<Variable> shape = {Variable("v", before),
                                               Variable("w", ones<float>({8, 5}, layout))};
                TESSERA_RETURN_IF_ERROR(
                    expect_error(restore_into(client, folder / "a", absl::MakeSpan(shape)),
                                 StatusCode::kInvalidArgument, {"\"w\"", "[8, 5]", "[8, 6]"}));
                std::vector<Variable> dtype = {
                    Variable("v", before), Variable("w", ones<Eigen::bfloat16>({8, 6}, layout))};
                TESSERA_RETURN_IF_ERROR(
                    expect_error(restore_into(client, folder / "a", absl::MakeSpan(dtype)),
                                 StatusCode::kInvalidArgument, {"\"w\"", "bf16", "f32"}));
                for (const Variable& first : {shape[0], dtype[0]}) {
                  TESSERA_RETURN_IF_ERROR(
                      expect_shards<float>(first.value(), [](int64_t) { return 1.0f; }));
                }
                std::vector<Variable> good = {Variable("w", before), Variable("v", before)};
                TESSERA_RETURN_IF_ERROR(restore_into(client, folder / "a", absl::MakeSpan(good)));
                TESSERA_RETURN_IF_ERROR(expect_iota<float>(good[0].value()));
                return expect_iota<float>(good[1].value());
              }),
              IsOk());
}

// Clients that make different calls get an error instead of waiting for each other.
TEST_P(SaveRestoreTest, DifferentCalls) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        if (client.num_clients() == 1) return absl::OkStatus();
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        const DTensor w = iota<float>({8, 6}, layout);
        const std::string path = folder / "a";
        TESSERA_RETURN_IF_ERROR(save(client, path, {{"w", w}}));
        const bool is_last = client.client_id() == client.num_clients() - 1;
        const std::string last = absl::StrCat("client ", client.num_clients() - 1);
        const Status mixed = is_last ? save(client, folder / "b", {{"w", w}})
                                     : restore(client, path, {{"w", layout}}).status();
        TESSERA_RETURN_IF_ERROR(expect_error(mixed, StatusCode::kInvalidArgument,
                                             {"client 0", last, "has save", "has restore"}));
        for (const bool is_first : {false, true}) {
          const bool writes = is_first ? client.client_id() == 0 : is_last;
          const Status status = writes ? write_npy(client, folder / "x", w)
                                       : restore(client, path, {{"w", layout}}).status();
          TESSERA_RETURN_IF_ERROR(
              expect_error(status, StatusCode::kInvalidArgument,
                           {"client 0", is_first ? "client 1" : last, "write_npy", "restore"}));
        }
        // Variables that differ in what their layouts do not say.
        std::vector<Variable> variables = {
            Variable("w", ones<float>({8, is_last ? 6 : 5}, layout))};
        TESSERA_RETURN_IF_ERROR(expect_error(restore_into(client, path, absl::MakeSpan(variables)),
                                             StatusCode::kInvalidArgument,
                                             {"client 0", last, "[8, 5]", "[8, 6]"}));
        return save(client, folder / "b", {{"w", w}});
      }),
      IsOk());
}

TEST_P(SaveRestoreTest, OneClientCannotRead) {
  constexpr uid_t kNobody = 65534;
  setfsuid(kNobody);
  const bool has_second_user = setfsuid(-1) == static_cast<int>(kNobody);
  setfsuid(geteuid());
  if (!has_second_user) GTEST_SKIP() << "needs a second user";
  if (GetParam().num_clients == 1) GTEST_SKIP() << "needs two clients";
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        TESSERA_RETURN_IF_ERROR(save(client, folder / "a", {{"w", iota<float>({8, 6}, layout)}}));
        TESSERA_ASSIGN_OR_RETURN(const Info info, checkpoint::read_info(folder / "a"));
        const std::string file = info.files[2].name;  // of a device of client 1
        chmod(folder.path().c_str(), 0755);
        chmod((folder / "a/" + file).c_str(), 0600);
        TESSERA_RETURN_IF_ERROR(layout.mesh().barrier("saved", absl::Seconds(30)));
        if (client.client_id() == 1) setfsuid(kNobody);  // of this thread
        const Status status = restore_one(client, folder / "a", "w", layout).status();
        if (client.client_id() == 1) setfsuid(0);
        return expect_error(status, StatusCode::kPermissionDenied, {"client 1", file});
      }),
      IsOk());
}

TEST_P(SaveRestoreTest, DamageOnOne) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        TESSERA_RETURN_IF_ERROR(save(client, folder / "a", {{"w", iota<float>({8, 6}, layout)}}));
        TESSERA_ASSIGN_OR_RETURN(const Info info, checkpoint::read_info(folder / "a"));
        TESSERA_RETURN_IF_ERROR(layout.mesh().barrier("read", absl::Seconds(30)));
        if (client.client_id() == 0) flip_bit(folder / "a/" + info.files[5].name, 4100);
        TESSERA_RETURN_IF_ERROR(layout.mesh().barrier("damaged", absl::Seconds(30)));
        const StatusOr<DTensor> restored = restore_one(client, folder / "a", "w", layout);
        TESSERA_RETURN_IF_ERROR(
            expect_error(restored.status(), StatusCode::kDataLoss,
                         {info.files[5].name, "block 0", "bytes 0 to", "\"w\""}));
        // Without checksums the damage is a value.
        return restore_one(client, folder / "a", "w", layout,
                           {.verify = RestoreOptions::Verify::kNone})
            .status();
      }),
      IsOk());
}

TEST_P(SaveRestoreTest, MoreTargetsThanNeeded) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        TESSERA_ASSIGN_OR_RETURN(const Layout columns, Layout::parse(layout.mesh(), "[-, x]"));
        TESSERA_RETURN_IF_ERROR(save(client, folder / "a", {{"w", iota<float>({8, 6}, layout)}}));
        TESSERA_ASSIGN_OR_RETURN(
            const std::vector<DTensor> tensors,
            restore(client, folder / "a", {{"w", layout}, {"w", columns}, {"w", layout}}));
        TESSERA_REQUIRE(tensors.size() == 3 && tensors[1].layout() == columns);
        for (const DTensor& tensor : tensors) {
          TESSERA_RETURN_IF_ERROR(expect_iota<float>(tensor));
        }
        TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> none,
                                 restore(client, folder / "a", {}));
        TESSERA_REQUIRE(none.empty());
        return absl::OkStatus();
      }),
      IsOk());
}

// Files of other tensors are not looked at.
TEST_P(SaveRestoreTest, Subset) {
  const Folder folder;
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
                std::vector<NamedTensor> tensors;
                for (int i = 0; i < 100; ++i) {
                  tensors.push_back({absl::StrCat("w", i), iota<float>({1, 6}, layout)});
                }
                tensors.push_back({"large", iota<float>({8, 6}, layout)});
                TESSERA_RETURN_IF_ERROR(save(client, folder / "a", tensors));
                TESSERA_ASSIGN_OR_RETURN(const Info info, checkpoint::read_info(folder / "a"));
                TESSERA_RETURN_IF_ERROR(layout.mesh().barrier("read", absl::Seconds(30)));
                // w0 is in the file of device 0.
                for (size_t file = 1; file < info.files.size() && client.client_id() == 0; ++file) {
                  unlink((folder / "a/" + info.files[file].name).c_str());
                }
                TESSERA_RETURN_IF_ERROR(layout.mesh().barrier("removed", absl::Seconds(30)));
                TESSERA_ASSIGN_OR_RETURN(const DTensor one,
                                         restore_one(client, folder / "a", "w7", layout));
                TESSERA_RETURN_IF_ERROR(expect_iota<float>(one));
                return expect_error(restore_one(client, folder / "a", "large", layout).status(),
                                    StatusCode::kDataLoss,
                                    {info.files[1].name, "missing", "\"large\""});
              }),
              IsOk());
}

TEST_P(SaveRestoreTest, OtherMeshNames) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh batch, live_mesh(client, "{batch=8}"));
        TESSERA_RETURN_IF_ERROR(
            save(client, folder / "a",
                 {{"w", iota<float>({8, 6}, Layout::parse(batch, "[batch, -]"))}}));
        TESSERA_ASSIGN_OR_RETURN(const Mesh three, create_mesh(client, {{"x", 3}}, {1, 4, 7}));
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::parse(three, "[x, -]"));
        TESSERA_ASSIGN_OR_RETURN(const DTensor w, restore_one(client, folder / "a", "w", layout));
        return expect_iota<float>(w);
      }),
      IsOk());
}

// A file with these tensors, in this order.
std::string safetensors_of(const std::vector<files::SafetensorsEntry>& entries,
                           const std::string& data,
                           const std::map<std::string, std::string>& metadata = {}) {
  return *files::format_safetensors_header(entries, metadata) + data;
}

TEST_P(SaveRestoreTest, ForeignFile) {
  const Folder folder;
  std::vector<float> values(48);
  for (int i = 0; i < 48; ++i) values[i] = static_cast<float>(i);
  const std::string data(reinterpret_cast<const char*>(values.data()), 192);
  write_bytes(
      folder / "model.safetensors",
      safetensors_of({{"w", "F32", {8, 6}, 0, 192}, {"u", "U16", {2}, 192, 196}}, data + "abcd"));
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        for (const std::string& path : {folder / "model.safetensors", folder.path()}) {
          TESSERA_ASSIGN_OR_RETURN(const DTensor w, restore_one(client, path, "w", layout));
          TESSERA_RETURN_IF_ERROR(expect_iota<float>(w));
          const StatusOr<Layout> one = Layout::parse(layout.mesh(), "[x]");
          TESSERA_RETURN_IF_ERROR(expect_error(restore_one(client, path, "u", one).status(),
                                               StatusCode::kUnimplemented, {"\"u\"", "u16"}));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// Two halves of a tensor, as torch writes them, with and without an index.
TEST_P(SaveRestoreTest, ForeignIndexAndPieces) {
  const Folder folder;
  std::vector<float> values(48);
  for (int i = 0; i < 48; ++i) values[i] = static_cast<float>(i);
  for (int half = 0; half < 2; ++half) {
    write_bytes(
        folder / absl::StrCat("shard-", half, ".safetensors"),
        safetensors_of({{"w", "F32", {4, 6}, 0, 96}},
                       std::string(reinterpret_cast<const char*>(values.data() + 24 * half), 96),
                       {{"DCP_SHARDING_INFO",
                         absl::StrCat("{\"w\": {\"saved_offsets\": [", 4 * half, ", 0]}}")}}));
  }
  const std::string index = folder / "model.safetensors.index.json";
  const auto check = [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
    TESSERA_ASSIGN_OR_RETURN(const DTensor w, restore_one(client, folder.path(), "w", layout));
    return expect_iota<float>(w);
  };
  EXPECT_THAT(run(check), IsOk());
  write_bytes(index, R"({"weight_map": {"w": "../shard-0.safetensors"}})");
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
                return expect_error(restore_one(client, folder.path(), "w", layout).status(),
                                    StatusCode::kInvalidArgument, {"../shard-0.safetensors"});
              }),
              IsOk());
  // Half of the tensor is missing.
  write_bytes(index, R"({"weight_map": {"w": "shard-1.safetensors"}})");
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
                return expect_error(restore_one(client, folder.path(), "w", layout).status(),
                                    StatusCode::kInvalidArgument, {"\"w\""});
              }),
              IsOk());
}

TEST_P(SaveRestoreTest, BoolBytesAndNanBits) {
  const Folder folder;
  const uint32_t nan = 0x7fc12345;
  std::string data(reinterpret_cast<const char*>(&nan), 4);
  data += std::string("\x02\x00", 2);
  write_bytes(folder / "m.safetensors",
              safetensors_of({{"nan", "F32", {1, 1}, 0, 4}, {"b", "BOOL", {2, 1}, 4, 6}}, data));
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
                TESSERA_ASSIGN_OR_RETURN(const Layout whole, Layout::replicated(layout.mesh(), 2));
                TESSERA_ASSIGN_OR_RETURN(
                    const std::vector<DTensor> restored,
                    restore(client, folder / "m.safetensors", {{"nan", layout}, {"b", whole}}));
                const DTensor moved = relayout(restored[0], whole);
                TESSERA_ASSIGN_OR_RETURN(const ShardView<float> view, moved.shard<float>(0));
                uint32_t bits;
                std::memcpy(&bits, view.data.data(), sizeof(bits));
                TESSERA_REQUIRE(bits == nan, bits);
                TESSERA_ASSIGN_OR_RETURN(const ShardView<bool> bools, restored[1].shard<bool>(0));
                unsigned char bytes[2];
                std::memcpy(bytes, bools.data.data(), sizeof(bytes));
                TESSERA_REQUIRE(bytes[0] == 1 && bytes[1] == 0);
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(SaveRestoreTest, Latest) {
  const Folder folder;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_RETURN_IF_ERROR(expect_error(checkpoint::latest(client, folder / "none").status(),
                                             StatusCode::kNotFound, {"/none"}));
        TESSERA_RETURN_IF_ERROR(expect_error(checkpoint::latest(client, folder.path()).status(),
                                             StatusCode::kNotFound, {folder.path()}));
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
        for (const int64_t step : {1000, 900}) {
          TESSERA_RETURN_IF_ERROR(save(client, folder / absl::StrCat("step-", step),
                                       {{"w", iota<float>({8, 6}, layout)}}, {.step = step}));
        }
        TESSERA_ASSIGN_OR_RETURN(const std::string path, checkpoint::latest(client, folder.path()));
        TESSERA_REQUIRE(path == folder / "step-1000", path);
        return absl::OkStatus();
      }),
      IsOk());
}

// Each client sees a folder of its own under one name, as caches of a network file system may show.
TEST(ClientsTest, ClientsDisagree) {
  const Folder folder;
  const JobSpec spec = {.setting = Setting::kProcesses, .num_clients = 2, .devices_per_client = 4};
  EXPECT_THAT(
      run_clients(
          spec,
          [&](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows(client));
            const DTensor w = iota<float>({8, 6}, layout);
            for (const int64_t step : {100, 200}) {
              TESSERA_RETURN_IF_ERROR(
                  save(client, folder / absl::StrCat("run/", step), {{"w", w}}, {.step = step}));
            }
            // Client 0 removes the mark of its save after the others have the verdict.
            TESSERA_RETURN_IF_ERROR(layout.mesh().barrier("saved", absl::Seconds(30)));
            if (client.client_id() == 1) {
              // Has the data of 200, and not its manifest yet.
              std::filesystem::create_directory(folder / "older");
              std::filesystem::copy(folder / "run", folder / "older/run",
                                    std::filesystem::copy_options::recursive);
              unlink((folder / "older/run/200/manifest.json").c_str());
            }
            const std::string home = client.client_id() == 1 ? folder / "older" : folder.path();
            TESSERA_REQUIRE(chdir(home.c_str()) == 0);
            TESSERA_ASSIGN_OR_RETURN(const std::string path, checkpoint::latest(client, "run"));
            TESSERA_REQUIRE(path == "run/200", path);
            TESSERA_ASSIGN_OR_RETURN(const DTensor restored,
                                     restore_one(client, path, "w", layout));
            return expect_iota<float>(restored);
          }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
