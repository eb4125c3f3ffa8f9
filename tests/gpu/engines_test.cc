// SPDX-License-Identifier: Apache-2.0
//
// Compares the engine of GPUs with the engine of the host: every function of Engine in every dtype
// gives equal results, integers bit for bit. On the fake of CUDA and, with $TESSERA_TEST_GPU, on a
// GPU of the machine with cuBLASLt.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/cpu/host_engine.h"
#include "compute/cpu/pointwise.h"
#include "compute/cpu/reduce.h"
#include "compute/cuda/cuda_engine.h"
#include "compute/cuda/fake/fake_math.h"
#include "compute/cuda/open_libraries.h"
#include "compute/engine.h"
#include "device/arithmetic.h"
#include "device/buffer.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/fake/fake_cuda.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/gpu.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using cuda::CudaDevice;
using cuda::CudaEngine;
using cuda::FakeCuda;
using kernels::BoxArray;
using kernels::ImageCall;
using kernels::ImageKind;
using kernels::Indices;
using kernels::Labelled;
using kernels::Labels;
using kernels::Lines;
using kernels::PointwiseOp;
using kernels::RandomKind;
using kernels::RandomSpec;
using kernels::Strided;

using Bytes = std::vector<std::byte>;
using Inputs = absl::Span<const std::byte* const>;
using Call = std::function<Status(Engine& engine, Inputs in, std::byte* out)>;

constexpr DType kAllTypes[] = {DType::kBool,     DType::kInt8,    DType::kUint8,
                               DType::kInt32,    DType::kInt64,   DType::kFloat16,
                               DType::kBFloat16, DType::kFloat32, DType::kFloat64};

// Numbers of one generator: small ones, of floats fractions, zeros and NaN as well.
class Numbers {
 public:
  Bytes of(DType dtype, int64_t count, bool with_nan = false) {
    Bytes bytes(count * dtype_size(dtype));
    visit_dtype(dtype, [&]<class T>() {
      for (int64_t i = 0; i < count; ++i) {
        double value = static_cast<double>(static_cast<int64_t>(generator_() % 17) - 8);
        if (is_floating_point(dtype)) value /= 4;
        if (with_nan && generator_() % 9 == 0) value = NAN;
        if constexpr (std::is_same_v<T, bool>) value = value > 0;
        if constexpr (std::is_same_v<T, uint8_t>) value = std::abs(value);
        const T element = static_cast<T>(static_cast<float>(value));
        std::memcpy(&bytes[i * sizeof(T)], &element, sizeof(T));
      }
    });
    return bytes;
  }
  // Powers of two, of integers odd numbers, of either sign: products are the same in any order.
  Bytes factors(DType dtype, int64_t count) {
    Bytes bytes(count * dtype_size(dtype));
    visit_dtype(dtype, [&]<class T>() {
      for (int64_t i = 0; i < count; ++i) {
        const auto number = static_cast<int>(generator_() % 3);
        const float value = is_floating_point(dtype) ? std::ldexp(1.0f, number - 1)
                                                     : static_cast<float>(2 * number + 1);
        const T element = static_cast<T>(generator_() % 2 == 0 ? value : -value);
        std::memcpy(&bytes[i * sizeof(T)], &element, sizeof(T));
      }
    });
    return bytes;
  }
  // i64 in [0, whole).
  Bytes indices(int64_t count, int64_t whole) {
    Bytes bytes(count * sizeof(int64_t));
    for (int64_t i = 0; i < count; ++i) {
      const auto index = static_cast<int64_t>(generator_() % whole);
      std::memcpy(&bytes[i * sizeof index], &index, sizeof index);
    }
    return bytes;
  }

 private:
  std::mt19937 generator_{20251124};
};

// "" where the arrays are equal, floats within what roundings differ by: `ulps` of the dtype.
std::string difference(DType dtype, const Bytes& expected, const Bytes& actual, double ulps) {
  return visit_dtype(dtype, [&]<class T>() -> std::string {
    for (size_t i = 0; i * sizeof(T) < expected.size(); ++i) {
      T want, got;
      std::memcpy(&want, &expected[i * sizeof(T)], sizeof(T));
      std::memcpy(&got, &actual[i * sizeof(T)], sizeof(T));
      const auto a = static_cast<double>(want);
      const auto b = static_cast<double>(got);
      bool is_equal = a == b || (a != a && b != b);
      if (is_floating_point(dtype) && !is_equal) {
        constexpr int kDigits = std::numeric_limits<T>::digits;
        is_equal = std::abs(a - b) <= ulps * std::ldexp(std::max(1.0, std::abs(a)), 1 - kDigits);
      }
      if constexpr (std::is_same_v<T, int64_t>) is_equal = want == got;
      if (!is_equal) {
        return absl::StrFormat("element %d is %.17g, on the host %.17g", i, b, a);
      }
    }
    return "";
  });
}

struct Source {
  const char* name;
  bool is_real;
};
void PrintTo(const Source& source, std::ostream* out) { *out << source.name; }

class EnginesTest : public ::testing::TestWithParam<Source> {
 protected:
  void SetUp() override {
    if (GetParam().is_real) {
      if (const Status gpu = test_gpu(); !gpu.ok()) GTEST_SKIP() << gpu;
      auto libraries = cuda::open_libraries();
      ASSERT_THAT(libraries, IsOk());
      libraries_ = *libraries;
    } else {
      fake_ = FakeCuda::create();
      libraries_ = cuda::fake_libraries(fake_);
    }
    auto device = CudaDevice::create(libraries_->cuda, 0, nullptr);
    ASSERT_THAT(device, IsOk());
    device_ = *std::move(device);
    ASSERT_THAT(CudaEngine::add_to(*device_, libraries_->math), IsOk());
  }
  void TearDown() override {
    if (device_ == nullptr) return;
    EXPECT_THAT(device_->stream().sync(), IsOk());
    device_ = nullptr;
    if (fake_ != nullptr) {
      EXPECT_THAT(fake_->misuses(), ::testing::IsEmpty());
    }
  }

  // The bytes that the call writes on the GPU, with the engine of the device or another.
  StatusOr<Bytes> on_gpu(const Call& call, const std::vector<Bytes>& inputs, int64_t out_bytes,
                         Engine* engine = nullptr) {
    std::vector<std::shared_ptr<Buffer>> buffers;
    for (const Bytes& input : inputs) {
      TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, device_->new_buffer(input.size()));
      TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> staging, device_->new_staging(buffer));
      std::copy(input.begin(), input.end(), staging->mutable_data());
      device_->upload(staging, buffer);
      buffers.push_back(std::move(buffer));
    }
    TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> out, device_->new_buffer(out_bytes));
    device_->produce("call", out, [&](std::byte* to) -> Status {
      std::vector<const std::byte*> in;
      for (const auto& buffer : buffers) {
        TESSERA_RETURN_IF_ERROR(device_->use(*buffer));
        in.push_back(buffer->data());
      }
      return call(engine != nullptr ? *engine : *device_->engine(), in, to);
    });
    const std::shared_ptr<const Buffer> host = device_->host_copy(out);
    TESSERA_RETURN_IF_ERROR(host->ready().wait());
    return Bytes(host->data(), host->data() + out_bytes);
  }

  // Expects that both engines give as many elements of the dtype, and the same.
  void check(const std::string& what, const Call& call, const std::vector<Bytes>& inputs,
             DType dtype, int64_t count, double ulps = 4, Engine* engine = nullptr) {
    Bytes expected(count * dtype_size(dtype));
    // A call may change its inputs.
    const std::vector<Bytes> own = inputs;
    std::vector<const std::byte*> in;
    for (const Bytes& input : own) in.push_back(input.data());
    ASSERT_THAT(call(kernels::host_engine(Arithmetic::of_this_host()), in, expected.data()), IsOk())
        << what;
    const StatusOr<Bytes> actual =
        on_gpu(call, inputs, static_cast<int64_t>(expected.size()), engine);
    ASSERT_THAT(actual, IsOk()) << what;
    EXPECT_EQ(difference(dtype, expected, *actual, ulps), "")
        << what << " of " << dtype_name(dtype);
    ++num_checked_;
  }

  std::shared_ptr<FakeCuda> fake_;
  std::shared_ptr<const cuda::Libraries> libraries_;
  std::unique_ptr<CudaDevice> device_;
  Numbers numbers_;
  int num_checked_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Api, EnginesTest,
                         ::testing::Values(Source{"Fake", false}, Source{"Gpu", true}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(EnginesTest, Pointwise) {
  struct Row {
    PointwiseOp op;
    int num_operands;
  };
  constexpr Row kRows[] = {
#define TESSERA_ROW_(name, operands, dtypes, family) {PointwiseOp::name, operands},
      TESSERA_POINTWISE_OPS_(TESSERA_ROW_)
#undef TESSERA_ROW_
  };
  const int64_t sizes[] = {6, 35};
  const int64_t dense[] = {35, 1};
  const int64_t row[] = {0, 1};
  const int64_t same[] = {0, 0};
  for (const Row& each : kRows) {
    const PointwiseOp op = each.op;
    const kernels::PointwiseInfo& info = kernels::pointwise_info(op);
    for (const DType dtype : kAllTypes) {
      if (!kernels::accepts(info.dtypes, dtype)) continue;
      const DType gives = kernels::gives_bool(op) ? DType::kBool : dtype;
      const Bytes a = numbers_.of(dtype, 210, true);
      const Bytes b = numbers_.of(dtype, 35, true);
      const Bytes element = numbers_.of(dtype, 1);
      if (each.num_operands == 1) {
        check(
            info.name,
            [&](Engine& engine, Inputs in, std::byte* out) {
              return engine.pointwise(op, dtype, {{in[0], dense}}, sizes, out);
            },
            {a}, gives, 210);
        continue;
      }
      check(
          info.name,
          [&](Engine& engine, Inputs in, std::byte* out) {
            return engine.pointwise(op, dtype, {{in[0], dense}, {in[1], row}}, sizes, out);
          },
          {a, b}, gives, 210);
      check(
          info.name,
          [&](Engine& engine, Inputs in, std::byte* out) {
            return engine.pointwise(op, dtype, {{element.data(), same, true}, {in[0], dense}},
                                    sizes, out);
          },
          {a}, gives, 210);
    }
  }
  EXPECT_GT(num_checked_, 200);
}

// How a map of two operands walks; offsets and strides are in elements.
struct MapCase {
  const char* name;
  std::vector<int64_t> sizes;
  std::vector<int64_t> a;
  std::vector<int64_t> b;
  int64_t a_begin = 0;
  int64_t out_begin = 0;
};
const MapCase kMapCases[] = {
    {"one_element", {1, 1}, {1, 1}, {0, 0}},
    {"no_elements", {0, 4}, {4, 1}, {4, 1}},
    {"dense", {8, 64}, {64, 1}, {64, 1}},
    {"dense_and_a_tail", {203}, {1}, {1}},
    {"unaligned_operand", {203}, {1}, {1}, 1},
    {"unaligned_result", {203}, {1}, {1}, 0, 1},
    {"all_unaligned", {7, 32}, {32, 1}, {0, 1}, 3, 3},
    {"fewer_than_a_vector", {3}, {1}, {1}},
    {"row", {6, 64}, {64, 1}, {0, 1}},
    {"row_of_odd_size", {6, 35}, {35, 1}, {0, 1}},
    {"column", {6, 64}, {64, 1}, {1, 0}},
    {"column_of_odd_rows", {6, 35}, {35, 1}, {1, 0}},
    {"column_first", {6, 64}, {1, 0}, {64, 1}},
    {"middle", {3, 16, 8}, {128, 8, 1}, {0, 1, 0}},
    {"one_in_memory", {7, 9}, {9, 1}, {0, 0}},
    {"both_one_in_memory", {7, 9}, {0, 0}, {0, 0}, 5},
    {"heads", {2, 3, 5, 16}, {240, 16, 48, 1}, {240, 80, 16, 1}},
    {"transposed", {24, 40}, {1, 24}, {40, 1}},
    {"padded_rows", {6, 16}, {24, 1}, {0, 1}},
    {"rows_of_odd_distance", {6, 16}, {19, 1}, {0, 1}},
    {"backwards", {150}, {-1}, {1}, 149},
    {"rows_backwards", {6, 16}, {-16, 1}, {16, 1}, 80},
    {"every_second", {130}, {2}, {1}},
    {"short_runs", {40, 2}, {1, 40}, {2, 1}},
    {"nine_dims",
     {2, 2, 2, 2, 2, 2, 2, 2, 8},
     {8, 16, 32, 64, 128, 256, 512, 1024, 1},
     {1024, 512, 256, 128, 64, 32, 16, 8, 1}},
    {"eleven_dims",
     {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2},
     {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024},
     {0, 1, 0, 2, 0, 4, 0, 8, 0, 16, 0}},
};

// Each walk for each type, whole and cut into parts of few elements.
TEST_P(EnginesTest, MapsOfEveryWalk) {
  CudaEngine small(*device_, libraries_->math, {.most_elements = 50});
  for (const MapCase& c : kMapCases) {
    const int64_t count = num_elements(c.sizes);
    const std::vector<int64_t> none(c.sizes.size(), 0);
    for (const DType dtype : kAllTypes) {
      const std::vector<Bytes> inputs = {numbers_.of(dtype, 2100, true),
                                         numbers_.of(dtype, 2100, true),
                                         numbers_.of(DType::kBool, 2100)};
      const Bytes element = numbers_.of(dtype, 1);
      const auto a = [&](Inputs in) { return Strided{in[0] + c.a_begin * dtype_size(dtype), c.a}; };
      const auto check_both = [&](const char* what, DType gives, const Call& call) {
        // The bytes before the result stay.
        const Call all = [&](Engine& engine, Inputs in, std::byte* out) -> Status {
          constexpr std::byte kZero[8] = {};
          TESSERA_RETURN_IF_ERROR(engine.fill(gives, kZero, out, count + c.out_begin));
          return call(engine, in, out + c.out_begin * dtype_size(gives));
        };
        const std::string name = absl::StrCat(what, " ", c.name);
        check(name, all, inputs, gives, count + c.out_begin, 0);
        check(absl::StrCat(name, " in parts"), all, inputs, gives, count + c.out_begin, 0, &small);
      };
      check_both("maximum", dtype, [&](Engine& engine, Inputs in, std::byte* out) {
        return engine.pointwise(PointwiseOp::maximum, dtype, {a(in), {in[1], c.b}}, c.sizes, out);
      });
      check_both("less", DType::kBool, [&](Engine& engine, Inputs in, std::byte* out) {
        return engine.pointwise(PointwiseOp::less, dtype, {a(in), {in[1], c.b}}, c.sizes, out);
      });
      check_both("equal to a number", DType::kBool, [&](Engine& engine, Inputs in, std::byte* out) {
        return engine.pointwise(PointwiseOp::equal, dtype, {a(in), {element.data(), none, true}},
                                c.sizes, out);
      });
      check_both("copy", dtype, [&](Engine& engine, Inputs in, std::byte* out) {
        return engine.copy_strided(dtype, a(in), c.sizes, out);
      });
      check_both("select", dtype, [&](Engine& engine, Inputs in, std::byte* out) {
        return engine.select(dtype, {in[2], c.b}, a(in), {in[1], c.b}, c.sizes, out);
      });
    }
  }
  EXPECT_GT(num_checked_, 1000);
}

TEST_P(EnginesTest, CastSelectClipAndCopy) {
  for (const DType from : kAllTypes) {
    const Bytes values = numbers_.of(from, 50, true);
    for (const DType to : kAllTypes) {
      check(
          absl::StrCat("cast from ", dtype_name(from)),
          [&](Engine& engine, Inputs in, std::byte* out) {
            return engine.cast(from, to, in[0], out, 50);
          },
          {values}, to, 50);
    }
    const int64_t sizes[] = {5, 10};
    const int64_t dense[] = {10, 1};
    const int64_t row[] = {0, 1};
    check(
        "select",
        [&](Engine& engine, Inputs in, std::byte* out) {
          return engine.select(from, {in[0], row}, {in[1], dense}, {in[2], row}, sizes, out);
        },
        {numbers_.of(DType::kBool, 10), values, numbers_.of(from, 10)}, from, 50);
    // Transposed, and backwards.
    const int64_t turned[] = {-1, -10};
    const int64_t turned_sizes[] = {10, 5};
    check(
        "copy",
        [&](Engine& engine, Inputs in, std::byte* out) {
          return engine.copy_strided(from, {in[0] + 49 * dtype_size(from), turned}, turned_sizes,
                                     out);
        },
        {values}, from, 50);
    if (from == DType::kBool) continue;
    const Bytes low = numbers_.of(from, 1);
    check(
        "clip",
        [&](Engine& engine, Inputs in, std::byte* out) {
          return engine.clip(from, in[0], low.data(), low.data(), 50, out);
        },
        {values}, from, 50);
  }
  // Integers that another integer does not hold keep their low bits.
  Bytes large(2 * sizeof(int64_t));
  const int64_t values[] = {300, -(int64_t{1} << 40) - 7};
  std::memcpy(large.data(), values, sizeof values);
  for (const DType to : {DType::kInt8, DType::kUint8, DType::kInt32}) {
    check(
        "cast of large numbers",
        [&](Engine& engine, Inputs in, std::byte* out) {
          return engine.cast(DType::kInt64, to, in[0], out, 2);
        },
        {large}, to, 2);
  }
}

// Next to the middle of two numbers of f16 and bf16, where rounding to f32 first gives another one.
TEST_P(EnginesTest, CastsToHalvesRoundOnce) {
  const auto check_all = [&]<class From>(const std::vector<From>& values) {
    Bytes in(values.size() * sizeof(From));
    std::memcpy(in.data(), values.data(), in.size());
    const auto count = static_cast<int64_t>(values.size());
    for (const DType to : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
      check(
          "cast of middles",
          [&](Engine& engine, Inputs inputs, std::byte* out) {
            return engine.cast(dtype_of<From>(), to, inputs[0], out, count);
          },
          {in}, to, count, 0);
    }
  };
  std::vector<double> reals;
  std::vector<int64_t> integers;
  for (const double value : {1.00048828125, 65519.999999, 1.00390625, 6e-8, 1e-40, 3.4e38}) {
    for (const double by : {0.0, 1e-12, -1e-12, 1e-9, -1e-9}) {
      reals.insert(reals.end(), {value * (1 + by), -value * (1 + by)});
    }
  }
  for (int shift = 17; shift < 52; ++shift) {
    for (const int64_t top : {0x101, 0x103, 0x801, 0x803}) {
      for (const int64_t by : {-1, 0, 1}) integers.push_back((top << shift) + by);
    }
  }
  check_all(reals);
  check_all(integers);
}

TEST_P(EnginesTest, FloorDivIsTheFloorOfTheExactQuotient) {
  const auto check_all = [&]<class T>(const std::vector<T>& a, const std::vector<T>& b) {
    Bytes in[2] = {Bytes(a.size() * sizeof(T)), Bytes(b.size() * sizeof(T))};
    std::memcpy(in[0].data(), a.data(), in[0].size());
    std::memcpy(in[1].data(), b.data(), in[1].size());
    const int64_t sizes[] = {static_cast<int64_t>(a.size())};
    const int64_t dense[] = {1};
    check(
        "floor_div",
        [&](Engine& engine, Inputs inputs, std::byte* out) {
          return engine.pointwise(PointwiseOp::floor_div, dtype_of<T>(),
                                  {{inputs[0], dense}, {inputs[1], dense}}, sizes, out);
        },
        {in[0], in[1]}, dtype_of<T>(), sizes[0], 0);
  };
  const auto check_type = [&]<class T>(T inf) {
    std::vector<T> a = {1, 8, -1, 1, inf, -inf, T(-1.75), -1, 1};
    std::vector<T> b = {T(0.1), T(0.2), inf, -inf, 2, 2, T(1.0 / 12), 0, inf};
    for (int k = 0; k < 500; ++k) {
      b.push_back(T(1) / static_cast<T>(k % 50 + 3));
      a.push_back(static_cast<T>(k - 250) * b.back());
    }
    check_all(a, b);
  };
  check_type(std::numeric_limits<float>::infinity());
  check_type(std::numeric_limits<double>::infinity());
}

// Ten dims that cannot be merged: more than a kernel has.
TEST_P(EnginesTest, HighRanks) {
  const std::vector<int64_t> sizes(10, 2);
  std::vector<int64_t> turned(10);
  for (int dim = 0; dim < 10; ++dim) turned[dim] = int64_t{1} << dim;
  for (const DType dtype : {DType::kInt8, DType::kFloat64}) {
    check(
        "copy",
        [&](Engine& engine, Inputs in, std::byte* out) {
          return engine.copy_strided(dtype, {in[0], turned}, sizes, out);
        },
        {numbers_.of(dtype, 1024)}, dtype, 1024);
  }
  // Dims that are kept and reduced in turn.
  const std::vector<int64_t> many(18, 2);
  std::vector<bool> every_second(18, false);
  for (size_t dim = 0; dim < 18; dim += 2) every_second[dim] = true;
  check(
      "reduction",
      [&](Engine& engine, Inputs in, std::byte* out) {
        return engine.reduce_dims(ReduceOp::kSum, DType::kInt32, in[0], many, every_second, 1, out);
      },
      {numbers_.of(DType::kInt32, 1 << 18)}, DType::kInt32, 1 << 9);
}

TEST_P(EnginesTest, Reductions) {
  const int64_t sizes[] = {7, 4, 6};
  // One with few terms for each thread, so that most reductions have several levels.
  CudaEngine small(*device_, libraries_->math, {.most_lanes = 2, .most_packs = 3});
  for (const DType dtype : kAllTypes) {
    const Bytes values = numbers_.of(dtype, 168, true);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax}) {
      const bool is_extreme = op == ReduceOp::kMin || op == ReduceOp::kMax;
      if (dtype == DType::kBool && !is_extreme) continue;
      // Products of many quarters vary by many orders of magnitude.
      const double ulps = op == ReduceOp::kProd ? 1000 : 200;
      for (int marks = 0; marks < 8; ++marks) {
        const std::vector<bool> marked = {(marks & 1) != 0, (marks & 2) != 0, (marks & 4) != 0};
        int64_t kept = 1;
        for (int dim = 0; dim < 3; ++dim) kept *= marked[dim] ? 1 : sizes[dim];
        const double divisor = is_floating_point(dtype) && op == ReduceOp::kSum ? 7 : 1;
        const Call call = [&](Engine& engine, Inputs in, std::byte* out) {
          return engine.reduce_dims(op, dtype, in[0], sizes, marked, divisor, out);
        };
        check(absl::StrCat("reduction ", marks), call, {values}, dtype, kept, ulps);
        check(absl::StrCat("reduction in levels ", marks), call, {values}, dtype, kept, ulps,
              &small);
      }
      const int64_t none[] = {3, 0};
      check(
          "reduction of nothing",
          [&](Engine& engine, Inputs in, std::byte* out) {
            return engine.reduce_dims(op, dtype, in[0], none, {false, true}, 1, out);
          },
          {Bytes()}, dtype, 3);
    }
  }
}

// By one lane and by as many as there are, in packs and one by one, in one pass and in several.
TEST_P(EnginesTest, ReductionsOfManyShapes) {
  CudaEngine few_lanes(*device_, libraries_->math, {.most_lanes = 2, .most_packs = 3});
  CudaEngine few_packs(*device_, libraries_->math, {.most_packs = 2});
  const struct {
    std::vector<int64_t> sizes;
    std::vector<bool> is_reduced;
  } kCases[] = {
      // Rows.
      {{3, 1040}, {false, true}},
      {{3, 1041}, {false, true}},
      {{37, 80}, {false, true}},
      {{300, 5}, {false, true}},
      {{20'000, 2}, {false, true}},
      // Columns.
      {{3000, 3}, {true, false}},
      {{260, 48}, {true, false}},
      {{259, 33}, {true, false}},
      {{5, 272}, {true, false}},
      {{2, 9001}, {true, false}},
      // All, and none.
      {{4096}, {true}},
      {{4099}, {true}},
      {{96}, {false}},
      {{1, 1}, {true, false}},
      // Dims in turn.
      {{3, 50, 16}, {false, true, false}},
      {{3, 50, 7}, {false, true, false}},
      {{6, 5, 32}, {true, false, true}},
      {{6, 5, 31}, {true, false, true}},
      {{4, 3, 5, 48}, {true, false, true, false}},
      {{4, 3, 5, 7}, {true, false, true, false}},
  };
  for (const auto& row : kCases) {
    int64_t total = 1, kept = 1;
    for (size_t dim = 0; dim < row.sizes.size(); ++dim) {
      total *= row.sizes[dim];
      if (!row.is_reduced[dim]) kept *= row.sizes[dim];
    }
    for (const DType dtype : kAllTypes) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax}) {
        const bool is_extreme = op == ReduceOp::kMin || op == ReduceOp::kMax;
        if (dtype == DType::kBool && !is_extreme) continue;
        const Bytes values = op == ReduceOp::kProd ? numbers_.factors(dtype, total)
                                                   : numbers_.of(dtype, total, is_extreme);
        const Call call = [&](Engine& engine, Inputs in, std::byte* out) {
          return engine.reduce_dims(op, dtype, in[0], row.sizes, row.is_reduced, 1, out);
        };
        const std::string what =
            absl::StrCat("reduction of ", total, " to ", kept, " by ", reduce_op_name(op));
        // Terms are quarters, and their sums exact.
        check(what, call, {values}, dtype, kept, 1);
        check(what + " by few lanes", call, {values}, dtype, kept, 1, &few_lanes);
        if (!is_extreme) check(what + " in passes", call, {values}, dtype, kept, 1, &few_packs);
      }
    }
  }
}

// The bits do not depend on where the array begins, nor on the call.
TEST_P(EnginesTest, ReductionsAgain) {
  constexpr DType kDtype = DType::kFloat32;
  Bytes values;
  for (int k = 0; k < 10'000; ++k) {
    const float value = std::sin(static_cast<float>(k)) * (k % 100 == 7 ? 1000.0f : 1.0f);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    values.insert(values.end(), bytes, bytes + sizeof value);
  }
  Bytes moved(sizeof(float));
  moved.insert(moved.end(), values.begin(), values.end());
  const int64_t sizes[] = {10, 40, 25};
  for (int marks = 0; marks < 8; ++marks) {
    const std::vector<bool> marked = {(marks & 1) != 0, (marks & 2) != 0, (marks & 4) != 0};
    int64_t kept = 1;
    for (int dim = 0; dim < 3; ++dim) kept *= marked[dim] ? 1 : sizes[dim];
    const auto call_at = [&](int64_t offset) -> Call {
      return [&, offset](Engine& engine, Inputs in, std::byte* out) {
        return engine.reduce_dims(ReduceOp::kSum, kDtype, in[0] + offset, sizes, marked, 3, out);
      };
    };
    const int64_t out_bytes = kept * static_cast<int64_t>(sizeof(float));
    const StatusOr<Bytes> first = on_gpu(call_at(0), {values}, out_bytes);
    const StatusOr<Bytes> again = on_gpu(call_at(0), {values}, out_bytes);
    const StatusOr<Bytes> elsewhere = on_gpu(call_at(sizeof(float)), {moved}, out_bytes);
    ASSERT_THAT(first, IsOk());
    ASSERT_THAT(again, IsOk());
    ASSERT_THAT(elsewhere, IsOk());
    EXPECT_EQ(*first, *again) << marks;
    EXPECT_EQ(*first, *elsewhere) << marks;
    check("reduction of an array that is not aligned", call_at(sizeof(float)), {moved}, kDtype,
          kept, 2000);
  }
}

TEST_P(EnginesTest, LongSums) {
  // Three levels.
  const int64_t sizes[] = {2, 70'000};
  for (const DType dtype : {DType::kInt32, DType::kFloat16, DType::kFloat32}) {
    check(
        "sum",
        [&](Engine& engine, Inputs in, std::byte* out) {
          return engine.reduce_dims(ReduceOp::kSum, dtype, in[0], sizes, {false, true}, 1, out);
        },
        {numbers_.of(dtype, 140'000)}, dtype, 2, 20);
  }
}

TEST_P(EnginesTest, Lines) {
  for (const kernels::Lines& lines : {Lines{1, 9, 1}, Lines{3, 17, 2}, Lines{2, 1, 5}}) {
    const int64_t total = lines.outer * lines.size * lines.inner;
    for (const DType dtype : kAllTypes) {
      if (dtype == DType::kBool) continue;
      const Bytes values = numbers_.of(dtype, total, true);
      const int64_t first = lines.size / 3;
      const int64_t count = lines.size - first;
      check(
          "cumsum",
          [&](Engine& engine, Inputs in, std::byte* out) {
            return engine.cumsum(dtype, in[0], lines, first, count, out);
          },
          {numbers_.of(dtype, total)}, dtype, lines.outer * count * lines.inner, 40);
      for (const bool is_descending : {false, true}) {
        check(
            "search",
            [&](Engine& engine, Inputs in, std::byte* out) {
              return engine.arg_extreme(is_descending, dtype, in[0], lines, {7},
                                        reinterpret_cast<int64_t*>(out));
            },
            {values}, DType::kInt64, lines.outer * lines.inner);
        check(
            "numbered search",
            [&](Engine& engine, Inputs in, std::byte* out) {
              return engine.arg_extreme(is_descending, dtype, in[0], lines,
                                        {0, reinterpret_cast<const int64_t*>(in[1])},
                                        reinterpret_cast<int64_t*>(out));
            },
            {values, numbers_.of(DType::kInt64, total)}, DType::kInt64, lines.outer * lines.inner);
        check(
            "sort",
            [&](Engine& engine, Inputs in, std::byte* out) {
              return engine.sort_lines(is_descending, dtype, in[0], lines, {}, count, out, nullptr);
            },
            {values}, dtype, lines.outer * count * lines.inner);
        check(
            "sorted indices",
            [&](Engine& engine, Inputs in, std::byte* out) {
              return engine.sort_lines(is_descending, dtype, in[0], lines, {7}, count, nullptr,
                                       reinterpret_cast<int64_t*>(out));
            },
            {values}, DType::kInt64, lines.outer * count * lines.inner);
        check(
            "sorted numbers",
            [&](Engine& engine, Inputs in, std::byte* out) {
              return engine.sort_lines(is_descending, dtype, in[0], lines,
                                       {0, reinterpret_cast<const int64_t*>(in[1])}, count, nullptr,
                                       reinterpret_cast<int64_t*>(out));
            },
            {values, numbers_.of(DType::kInt64, total)}, DType::kInt64,
            lines.outer * count * lines.inner);
      }
    }
  }
}

TEST_P(EnginesTest, Indices) {
  const Lines lines = {3, 8, 2};
  const kernels::DimPart part = {4, 20};  // indices 4 to 11 are here
  for (const DType dtype : kAllTypes) {
    const Bytes indices = numbers_.indices(30, 20);
    const Bytes values = numbers_.of(dtype, 48);
    const auto of = [](const std::byte* data) { return Indices{DType::kInt64, data, 30}; };
    check(
        "take",
        [&](Engine& engine, Inputs in, std::byte* out) {
          return engine.take(dtype_size(dtype), in[0], lines, part, of(in[1]), out);
        },
        {values, indices}, dtype, 3 * 30 * 2);
    const Box box = {{0, 4}, {30, 8}};
    check(
        "pick",
        [&](Engine& engine, Inputs in, std::byte* out) {
          return engine.pick(dtype, in[0], box, part, of(in[1]), out);
        },
        {numbers_.of(dtype, 240), indices}, dtype, 30);
    if (dtype == DType::kBool) continue;
    for (const bool has_base : {false, true}) {
      check(
          "scatter_add",
          [&](Engine& engine, Inputs in, std::byte* out) {
            return engine.scatter_add(dtype, has_base ? in[0] : nullptr, lines, part, of(in[1]),
                                      in[2], out);
          },
          {values, indices, numbers_.of(dtype, 3 * 30 * 2)}, dtype, 48);
    }
  }
  check(
      "one_hot",
      [&](Engine& engine, Inputs in, std::byte* out) {
        return engine.one_hot({DType::kInt64, in[0], 30}, 7, reinterpret_cast<float*>(out));
      },
      {numbers_.indices(30, 9)}, DType::kFloat32, 210);
  check(
      "place_box",
      [&](Engine& engine, Inputs in, std::byte* out) -> Status {
        const float rest = 2;
        const Box out_box = {{1, 0}, {5, 4}};
        TESSERA_RETURN_IF_ERROR(
            engine.fill(DType::kFloat32, reinterpret_cast<const std::byte*>(&rest), out, 20));
        return engine.place_box(4, in[0], {{0, 0}, {4, 3}}, {3, 2}, out_box, out);
      },
      {numbers_.of(DType::kFloat32, 12)}, DType::kFloat32, 20);
}

// An index that is out of range fails the result, and tensors that are computed from it, and
// nothing else.
TEST_P(EnginesTest, AnIndexOutOfRangeFailsWhatDependsOnIt) {
  std::vector<int64_t> indices(30, 1);
  indices[7] = 20;
  indices[9] = -1;
  Bytes bytes(30 * sizeof(int64_t));
  std::memcpy(bytes.data(), indices.data(), bytes.size());
  const Bytes values = numbers_.of(DType::kFloat32, 8);
  const auto take = [&](Engine& engine, Inputs in, std::byte* out) {
    return engine.take(4, in[0], {1, 8, 1}, {0, 20}, {DType::kInt64, in[1], 30}, out);
  };
  const auto fails = StatusIs(absl::StatusCode::kOutOfRange,
                              ::testing::HasSubstr("index 20, number 7 of this device, is not in "
                                                   "a dim of 20 elements"));
  EXPECT_THAT(on_gpu(take, {values, bytes}, 120).status(), fails);
  EXPECT_THAT(device_->stream().sync(), fails);
  // Later calls are not affected.
  indices[7] = indices[9] = 0;
  std::memcpy(bytes.data(), indices.data(), bytes.size());
  EXPECT_THAT(on_gpu(take, {values, bytes}, 120), IsOk());
}

TEST_P(EnginesTest, Contractions) {
  struct Case {
    Labels a, b, out;
  };
  // Labels 0 to 5 have these sizes.
  const int64_t sizes[] = {3, 5, 4, 2, 1, 7};
  const Case cases[] = {
      {{0, 1}, {1, 2}, {0, 2}},              // a b
      {{1, 0}, {1, 2}, {0, 2}},              // a transposed
      {{0, 1}, {2, 1}, {0, 2}},              // b transposed
      {{1, 0}, {2, 1}, {2, 0}},              // both, and the result
      {{3, 0, 1}, {3, 1, 2}, {3, 0, 2}},     // a batch
      {{0, 3, 1}, {1, 3, 2}, {0, 3, 2}},     // a batch within
      {{3, 0, 1}, {1, 2}, {3, 0, 2}},        // rows of two dims
      {{0, 1, 3}, {3, 1, 2}, {0, 2}},        // summed dims in another order
      {{0, 1}, {2, 5}, {0, 1, 2, 5}},        // nothing summed
      {{1}, {1}, {}},                        // all summed
      {{0, 4}, {4, 2}, {0, 2}},              // one term
      {{1, 4}, {1, 2}, {4, 2}},              // one row
      {{0, 1}, {1, 4}, {0, 4}},              // one column
      {{0, 1, -1}, {-1, 1, 2}, {2, 0}},      // a dim without a label
      {{0, 3, 1, 2}, {0, 1, 5}, {5, 3, 2}},  // the result ends in dims that are apart in a
      {{0, 1, 5}, {0, 3, 1, 2}, {3, 2, 5}},  // ... and in b
      {{3, 0, 1}, {3, 0, 2}, {3, 2, 1}},     // a batch, both transposed
  };
  const auto sizes_of = [&](const Labels& labels) {
    std::vector<int64_t> result;
    for (const int label : labels) result.push_back(label < 0 ? 1 : sizes[label]);
    return result;
  };
  for (const DType dtype : kAllTypes) {
    if (dtype == DType::kBool) continue;
    for (size_t k = 0; k < std::size(cases); ++k) {
      const Case& c = cases[k];
      const std::vector<int64_t> a = sizes_of(c.a), b = sizes_of(c.b), out_sizes = sizes_of(c.out);
      check(
          absl::StrCat("contraction ", k),
          [&](Engine& engine, Inputs in, std::byte* out) {
            return engine.contract(dtype, {in[0], a, c.a}, {in[1], b, c.b}, c.out, out_sizes, out);
          },
          {numbers_.of(dtype, num_elements(a)), numbers_.of(dtype, num_elements(b))}, dtype,
          num_elements(out_sizes), 20);
    }
    const std::vector<int64_t> none = {3, 0}, also_none = {0, 4}, full = {3, 4};
    const Labels a = {0, 1}, b = {1, 2}, out_labels = {0, 2};
    check(
        "contraction of nothing",
        [&](Engine& engine, Inputs in, std::byte* out) {
          return engine.contract(dtype, {in[0], none, a}, {in[1], also_none, b}, out_labels, full,
                                 out);
        },
        {Bytes(), Bytes()}, dtype, 12);
  }
}

TEST_P(EnginesTest, Images) {
  const kernels::Window height = {.size = 3, .stride = 2, .before = 1, .after = 1};
  const kernels::Window width = {.size = 2, .stride = 1, .dilation = 2, .before = 1};
  const Box x = {{0, 0, 0, 0}, {2, 7, 6, 3}};
  const Box filter = {{0, 0, 0, 0}, {3, 2, 3, 4}};
  const Box result = {{0, 0, 0, 0}, {2, 4, 5, 4}};
  const Box pooled = {{0, 0, 0, 0}, {2, 4, 5, 3}};
  struct Case {
    ImageKind kind;
    const Box &a, *b, out;
  };
  const Case cases[] = {
      {ImageKind::kConv, x, &filter, {{0, 1, 2, 0}, {2, 3, 2, 4}}},
      {ImageKind::kConvByX, result, &filter, {{0, 2, 1, 0}, {2, 4, 5, 3}}},
      {ImageKind::kConvByFilter, x, &result, filter},
      {ImageKind::kAvgPool, x, nullptr, {{0, 1, 0, 0}, {2, 2, 5, 3}}},
      {ImageKind::kAvgPoolByX, pooled, nullptr, {{0, 3, 0, 0}, {2, 4, 6, 3}}},
      {ImageKind::kMaxPool, x, &x, {{0, 0, 1, 0}, {2, 4, 3, 3}}},
      {ImageKind::kMaxPoolByValues, x, &pooled, {{0, 1, 1, 0}, {2, 5, 4, 3}}},
  };
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    for (const Case& c : cases) {
      const ImageCall function = {c.kind, height, width, 7, 6};
      std::vector<Bytes> inputs = {numbers_.of(dtype, c.a.num_elements())};
      if (c.b != nullptr) inputs.push_back(numbers_.of(dtype, c.b->num_elements()));
      check(
          absl::StrCat("image function ", static_cast<int>(c.kind)),
          [&](Engine& engine, Inputs in, std::byte* out) {
            const BoxArray a = {in[0], c.a};
            if (c.b == nullptr) return engine.image(function, dtype, a, nullptr, c.out, out);
            const BoxArray b = {in[1], *c.b};
            return engine.image(function, dtype, a, &b, c.out, out);
          },
          inputs, dtype, c.out.num_elements(), 40);
    }
    const Box scores = {{0, 0, 2, 1}, {1, 2, 3, 5}};
    check(
        "mask_later",
        [&](Engine& engine, Inputs in, std::byte* out) {
          return engine.mask_later(dtype, in[0], scores, 1, out);
        },
        {numbers_.of(dtype, 30)}, dtype, 30);
  }
}

TEST_P(EnginesTest, RandomNumbers) {
  const Shape shape = {5, 7, 6};
  const Box box = {{1, 2, 0}, {3, 4, 6}};
  const auto check_kind = [&](const RandomSpec& spec, DType dtype, double ulps) {
    check(
        absl::StrCat("distribution ", static_cast<int>(spec.kind)),
        [&](Engine& engine, Inputs, std::byte* out) {
          return engine.random_box(spec, dtype, shape, box, out);
        },
        {}, dtype, box.num_elements(), ulps);
  };
  for (const DType dtype : kAllTypes) {
    RandomSpec spec = {.key = {7, 9}};
    if (is_floating_point(dtype)) {
      spec.kind = RandomKind::kUniform;
      spec.a = -1;
      check_kind(spec, dtype, 0);
      spec.kind = RandomKind::kNormal;
      check_kind(spec, dtype, 0);
      spec.kind = RandomKind::kTruncatedNormal;
      check_kind(spec, dtype, 2);
      // In tails, and from end to end of the dtype.
      spec.a = 0;
      for (const auto& [low, high] : {std::pair(8.0, 9.0), {-9.0, -8.0}, {50.0, 51.0}}) {
        spec.low = low;
        spec.high = high;
        check_kind(spec, dtype, 4);
      }
      // Above the middle a quantile x changes by p / (x density(x)) of itself where the part p of
      // the numbers that are below it does: 20 times as much at x = 2.4, beyond which the part
      // above is used. So a probability that differs in its last bit is seen in f64.
      spec.low = -1;
      spec.high = 7;
      check_kind(spec, dtype, dtype == DType::kFloat64 ? 64 : 4);
      spec.kind = RandomKind::kUniform;
      spec.b = dtype == DType::kFloat64   ? std::numeric_limits<double>::max()
               : dtype == DType::kFloat16 ? 65504
                                          : 0x1.fep127;
      spec.a = -spec.b;
      check_kind(spec, dtype, 0);
      spec.a = 0.7;  // which is rounded down
      spec.b = 0.72;
      check_kind(spec, dtype, 0);
      continue;
    }
    check_kind(spec, dtype, 0);
    spec.kind = RandomKind::kBernoulli;
    spec.a = 0.3;
    if (dtype == DType::kBool) check_kind(spec, dtype, 0);
    spec.kind = RandomKind::kInteger;
    spec.least = -3;
    spec.range = 11;
    if (dtype != DType::kBool) check_kind(spec, dtype, 0);
    spec.kind = RandomKind::kPermutation;
    spec.range = 210;
    if (dtype == DType::kInt64) check_kind(spec, dtype, 0);
  }
}

// The optimizer state is f32 where the value is f16 or bf16.
TEST_P(EnginesTest, StepsOfOptimizers) {
  constexpr int64_t kCount = 1100;  // more than two blocks of the host
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    const DType remembered = dtype == DType::kFloat64 ? dtype : DType::kFloat32;
    // The state of squares is not negative.
    Bytes squares(kCount * dtype_size(remembered));
    visit_dtype(remembered, [&]<class T>() {
      for (int64_t i = 0; i < kCount; ++i) {
        const T value = static_cast<T>(static_cast<float>(i % 7) / 4);
        std::memcpy(&squares[i * sizeof(T)], &value, sizeof(T));
      }
    });
    for (int k = 0; k < kernels::kNumStepRules; ++k) {
      kernels::OptimizerStep step;
      step.rule = static_cast<kernels::StepRule>(k);
      step.numbers = {.rate = 0.01,
                      .gradient_decay = k % 2 == 0 ? 0 : 0.125,
                      .kept = 0.99,
                      .momentum = 0.9,
                      .beta1 = 0.9,
                      .rest1 = 0.1,
                      .beta2 = 0.95,
                      .rest2 = 0.05,
                      .scale = 1.5,
                      .epsilon = 1e-3};
      const int num_arrays = 1 + kernels::num_step_slots(step.rule);
      const Bytes gradient = numbers_.of(dtype, kCount);
      const Bytes value = numbers_.of(dtype, kCount);
      // One array is looked at, the others are changed in place.
      for (int seen = 0; seen < num_arrays; ++seen) {
        check(
            absl::StrCat("step ", k, " array ", seen),
            [&](Engine& engine, Inputs in, std::byte* out) {
              kernels::StepArrays arrays = {.gradient = in[0]};
              for (int array = 0; array < num_arrays; ++array) {
                arrays.from[array] = in[1 + array];
                arrays.to[array] = array == seen ? out : const_cast<std::byte*>(in[1 + array]);
              }
              return engine.optimizer_step(step, dtype, arrays, kCount);
            },
            {gradient, value, squares, squares}, seen == 0 ? dtype : remembered, kCount, 4);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
