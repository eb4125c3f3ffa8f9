// SPDX-License-Identifier: Apache-2.0
//
// Conversions of files that are made by hand: values, names, refusals, memory, and what a kill
// leaves.
#include "tools/ckpt_tool/convert.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "checkpoint/info.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/source.h"
#include "files/json_reader.h"
#include "files/npy.h"
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
using ::tessera::testing::StatusIs;
using ::tessera::testing::write_bytes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Rows of a on two files, columns of b on three, blocks of c on four.
std::vector<MadeTensor> cut_tensors() {
  return {
      {"a", DType::kFloat32, {5, 3}, {{{0, 0}, {3, 3}}, {{3, 0}, {2, 3}}}, "[x, -] on {x=2}"},
      {"b", DType::kInt64, {4, 6}, {{{0, 0}, {4, 2}}, {{0, 2}, {4, 2}}, {{0, 4}, {4, 2}}}},
      {"c",
       DType::kBFloat16,
       {4, 2, 6},
       {{{0, 0, 0}, {2, 2, 3}},
        {{0, 0, 3}, {2, 2, 3}},
        {{2, 0, 0}, {2, 2, 3}},
        {{2, 0, 3}, {2, 2, 3}}}},
      {"flags", DType::kBool, {7}},
      {"scalar", DType::kFloat64, {}},
      {"empty", DType::kFloat32, {0, 3}},
  };
}

class ConvertTest : public ::testing::Test {
 protected:
  std::string at(absl::string_view name) const { return folder_ / name; }

  const tessera::testing::Folder folder_;
};

TEST_F(ConvertTest, CheckpointToSafetensorsToTesseraToNpy) {
  const std::vector<MadeTensor> tensors = cut_tensors();
  write_checkpoint(at("run"), {.step = 70, .metadata = {{"lr", "0.1"}}}, tensors);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Converted first, convert(at("run"), at("m.safetensors"), {.to = Format::kSafetensors}));
  EXPECT_EQ(first.num_tensors, 6);
  EXPECT_EQ(first.tensor_bytes, 60 + 192 + 96 + 7 + 8);
  EXPECT_THAT(first.files, ElementsAre(at("m.safetensors")));
  EXPECT_EQ(tensors_at(at("m.safetensors")), tensors_of(tensors));

  TESSERA_ASSERT_OK_AND_ASSIGN(const Converted second,
                               convert(at("m.safetensors"), at("back"), {}));
  EXPECT_THAT(second.files, SizeIs(2));
  EXPECT_EQ(tensors_at(at("back")), tensors_of(tensors));
  TESSERA_ASSERT_OK_AND_ASSIGN(const checkpoint::internal::Source back,
                               checkpoint::internal::open_source(at("back")));
  EXPECT_TRUE(back.is_checkpoint);
  EXPECT_EQ(back.info->metadata, (std::map<std::string, std::string>{{"lr", "0.1"}}));
  for (const checkpoint::TensorInfo& tensor : back.info->tensors) {
    EXPECT_EQ(tensor.pieces.size(), num_elements(tensor.shape) > 0 ? 1u : 0u) << tensor.name;
  }
  EXPECT_THAT(
      names_of(at("back")),
      ElementsAre(checkpoint::internal::data_file_name(0, back.info->save_id), "manifest.json"));

  for (const char* const name : {"a", "b", "flags", "scalar", "empty"}) {
    const std::string target = at(absl::StrCat(name, ".npy"));
    EXPECT_THAT(convert(at("back"), target, {.to = Format::kNpy, .tensor = name}), IsOk());
    const std::map<std::string, std::string> found = tensors_at(target);
    const std::map<std::string, std::string> made = tensors_of(tensors);
    ASSERT_THAT(found, SizeIs(1));
    ASSERT_EQ(made.count(found.begin()->first), 1u) << found.begin()->first;
    EXPECT_EQ(found.begin()->second, made.at(found.begin()->first)) << name;
  }
  EXPECT_THAT(names_of(folder_.path()),
              ElementsAre("a.npy", "b.npy", "back", "empty.npy", "flags.npy", "m.safetensors",
                          "run", "scalar.npy"));
}

TEST_F(ConvertTest, CheckpointToCheckpointKeepsStepTimeAndMetadata) {
  write_checkpoint(at("run"), {.step = 70, .metadata = {{"format", "of the user"}}}, cut_tensors());
  ASSERT_THAT(convert(at("run"), at("copy/"), {.tensor = "?"}), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const checkpoint::internal::Source before,
                               checkpoint::internal::open_source(at("run")));
  TESSERA_ASSERT_OK_AND_ASSIGN(const checkpoint::internal::Source after,
                               checkpoint::internal::open_source(at("copy")));
  EXPECT_EQ(after.info->step, 70);
  EXPECT_EQ(after.info->time, before.info->time);
  EXPECT_EQ(after.info->metadata, before.info->metadata);
  EXPECT_NE(after.info->save_id, before.info->save_id);
  EXPECT_EQ(after.info->num_clients, 1);
  EXPECT_THAT(after.info->tensors, SizeIs(3));
}

// A tensor passes through buffers of any size, in any pieces.
TEST_F(ConvertTest, BuffersOfAnySizeGiveTheSameValues) {
  const std::vector<MadeTensor> tensors = cut_tensors();
  write_checkpoint(at("run"), {}, tensors);
  for (const int64_t buffer : {8, 9, 16, 24, 40, 64, 1 << 20}) {
    const std::string target = at(absl::StrCat(buffer, ".safetensors"));
    ASSERT_THAT(convert(at("run"), target, {.to = Format::kSafetensors, .buffer_bytes = buffer}),
                IsOk());
    EXPECT_EQ(tensors_at(target), tensors_of(tensors)) << buffer;
  }
}

// The bytes of an array that NumPy wrote in Fortran order and big-endian, if asked.
std::string npy_bytes(const Shape& shape, bool is_fortran, bool is_big_endian,
                      const std::vector<int32_t>& stored) {
  std::string text = files::format_npy_header(DType::kInt32, shape);
  const auto replace = [&](const std::string& from, const std::string& to) {
    const size_t place = text.find(from);
    ASSERT_NE(place, std::string::npos);
    text.replace(place, from.size(), to);
  };
  if (is_fortran) replace("False", "True ");
  if (is_big_endian) replace("<i4", ">i4");
  for (const int32_t value : stored) {
    std::string bytes(reinterpret_cast<const char*>(&value), sizeof(value));
    if (is_big_endian) bytes = std::string(bytes.rbegin(), bytes.rend());
    text += bytes;
  }
  return text;
}

TEST_F(ConvertTest, FortranOrderAndBigEndianBecomePlain) {
  for (const Shape& shape : std::vector<Shape>{
           {}, {0}, {1}, {5}, {2, 3}, {7, 5}, {1, 9}, {3, 4, 5}, {2, 1, 3, 2}, {4, 0, 2}}) {
    const int64_t count = num_elements(shape);
    // Element i in row-major order has the value i.
    std::vector<int32_t> fortran(static_cast<size_t>(count));
    std::vector<int32_t> plain(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i;
      int64_t place = 0;
      for (size_t dim = shape.size(); dim-- > 0;) {
        int64_t stride = 1;
        for (size_t before = 0; before < dim; ++before) stride *= shape[before];
        place += rest % shape[dim] * stride;
        rest /= shape[dim];
      }
      fortran[static_cast<size_t>(place)] = static_cast<int32_t>(i);
      plain[static_cast<size_t>(i)] = static_cast<int32_t>(i);
    }
    write_bytes(at("f.npy"), npy_bytes(shape, true, false, fortran));
    write_bytes(at("fb.npy"), npy_bytes(shape, true, true, fortran));
    write_bytes(at("b.npy"), npy_bytes(shape, false, true, plain));
    for (const char* const from : {"f.npy", "fb.npy", "b.npy"}) {
      for (const int64_t buffer : {8, 16, 36, 1 << 20}) {
        ASSERT_THAT(convert(at(from), at("out.npy"), {.to = Format::kNpy, .buffer_bytes = buffer}),
                    IsOk());
        EXPECT_EQ(read_bytes(at("out.npy")), npy_bytes(shape, false, false, plain))
            << from << " " << shape_to_string(shape) << " " << buffer;
        unlink(at("out.npy").c_str());
      }
    }
  }
}

TEST_F(ConvertTest, BoolBytesBecomeZeroOrOne) {
  write_bytes(at("b.npy"),
              files::format_npy_header(DType::kBool, {4}) + "\x02\x01\xff" + std::string(1, '\0'));
  ASSERT_THAT(convert(at("b.npy"), at("out.npy"), {.to = Format::kNpy}), IsOk());
  const std::string bytes = read_bytes(at("out.npy"));
  EXPECT_EQ(bytes.substr(bytes.size() - 4), std::string("\1\1\1\0", 4));
}

TEST_F(ConvertTest, LargeModelsAreCutAsTransformersDoes) {
  std::vector<MadeTensor> tensors;
  for (int i = 0; i < 7; ++i) {
    tensors.push_back({absl::StrCat("layers.", i, ".w"), DType::kFloat32, {100, i == 3 ? 90 : 10}});
  }
  write_checkpoint(at("run"), {}, tensors);
  constexpr int64_t kMost = 10'000;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Converted converted,
      convert(at("run"), at("out"), {.to = Format::kSafetensors, .max_file_bytes = kMost}));
  EXPECT_EQ(tensors_at(at("out")), tensors_of(tensors));
  // 2 of 4,000 bytes in a file, and the large one alone.
  const std::vector<std::string> names = {
      "model-00001-of-00005.safetensors", "model-00002-of-00005.safetensors",
      "model-00003-of-00005.safetensors", "model-00004-of-00005.safetensors",
      "model-00005-of-00005.safetensors", "model.safetensors.index.json"};
  EXPECT_EQ(names_of(at("out")), names);
  for (int i = 0; i < 5; ++i) {
    const auto bytes = static_cast<int64_t>(read_bytes(at("out/" + names[i])).size());
    EXPECT_TRUE(i == 2 ? bytes > 36'000 : bytes <= kMost) << names[i] << " " << bytes;
  }
  const std::string text = read_bytes(at("out/model.safetensors.index.json"));
  EXPECT_THAT(text, HasSubstr("{\n  \"metadata\": {\n    \"total_size\": 60000\n  },\n"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const files::JsonDocument index, files::JsonDocument::parse(text));
  TESSERA_ASSERT_OK_AND_ASSIGN(const files::JsonValue map, index.root().member("weight_map"));
  EXPECT_EQ(map.size(), 7u);
  TESSERA_ASSERT_OK_AND_ASSIGN(const files::JsonValue large, map.member("layers.3.w"));
  EXPECT_EQ(large.to_text().value(), names[2]);

  // One file has the plain name and no index.
  ASSERT_THAT(convert(at("run"), at("one"),
                      {.to = Format::kSafetensors, .max_file_bytes = int64_t{1} << 40}),
              IsOk());
  EXPECT_THAT(names_of(at("one")), ElementsAre("model.safetensors"));
  // A checkpoint is cut likewise.
  ASSERT_THAT(convert(at("run"), at("ckpt"), {.max_file_bytes = 16'000}), IsOk());
  EXPECT_EQ(tensors_at(at("ckpt")), tensors_of(tensors));
  for (const std::string& name : names_of(at("ckpt"))) {
    const size_t bytes = read_bytes(at("ckpt/" + name)).size();
    EXPECT_TRUE(bytes <= 16'000 || (bytes > 36'000 && bytes < 41'000)) << name << " " << bytes;
  }
}

TEST_F(ConvertTest, NameWithSlashes) {
  make_folder(at("in"));
  const std::vector<MadeTensor> tensors = {{"../../x", DType::kUint8, {1}},
                                           {"/etc/passwd", DType::kUint8, {2}},
                                           {"w", DType::kUint8, {3}}};
  write_safetensors_file(at("in/a.safetensors"), tensors);
  ASSERT_THAT(convert(at("in/a.safetensors"), at("in/out"), {.to = Format::kNpy}), IsOk());
  EXPECT_THAT(names_of(at("in/out")),
              ElementsAre("%2E.%2F..%2Fx.npy", "%2Fetc%2Fpasswd.npy", "w.npy"));
  EXPECT_THAT(names_of(at("in")), ElementsAre("a.safetensors", "out"));
  EXPECT_THAT(names_of(folder_.path()), ElementsAre("in"));
}

TEST_F(ConvertTest, DtypesThatTesseraLacksCanBeLeftOut) {
  // U16 beside F32.
  const std::string header = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("h":{"dtype":"U16","shape":[1],"data_offsets":[4,6]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  write_bytes(at("a.safetensors"), bytes + header + "abcdef");
  EXPECT_THAT(convert(at("a.safetensors"), at("b.safetensors"), {.to = Format::kSafetensors}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("tensor \"h\" is u16")));
  EXPECT_THAT(convert(at("a.safetensors"), at("b.safetensors"),
                      {.to = Format::kSafetensors, .tensor = "w"}),
              IsOk());
}

struct RefusedCase {
  const char* name;
  const char* from;
  const char* to;
  ConvertOptions options;
  absl::StatusCode code;
  std::vector<std::string> parts;
};

TEST_F(ConvertTest, RefusalsWriteNothing) {
  write_checkpoint(at("run"), {}, cut_tensors());
  write_safetensors_file(at("odd.safetensors"), {{"a\nb", DType::kUint8, {1}}});
  write_safetensors_file(at("no_name.safetensors"), {{"", DType::kUint8, {1}}});
  write_bytes(at("there"), "x");
  ASSERT_EQ(symlink("nowhere", at("link").c_str()), 0);
  const std::vector<std::string> before = names_of(folder_.path());
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kThere = absl::StatusCode::kAlreadyExists;
  constexpr auto kNone = absl::StatusCode::kNotFound;
  const std::vector<RefusedCase> refused = {
      {"no_source", "none", "out", {}, kNone, {"none"}},
      {"target_is_there",
       "run",
       "there",
       {},
       kThere,
       {"there\" is there; nothing is written over"}},
      {"target_is_a_link", "run", "link", {.to = Format::kSafetensors}, kThere, {"link"}},
      {"target_is_the_source", "run", "run", {}, kThere, {"run"}},
      {"target_in_the_source", "run", "run/out", {}, kInvalid, {"is inside of the source"}},
      {"target_in_no_folder", "run", "none/out", {}, kNone, {"none/out"}},
      {"no_such_tensor", "run", "out", {.tensor = "z*"}, kNone, {"no tensor is called \"z*\""}},
      {"several_in_one_npy",
       "run",
       "out.npy",
       {.to = Format::kNpy},
       kInvalid,
       {"one .npy file holds one array, and there are 6 tensors"}},
      {"write_bf16",
       "run",
       "out",
       {.to = Format::kNpy},
       kInvalid,
       {"tensor \"c\" is bf16, which .npy lacks"}},
      {"control_character", "odd.safetensors", "out", {}, kInvalid, {"a\\nb"}},
      {"npy_without_name",
       "no_name.safetensors",
       "out",
       {.to = Format::kNpy},
       kInvalid,
       {"tensor \"\" has no name"}},
      {"checkpoint_without_name", "no_name.safetensors", "out", {}, kInvalid, {"\"\""}},
  };
  for (const RefusedCase& row : refused) {
    const StatusOr<Converted> result = convert(at(row.from), at(row.to), row.options);
    EXPECT_EQ(result.status().code(), row.code) << row.name << ": " << result.status();
    for (const std::string& part : row.parts) {
      EXPECT_THAT(std::string(result.status().message()), HasSubstr(part)) << row.name;
    }
    EXPECT_EQ(names_of(folder_.path()), before) << row.name;
  }
  EXPECT_EQ(read_bytes(at("there")), "x");
}

TEST_F(ConvertTest, DamageIsFoundAndLeavesNoTarget) {
  write_checkpoint(at("run"), {}, cut_tensors());
  const std::string name = at("run/data-00001-00112233445566aa.safetensors");
  std::string bytes = read_bytes(name);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(name, bytes);
  const std::vector<std::string> before = names_of(folder_.path());
  for (const Format format : {Format::kTessera, Format::kSafetensors}) {
    EXPECT_THAT(convert(at("run"), at("out"), {.to = format}),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr(name), HasSubstr("block 0"), HasSubstr("\"b\""))));
    EXPECT_EQ(names_of(folder_.path()), before);
  }
  // A tensor whose file is whole can be saved.
  EXPECT_THAT(convert(at("run"), at("out"), {.tensor = "flags"}), IsOk());
  ASSERT_EQ(unlink(name.c_str()), 0);
  EXPECT_THAT(convert(at("run"), at("other"), {.tensor = "b"}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("is missing; it holds")));
}

// The limit on the size of files kills the program where it would write more.
TEST_F(ConvertTest, InConvertAKillLeavesNoTarget) {
  std::vector<MadeTensor> tensors = {{"small", DType::kInt32, {100}},
                                     {"large", DType::kInt32, {5000}}};
  write_checkpoint(at("run"), {}, tensors);
  const std::map<std::string, std::string> before = tensors_at(at("run"));
  int killed = 0;
  for (const ConvertOptions& options :
       {ConvertOptions{.to = Format::kSafetensors}, ConvertOptions{.to = Format::kTessera},
        ConvertOptions{.to = Format::kSafetensors, .max_file_bytes = 2000},
        ConvertOptions{.to = Format::kNpy}}) {
    for (const rlim_t limit : {0, 100, 400, 600, 2000, 10'000, 100'000}) {
      const std::string target = at(absl::StrCat("out", limit, "_", killed));
      const pid_t child = fork();
      if (child == 0) {
        const rlimit no_core = {0, 0};
        const rlimit most = {limit, limit};
        setrlimit(RLIMIT_CORE, &no_core);
        setrlimit(RLIMIT_FSIZE, &most);
        _exit(convert(at("run"), target, options).ok() ? 0 : 1);
      }
      int end = 0;
      ASSERT_EQ(waitpid(child, &end, 0), child);
      if (WIFSIGNALED(end)) {
        ++killed;
        EXPECT_EQ(WTERMSIG(end), SIGXFSZ);
        EXPECT_FALSE(exists(target)) << limit;
      } else {
        ASSERT_EQ(WEXITSTATUS(end), 0) << limit;
        EXPECT_TRUE(exists(target));
      }
      EXPECT_EQ(tensors_at(at("run")), before);
    }
  }
  EXPECT_GT(killed, 12);
}

int64_t peak_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

// 160 MiB in one tensor, most of it a hole of the source: the program holds its buffers.
TEST_F(ConvertTest, MemoryDoesNotDependOnTheSizeOfTensors) {
  const int64_t rows = 160 << 10;
  std::string header = files::format_npy_header(DType::kFloat32, {rows, 256});
  const auto begin = static_cast<int64_t>(header.size());
  write_bytes(at("large.npy"), header);
  ASSERT_EQ(truncate(at("large.npy").c_str(), begin + rows * 1024), 0);
  const int64_t before = peak_bytes();
  ASSERT_THAT(convert(at("large.npy"), at("out.safetensors"), {.to = Format::kSafetensors}),
              IsOk());
  ASSERT_THAT(convert(at("out.safetensors"), at("out"), {}), IsOk());
  EXPECT_LT(peak_bytes() - before, int64_t{100} << 20);
  unlink(at("out.safetensors").c_str());
  for (const std::string& name : names_of(at("out"))) unlink(at("out/" + name).c_str());
}

}  // namespace
}  // namespace tessera::ckpt_tool
