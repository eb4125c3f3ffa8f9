// SPDX-License-Identifier: Apache-2.0
//
// Loops on every instruction set of the CPU: elementwise functions against libm, halves against
// Eigen's conversions, rows against loops in f64.
#include "compute/cpu/loops.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "Eigen/Core"
#include "device/arithmetic.h"
#include "gtest/gtest.h"

namespace tessera::kernels {
namespace {

class LoopsTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  const Loops& loops() const { return kernels::loops(GetParam()); }
};

std::vector<InstructionSet> sets() {
  std::vector<InstructionSet> result;
  for (int k = 0; k <= static_cast<int>(best_instruction_set()); ++k) {
    result.push_back(static_cast<InstructionSet>(k));
  }
  return result;
}
INSTANTIATE_TEST_SUITE_P(Sets, LoopsTest, ::testing::ValuesIn(sets()), [](const auto& info) {
  return std::string(instruction_set_name(info.param));
});

struct Function {
  const char* name;
  PointwiseOp op;
  std::function<long double(long double)> exact;
  double least;
  double most;
};
long double gelu(long double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0L)); }
long double sigmoid(long double x) { return 1 / (1 + std::exp(-x)); }
const Function kFunctions[] = {
    {"exp", PointwiseOp::exp, [](long double x) { return std::exp(x); }, -80, 88},
    {"expm1", PointwiseOp::expm1, [](long double x) { return std::expm1(x); }, -80, 88},
    {"log", PointwiseOp::log, [](long double x) { return std::log(x); }, 1e-30, 1e30},
    {"log1p", PointwiseOp::log1p, [](long double x) { return std::log1p(x); }, -0.99, 1e30},
    {"sin", PointwiseOp::sin, [](long double x) { return std::sin(x); }, -100, 100},
    {"cos", PointwiseOp::cos, [](long double x) { return std::cos(x); }, -100, 100},
    {"tanh", PointwiseOp::tanh, [](long double x) { return std::tanh(x); }, -20, 20},
    {"erf", PointwiseOp::erf, [](long double x) { return std::erf(x); }, -6, 6},
    {"gelu", PointwiseOp::gelu, gelu, -8, 8},
    {"sigmoid", PointwiseOp::sigmoid, sigmoid, -60, 60},
    {"silu", PointwiseOp::silu, [](long double x) { return x * sigmoid(x); }, -60, 60},
    {"softplus", PointwiseOp::softplus,
     [](long double x) { return std::max(x, 0.0L) + std::log1p(std::exp(-std::abs(x))); }, -60, 60},
    {"sqrt", PointwiseOp::sqrt, [](long double x) { return std::sqrt(x); }, 0, 1e30},
    {"rsqrt", PointwiseOp::rsqrt, [](long double x) { return 1 / std::sqrt(x); }, 1e-30, 1e30},
};

// Numbers from `least` to `most`: evenly, and by powers towards 0.
template <class T>
std::vector<T> samples(const Function& function) {
  std::vector<T> values;
  constexpr int kEven = 4000;
  for (int k = 0; k <= kEven; ++k) {
    values.push_back(static_cast<T>(function.least + (function.most - function.least) * k / kEven));
  }
  for (double magnitude = 1e-30; magnitude < 1e30; magnitude *= 1.37) {
    for (const double x : {magnitude, -magnitude}) {
      if (x > function.least && x < function.most) values.push_back(static_cast<T>(x));
    }
  }
  while (values.size() % kLanes != 0) values.push_back(values.back());
  return values;
}

// How many numbers of type T are between the value and the exact one, about.
template <class T>
double ulps(T value, long double exact) {
  const T nearest = static_cast<T>(exact);
  if (value == nearest) return 0;
  const T next = std::nextafter(std::abs(nearest), std::numeric_limits<T>::infinity());
  return static_cast<double>(std::abs(value - exact) / (next - std::abs(nearest)));
}

template <class T>
void expect_near_libm(const Loops& loops, LoopType type) {
  for (const Function& function : kFunctions) {
    const std::vector<T> in = samples<T>(function);
    std::vector<T> out(in.size());
    ASSERT_TRUE(loops.pointwise(function.op, type, in.data(), nullptr, out.data(),
                                static_cast<int64_t>(in.size())));
    double worst = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      worst = std::max(worst, ulps(out[i], function.exact(static_cast<long double>(in[i]))));
    }
    // 4 of libmvec; the argument of erfc is rounded, which its tail magnifies by its square.
    const double bound = function.op == PointwiseOp::gelu ? 100 : 8;
    EXPECT_LE(worst, bound) << function.name;
    EXPECT_GT(in.size(), 4000u);
  }
}

TEST_P(LoopsTest, FunctionsAreThoseOfLibm) {
  expect_near_libm<float>(loops(), LoopType::kFloat32);
  expect_near_libm<double>(loops(), LoopType::kFloat64);
}

TEST_P(LoopsTest, FunctionsKeepInfinitiesAndNan) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float kNan = std::nanf("");
  struct Row {
    PointwiseOp op;
    float in;
    float out;
  };
  const Row rows[] = {
      {PointwiseOp::exp, kInf, kInf},      {PointwiseOp::exp, -kInf, 0},
      {PointwiseOp::exp, 1000, kInf},      {PointwiseOp::exp, -1000, 0},
      {PointwiseOp::exp, kNan, kNan},      {PointwiseOp::log, 0, -kInf},
      {PointwiseOp::log, -1, kNan},        {PointwiseOp::log, kInf, kInf},
      {PointwiseOp::log1p, -1, -kInf},     {PointwiseOp::tanh, kInf, 1},
      {PointwiseOp::tanh, -kInf, -1},      {PointwiseOp::tanh, kNan, kNan},
      {PointwiseOp::erf, kInf, 1},         {PointwiseOp::sigmoid, -kInf, 0},
      {PointwiseOp::sigmoid, kInf, 1},     {PointwiseOp::sin, kInf, kNan},
      {PointwiseOp::sqrt, -1, kNan},       {PointwiseOp::relu, kNan, kNan},
      {PointwiseOp::softplus, kInf, kInf}, {PointwiseOp::expm1, -kInf, -1},
  };
  for (const Row& row : rows) {
    const std::vector<float> in(kLanes, row.in);
    std::vector<float> out(kLanes);
    ASSERT_TRUE(
        loops().pointwise(row.op, LoopType::kFloat32, in.data(), nullptr, out.data(), kLanes));
    for (const float value : out) {
      EXPECT_TRUE(std::isnan(row.out) ? std::isnan(value) : value == row.out)
          << static_cast<int>(row.op) << " of " << row.in << " is " << value;
    }
  }
}

// Every f16 and bf16, and every f32 whose rounding to them is hard to tell: next to the middle of
// two neighbours.
TEST_P(LoopsTest, HalvesAreConvertedAsEigenDoes) {
  for (const HalfType type : {HalfType::kFloat16, HalfType::kBFloat16}) {
    std::vector<uint16_t> halves(1 << 16);
    for (size_t k = 0; k < halves.size(); ++k) halves[k] = static_cast<uint16_t>(k);
    std::vector<float> wide(halves.size());
    loops().widen(type, halves.data(), wide.data(), static_cast<int64_t>(halves.size()));
    const auto exact = [type](uint16_t bits) {
      return type == HalfType::kFloat16
                 ? static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(bits))
                 : static_cast<float>(Eigen::numext::bit_cast<Eigen::bfloat16>(bits));
    };
    std::vector<float> numbers;
    for (size_t k = 0; k < halves.size(); ++k) {
      const float value = exact(halves[k]);
      ASSERT_TRUE(std::isnan(value) ? std::isnan(wide[k]) : value == wide[k]) << k;
      if (!std::isfinite(value)) continue;
      const float next = exact(static_cast<uint16_t>(k + 1));
      const float middle = std::isfinite(next) ? (value + next) / 2 : value * 1.01f;
      for (const float x : {value, middle, std::nextafter(middle, 0.0f),
                            std::nextafter(middle, std::copysign(1e38f, value))}) {
        numbers.push_back(x);
      }
    }
    for (const float x : {1e30f, -1e30f, std::numeric_limits<float>::infinity()}) {
      numbers.push_back(x);
    }
    std::vector<uint16_t> narrow(numbers.size());
    loops().narrow(type, numbers.data(), narrow.data(), static_cast<int64_t>(numbers.size()));
    for (size_t k = 0; k < numbers.size(); ++k) {
      const uint16_t expected =
          type == HalfType::kFloat16
              ? Eigen::numext::bit_cast<uint16_t>(static_cast<Eigen::half>(numbers[k]))
              : Eigen::numext::bit_cast<uint16_t>(static_cast<Eigen::bfloat16>(numbers[k]));
      ASSERT_EQ(narrow[k], expected) << numbers[k];
    }
    const float nan = std::nanf("");
    uint16_t narrow_nan = 0;
    loops().narrow(type, &nan, &narrow_nan, 1);
    EXPECT_TRUE(std::isnan(exact(narrow_nan)));
  }
}

// Rows of lengths around the number of lanes.
template <class T>
void expect_rows(const Loops& loops, LoopType type, double tolerance) {
  for (const int64_t n : {1, 2, 15, 16, 17, 33, 100}) {
    const Rows rows = {3, n};
    std::vector<T> x(3 * n), c(3 * n), y(3 * n), back(3 * n);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<T>(static_cast<double>((7 * i + 3) % 11) / 2 - 2);
      c[i] = static_cast<T>(static_cast<double>((5 * i + 1) % 7) - 3);
    }
    const auto check = [&](const char* name, const std::vector<T>& found,
                           const std::function<double(const T*, const T*, int64_t)>& exact) {
      for (int64_t row = 0; row < 3; ++row) {
        for (int64_t i = 0; i < n; ++i) {
          const double value = exact(&x[row * n], &c[row * n], i);
          EXPECT_NEAR(found[row * n + i], value, tolerance * std::max(1.0, std::abs(value)))
              << name << " of " << n;
        }
      }
    };
    const auto softmax = [n](const T* row, int64_t i) {
      double sum = 0;
      for (int64_t k = 0; k < n; ++k) sum += std::exp(static_cast<double>(row[k]));
      return std::exp(static_cast<double>(row[i])) / sum;
    };
    loops.softmax(type, false, x.data(), rows, y.data());
    check("softmax", y, [&](const T* row, const T*, int64_t i) { return softmax(row, i); });
    loops.softmax_gradient(type, false, y.data(), c.data(), rows, back.data());
    check("softmax gradient", back, [&](const T* row, const T* by, int64_t i) {
      double sum = 0;
      for (int64_t k = 0; k < n; ++k) sum += softmax(row, k) * by[k];
      return softmax(row, i) * (by[i] - sum);
    });
    loops.softmax(type, true, x.data(), rows, y.data());
    check("log_softmax", y,
          [&](const T* row, const T*, int64_t i) { return std::log(softmax(row, i)); });
    loops.softmax_gradient(type, true, y.data(), c.data(), rows, back.data());
    check("log_softmax gradient", back, [&](const T* row, const T* by, int64_t i) {
      double sum = 0;
      for (int64_t k = 0; k < n; ++k) sum += by[k];
      return by[i] - softmax(row, i) * sum;
    });
    constexpr double kEpsilon = 0.25;
    const auto normal = [n](const T* row, int64_t i, double* scale) {
      double mean = 0, squares = 0;
      for (int64_t k = 0; k < n; ++k) mean += row[k] / static_cast<double>(n);
      for (int64_t k = 0; k < n; ++k) squares += (row[k] - mean) * (row[k] - mean);
      *scale = 1 / std::sqrt(squares / static_cast<double>(n) + kEpsilon);
      return (row[i] - mean) * *scale;
    };
    double scale = 0;
    loops.normalize(type, x.data(), nullptr, nullptr, rows, kEpsilon, y.data());
    check("normalize", y,
          [&](const T* row, const T*, int64_t i) { return normal(row, i, &scale); });
    loops.normalize(type, x.data(), x.data(), c.data(), rows, kEpsilon, y.data());
    check("normalize with scale and bias", y,
          [&](const T* row, const T*, int64_t i) { return normal(row, i, &scale) * x[i] + c[i]; });
    loops.normalize_gradient(type, x.data(), c.data(), rows, kEpsilon, back.data());
    check("normalize gradient", back, [&](const T* row, const T* by, int64_t i) {
      double sum = 0, with = 0;
      for (int64_t k = 0; k < n; ++k) {
        sum += by[k] / static_cast<double>(n);
        with += by[k] * normal(row, k, &scale) / static_cast<double>(n);
      }
      return scale * (by[i] - sum - normal(row, i, &scale) * with);
    });
  }
}

TEST_P(LoopsTest, RowsAreThoseOfPlainSums) {
  expect_rows<float>(loops(), LoopType::kFloat32, 2e-6);
  expect_rows<double>(loops(), LoopType::kFloat64, 1e-14);
}

// A row with an infinity has the softmax that exponentials say; NaN makes the row NaN.
TEST_P(LoopsTest, SoftmaxOfInfinities) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0, -inf, 0, -inf, -inf, -inf, std::nanf(""), 1, 2};
  std::vector<float> y(x.size());
  loops().softmax(LoopType::kFloat32, false, x.data(), {3, 3}, y.data());
  EXPECT_EQ(y[0], 0.5f);
  EXPECT_EQ(y[1], 0.0f);
  for (size_t i = 3; i < 9; ++i) EXPECT_TRUE(std::isnan(y[i])) << i;
}

// One step in f64, by the rules of the papers.
void exact_step(StepRule rule, const StepNumbers<double>& n, double g, double& x, double& a,
                double& b) {
  g += n.gradient_decay * x;
  switch (rule) {
    case StepRule::kSgd:
      x -= n.rate * g;
      return;
    case StepRule::kMomentum:
      a = n.momentum * a + g;
      x -= n.rate * a;
      return;
    case StepRule::kNesterov:
      a = n.momentum * a + g;
      x -= n.rate * (g + n.momentum * a);
      return;
    case StepRule::kAdam:
      a = n.beta1 * a + n.rest1 * g;
      b = n.beta2 * b + n.rest2 * g * g;
      x = n.kept * x - n.rate * a / (n.scale * std::sqrt(b) + n.epsilon);
      return;
    case StepRule::kAdagrad:
      a += g * g;
      x -= n.rate * g / (std::sqrt(a) + n.epsilon);
      return;
  }
}

template <class T>
void expect_steps(const Loops& loops, LoopType type, double tolerance) {
  for (const int64_t n : {1, 15, 16, 17, 100}) {
    for (int k = 0; k < kNumStepRules; ++k) {
      OptimizerStep step = {static_cast<StepRule>(k), {}};
      step.numbers = {.rate = 0.3,
                      .gradient_decay = n % 2 == 0 ? 0 : 0.25,
                      .kept = 0.75,
                      .momentum = 0.9,
                      .beta1 = 0.8,
                      .rest1 = 0.2,
                      .beta2 = 0.9,
                      .rest2 = 0.1,
                      .scale = 1.5,
                      .epsilon = 0.01};
      std::vector<T> g(n), x(n), a(n), b(n);
      for (int64_t i = 0; i < n; ++i) {
        g[i] = static_cast<T>(static_cast<double>((7 * i + 3) % 11) / 4 - 1);
        x[i] = static_cast<T>(static_cast<double>((5 * i + 1) % 7) / 2 - 1);
        a[i] = static_cast<T>(static_cast<double>(i % 5) / 4);
        b[i] = static_cast<T>(static_cast<double>(i % 3) / 2);
      }
      std::vector<T> baseline[] = {x, a, b};
      std::vector<T> found[] = {x, a, b};
      kernels::loops(InstructionSet::kBaseline)
          .optimizer_step(type, step, g.data(), baseline[0].data(), baseline[1].data(),
                          baseline[2].data(), n);
      loops.optimizer_step(type, step, g.data(), found[0].data(), found[1].data(), found[2].data(),
                           n);
      for (int64_t i = 0; i < n; ++i) {
        double exact[] = {static_cast<double>(x[i]), static_cast<double>(a[i]),
                          static_cast<double>(b[i])};
        exact_step(step.rule, step.numbers, static_cast<double>(g[i]), exact[0], exact[1],
                   exact[2]);
        for (int array = 0; array < 3; ++array) {
          ASSERT_NEAR(found[array][i], exact[array],
                      tolerance * std::max(1.0, std::abs(exact[array])))
              << k << " " << array << " " << i;
          ASSERT_EQ(found[array][i], baseline[array][i]) << k << " " << array << " " << i;
        }
      }
    }
  }
}

TEST_P(LoopsTest, StepsOfOptimizersAreThoseOfThePapers) {
  expect_steps<float>(loops(), LoopType::kFloat32, 1e-6);
  expect_steps<double>(loops(), LoopType::kFloat64, 1e-14);
}

// Without decay an infinite value leaves the gradient finite.
TEST_P(LoopsTest, StepsKeepInfiniteValues) {
  OptimizerStep step = {StepRule::kMomentum, {}};
  step.numbers = {.rate = 0.5, .momentum = 0.5};
  std::vector<float> g(kLanes, 1);
  std::vector<float> x(kLanes, std::numeric_limits<float>::infinity());
  std::vector<float> a(kLanes, 2);
  loops().optimizer_step(LoopType::kFloat32, step, g.data(), x.data(), a.data(), nullptr, kLanes);
  for (int64_t i = 0; i < kLanes; ++i) {
    EXPECT_EQ(a[i], 2);
    EXPECT_EQ(x[i], std::numeric_limits<float>::infinity());
  }
}

}  // namespace
}  // namespace tessera::kernels
