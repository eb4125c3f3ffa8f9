// SPDX-License-Identifier: Apache-2.0
//
// Every instruction set that this CPU has, against scalars: reduce for every dtype, op, length,
// alignment and number of terms, bit by bit; copy_box and reduce_box for every small box in every
// small container, and random larger ones.
#include "device/cpu/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "device/cpu/kernels_simd.h"
#include "gtest/gtest.h"
#include "tests/support/sanitizers.h"
#include "tests/support/scalars.h"

namespace tessera::cpu {
namespace {

using testing::for_each_index;
using testing::place_in;

// Everything below runs once for each instruction set.
class KernelsTest : public ::testing::TestWithParam<int64_t> {
 protected:
  KernelsTest() { use_instruction_set(GetParam()); }
  ~KernelsTest() override { use_instruction_set(0); }
};

std::string name_of(const ::testing::TestParamInfo<int64_t>& info) {
  return std::string(instruction_set_name(info.param));
}
INSTANTIATE_TEST_SUITE_P(All, KernelsTest, ::testing::ValuesIn(instruction_sets()), name_of);

// All boxes inside [0, limit) of each dim, empty ones included.
std::vector<Box> boxes_within(const Box& outer) {
  std::vector<Box> result = {Box{}};
  for (size_t dim = 0; dim < outer.sizes.size(); ++dim) {
    std::vector<Box> longer;
    for (const Box& box : result) {
      for (int64_t first = 0; first <= outer.sizes[dim]; ++first) {
        for (int64_t size = 0; first + size <= outer.sizes[dim]; ++size) {
          Box next = box;
          next.offsets.push_back(outer.offsets[dim] + first);
          next.sizes.push_back(size);
          longer.push_back(next);
        }
      }
    }
    result = longer;
  }
  return result;
}

const std::byte* bytes(const std::vector<int32_t>& v) {
  return reinterpret_cast<const std::byte*>(v.data());
}
std::byte* bytes(std::vector<int32_t>& v) { return reinterpret_cast<std::byte*>(v.data()); }

// `box` copied, and reduced from three copies, from one container to another.
void check_box(const Box& box, const Box& from, const Box& to) {
  std::vector<int32_t> source(from.num_elements());
  std::iota(source.begin(), source.end(), 1);
  std::vector<int32_t> want(to.num_elements(), -1), want_sum = want;
  for_each_index(box, [&](const std::vector<int64_t>& index) {
    want[place_in(to, index)] = source[place_in(from, index)];
    want_sum[place_in(to, index)] = 3 * source[place_in(from, index)];
  });
  std::vector<int32_t> copied(to.num_elements(), -1), summed = copied;
  copy_box(box, {bytes(source), from}, {bytes(copied), to}, 4);
  ASSERT_EQ(copied, want) << box.to_string() << " of " << from.to_string() << " to "
                          << to.to_string();
  const ConstBoxView term = {bytes(std::as_const(source)), from};
  const ConstBoxView terms[] = {term, term, term};
  reduce_box(DType::kInt32, ReduceOp::kSum, box, terms, {bytes(summed), to});
  ASSERT_EQ(summed, want_sum) << box.to_string() << " of " << from.to_string() << " to "
                              << to.to_string();
}

// Containers that hold `shape` and some margin, or none.
std::vector<Box> containers_of(const Box& whole) {
  std::vector<Box> result = {whole};
  for (size_t dim = 0; dim < whole.sizes.size(); ++dim) {
    Box larger = whole;
    larger.offsets[dim] -= 1;
    larger.sizes[dim] += 2;
    result.push_back(larger);
  }
  return result;
}

TEST_P(KernelsTest, BoxesAreCopiedAndReducedElementByElement) {
  for (const Shape& shape : {Shape{}, Shape{3}, Shape{2, 3}, Shape{2, 1, 2}, Shape{2, 2, 1, 2}}) {
    Box whole = whole_box(shape);
    for (int64_t& offset : whole.offsets) offset = 5;
    for (const Box& box : boxes_within(whole)) {
      for (const Box& from : containers_of(whole)) {
        for (const Box& to : containers_of(whole)) check_box(box, from, to);
      }
    }
  }
}

TEST_P(KernelsTest, ABoxThatIsItsContainerIsOneRun) {
  const Box box = {{7, 3}, {4, 5}};
  check_box(box, box, box);
}

using Bytes = std::vector<std::byte>;

// A box around `inner`: with a margin in some dims, whole in others.
Box with_margins(std::mt19937& random, const Box& inner) {
  Box outer = inner;
  for (size_t dim = 0; dim < inner.sizes.size(); ++dim) {
    if (random() % 2 == 0) continue;
    const int64_t before = random() % 3;
    outer.offsets[dim] -= before;
    outer.sizes[dim] += before + static_cast<int64_t>(random() % 3);
  }
  return outer;
}

Bytes random_bytes(std::mt19937& random, int64_t count) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Runs of all the lengths that have a loop of their own, elements of every size, and memory that
// is not aligned to them.
TEST_P(KernelsTest, RandomBoxesAreCopiedElementByElement) {
  std::mt19937 random(20261121);
  const int64_t sizes[] = {1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 33, 70};
  for (int round = 0; round < 4000; ++round) {
    const int64_t element = int64_t{1} << random() % 4;
    Box box;
    const int rank = static_cast<int>(random() % 6);
    for (int dim = 0; dim < rank; ++dim) {
      box.offsets.push_back(static_cast<int64_t>(random() % 10));
      box.sizes.push_back(sizes[random() % (rank <= 2 ? 12 : 6)]);
    }
    const Box from = with_margins(random, box), to = with_margins(random, box);
    const int64_t shift = random() % 9;
    const Bytes source = random_bytes(random, shift + from.num_elements() * element);
    Bytes copied = random_bytes(random, shift + to.num_elements() * element);
    Bytes want = copied;
    for_each_index(box, [&](const std::vector<int64_t>& index) {
      std::memcpy(want.data() + shift + place_in(to, index) * element,
                  source.data() + shift + place_in(from, index) * element, element);
    });
    const Stores stores = random() % 2 == 0 ? Stores::kCached : Stores::kStreaming;
    copy_box(box, {source.data() + shift, from}, {copied.data() + shift, to}, element, stores);
    ASSERT_EQ(copied, want) << round << ": " << box.to_string() << " of " << from.to_string()
                            << " to " << to.to_string() << ", elements of " << element;
  }
}

// Columns of random widths, pulled together into rows that are more than one slab.
TEST_P(KernelsTest, CopiesIntoOneBufferAreThoseOfEachAlone) {
  std::mt19937 random(11);
  for (const int64_t element : {1, 4, 8}) {
    const Box whole = {{3, 2}, {2 * 131072 / (40 * element) + 17, 40}};
    std::vector<Box> parts;
    for (int64_t first = 0; first < 40; first += parts.back().sizes[1]) {
      const int64_t width = std::min<int64_t>(40 - first, static_cast<int64_t>(random() % 16));
      const int64_t rows = static_cast<int64_t>(random()) % whole.sizes[0];
      parts.push_back({{3 + rows, 2 + first}, {whole.sizes[0] - rows, width}});
    }
    const Box from = {{0, 0}, {whole.sizes[0] + 5, 44}};
    const Bytes source = random_bytes(random, from.num_elements() * element);
    Bytes together(whole.num_elements() * element), alone = together;
    std::vector<BoxCopy> copies;
    for (const Box& part : parts) copies.push_back({part, {source.data(), from}});
    copy_boxes(copies, {together.data(), whole}, element, Stores::kStreaming);
    for (const BoxCopy& copy : copies) {
      copy_box(copy.box, copy.from, {alone.data(), whole}, element);
    }
    ASSERT_EQ(together, alone) << "elements of " << element;
  }
}

// --- Reductions, against scalars.

// The first NaN as a quiet one, for the standard leaves open which of two comes out.
template <class T>
T arithmetic(ReduceOp op, T a, T b) {
  if (std::isnan(a)) return a + T{0};
  if (std::isnan(b)) return b + T{0};
  return op == ReduceOp::kProd ? a * b : a + b;
}

template <class T>
T combined(ReduceOp op, T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return op == ReduceOp::kMin ? a && b : a || b;
  } else if constexpr (std::is_integral_v<T>) {
    if (op == ReduceOp::kMin) return b < a ? b : a;
    if (op == ReduceOp::kMax) return b > a ? b : a;
    const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<T>(op == ReduceOp::kProd ? x * y : x + y);
  } else {
    if (op == ReduceOp::kMin) return b < a || std::isnan(a) ? b : a;
    if (op == ReduceOp::kMax) return b > a || std::isnan(a) ? b : a;
    return arithmetic(op, a, b);
  }
}

template <class T>
using AccumulatorOf = std::conditional_t<sizeof(T) == 2, float, T>;

// `count` elements, one by one.
template <class T>
Bytes oracle(ReduceOp op, const std::vector<Bytes>& terms, int64_t count) {
  using A = AccumulatorOf<T>;
  if (terms.size() == 1) return terms[0];
  Bytes result(count * sizeof(T));
  for (int64_t i = 0; i < count; ++i) {
    T element;
    const auto term = [&](size_t k) {
      std::memcpy(static_cast<void*>(&element), terms[k].data() + i * sizeof(T), sizeof(T));
      return static_cast<A>(element);
    };
    A sum = term(0);
    for (size_t k = 1; k < terms.size(); ++k) sum = combined<A>(op, sum, term(k));
    if constexpr (!std::is_integral_v<T>) {
      if (op == ReduceOp::kAvg) sum /= static_cast<A>(terms.size());
    }
    element = static_cast<T>(sum);
    std::memcpy(result.data() + i * sizeof(T), &element, sizeof(T));
  }
  return result;
}

// Random bits, which hold all kinds of numbers of a half type, and numbers around 1 and with many
// special ones among them.
template <class T>
Bytes random_elements(std::mt19937& random, int64_t count) {
  Bytes bytes = random_bytes(random, count * static_cast<int64_t>(sizeof(T)));
  for (int64_t i = 0; i < count; ++i) {
    T element;
    if constexpr (std::is_same_v<T, bool>) {
      element = random() % 2 == 0;
    } else if constexpr (std::is_integral_v<T>) {
      if (random() % 2 == 0) continue;
      element = static_cast<T>(static_cast<int>(random() % 7) - 3);
    } else {
      using Limits = std::numeric_limits<T>;
      const T special[] = {T(0),
                           -T(0),
                           Limits::infinity(),
                           -Limits::infinity(),
                           Limits::quiet_NaN(),
                           -Limits::quiet_NaN(),
                           Limits::signaling_NaN(),
                           Limits::denorm_min(),
                           Limits::max(),
                           Limits::lowest(),
                           Limits::min(),
                           T(1)};
      const int kind = random() % 8;
      if (kind == 0) continue;
      const T near_one = static_cast<T>(static_cast<float>(random() % 4096) / 1024 - 2);
      element = kind < 3 ? special[random() % std::size(special)] : near_one;
    }
    std::memcpy(bytes.data() + i * sizeof(T), static_cast<const void*>(&element), sizeof(T));
  }
  return bytes;
}

template <class Fn>
void for_each_reduction(Fn fn) {
  for (int d = 0; d < kNumDTypes; ++d) {
    for (int o = 0; o < kNumReduceOps; ++o) {
      const auto dtype = static_cast<DType>(d);
      const auto op = static_cast<ReduceOp>(o);
      if (validate_reduction(op, dtype).ok()) {
        visit_dtype(dtype, [&]<class T>() { fn.template operator()<T>(dtype, op); });
      }
    }
  }
}

// Where memory begins, in bytes after a 64-byte line, and what each of two outs is shifted by.
struct Alignment {
  int64_t terms;
  int64_t outs[2];
  Stores stores;
};
const Alignment kAlignments[] = {
    {0, {0, 0}, Stores::kCached},      {8, {16, 40}, Stores::kCached},
    {1, {3, 5}, Stores::kCached},      {0, {0, 0}, Stores::kStreaming},
    {8, {16, 16}, Stores::kStreaming}, {24, {40, 8}, Stores::kStreaming},
    {1, {3, 3}, Stores::kStreaming},
};

// Memory with room for any alignment, and with bytes around it that must not be written.
struct Memory {
  explicit Memory(int64_t size) : bytes(size + 256, std::byte{0xA5}) {}
  std::byte* at(int64_t shift) {
    const auto start = reinterpret_cast<uintptr_t>(bytes.data());
    return bytes.data() + 64 + (-start % 64) + shift;
  }
  Bytes bytes;
};

// reduce() of the first `count` elements, from and to memory aligned like that.
void check_reduce(DType dtype, ReduceOp op, const std::vector<Bytes>& terms, const Bytes& want,
                  int64_t count, const Alignment& alignment) {
  const int64_t num_bytes = count * dtype_size(dtype);
  std::vector<Memory> ins;
  for (const Bytes& term : terms) {
    ins.emplace_back(num_bytes);
    std::copy_n(term.begin(), num_bytes, ins.back().at(alignment.terms));
  }
  std::vector<const std::byte*> term_pointers;
  for (Memory& in : ins) term_pointers.push_back(in.at(alignment.terms));
  Memory outs[] = {Memory(num_bytes), Memory(num_bytes)};
  Memory wants[] = {Memory(num_bytes), Memory(num_bytes)};
  // An out is a term as well.
  std::byte* in_place = ins[count % ins.size()].at(alignment.terms);
  std::byte* out_pointers[] = {outs[0].at(alignment.outs[0]), outs[1].at(alignment.outs[1]),
                               in_place};
  // The kernels cached or streaming, whatever the length.
  DenseReduction reduction = {dtype, op, term_pointers, out_pointers, num_bytes, alignment.stores};
  if (terms.size() > 1 && num_bytes > 0) {
    reduce_dense(reduction);
    fence_stores();
  } else {
    reduce(dtype, op, term_pointers, out_pointers, count, alignment.stores);
  }
  const auto place = [&] {
    return ::testing::Message() << dtype_name(dtype) << " " << reduce_op_name(op) << " of "
                                << terms.size() << " terms, " << count << " elements, terms at "
                                << alignment.terms << ", outs at " << alignment.outs[0] << " and "
                                << alignment.outs[1];
  };
  for (int j = 0; j < 2; ++j) {
    std::copy_n(want.begin(), num_bytes, wants[j].at(alignment.outs[j]));
    const std::byte* got = outs[j].at(0) - 64;
    ASSERT_TRUE(std::equal(got, got + num_bytes + 128, wants[j].at(0) - 64)) << place();
  }
  ASSERT_TRUE(std::equal(want.begin(), want.begin() + num_bytes, in_place)) << place();
}

// 1, 5 and 9 terms, every seventh length.
constexpr int kTermsStep = testing::kSanitized ? 4 : 1;
constexpr int64_t kLengthStep = testing::kSanitized ? 7 : 1;

template <class T>
void check_lengths(DType dtype, ReduceOp op, int num_terms, const std::vector<int64_t>& lengths,
                   absl::Span<const Alignment> alignments) {
  std::mt19937 random(num_terms);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<Bytes> terms;
  for (int k = 0; k < num_terms; ++k) terms.push_back(random_elements<T>(random, longest));
  const Bytes want = oracle<T>(op, terms, longest);
  for (const int64_t length : lengths) {
    for (const Alignment& alignment : alignments) {
      check_reduce(dtype, op, terms, want, length, alignment);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_P(KernelsTest, EveryReductionOfEveryLengthAndAlignmentIsExact) {
  std::vector<int64_t> lengths;
  for (int64_t length = 0; length <= 70; length += kLengthStep) lengths.push_back(length);
  for_each_reduction([&]<class T>(DType dtype, ReduceOp op) {
    for (int num_terms = 1; num_terms <= 9; num_terms += kTermsStep) {
      check_lengths<T>(dtype, op, num_terms, lengths, kAlignments);
    }
  });
}

// Blocks end at multiples of 1024 elements, or 4096 bytes where terms are many.
TEST_P(KernelsTest, EveryReductionIsExactWhereBlocksEnd) {
  for_each_reduction([&]<class T>(DType dtype, ReduceOp op) {
    for (const int num_terms : {2, 8, 9, 17}) {
      check_lengths<T>(dtype, op, num_terms, {513, 1025, 4097},
                       absl::MakeConstSpan(kAlignments).subspan(4, 2));
    }
  });
}

// All numbers of 16 bits, beside some of each kind: conversions and rounding have no gap.
template <class T>
void check_all_halves(DType dtype) {
  constexpr int64_t kAll = 1 << 16;
  Bytes all(kAll * 2);
  for (int64_t i = 0; i < kAll; ++i) {
    const uint16_t bits = static_cast<uint16_t>(i);
    std::memcpy(all.data() + i * 2, &bits, 2);
  }
  const float others[] = {0, -0.0f, 1, 1.0f / 3, -7e-6f, 65504, 2048.5f, -1e-38f};
  for (const float other : others) {
    const T element(other);
    Bytes second(kAll * 2);
    for (int64_t i = 0; i < kAll; ++i) std::memcpy(second.data() + i * 2, &element, 2);
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAvg}) {
      const std::vector<Bytes> terms = {all, second};
      check_reduce(dtype, op, terms, oracle<T>(op, terms, kAll), kAll, kAlignments[0]);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_P(KernelsTest, EveryHalfIsConvertedAndRounded) {
  check_all_halves<Eigen::half>(DType::kFloat16);
  check_all_halves<Eigen::bfloat16>(DType::kBFloat16);
}

TEST_P(KernelsTest, NanLosesAgainstNumbersInEveryPlace) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int place = 0; place < 3; ++place) {
    float values[3] = {4, 2, 3};
    values[place] = nan;
    const std::byte* terms[3];
    for (int k = 0; k < 3; ++k) terms[k] = reinterpret_cast<const std::byte*>(&values[k]);
    float least, most;
    std::byte* out = reinterpret_cast<std::byte*>(&least);
    reduce(DType::kFloat32, ReduceOp::kMin, terms, absl::MakeConstSpan(&out, 1), 1);
    out = reinterpret_cast<std::byte*>(&most);
    reduce(DType::kFloat32, ReduceOp::kMax, terms, absl::MakeConstSpan(&out, 1), 1);
    EXPECT_EQ(least, place == 1 ? 3 : 2) << place;
    EXPECT_EQ(most, place == 0 ? 3 : 4) << place;
  }
}

TEST_P(KernelsTest, NothingIsTouchedForZeroElements) {
  reduce(DType::kFloat64, ReduceOp::kSum, {nullptr, nullptr}, {nullptr}, 0);
  const Box empty = {{2, 2}, {0, 3}};
  copy_box(empty, {nullptr, empty}, {nullptr, empty}, 8);
}

TEST_P(KernelsTest, BytesOfAnyLengthAndAlignmentAreCopied) {
  std::mt19937 random(7);
  const Bytes source = random_bytes(random, 5000);
  for (const int64_t length : {0, 1, 63, 64, 511, 512, 513, 640, 1000, 4096}) {
    for (int64_t shift = 0; shift < 70; ++shift) {
      for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
        Memory to(length + 70), want(length + 70);
        copy_bytes(to.at(shift), source.data() + 1, length, stores);
        std::copy_n(source.data() + 1, length, want.at(shift));
        ASSERT_TRUE(std::equal(to.at(0) - 64, to.at(0) + length + 134, want.at(0) - 64))
            << length << " bytes to " << shift;
      }
    }
  }
}

struct StoresCase {
  const char* name;
  int64_t bytes_written;
  int64_t cache;
  int64_t run_bytes;
  Stores want;
};
constexpr int64_t kMiB = 1 << 20;
const StoresCase kStoresCases[] = {
    {"nothing", 0, 32 * kMiB, 0, Stores::kCached},
    {"fits", 4 * kMiB, 32 * kMiB, 4 * kMiB, Stores::kCached},
    {"half_of_the_cache", 16 * kMiB, 32 * kMiB, 16 * kMiB, Stores::kCached},
    {"more_than_half", 16 * kMiB + 1, 32 * kMiB, 16 * kMiB, Stores::kStreaming},
    {"does_not_fit", 256 * kMiB, 32 * kMiB, 64 * kMiB, Stores::kStreaming},
    {"shortest_run", 256 * kMiB, 32 * kMiB, 512, Stores::kStreaming},
    {"short_run", 256 * kMiB, 32 * kMiB, 511, Stores::kCached},
    {"larger_cache", 256 * kMiB, 512 * kMiB, 64 * kMiB, Stores::kCached},
};

TEST(StoresTest, StreamWhatLeavesTheCacheInLongRuns) {
  for (const StoresCase& c : kStoresCases) {
    EXPECT_EQ(stores_of_run(choose_stores(c.bytes_written, c.cache), c.run_bytes), c.want)
        << c.name;
  }
}

TEST(StoresTest, TheSystemHasACache) { EXPECT_GE(last_level_cache_bytes(), int64_t{64} << 10); }

// The plain code is for any CPU, so some instruction set is always there.
TEST(InstructionSetsTest, PlainCodeIsTheLastResort) {
  ASSERT_FALSE(instruction_sets().empty());
  const absl::string_view last = instruction_set_name(instruction_sets().back());
  EXPECT_TRUE(last == "SCALAR" || last == "EMU128") << last;
}

}  // namespace
}  // namespace tessera::cpu
