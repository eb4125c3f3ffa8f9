// SPDX-License-Identifier: Apache-2.0
//
// Random numbers: the known answers of Philox, every row of ops/testdata/random_cases.tsv, and the
// same values under every layout, mesh and split over clients.
#include "ops/random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/numeric/int128.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/cpu/philox.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using kernels::philox;
using kernels::PhiloxBlock;
using kernels::RandomKind;
using kernels::RandomSpec;
using random::Key;
using ::testing::HasSubstr;

TEST(PhiloxTest, KnownAnswers) {
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// ---- Rows of the table

struct RandomRow {
  std::string id, call, dtype;
  std::vector<uint64_t> indices;
  std::vector<std::string> values;
  std::string tolerance;
};

StatusOr<std::vector<RandomRow>> read_rows() {
  std::ifstream file("ops/testdata/random_cases.tsv");
  if (!file.is_open()) return absl::NotFoundError("no table of random numbers");
  std::vector<RandomRow> rows;
  std::string line;
  std::getline(file, line);  // The names of the columns.
  while (std::getline(file, line)) {
    const std::vector<std::string> cells = absl::StrSplit(line, '\t');
    TESSERA_REQUIRE(cells.size() == 6, "cells of ", line);
    RandomRow& row = rows.emplace_back();
    row.id = cells[0];
    row.call = cells[1];
    row.dtype = cells[2];
    row.tolerance = cells[5];
    if (cells[3] != "-") {
      for (absl::string_view index : absl::StrSplit(cells[3], ", ")) {
        uint64_t value = 0;
        TESSERA_REQUIRE(absl::SimpleAtoi(index, &value), index);
        row.indices.push_back(value);
      }
    }
    row.values = absl::StrSplit(cells[4], cells[1][0] == 'f' ? " " : ", ");
  }
  return rows;
}

uint64_t integer(absl::string_view text) {
  uint64_t value = 0;
  return absl::SimpleAtoi(text, &value) ? value : 0;
}

// "from_seed(42).fold_in(1)"
Key key_of(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::ByAnyChar("()."));
  Key key = Key::from_seed(integer(parts[1]));
  for (size_t k = 2; k + 1 < parts.size(); ++k) {
    if (parts[k] == "fold_in") key = key.fold_in(integer(parts[k + 1]));
  }
  return key;
}

// "uniform(from_seed(42), 0, 1)"
RandomSpec spec_of(absl::string_view call) {
  const std::map<absl::string_view, RandomKind> kinds = {
      {"bits", RandomKind::kBits},
      {"uniform", RandomKind::kUniform},
      {"normal", RandomKind::kNormal},
      {"truncated_normal", RandomKind::kTruncatedNormal},
      {"bernoulli", RandomKind::kBernoulli},
      {"randint", RandomKind::kInteger},
      {"permutation", RandomKind::kPermutation},
  };
  const size_t open = call.find('(');
  RandomSpec spec;
  spec.kind = kinds.at(call.substr(0, open));
  const std::vector<absl::string_view> arguments =
      absl::StrSplit(call.substr(open + 1, call.size() - open - 2), ", ");
  spec.key = key_of(arguments[0]).words();
  const auto real = [&](size_t k) {
    double value = 0;
    return k < arguments.size() && absl::SimpleAtod(arguments[k], &value) ? value : 0;
  };
  switch (spec.kind) {
    case RandomKind::kTruncatedNormal:
      spec.low = real(1);
      spec.high = real(2);
      spec.a = 0;
      break;
    case RandomKind::kInteger: {
      absl::int128 ends[2];
      for (int k = 0; k < 2; ++k) {
        absl::string_view digits = arguments[1 + k];
        const bool is_negative = absl::ConsumePrefix(&digits, "-");
        ends[k] = static_cast<absl::int128>(integer(digits));
        if (is_negative) ends[k] = -ends[k];
      }
      spec.least = static_cast<int64_t>(ends[0]);
      spec.range = absl::Int128Low64(ends[1] - ends[0]);
      break;
    }
    case RandomKind::kPermutation:
      spec.range = static_cast<uint64_t>(real(1));
      break;
    default:
      spec.a = real(1);
      if (arguments.size() > 2) spec.b = real(2);
  }
  return spec;
}

DType dtype_named(absl::string_view name) {
  for (int k = 0; k < kNumDTypes; ++k) {
    if (dtype_name(static_cast<DType>(k)) == name) return static_cast<DType>(k);
  }
  return DType::kFloat32;
}

// The distance of two values of T in units of the last place of the second.
template <class T>
double ulps(T a, double b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<double>(a) == b ? 0 : 1e9;
  } else {
    constexpr int kDigits = std::is_same_v<T, double>        ? 53
                            : std::is_same_v<T, float>       ? 24
                            : std::is_same_v<T, Eigen::half> ? 11
                                                             : 8;
    const double ulp = std::ldexp(1.0, std::ilogb(b == 0 ? 1 : b) + 1 - kDigits);
    return std::abs(static_cast<double>(a) - b) / ulp;
  }
}

template <class T>
void check_values(const RandomRow& row, const RandomSpec& spec) {
  double allowed = 0;
  if (absl::EndsWith(row.tolerance, "ulp")) {
    ASSERT_TRUE(absl::SimpleAtod(row.tolerance.substr(0, row.tolerance.find(' ')), &allowed));
  }
  for (size_t k = 0; k < row.indices.size(); ++k) {
    T value = T(0);
    kernels::random_run(spec, dtype_of<T>(), row.indices[k], 1,
                        reinterpret_cast<std::byte*>(&value));
    if constexpr (std::is_same_v<T, bool>) {
      EXPECT_EQ(value, row.values[k] == "true") << row.id << " " << row.indices[k];
    } else if constexpr (std::is_integral_v<T>) {
      EXPECT_EQ(absl::StrCat(static_cast<int64_t>(value)), row.values[k])
          << row.id << " " << row.indices[k];
    } else {
      const double expected = std::strtod(row.values[k].c_str(), nullptr);
      EXPECT_LE(ulps(value, expected), allowed) << row.id << " " << row.indices[k];
    }
  }
}

// "sum of uniform(from_seed(42), 0, 1), shape [1001]"
void check_sum(const RandomRow& row) {
  const size_t of = row.call.find(" of ") + 4;
  const RandomSpec spec = spec_of(row.call.substr(of, row.call.find(", shape") - of));
  double sum = 0;
  for (int64_t i = 0; i < 1001; ++i) {
    if (row.dtype == "f64") {
      double value = 0;
      kernels::random_run(spec, DType::kFloat64, i, 1, reinterpret_cast<std::byte*>(&value));
      sum += value;
    } else {
      int32_t value = 0;
      kernels::random_run(spec, DType::kInt32, i, 1, reinterpret_cast<std::byte*>(&value));
      sum += value;
    }
  }
  double expected = 0;
  ASSERT_TRUE(absl::SimpleAtod(row.values[0], &expected));
  EXPECT_NEAR(sum, expected, 1e-9) << row.id;
}

TEST(RandomFactsTest, Rows) {
  const StatusOr<std::vector<RandomRow>> rows = read_rows();
  ASSERT_THAT(rows, IsOk());
  for (const RandomRow& row : *rows) {
    if (row.dtype == "-") {
      const Key key = key_of(row.call);
      EXPECT_EQ(absl::StrFormat("%08x %08x", key.words()[0], key.words()[1]),
                absl::StrCat(row.values[0], " ", row.values[1]))
          << row.id;
    } else if (row.indices.empty()) {
      check_sum(row);
    } else {
      const RandomSpec spec = spec_of(row.call);
      visit_dtype(dtype_named(row.dtype), [&]<class T>() { check_values<T>(row, spec); });
    }
  }
}

TEST(RandomKeyTest, TextIsReadBack) {
  EXPECT_EQ(Key::from_seed(42).to_string(), "000000000000002a");
  for (const Key& key : {Key::from_seed(0), Key::from_seed(uint64_t{0xdeadbeef} << 32),
                         Key::from_seed(~uint64_t{0}), Key::from_seed(1).fold_in(2)}) {
    EXPECT_THAT(Key::parse(key.to_string()), IsOkAndHolds(key));
  }
  for (const char* text : {"", "2a", "00000000000000002a", "000000000000002A", "0x0000000000002a",
                           " 00000000000002a", "-00000000000002a", "000000000000002g"}) {
    EXPECT_THAT(Key::parse(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr(absl::StrCat("random key \"", text, "\""))));
  }
}

// ---- Tensors

// Draws a tensor of a shape under a layout.
using Draw = DTensor (*)(const Key& key, const Shape& shape, const StatusOr<Layout>& layout);

template <class T>
Status check_layouts(const Client& client, Draw draw) {
  const Key key = Key::from_seed(7).fold_in(3);
  for (const char* text : {"{x=8}", "{x=2, y=4}", "{x=2, y=2, z=2}"}) {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, text));
    for (const Shape& shape : {Shape{13}, Shape{5, 3}, Shape{3, 2, 5}, Shape{0, 4}, Shape{}}) {
      TESSERA_ASSIGN_OR_RETURN(
          const HostTensor<T> whole,
          draw(key, shape, Layout::replicated(mesh, static_cast<int>(shape.size())))
              .template to_host<T>());
      for (const Layout& layout : all_layouts(mesh, static_cast<int>(shape.size()), false)) {
        const DTensor tensor = draw(key, shape, layout);
        TESSERA_RETURN_IF_ERROR(expect_shards<T>(tensor, [&](int64_t i) { return whole.data[i]; }));
      }
    }
  }
  return absl::OkStatus();
}

class RandomTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, RandomTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, RandomTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

TEST_P(RandomTest, SameValuesUnderEveryLayout) {
  EXPECT_THAT(run([](Client& client) -> Status {
                using L = StatusOr<Layout>;
                TESSERA_RETURN_IF_ERROR(
                    check_layouts<int8_t>(client, [](const Key& k, const Shape& s, const L& l) {
                      return random::bits<int8_t>(k, s, l);
                    }));
                TESSERA_RETURN_IF_ERROR(
                    check_layouts<float>(client, [](const Key& k, const Shape& s, const L& l) {
                      return random::uniform<float>(k, s, l, -1, 1);
                    }));
                TESSERA_RETURN_IF_ERROR(
                    check_layouts<double>(client, [](const Key& k, const Shape& s, const L& l) {
                      return random::normal<double>(k, s, l);
                    }));
                return check_layouts<int64_t>(client, [](const Key& k, const Shape& s, const L& l) {
                  return random::randint<int64_t>(k, s, l, -3, 12);
                });
              }),
              IsOk());
}

TEST_P(RandomTest, PermutationHasEachNumberOnce) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                for (const int64_t n : {0, 1, 2, 5, 64, 1000}) {
                  TESSERA_ASSIGN_OR_RETURN(
                      HostTensor<int64_t> host,
                      random::permutation(Key::from_seed(n), n, Layout::parse(mesh, "[x]"))
                          .to_host<int64_t>());
                  std::sort(host.data.begin(), host.data.end());
                  for (int64_t i = 0; i < n; ++i) TESSERA_REQUIRE(host.data[i] == i, n);
                }
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(RandomTest, Refusals) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        const Key key = Key::from_seed(1);
        const auto layout = Layout::parse(mesh, "[x]");
        const auto refused = [](const DTensor& tensor, const char* text) -> Status {
          TESSERA_REQUIRE(absl::IsInvalidArgument(tensor.status()) &&
                              absl::StrContains(tensor.status().message(), text),
                          tensor.status().ToString(), " instead of ", text);
          return absl::OkStatus();
        };
        TESSERA_RETURN_IF_ERROR(
            refused(random::uniform<float>(key, {3}, layout, 2, 1), "uniform: from 2 to 1"));
        TESSERA_RETURN_IF_ERROR(
            refused(random::uniform<float>(key, {3}, layout, 0, INFINITY), "finite"));
        TESSERA_RETURN_IF_ERROR(
            refused(random::normal<float>(key, {3}, layout, 0, -1), "normal: mean 0, stddev -1"));
        TESSERA_RETURN_IF_ERROR(
            refused(random::truncated_normal<float>(key, {3}, layout, 0, 1, 2, 2),
                    "truncated_normal: from 2 to 2 standard deviations"));
        TESSERA_RETURN_IF_ERROR(refused(random::truncated_normal<float>(key, {3}, layout, 0, -1),
                                        "truncated_normal: mean 0, stddev -1"));
        TESSERA_RETURN_IF_ERROR(
            refused(random::bernoulli(key, {3}, layout, 1.5), "bernoulli: probability 1.5"));
        TESSERA_RETURN_IF_ERROR(
            refused(random::randint<int32_t>(key, {3}, layout, 5, 5), "randint: from 5 to 5"));
        TESSERA_RETURN_IF_ERROR(
            refused(random::randint<uint8_t>(key, {3}, layout, 0, 257), "both in u8"));
        // Numbers that the dtype does not hold.
        TESSERA_RETURN_IF_ERROR(
            refused(random::uniform<Eigen::half>(key, {3}, layout, 0, 65520),
                    "uniform: numbers from 0 to 65520 may be drawn, and f16 cannot hold 65520"));
        TESSERA_RETURN_IF_ERROR(
            refused(random::uniform<float>(key, {3}, layout, -1e39, 0), "f32 cannot hold -1e+39"));
        TESSERA_RETURN_IF_ERROR(
            refused(random::normal<Eigen::half>(key, {3}, layout, 0, 20000),
                    "normal: numbers from -115362 to 115362 may be drawn, and f16 cannot hold"));
        TESSERA_RETURN_IF_ERROR(
            refused(random::truncated_normal<Eigen::half>(key, {3}, layout, 0, 20000, 3, 4),
                    "truncated_normal: numbers from 60000 to 80000 may be drawn"));
        return refused(random::permutation(key, -1, layout), "permutation: of -1 numbers");
      }),
      IsOk());
}

TEST(RandomMomentsTest, AreThoseOfTheDistribution) {
  constexpr int64_t kCount = 100'000;
  std::vector<float> values(kCount);
  const auto moments = [&](const RandomSpec& spec) {
    kernels::random_run(spec, DType::kFloat32, 0, kCount,
                        reinterpret_cast<std::byte*>(values.data()));
    double sum = 0;
    double squares = 0;
    for (const float value : values) {
      sum += value;
      squares += double{value} * value;
    }
    const double mean = sum / kCount;
    return std::pair(mean, squares / kCount - mean * mean);
  };
  const auto uniform = moments({.kind = RandomKind::kUniform, .key = {1, 2}});
  EXPECT_NEAR(uniform.first, 0.5, 0.005);
  EXPECT_NEAR(uniform.second, 1.0 / 12, 0.001);
  EXPECT_GE(*std::min_element(values.begin(), values.end()), 0);
  EXPECT_LT(*std::max_element(values.begin(), values.end()), 1);
  const auto normal = moments({.kind = RandomKind::kNormal, .key = {3, 4}});
  EXPECT_NEAR(normal.first, 0, 0.02);
  EXPECT_NEAR(normal.second, 1, 0.03);
  moments({.kind = RandomKind::kTruncatedNormal, .key = {5, 6}});
  EXPECT_GE(*std::min_element(values.begin(), values.end()), -2);
  EXPECT_LE(*std::max_element(values.begin(), values.end()), 2);
}

}  // namespace
}  // namespace tessera::testing
