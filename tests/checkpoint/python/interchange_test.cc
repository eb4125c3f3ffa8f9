// SPDX-License-Identifier: Apache-2.0
//
// Files that Tessera writes are read by safetensors, numpy and torch, and their files by Tessera.
// Tests of a library that python3 lacks are skipped:
//
//   pip install --target /tmp/py safetensors numpy torch
//   bazel test --test_env=PYTHONPATH=/tmp/py //tests/checkpoint/python:interchange_test
#include <sys/wait.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "checkpoint/checkpoint.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "files/array_files.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "ops/pointwise.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using ::testing::UnorderedElementsAreArray;

constexpr char kPeer[] = "tests/checkpoint/python/peer.py";
const Shape kShape = {13, 6};
const std::vector<DType> kOfNumpy = {DType::kBool,    DType::kInt8,   DType::kUint8,
                                     DType::kInt32,   DType::kInt64,  DType::kFloat16,
                                     DType::kFloat32, DType::kFloat64};

std::vector<DType> all_dtypes() {
  std::vector<DType> dtypes = kOfNumpy;
  dtypes.push_back(DType::kBFloat16);
  return dtypes;
}

// The lines that the peer prints.
StatusOr<std::vector<std::string>> peer(const std::string& arguments) {
  const std::string command =
      absl::StrCat("timeout 120 python3 -B -W ignore ", kPeer, " ", arguments, " 2>&1 < /dev/null");
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return absl::InternalError("popen");
  std::string output;
  char chunk[4096];
  while (const size_t count = std::fread(chunk, 1, sizeof(chunk), pipe)) {
    output.append(chunk, count);
  }
  const int status = pclose(pipe);
  if (status != 0) return absl::InternalError(absl::StrCat(arguments, ": ", output));
  return std::vector<std::string>(absl::StrSplit(output, '\n', absl::SkipEmpty()));
}

bool has(const std::string& library) { return peer("has " + library).ok(); }

// "f32 13x6" for each dtype.
std::vector<std::string> lines(const std::vector<DType>& dtypes) {
  std::vector<std::string> lines;
  for (const DType dtype : dtypes) lines.push_back(absl::StrCat(dtype_name(dtype), " 13x6"));
  return lines;
}

int64_t value(DType dtype, int64_t i) { return i % (dtype == DType::kBool ? 2 : 100); }

std::vector<NamedTensor> tensors(const std::vector<DType>& dtypes, const LayoutArg& layout) {
  std::vector<NamedTensor> tensors;
  for (const DType dtype : dtypes) {
    const DTensor numbers = ops::mod(iota<int64_t>(kShape, layout), value(dtype, 99) + 1);
    tensors.push_back({std::string(dtype_name(dtype)), ops::cast(numbers, dtype)});
  }
  return tensors;
}

Status expect_values(const DTensor& tensor, DType dtype) {
  TESSERA_REQUIRE(tensor.dtype() == dtype);
  TESSERA_REQUIRE(tensor.shape() == kShape);
  return visit_dtype(dtype, [&]<class T>() {
    return expect_shards<T>(
        tensor, [dtype](int64_t i) { return static_cast<T>(static_cast<float>(value(dtype, i))); });
  });
}

// Restores tensors that are named like their dtypes, and checks them.
Status restore_all(const Client& client, const std::string& path,
                   const std::vector<DType>& dtypes) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
  std::vector<checkpoint::Target> targets;
  for (const DType dtype : dtypes) {
    targets.push_back({std::string(dtype_name(dtype)), Layout::parse(mesh, "[-, x]")});
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> restored,
                           checkpoint::restore(client, path, targets));
  for (size_t i = 0; i < dtypes.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(expect_values(restored[i], dtypes[i]));
  }
  return absl::OkStatus();
}

// Each test has a folder of its own.
class InterchangeTest : public JobFormTest {
 protected:
  void SetUp() override {
    JobFormTest::SetUp();
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        absl::StrCat(::testing::TempDir(), "/", absl::StrReplaceAll(test->name(), {{"/", "_"}}));
    std::filesystem::create_directories(folder_);
  }

  // With rows over all devices.
  Status with_rows(const std::function<Status(const Client&, const Layout& rows)>& body) {
    return run([&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
      TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[x, -]"));
      return body(client, rows);
    });
  }

  std::string folder_;
};
INSTANTIATE_TEST_SUITE_P(Forms, InterchangeTest, ::testing::ValuesIn(kJobForms), job_form_name);

TEST_P(InterchangeTest, SafetensorsReadsOurFile) {
  if (!has("safetensors.numpy")) GTEST_SKIP() << "python3 has no safetensors or no numpy";
  const std::string path = folder_ + "/model.safetensors";
  ASSERT_THAT(with_rows([&](const Client& client, const Layout& rows) {
                return write_safetensors(client, path, tensors(kOfNumpy, rows));
              }),
              IsOk());
  EXPECT_THAT(peer("read safetensors " + path),
              IsOkAndHolds(UnorderedElementsAreArray(lines(kOfNumpy))));
}

TEST_P(InterchangeTest, SafetensorsReadsTheDataFilesOfACheckpoint) {
  if (!has("safetensors.numpy")) GTEST_SKIP() << "python3 has no safetensors or no numpy";
  ASSERT_THAT(with_rows([&](const Client& client, const Layout& rows) {
                return checkpoint::save(client, folder_, tensors(kOfNumpy, rows));
              }),
              IsOk());
  EXPECT_THAT(peer("read pieces " + folder_),
              IsOkAndHolds(UnorderedElementsAreArray(lines(kOfNumpy))));
}

TEST_P(InterchangeTest, WeReadAFileOfSafetensors) {
  if (!has("safetensors.numpy")) GTEST_SKIP() << "python3 has no safetensors or no numpy";
  const std::string path = folder_ + "/model.safetensors";
  ASSERT_THAT(peer("write safetensors " + path), IsOk());
  EXPECT_THAT(run([&](Client& client) { return restore_all(client, path, kOfNumpy); }), IsOk());
  EXPECT_THAT(run([&](Client& client) { return restore_all(client, folder_, kOfNumpy); }), IsOk());
}

TEST_P(InterchangeTest, NumpyLoadsOurArrays) {
  if (!has("numpy")) GTEST_SKIP() << "python3 has no numpy";
  ASSERT_THAT(with_rows([&](const Client& client, const Layout& rows) -> Status {
                for (const NamedTensor& each : tensors(kOfNumpy, rows)) {
                  TESSERA_RETURN_IF_ERROR(write_npy(
                      client, absl::StrCat(folder_, "/", each.name, ".npy"), each.tensor));
                }
                return absl::OkStatus();
              }),
              IsOk());
  EXPECT_THAT(peer("read npy " + folder_),
              IsOkAndHolds(UnorderedElementsAreArray(lines(kOfNumpy))));
}

TEST_P(InterchangeTest, WeReadArraysOfNumpy) {
  if (!has("numpy")) GTEST_SKIP() << "python3 has no numpy";
  ASSERT_THAT(peer("write npy " + folder_), IsOk());
  EXPECT_THAT(with_rows([&](const Client& client, const Layout& rows) -> Status {
                for (const DType dtype : kOfNumpy) {
                  for (const char* suffix : {"", ".fortran", ".big"}) {
                    const std::string path =
                        absl::StrCat(folder_, "/", dtype_name(dtype), suffix, ".npy");
                    TESSERA_ASSIGN_OR_RETURN(const DTensor tensor, read_npy(client, path, rows));
                    TESSERA_RETURN_IF_ERROR(expect_values(tensor, dtype));
                  }
                }
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(InterchangeTest, TorchReadsOurCheckpoint) {
  if (!has("torch.distributed.checkpoint.hf_storage") || !has("safetensors")) {
    GTEST_SKIP() << "python3 has no torch with HuggingFaceStorageReader, or no safetensors";
  }
  ASSERT_THAT(with_rows([&](const Client& client, const Layout& rows) {
                return checkpoint::save(client, folder_, tensors(all_dtypes(), rows));
              }),
              IsOk());
  EXPECT_THAT(peer("read torch " + folder_),
              IsOkAndHolds(UnorderedElementsAreArray(lines(all_dtypes()))));
}

TEST_P(InterchangeTest, WeReadACheckpointOfTorch) {
  if (!has("torch.distributed.checkpoint.hf_storage") || !has("safetensors")) {
    GTEST_SKIP() << "python3 has no torch with HuggingFaceStorageWriter, or no safetensors";
  }
  ASSERT_THAT(peer("write torch " + folder_), IsOk());
  EXPECT_THAT(run([&](Client& client) { return restore_all(client, folder_, all_dtypes()); }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
