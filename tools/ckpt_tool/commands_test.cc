// SPDX-License-Identifier: Apache-2.0
//
// Each command on checkpoints that are made by hand: text, JSON, errors and exit codes.
#include "tools/ckpt_tool/commands.h"

#include <unistd.h>

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/dtype.h"
#include "checkpoint/saver_mark.h"
#include "files/json_reader.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/folder.h"
#include "tests/support/matchers.h"
#include "tools/ckpt_tool/made_files.h"

namespace tessera::ckpt_tool {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::names_of;
using ::tessera::testing::read_bytes;
using ::tessera::testing::write_bytes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kPage[] = "docs/checkpoint_tool.md";

struct Result {
  int code;
  std::string output, errors;
};

Result run(const std::vector<std::string>& texts, const std::string& input = "") {
  std::istringstream in(input);
  std::ostringstream out, err;
  const int code = run_ckpt(texts, in, out, err);
  return {code, out.str(), err.str()};
}

// The output of a command with --json, without blanks; it must be one JSON value.
Result run_json(std::vector<std::string> texts, const std::string& input = "") {
  texts.push_back("--json");
  Result result = run(texts, input);
  EXPECT_THAT(files::JsonDocument::parse(result.output, files::JsonStart::kBrace), IsOk())
      << result.output;
  return result;
}

// The checkpoints of docs/checkpoint_tool.md: w by rows on two clients, b on the first.
void write_run(const std::string& root) {
  make_folder(root);
  const std::vector<MadeTensor> tensors = {
      {"layers.0.w",
       DType::kFloat32,
       {512, 256},
       {{{0, 0}, {256, 256}}, {{256, 0}, {256, 256}}},
       "[x, -] on {x=2}"},
      {"layers.0.b", DType::kBFloat16, {256}, {{{0}, {256}}}, "[-] on {x=2}"},
  };
  write_checkpoint(root + "/step-0000000100",
                   {.step = 100, .save_id = "7c9e6679a1b2c3d4", .metadata = {{"lr", "0.01"}}},
                   tensors);
  write_checkpoint(root + "/step-0000000200",
                   {.step = 200, .save_id = "5d0f6a7b8c9d0e1f", .metadata = {{"lr", "0.001"}}},
                   tensors);
  make_folder(root + "/step-0000000300");
  write_bytes(root + "/step-0000000300/data-00000-0a1b2c3d4e5f6071.safetensors.partial",
              std::string(4096, 'x'));
}

class CommandsTest : public ::testing::Test {
 protected:
  CommandsTest() { write_run(at("run")); }

  std::string at(absl::string_view name) const { return folder_ / name; }
  void damage(const std::string& path, size_t place) const {
    std::string bytes = read_bytes(path);
    bytes[place] = static_cast<char>(bytes[place] ^ 4);
    write_bytes(path, bytes);
  }

  const tessera::testing::Folder folder_;
  const std::string step_100_ = at("run/step-0000000100");
  const std::string step_200_ = at("run/step-0000000200");
  const std::string step_300_ = at("run/step-0000000300");
};

TEST_F(CommandsTest, ListShowsEachState) {
  const Result good = run({"list", at("run")});
  EXPECT_EQ(good.code, 0);
  EXPECT_THAT(good.errors, IsEmpty());
  EXPECT_EQ(good.output,
            absl::StrCat(
                "step  time                  tensors      bytes  state       path\n",
                " 100  2026-11-22T13:05:00Z        2  512.5 KiB  complete    ", step_100_,
                "\n 200  2026-11-22T13:05:00Z        2  512.5 KiB  complete    ", step_200_,
                "\n 300  -                           -          -  incomplete  ", step_300_, "\n"));
  EXPECT_THAT(
      run_json({"list", at("run")}).output,
      AllOf(HasSubstr("\"step\":100,\"state\":\"complete\",\"time\":\"2026-11-22T13:05:00Z\","
                      "\"tensors\":2,\"bytes\":524800"),
            HasSubstr("\"state\":\"incomplete\",\"error\":{\"code\":"
                      "\"FAILED_PRECONDITION\"")));

  damage(step_200_ + "/manifest.json", 100);
  const Result damaged = run({"list", at("run")});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_THAT(damaged.errors, AllOf(StartsWith("tessera_ckpt: manifest"), HasSubstr(step_200_)));
  EXPECT_THAT(damaged.output,
              AllOf(HasSubstr("complete    " + step_100_), HasSubstr("damaged     " + step_200_)));
  EXPECT_EQ(run_json({"list", at("run")}).code, 1);

  make_folder(at("empty"));
  EXPECT_EQ(run({"list", at("empty")}).output, "no checkpoints\n");
  EXPECT_THAT(run_json({"list", at("empty")}).output, HasSubstr("\"checkpoints\":[]"));
}

TEST_F(CommandsTest, ShowHasTensorsAndPieces) {
  const Result all = run({"show", step_100_});
  EXPECT_EQ(all.code, 0);
  EXPECT_THAT(all.output,
              AllOf(StartsWith(step_100_ + ": 2 tensors, 512.5 KiB, in 2 files"),
                    HasSubstr("step 100, saved 2026-11-22T13:05:00Z by 2 clients, save id "
                              "7c9e6679a1b2c3d4\n"),
                    HasSubstr("metadata \"lr\" = \"0.01\"\n"), HasSubstr("\"layers.0.b\""),
                    Not(HasSubstr("byte "))));
  const Result one = run({"show", step_100_, "--tensor", "layers.0.w", "--pieces"});
  EXPECT_EQ(one.code, 0);
  EXPECT_THAT(one.output,
              AllOf(HasSubstr("[256:512, 0:256]  data-00001-7c9e6679a1b2c3d4.safetensors  4096"),
                    Not(HasSubstr("layers.0.b"))));
  const Result json = run_json({"show", step_100_, "--pieces"});
  EXPECT_THAT(json.output,
              AllOf(HasSubstr("\"save_id\":\"7c9e6679a1b2c3d4\",\"step\":100"),
                    HasSubstr("\"metadata\":{\"lr\":\"0.01\"}"),
                    HasSubstr("{\"name\":\"layers.0.b\",\"dtype\":\"bf16\",\"shape\":[256],"
                              "\"bytes\":512,\"layout\":\"[-] on {x=2}\",\"num_pieces\":1,"
                              "\"pieces\":[{\"file\":\"data-00000-7c9e6679a1b2c3d4.safetensors\","
                              "\"offset\":266240,\"bytes\":512,\"box_offsets\":[0],"
                              "\"box_sizes\":[256]}]}")));
  EXPECT_THAT(run_json({"show", step_100_}).output, Not(HasSubstr("box_sizes")));
}

TEST_F(CommandsTest, ShowReadsFilesOfOtherTools) {
  write_safetensors_file(at("m.safetensors"), {{"w", DType::kInt8, {2, 3}}}, {{"format", "pt"}});
  const Result text = run({"show", at("m.safetensors")});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.output, AllOf(HasSubstr("1 tensor, 6 B, in 1 file"), HasSubstr("[2, 3]"),
                                 Not(HasSubstr("step"))));
  EXPECT_THAT(run_json({"show", at("m.safetensors")}).output, Not(HasSubstr("\"step\"")));
}

TEST_F(CommandsTest, ShowRefuses) {
  const Result other = run({"show", step_100_, "--tensor", "layers.0.v"});
  EXPECT_EQ(other.code, 1);
  EXPECT_EQ(other.errors,
            "tessera_ckpt: tensor \"layers.0.v\" is not one of the 2 tensors; did you mean "
            "\"layers.0.w\"\n");
  EXPECT_THAT(other.output, IsEmpty());
  EXPECT_THAT(run_json({"show", step_100_, "--tensor", "layers.0.v"}).output,
              StartsWith("{\"error\":{\"code\":\"NOT_FOUND\",\"message\":\"tensor "));
  for (const std::string& path : {at("none"), step_300_, at("run")}) {
    const Result none = run({"show", path});
    EXPECT_EQ(none.code, 1) << path;
    EXPECT_THAT(none.errors, AllOf(StartsWith("tessera_ckpt: "), HasSubstr(path)));
  }
}

TEST_F(CommandsTest, VerifyNamesFileByteAndTensor) {
  const Result good = run({"verify", step_100_, step_200_, "--threads", "2"});
  EXPECT_EQ(good.code, 0);
  EXPECT_THAT(
      good.output,
      AllOf(StartsWith(step_100_ + ": good: 2 tensors, 512.5 KiB, in 2 files; each byte was "
                                   "compared with the checksums\n"),
            HasSubstr(step_200_ + ": good")));

  const std::string file = step_100_ + "/data-00001-7c9e6679a1b2c3d4.safetensors";
  damage(file, 5000);
  const Result bad = run({"verify", step_100_, step_200_});
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.errors,
              AllOf(StartsWith("tessera_ckpt: file"), HasSubstr(file),
                    HasSubstr("block 0, bytes 0 to 266240"), HasSubstr("\"layers.0.w\"")));
  EXPECT_THAT(bad.output, StartsWith(step_200_ + ": good"));
  const Result json = run_json({"verify", step_100_, step_200_});
  EXPECT_EQ(json.code, 1);
  EXPECT_THAT(json.output, AllOf(HasSubstr("\"good\":false,\"error\":{\"code\":\"DATA_LOSS\""),
                                 HasSubstr("\"good\":true,\"checksums\":true,\"bytes\":")));

  write_safetensors_file(at("m.safetensors"), {{"w", DType::kInt8, {2, 3}}});
  EXPECT_THAT(run({"verify", at("m.safetensors")}).output,
              HasSubstr("it has no checksums, the headers were checked"));
  ASSERT_EQ(truncate(at("m.safetensors").c_str(), 60), 0);
  const Result cut = run({"verify", at("m.safetensors")});
  EXPECT_EQ(cut.code, 1);
  EXPECT_THAT(cut.errors, HasSubstr("m.safetensors"));
}

TEST_F(CommandsTest, ConvertWritesWhatItSays) {
  const std::string target = at("m.safetensors");
  const Result text = run({"convert", step_100_, target});
  EXPECT_EQ(text.code, 0) << text.errors;
  EXPECT_EQ(text.output, target + ": 2 tensors, 512.5 KiB, in 1 file\n");
  EXPECT_EQ(tensors_at(target), tensors_at(step_100_));
  const Result again = run({"convert", step_100_, target});
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.errors, HasSubstr("is there; nothing is written over"));
  const Result json = run_json({"convert", target, at("out"), "--tensor", "*.w", "--to", "npy"});
  EXPECT_EQ(json.code, 0);
  EXPECT_THAT(json.output, AllOf(HasSubstr("\"tensors\":1,\"bytes\":524288"),
                                 HasSubstr("/out/layers.0.w.npy\"")));
  EXPECT_THAT(run_json({"convert", step_300_, at("x")}).output,
              StartsWith("{\"error\":{\"code\":\"NOT_FOUND\""));
}

TEST_F(CommandsTest, CleanAsksFirst) {
  for (const std::string answer : {"", "n\n", "no\n", "yesterday\n"}) {
    const Result refused = run({"clean", at("run")}, answer);
    EXPECT_EQ(refused.code, 1) << answer;
    EXPECT_THAT(refused.errors, AllOf(HasSubstr(step_300_), HasSubstr("Remove these, 4 KiB? [y/N]"),
                                      HasSubstr("nothing was removed")));
    EXPECT_TRUE(exists(step_300_)) << answer;
  }
  const Result removed = run({"clean", at("run")}, "y\n");
  EXPECT_EQ(removed.code, 0);
  EXPECT_THAT(removed.output, HasSubstr("removed " + step_300_ + "\n"));
  EXPECT_THAT(names_of(at("run")), ElementsAre("step-0000000100", "step-0000000200"));
  const Result nothing = run({"clean", at("run")});
  EXPECT_EQ(nothing.code, 0);
  EXPECT_EQ(nothing.output, "nothing to remove\n");
  EXPECT_EQ(run({"verify", step_100_, step_200_}).code, 0);
}

TEST_F(CommandsTest, CleanRemovesWhatDeadSaversLeftAndNothingElse) {
  // An overwrite of 100 that ended, a save of 400 by this process, an empty folder of 500, a
  // damaged manifest, a folder of files of the user, and a link.
  const std::string stray = step_100_ + "/data-00000-ffffffffffffffff.safetensors";
  write_bytes(stray, "old");
  make_folder(at("run/step-0000000400"));
  write_bytes(at("run/step-0000000400/data-00000-1111111111111111.safetensors.partial"), "x");
  ASSERT_THAT(checkpoint::internal::write_mark(at("run/step-0000000400"), "1111111111111111"),
              IsOk());
  make_folder(at("run/step-0000000500"));
  damage(step_200_ + "/manifest.json", 100);
  write_bytes(step_200_ + "/data-00000-ffffffffffffffff.safetensors", "old");
  make_folder(at("run/plain"));
  write_safetensors_file(at("run/plain/m.safetensors"), {{"w", DType::kInt8, {1}}});
  make_folder(at("run/nothing"));
  make_folder(at("elsewhere"));
  write_bytes(at("elsewhere/data-00000-2222222222222222.safetensors.partial"), "x");
  ASSERT_EQ(symlink("../elsewhere", at("run/link").c_str()), 0);
  write_bytes(step_300_ + "/notes.txt", "mine");

  const Result result = run_json({"clean", at("run"), "--yes"});
  EXPECT_EQ(result.code, 0) << result.errors;
  EXPECT_FALSE(exists(stray));
  EXPECT_THAT(names_of(at("run")),
              ElementsAre("link", "nothing", "plain", "step-0000000100", "step-0000000200",
                          "step-0000000300", "step-0000000400"));
  EXPECT_THAT(names_of(step_200_), ::testing::SizeIs(4));
  EXPECT_THAT(names_of(step_300_), ElementsAre("notes.txt"));
  EXPECT_THAT(names_of(at("run/step-0000000400")), ::testing::SizeIs(2));
  EXPECT_THAT(names_of(at("elsewhere")), ::testing::SizeIs(1));
  EXPECT_EQ(run({"verify", step_100_}).code, 0);
}

TEST_F(CommandsTest, OtherCommandLinesExitWith2) {
  for (const std::vector<std::string>& texts :
       std::vector<std::vector<std::string>>{{}, {"lst"}, {"show"}, {"list", "a", "--no"}}) {
    const Result result = run(texts);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.output, IsEmpty());
    EXPECT_THAT(result.errors, StartsWith("tessera_ckpt: "));
  }
  const Result help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.output, HasSubstr("tessera_ckpt convert FROM TO"));
}

TEST_F(CommandsTest, VersionIsPrinted) {
  const Result version = run({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_THAT(version.output, StartsWith("tessera_ckpt (Tessera) "));
}

TEST_F(CommandsTest, PathsThatAreNoUtf8AreJson) {
  make_folder(at("\xff"));
  EXPECT_THAT(run_json({"list", at("\xff")}).output, HasSubstr("\xef\xbf\xbd"));
}

TEST_F(CommandsTest, OutputThatCannotBeWrittenIsAnError) {
  std::istringstream in;
  std::ostringstream out, err;
  out.setstate(std::ios::badbit);
  EXPECT_EQ(run_ckpt({"list", at("run")}, in, out, err), 1);
  EXPECT_THAT(err.str(), HasSubstr("the output cannot be written"));
}

// Blocks "$ tessera_ckpt ..." of the page, in the order of the page.
TEST_F(CommandsTest, ThePageShowsWhatIsPrinted) {
  const std::string page = read_bytes(kPage);
  char folder[4096];
  ASSERT_NE(getcwd(folder, sizeof(folder)), nullptr);
  ASSERT_EQ(chdir(folder_.path().c_str()), 0);
  int checked = 0;
  for (const absl::string_view block : absl::StrSplit(page, "```\n")) {
    if (block.substr(0, 15) != "$ tessera_ckpt ") continue;
    const std::vector<std::string> parts =
        absl::StrSplit(block.substr(15), absl::MaxSplits('\n', 1));
    ASSERT_EQ(parts.size(), 2u);
    std::vector<std::string> texts;
    for (const absl::string_view text : absl::StrSplit(parts[0], ' ')) {
      texts.push_back(absl::StrReplaceAll(text, {{"'", ""}}));
    }
    const Result result = run(texts);
    EXPECT_EQ(result.output + result.errors, parts[1]) << parts[0];
    if (texts[0] == "list")
      damage("run/step-0000000200/data-00001-5d0f6a7b8c9d0e1f.safetensors", 100'000);
    ++checked;
  }
  ASSERT_EQ(chdir(folder), 0);
  EXPECT_GE(checked, 5);
}

}  // namespace
}  // namespace tessera::ckpt_tool
