// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints that were changed on disk: listing, and the rows on files of
// tests/facts/checkpoint_runs.md. A row's name is the test's.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "checkpoint/block_reader.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/options.h"
#include "checkpoint/pending.h"
#include "checkpoint/source.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "files/random_access_file.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/folder.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using checkpoint::Entry;
using checkpoint::Info;
using checkpoint::list;
using checkpoint::read_info;
using checkpoint::restore;
using checkpoint::RestoreOptions;
using checkpoint::save;
using checkpoint::verify;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

StatusOr<Layout> rows_of(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh,
                           live_mesh(client, absl::StrCat("{x=", client.devices().size(), "}")));
  return Layout::parse(mesh, "[x, -]");
}

class OnDiskTest : public ::testing::Test {
 protected:
  static Status run(const ClientBody& body, int num_clients = 1, int num_devices = 4) {
    return run_clients({.num_clients = num_clients, .devices_per_client = num_devices}, body);
  }
  // Saves iota "w" [8, 6] and ones "b" [4, 1] by four devices.
  Status save_step(const std::string& name, int64_t step) {
    return run([&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows_of(client));
      return save(client, folder_ / name,
                  {{"w", iota<float>({8, 6}, layout)}, {"b", ones<float>({4, 1}, layout)}},
                  {.step = step});
    });
  }
  // The restore of "w" by a job of one client.
  Status restore_w(const std::string& name) {
    return run([&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows_of(client));
      TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> tensors,
                               restore(client, folder_ / name, {{"w", layout}}));
      return expect_iota<float>(tensors[0]);
    });
  }
  StatusOr<std::string> latest_step() {
    std::string path;
    TESSERA_ASSIGN_OR_RETURN(const std::vector<Entry> entries, list(folder_.path()));
    for (const Entry& entry : entries) {
      if (entry.status.ok()) path = entry.path;
    }
    return path;
  }
  // Writes a manifest with a right checksum after `change`.
  void change_manifest(const std::string& name, const std::function<void(Info&)>& change) {
    TESSERA_ASSERT_OK_AND_ASSIGN(Info info, read_info(folder_ / name));
    change(info);
    write_bytes(folder_ / (name + "/manifest.json"), checkpoint::internal::format_manifest(info));
  }
  std::string data_file(const std::string& name, int file) {
    const StatusOr<Info> info = read_info(folder_ / name);
    return info.ok() ? info->files[file].name : info.status().ToString();
  }

  const Folder folder_;
};

TEST_F(OnDiskTest, NoRootAndEmptyRoot) {
  EXPECT_THAT(list(folder_ / "none"), StatusIs(StatusCode::kNotFound, HasSubstr("/none")));
  EXPECT_THAT(list(folder_.path()), IsOkAndHolds(IsEmpty()));
}

TEST_F(OnDiskTest, StepsAreNumbers) {
  ASSERT_THAT(save_step("step-0000001000", 1000), IsOk());
  ASSERT_THAT(save_step("step-0000000900", 900), IsOk());
  ASSERT_THAT(save_step("step-1000000000000", 1'000'000'000'000), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Entry> entries, list(folder_.path()));
  ASSERT_THAT(entries, SizeIs(3));
  EXPECT_EQ(entries[0].step, 900);
  EXPECT_EQ(entries[1].step, 1000);
  EXPECT_EQ(entries[2].step, 1'000'000'000'000);
}

TEST_F(OnDiskTest, NewestIsIncomplete) {
  ASSERT_THAT(save_step("step-0000000100", 100), IsOk());
  std::filesystem::create_directory(folder_ / "step-0000000200");
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Entry> entries, list(folder_.path()));
  ASSERT_THAT(entries, SizeIs(2));
  EXPECT_THAT(entries[0].status, IsOk());
  EXPECT_EQ(entries[1].step, 200);
  EXPECT_THAT(entries[1].status, StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_THAT(latest_step(), IsOkAndHolds(folder_ / "step-0000000100"));
  EXPECT_THAT(read_info(folder_ / "step-0000000200"),
              StatusIs(StatusCode::kNotFound, HasSubstr("no manifest.json")));
  // All data files, and no manifest.
  ASSERT_THAT(save_step("step-0000000300", 300), IsOk());
  unlink((folder_ / "step-0000000300/manifest.json").c_str());
  EXPECT_THAT(read_info(folder_ / "step-0000000300"), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(restore_w("step-0000000300"), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(latest_step(), IsOkAndHolds(folder_ / "step-0000000100"));
}

TEST_F(OnDiskTest, NewestIsDamaged) {
  ASSERT_THAT(save_step("step-0000000100", 100), IsOk());
  ASSERT_THAT(save_step("step-0000000200", 200), IsOk());
  flip_bit(folder_ / "step-0000000200/manifest.json", 200);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Entry> entries, list(folder_.path()));
  ASSERT_THAT(entries, SizeIs(2));
  EXPECT_EQ(entries[1].step, 200);
  EXPECT_THAT(entries[1].status, StatusIs(StatusCode::kDataLoss, HasSubstr("manifest.json")));
  EXPECT_THAT(latest_step(), IsOkAndHolds(folder_ / "step-0000000100"));
}

TEST_F(OnDiskTest, RenamedByTheUser) {
  ASSERT_THAT(save_step("step-0000000100", 100), IsOk());
  std::filesystem::rename(folder_ / "step-0000000100", folder_ / "best");
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Entry> entries, list(folder_.path()));
  ASSERT_THAT(entries, SizeIs(1));
  EXPECT_EQ(entries[0].step, 100);
  EXPECT_THAT(restore_w("best"), IsOk());
}

TEST_F(OnDiskTest, OtherThings) {
  ASSERT_THAT(save_step("step-0000000100", 100), IsOk());
  write_bytes(folder_ / "notes.txt", "notes");
  std::filesystem::create_directory(folder_ / "empty");
  std::filesystem::create_directory(folder_ / "plain");
  std::filesystem::copy_file(folder_ / ("step-0000000100/" + data_file("step-0000000100", 0)),
                             folder_ / "plain/model.safetensors");
  EXPECT_THAT(list(folder_.path()), IsOkAndHolds(SizeIs(1)));
  EXPECT_THAT(read_info(folder_ / "plain"), IsOk());
}

TEST_F(OnDiskTest, SymbolicLink) {
  ASSERT_THAT(save_step("step-0000000100", 100), IsOk());
  ASSERT_EQ(symlink("step-0000000100", (folder_ / "latest").c_str()), 0);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Entry> entries, list(folder_.path()));
  ASSERT_THAT(entries, SizeIs(2));
  EXPECT_EQ(entries[0].path, folder_ / "latest");
  EXPECT_THAT(restore_w("latest"), IsOk());
}

TEST_F(OnDiskTest, FileIsALink) {
  ASSERT_THAT(save_step("a", 1), IsOk());
  const std::string file = folder_ / ("a/" + data_file("a", 0));
  std::filesystem::rename(file, folder_ / "elsewhere");
  ASSERT_EQ(symlink((folder_ / "elsewhere").c_str(), file.c_str()), 0);
  EXPECT_THAT(read_info(folder_ / "a"), StatusIs(StatusCode::kInvalidArgument, HasSubstr(file)));
  EXPECT_THAT(restore_w("a"), StatusIs(StatusCode::kInvalidArgument));
}

TEST_F(OnDiskTest, FileIsAPipe) {
  ASSERT_THAT(save_step("a", 1), IsOk());
  const std::string file = folder_ / ("a/" + data_file("a", 0));
  std::filesystem::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  EXPECT_THAT(read_info(folder_ / "a"), StatusIs(StatusCode::kInvalidArgument, HasSubstr(file)));
}

TEST_F(OnDiskTest, FileMissing) {
  ASSERT_THAT(save_step("a", 1), IsOk());
  const std::string file = data_file("a", 2);
  unlink((folder_ / ("a/" + file)).c_str());
  EXPECT_THAT(read_info(folder_ / "a"),
              StatusIs(StatusCode::kDataLoss,
                       AllOf(HasSubstr(file), HasSubstr("\"w\""), HasSubstr("\"b\""))));
  EXPECT_THAT(restore_w("a"), StatusIs(StatusCode::kDataLoss, HasSubstr(file)));
}

TEST_F(OnDiskTest, FileShortAndFileLong) {
  ASSERT_THAT(save_step("a", 1), IsOk());
  const std::string file = folder_ / ("a/" + data_file("a", 1));
  const std::string bytes = read_bytes(file);
  for (const std::string& changed : {bytes.substr(0, bytes.size() - 1), bytes + "x"}) {
    write_bytes(file, changed);
    EXPECT_THAT(read_info(folder_ / "a"),
                StatusIs(StatusCode::kDataLoss,
                         AllOf(HasSubstr(file), HasSubstr(absl::StrCat(bytes.size())),
                               HasSubstr(absl::StrCat(changed.size())))));
    EXPECT_THAT(restore_w("a"), StatusIs(StatusCode::kDataLoss, HasSubstr(file)));
    EXPECT_THAT(verify(folder_ / "a"), StatusIs(StatusCode::kDataLoss));
  }
}

TEST_F(OnDiskTest, HeaderDisagrees) {
  ASSERT_THAT(save_step("a", 1), IsOk());
  change_manifest("a", [](Info& info) { info.tensors[0].dtype = "i32"; });
  EXPECT_THAT(read_info(folder_ / "a"), IsOk());
  const auto disagrees = StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("i32"), HasSubstr("f32")));
  EXPECT_THAT(restore_w("a"), disagrees);
  EXPECT_THAT(verify(folder_ / "a"), disagrees);
}

TEST_F(OnDiskTest, FileOfAnotherSave) {
  ASSERT_THAT(save_step("a", 1), IsOk());
  ASSERT_THAT(save_step("b", 2), IsOk());
  std::filesystem::copy_file(folder_ / ("b/" + data_file("b", 3)),
                             folder_ / ("a/" + data_file("a", 3)),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(restore_w("a"), StatusIs(StatusCode::kDataLoss, HasSubstr("another save")));
  EXPECT_THAT(verify(folder_ / "a"), StatusIs(StatusCode::kDataLoss));
}

// A checkpoint may have more files than a process may open.
TEST_F(OnDiskTest, FilesAreClosedAndOpenedAgain) {
  ASSERT_THAT(save_step("a", 100), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const checkpoint::internal::Source source,
                               checkpoint::internal::open_source(folder_ / "a"));
  const auto num_open = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  const auto before = num_open();
  checkpoint::internal::BlockReader reader(source, RestoreOptions::Verify::kAll,
                                           /*most_open_files=*/2);
  ASSERT_GT(source.info->files.size(), 2u);
  for (int round = 0; round < 2; ++round) {
    for (size_t file = 0; file < source.info->files.size(); ++file) {
      EXPECT_THAT(reader.verify_header(static_cast<int>(file)), IsOk());
      EXPECT_THAT(reader.verify_block(static_cast<int>(file), 0), IsOk());
      EXPECT_LE(num_open(), before + 2);
    }
  }
  EXPECT_THAT(verify(folder_ / "a", 1000), IsOk());
}

TEST_F(OnDiskTest, BlockChecksum) {
  ASSERT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows_of(client));
                return save(
                    client, folder_ / "a",
                    {{"b", ones<float>({4, 1}, layout)}, {"w", iota<float>({4096, 1024}, layout)}});
              }),
              IsOk());
  EXPECT_THAT(verify(folder_ / "a", 3), IsOk());
  // "b" is at the beginning of the data, so block 0 has both tensors, and block 1 has only "w".
  const std::string file = data_file("a", 1);
  for (const auto& [byte, block, tensors] :
       {std::tuple<size_t, const char*, const char*>{4097, "block 0", "\"b\", \"w\""},
        {4198400, "block 1", "\"w\""}}) {
    flip_bit(folder_ / ("a/" + file), byte);
    const auto damaged = StatusIs(StatusCode::kDataLoss,
                                  AllOf(HasSubstr(file), HasSubstr(block), HasSubstr(tensors)));
    EXPECT_THAT(verify(folder_ / "a"), damaged);
    EXPECT_THAT(run([&](Client& client) -> Status {
                  TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows_of(client));
                  return restore(client, folder_ / "a", {{"b", layout}, {"w", layout}}).status();
                }),
                damaged);
    flip_bit(folder_ / ("a/" + file), byte);
  }
  EXPECT_THAT(verify(folder_ / "a", 1), IsOk());
}

// A dtype that only other tools have stands in the way of its tensor alone.
TEST_F(OnDiskTest, Dtype) {
  ASSERT_THAT(save_step("a", 1), IsOk());
  change_manifest("a", [](Info& info) { info.tensors[1].dtype = "u32"; });
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows_of(client));
                return restore(client, folder_ / "a", {{"b", layout}}).status();
              }),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("u32")));
}

TEST_F(OnDiskTest, Huge) {
  ASSERT_THAT(save_step("a", 1), IsOk());
  ASSERT_EQ(truncate((folder_ / "a/manifest.json").c_str(), (int64_t{1} << 30) + 1), 0);
  EXPECT_THAT(read_info(folder_ / "a"), StatusIs(StatusCode::kResourceExhausted));
}

// Restores while the checkpoint is saved again: each has the values of one save, whole.
TEST_F(OnDiskTest, ReaderAndOverwrite) {
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows_of(client));
                const std::string path = folder_ / "a";
                const Shape shape = {512, 64};
                TESSERA_RETURN_IF_ERROR(save(client, path, {{"w", full<float>(shape, 0, layout)}}));
                for (int k = 1; k <= 30; ++k) {
                  const DTensor next = full<float>(shape, static_cast<float>(k), layout);
                  TESSERA_ASSIGN_OR_RETURN(
                      const checkpoint::Pending pending,
                      checkpoint::save_async(client, path, {{"w", next}}, {.overwrite = true}));
                  for (bool is_last = false; !is_last;) {
                    is_last = pending.done();
                    TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> tensors,
                                             restore(client, path, {{"w", layout}}));
                    TESSERA_ASSIGN_OR_RETURN(const ShardView<float> first,
                                             tensors[0].shard<float>(0));
                    const float value = first.data[0];
                    TESSERA_REQUIRE(value == static_cast<float>(k) ||
                                    (value == static_cast<float>(k - 1) && !is_last));
                    TESSERA_RETURN_IF_ERROR(
                        expect_shards<float>(tensors[0], [&](int64_t) { return value; }));
                  }
                  TESSERA_RETURN_IF_ERROR(pending.await());
                }
                return absl::OkStatus();
              }),
              IsOk());
}

// As above, and the checkpoint is removed: manifest first, as Checkpointer does.
TEST_F(OnDiskTest, ReaderAndRetention) {
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, rows_of(client));
        const std::string path = folder_ / "a";
        for (int k = 0; k < 20; ++k) {
          TESSERA_RETURN_IF_ERROR(save(client, path, {{"w", iota<float>({512, 64}, layout)}}));
          std::thread remover([&] {
            unlink((path + "/manifest.json").c_str());
            std::filesystem::remove_all(path);
          });
          Status status;
          while (status.ok()) {
            status = restore(client, path, {{"w", layout}}).status();
          }
          remover.join();
          TESSERA_RETURN_IF_ERROR(expect_error(status, StatusCode::kNotFound, {path}));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// A file that is removed while it is open is read to its end.
TEST_F(OnDiskTest, OpenFilesSurvive) {
  ASSERT_THAT(save_step("a", 1), IsOk());
  const std::string path = folder_ / ("a/" + data_file("a", 0));
  const std::string bytes = read_bytes(path);
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, files::RandomAccessFile::open(path));
  std::filesystem::remove_all(folder_ / "a");
  std::string read(bytes.size(), ' ');
  ASSERT_THAT(file->read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(read.data()), read.size())),
              IsOk());
  EXPECT_EQ(read, bytes);
}

}  // namespace
}  // namespace tessera::testing
