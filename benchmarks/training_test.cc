// SPDX-License-Identifier: Apache-2.0
//
// Losses of Training on meshes of several forms.
#include "benchmarks/training.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::bench {
namespace {

struct MeshSize {
  int64_t batch, model;
};

// The losses of the first steps on a mesh.
template <class Size>
StatusOr<std::vector<float>> losses(const Client& client, const MeshSize& mesh_size,
                                    const Size& size) {
  std::vector<int> devices;
  for (int id = 0; id < mesh_size.batch * mesh_size.model; ++id) devices.push_back(id);
  TESSERA_ASSIGN_OR_RETURN(
      const Mesh mesh,
      create_mesh(client, {{"batch", mesh_size.batch}, {"model", mesh_size.model}}, devices));
  Training training(mesh, size);
  std::vector<float> losses;
  for (int i = 0; i < 6; ++i) {
    TESSERA_RETURN_IF_ERROR(training.step());
    TESSERA_ASSIGN_OR_RETURN(const float loss, training.loss());
    losses.push_back(loss);
  }
  return losses;
}

// The losses fall from the loss of a guess, and are equal on every mesh.
template <class Size>
void check_losses(const Size& size, int64_t classes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Client client, Client::connect({.num_local_devices = 4}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, losses(client, {1, 1}, size));
  EXPECT_NEAR(expected.front(), std::log(classes), 0.5);
  EXPECT_LT(expected.back(), expected.front());
  for (const MeshSize& mesh : {MeshSize{4, 1}, {1, 4}, {2, 2}}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<float> found, losses(client, mesh, size));
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], 1e-5 * expected[i])
          << "step " << i << " on batch=" << mesh.batch << " model=" << mesh.model;
    }
  }
  EXPECT_THAT(client.shutdown(), testing::IsOk());
}

TEST(TrainingTest, DigitsHaveEqualLossesOnEveryMesh) {
  const DigitsSize size = {.images = 16};
  check_losses(size, size.classes);
}

TEST(TrainingTest, ReplicasHaveTheLossesOfOneDevice) {
  const DigitsSize size = {.images = 16};
  TESSERA_ASSERT_OK_AND_ASSIGN(Client client, Client::connect({.num_local_devices = 4}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<float> expected, losses(client, {1, 1}, size));
  TESSERA_ASSERT_OK_AND_ASSIGN(const distribute::Strategy strategy,
                               distribute::mirrored_strategy(client));
  TESSERA_ASSERT_OK_AND_ASSIGN(ReplicaTraining training, ReplicaTraining::create(strategy, size));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_THAT(training.step(), testing::IsOk());
    TESSERA_ASSERT_OK_AND_ASSIGN(const float loss, training.loss());
    EXPECT_NEAR(loss, expected[i], 1e-5 * expected[i]) << "step " << i;
  }
  EXPECT_THAT(client.shutdown(), testing::IsOk());
}

TEST(TrainingTest, TransformerHasEqualLossesOnEveryMesh) {
  const TransformerSize size = {.pieces = 4, .context = 8, .width = 16};
  check_losses(size, size.vocabulary);
}

}  // namespace
}  // namespace tessera::bench
