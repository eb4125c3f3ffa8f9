// SPDX-License-Identifier: Apache-2.0
//
// to_host_array and to_tensor: every dtype, pieces of any size, and errors.
#include "servers/host_copy.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/host_array.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "servers/tensor_message.h"
#include "tests/support/matchers.h"

namespace tessera::distribute::internal {
namespace {

using ::tessera::testing::IsOkAndHolds;
using ::tessera::testing::StatusIs;
using ::testing::HasSubstr;

class HostCopyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    StatusOr<Client> client =
        Client::connect({.client_id = 0, .num_clients = 1, .num_local_devices = 2});
    ASSERT_TRUE(client.ok()) << client.status();
    client_.emplace_back(*std::move(client));
    StatusOr<Mesh> mesh = create_mesh(client_[0], {{"device", 2}});
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    mesh_.emplace_back(*std::move(mesh));
  }
  const Mesh& mesh() const { return mesh_[0]; }

 private:
  std::vector<Client> client_;
  std::vector<Mesh> mesh_;
};

// The bytes of an array, in pieces.
TensorBytes pieces(const HostArray& array, size_t piece_size) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < array.bytes.size(); at += piece_size) {
    slices.emplace_back(array.bytes.data() + at, std::min(piece_size, array.bytes.size() - at));
  }
  return TensorBytes(std::move(slices));
}

TEST_F(HostCopyTest, ThereAndBack) {
  for (int number = 0; number < kNumDTypes; ++number) {
    const auto dtype = static_cast<DType>(number);
    for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{5, 3}}) {
      SCOPED_TRACE(dtype_name(dtype));
      HostArray array = {.dtype = dtype, .shape = shape, .bytes = {}};
      array.bytes.resize(num_bytes(shape, dtype));
      for (size_t i = 0; i < array.bytes.size(); ++i) array.bytes[i] = std::byte(i % 2);
      for (const size_t piece_size : {1, 7, 1000}) {
        EXPECT_THAT(to_host_array(to_tensor(pieces(array, piece_size), dtype, shape, mesh())),
                    IsOkAndHolds(array));
      }
    }
  }
}

TEST_F(HostCopyTest, WholeOfATensorInShards) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout rows,
                               Layout::batch_sharded(mesh(), "device", /*rank=*/1));
  EXPECT_THAT(to_host_array(from_host<float>(values, {6}, rows)),
              IsOkAndHolds(HostArray::of<float>(values, {6})));
}

TEST_F(HostCopyTest, Errors) {
  const DTensor lost =
      to_tensor(absl::UnavailableError("ps 0 is lost"), DType::kFloat32, {2}, mesh());
  EXPECT_THAT(lost.await(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ps 0 is lost")));
  EXPECT_EQ(lost.shape(), (Shape{2}));
  EXPECT_THAT(to_host_array(lost), StatusIs(absl::StatusCode::kUnavailable));
  const std::vector<float> three = {1, 2, 3};
  EXPECT_THAT(
      to_tensor(pieces(HostArray::of<float>(three, {3}), 4), DType::kFloat32, {2}, mesh()).await(),
      StatusIs(absl::StatusCode::kInternal,
               HasSubstr("the parameter servers have sent 12 bytes of a tensor f32 [2], which has "
                         "8")));
}

}  // namespace
}  // namespace tessera::distribute::internal
