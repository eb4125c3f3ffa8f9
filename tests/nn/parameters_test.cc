// SPDX-License-Identifier: Apache-2.0
//
// Parameters: their order, their names, every error, and their table.
#include "nn/parameters.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/tape.h"
#include "ops/variable.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using nn::Parameters;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class ParametersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(client_, Client::connect({.num_local_devices = 2}));
    mesh_ = create_mesh(*client_, {{"x", 2}});
    ASSERT_THAT(mesh_, IsOk());
  }

  StatusOr<Layout> layout(const char* text) const { return Layout::parse(*mesh_, text); }

  std::optional<Client> client_;
  StatusOr<Mesh> mesh_;
};

TEST_F(ParametersTest, AreInTheOrderOfAdd) {
  Parameters parameters;
  EXPECT_EQ(parameters.num_elements(), 0);
  parameters.add("w", zeros<float>({5, 3}, layout("[x, -]")));
  parameters.add("b", ones<double>({3}, layout("[-]")));
  parameters.add("a", zeros<float>({}, layout("[]")));
  EXPECT_THAT(parameters.names(), ElementsAre("w", "b", "a"));
  ASSERT_EQ(parameters.variables().size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(parameters.variables()[i].name(), parameters.names()[i]);
    EXPECT_EQ(parameters.find(parameters.names()[i]), i);
  }
  EXPECT_EQ(parameters.find("c"), std::nullopt);
  EXPECT_EQ(parameters["b"], parameters.variables()[1]);
  EXPECT_EQ(parameters["b"].dtype(), DType::kFloat64);
  EXPECT_EQ(parameters.num_elements(), 15 + 3 + 1);
  EXPECT_THAT(parameters.status(), IsOk());
}

TEST_F(ParametersTest, CopiesAreTheSameParameters) {
  Parameters parameters;
  Parameters copy = parameters;
  const Variable& w = copy.add("w", zeros<float>({2}, layout("[x]")));
  EXPECT_EQ(parameters["w"], w);
  const Parameters moved = std::move(copy);
  EXPECT_THAT(copy.names(), ElementsAre("w"));  // NOLINT: a move copies
  EXPECT_EQ(moved["w"], w);
}

TEST_F(ParametersTest, ReferencesStayValid) {
  Parameters parameters;
  Variable& first = parameters.add("first", ones<float>({2}, layout("[x]")));
  const Variable& same = parameters["first"];
  for (int i = 0; i < 1000; ++i) {
    parameters.add(absl::StrCat("other", i), zeros<float>({1}, layout("[-]")));
  }
  EXPECT_EQ(first.name(), "first");
  EXPECT_EQ(&same, &first);
  EXPECT_THAT(first.assign(zeros<float>({2}, layout("[-]"))), IsOk());
  EXPECT_EQ(parameters.variables()[0], first);
}

TEST_F(ParametersTest, AreWatchedAsAWhole) {
  Parameters parameters;
  parameters.add("w", full<double>({4}, 3, layout("[x]")));
  parameters.add("b", full<double>({4}, 5, layout("[-]")));
  Tape tape;
  const std::vector<DTensor> w = parameters.watch(tape);
  ASSERT_EQ(w.size(), 2U);
  const std::vector<DTensor> gradients = tape.gradient(ops::sum(w[0] * w[1]), w);
  for (const auto& [gradient, value] : {std::pair(gradients[0], 5.0), {gradients[1], 3.0}}) {
    const StatusOr<HostTensor<double>> host = gradient.to_host<double>();
    ASSERT_THAT(host, IsOk());
    EXPECT_THAT(host->data, ElementsAre(value, value, value, value));
  }
}

TEST_F(ParametersTest, ANameTwiceIsAnErrorOfTheSecondVariable) {
  Parameters parameters;
  const Variable first = parameters.add("w", zeros<float>({2}, layout("[x]")));
  const Variable second = parameters.add("w", ones<float>({3}, layout("[-]")));
  parameters.add("b", ones<float>({3}, layout("[-]")));
  const auto is_refused =
      StatusIs(kInvalid, HasSubstr("parameter \"w\" is added twice; give each its own name"));
  EXPECT_THAT(second.value().status(), is_refused);
  EXPECT_THAT(parameters.status(), is_refused);
  EXPECT_THAT(first.value().status(), IsOk());
  EXPECT_EQ(parameters["w"], first);
  // It keeps its place, and its error reaches what is computed from it.
  EXPECT_THAT(parameters.names(), ElementsAre("w", "w", "b"));
  EXPECT_EQ(parameters.num_elements(), 2 + 3);
  Tape tape;
  EXPECT_THAT(parameters.watch(tape)[1].status(), is_refused);
}

TEST_F(ParametersTest, AnInitialValueThatFailedIsTheErrorOfItsVariable) {
  Parameters parameters;
  EXPECT_THAT(parameters.add("w", zeros<float>({2}, layout("[y]"))).value().status(),
              StatusIs(kInvalid, HasSubstr("\"y\"")));
  EXPECT_THAT(parameters.status(), StatusIs(kInvalid, HasSubstr("\"y\"")));
  EXPECT_THAT(parameters.add("p", zeros<float>({2}, layout("[-] sum{x}"))).value().status(),
              StatusIs(kInvalid, HasSubstr("variable \"p\": the initial value is [-] sum{x}")));
  // The first error stays.
  EXPECT_THAT(parameters.status(), StatusIs(kInvalid, HasSubstr("\"y\"")));
}

TEST_F(ParametersTest, AnUnknownNameIsNotFound) {
  Parameters parameters;
  parameters.add("block0/query", zeros<float>({2}, layout("[x]")));
  const Variable& none = parameters["block0/quary"];
  EXPECT_THAT(none.value().status(), StatusIs(absl::StatusCode::kNotFound,
                                              HasSubstr("there is no parameter \"block0/quary\" "
                                                        "among 1; did you mean \"block0/query\"")));
  EXPECT_EQ(&parameters["block0/quary"], &none);
  EXPECT_THAT(parameters.names(), ElementsAre("block0/query"));
  EXPECT_THAT(parameters.status(), IsOk());
  parameters.add("block0/quary", zeros<float>({2}, layout("[x]")));
  EXPECT_THAT(parameters["block0/quary"].value().status(), IsOk());
}

TEST_F(ParametersTest, Table) {
  Parameters parameters;
  EXPECT_EQ(parameters.to_string(),
            "name  shape  dtype  layout  bytes per device\n"
            "0 in all: 0 elements, 0 bytes per device\n");
  parameters.add("embedding", zeros<float>({65, 8}, layout("[x, -]")));
  parameters.add("block0/attend/q", zeros<float>({8, 8}, layout("[-, x]")));
  parameters.add("block0/attend/k", zeros<float>({8, 8}, layout("[-, x]")));
  parameters.add("block0/scale", zeros<double>({8}, layout("[-]")));
  parameters.add("block1/attend/q", zeros<float>({0, 8}, layout("[-, x]")));
  EXPECT_EQ(parameters.to_string(),
            "name       shape    dtype  layout  bytes per device\n"
            "embedding  [65, 8]  f32    [x, -]              1056\n"
            "block0/\n"
            "  attend/\n"
            "    q      [8, 8]   f32    [-, x]               128\n"
            "    k      [8, 8]   f32    [-, x]               128\n"
            "  scale    [8]      f64    [-]                   64\n"
            "block1/\n"
            "  attend/\n"
            "    q      [0, 8]   f32    [-, x]                 0\n"
            "5 in all: 656 elements, 1376 bytes per device\n");
  parameters.add("embedding", zeros<float>({1}, layout("[-]")));
  EXPECT_THAT(parameters.to_string(),
              HasSubstr("embedding  failed\n"
                        "6 in all: 656 elements, 1376 bytes per device\n"
                        "first error: parameter \"embedding\" is added twice"));
}

}  // namespace
}  // namespace tessera::testing
