// SPDX-License-Identifier: Apache-2.0
//
// Every reduction has the same bits on every device, however the devices are split over clients,
// and the bits of adding scalars one after another. A part of //tests/collectives:stress_test.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "collectives/testing/conformance.h"
#include "device/cpu/kernels.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/collectives/stress.h"
#include "tests/support/matchers.h"
#include "tests/support/members.h"
#include "tests/support/sanitizers.h"
#include "tests/support/scalars.h"
#include "tests/support/shared.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using conformance::Member;

constexpr int kBitsDevices = 8;

// A term whose sums, products and averages depend on their order: floats of both signs and of
// magnitudes that swallow each other's last bits, and now and then NaN of both signs.
template <class T>
T term(int member, int64_t i) {
  const uint64_t bits = scramble(static_cast<uint64_t>(i) * 64 + static_cast<uint64_t>(member) + 1);
  if constexpr (std::is_same_v<T, bool>) {
    return (bits & 1) != 0;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else {
    const double sign = (bits & 1) != 0 ? 1.0 : -1.0;
    if (bits % 101 == 0) return static_cast<T>(std::copysign(std::nan(""), sign));
    const double mantissa = 1.0 + static_cast<double>(bits >> 12) / (int64_t{1} << 52);
    return static_cast<T>(sign * std::ldexp(mantissa, static_cast<int>(bits >> 1 & 7) - 3));
  }
}

template <class T>
std::unique_ptr<T[]> terms_of(int member, int64_t n) {
  auto terms = std::make_unique<T[]>(n);
  for (int64_t i = 0; i < n; ++i) terms[i] = term<T>(member, i);
  return terms;
}

class Digest {
 public:
  void add(const void* data, size_t num_bytes) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < num_bytes; i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + i, std::min(sizeof word, num_bytes - i));
      value_ = scramble(value_ ^ word);
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

// The sums, or what `op` makes, of the terms of all members: one scalar after another, ascending.
template <class T>
Status expect_reduced(absl::Span<const T> got, int num_members, ReduceOp op) {
  std::vector<T> terms(num_members);
  for (size_t i = 0; i < got.size(); ++i) {
    for (int k = 0; k < num_members; ++k) terms[k] = term<T>(k, static_cast<int64_t>(i));
    const T want = reduce_scalars(op, terms);
    TESSERA_REQUIRE(same(got[i], want), "element ", i, " of ", got.size(), " is ",
                    absl::StrFormat("%.17g, not %.17g", static_cast<double>(got[i]),
                                    static_cast<double>(want)));
  }
  return absl::OkStatus();
}

// The results of every kind of reduction of `size` elements. Where `wrong` is given it becomes the
// first that is not what scalars make; the member goes on, for the others would wait for it.
template <class T>
Status add_reductions(const Member& m, ReduceOp op, int64_t size, Digest& digest, Status* wrong) {
  const int n = m.group.size();
  const auto in = terms_of<T>(m.position, size);
  const auto out = std::make_unique<T[]>(size);
  const absl::Span<const T> whole_in(in.get(), size);
  const absl::Span<T> whole_out(out.get(), size);
  TESSERA_RETURN_IF_ERROR(m.group.all_reduce<T>(whole_in, whole_out, op).await());
  // Large results are checked on one member alone: it takes long.
  if (wrong != nullptr && wrong->ok() && (size < 10'000 || m.position == 0)) {
    *wrong = with_context(expect_reduced<T>(whole_out, n, op),
                          absl::StrCat("member ", m.position, ", ", reduce_op_name(op), " ",
                                       dtype_name(dtype_of<T>())));
  }
  digest.add(out.get(), size * sizeof(T));
  TESSERA_RETURN_IF_ERROR(m.group.reduce<T>(whole_in, whole_out, op, n - 1).await());
  digest.add(out.get(), size * sizeof(T));
  std::vector<int64_t> counts(n, size / n);
  counts[0] += size % n;
  const absl::Span<T> part = whole_out.first(counts[m.position]);
  TESSERA_RETURN_IF_ERROR(m.group.reduce_scatter<T>(whole_in, part, op, counts).await());
  digest.add(out.get(), part.size() * sizeof(T));
  return absl::OkStatus();
}

// Digests of the results of each reduction on each device.
using Digests = uint64_t[kNumDTypes][kNumReduceOps][kBitsDevices];
struct Bits {
  Digests of_collectives;
  Digests of_relayouts;
};

// The shards of a partial tensor after relayouts, whole and split.
template <class T>
Status add_relayouts(const Client& client, const Mesh& mesh, ReduceOp op, uint64_t* of_devices) {
  const Shape shape = {7, 29};
  std::vector<HostTensor<T>> shards;
  for (const Device& device : client.local_devices()) {
    HostTensor<T>& shard = shards.emplace_back();
    shard.shape = shape;
    for (int64_t i = 0; i < num_elements(shape); ++i) shard.data.push_back(term<T>(device.id, i));
  }
  const std::string partial = absl::StrCat("[-, -] ", reduce_op_name(op), "{x}");
  const DTensor terms = from_shards<T>(shape, Layout::parse(mesh, partial), shards);
  for (const char* to : {"[-, -]", "[x, -]", "[-, x]"}) {
    const DTensor value = relayout(terms, Layout::parse(mesh, to));
    for (int s = 0; s < value.num_local_shards(); ++s) {
      TESSERA_ASSIGN_OR_RETURN(const ShardView<T> shard, value.shard<T>(s));
      uint64_t& of_device = of_devices[client.local_devices()[s].id];
      Digest digest;
      digest.add(&of_device, sizeof of_device);
      digest.add(shard.data.data(), shard.data.size() * sizeof(T));
      of_device = digest.value();
    }
  }
  return absl::OkStatus();
}

// Calls fn(dtype, op) for every reduction there is.
template <class Fn>
Status for_each_reduction(Fn fn) {
  for (int t = 0; t < kNumDTypes; ++t) {
    for (int k = 0; k < kNumReduceOps; ++k) {
      const auto dtype = static_cast<DType>(t);
      const auto op = static_cast<ReduceOp>(k);
      if (validate_reduction(op, dtype).ok()) TESSERA_RETURN_IF_ERROR(fn(dtype, op));
    }
  }
  return absl::OkStatus();
}

Status member_bits(const Member& m, bool compare_with_scalars, Digests& digests) {
  // With streaming stores.
  const int64_t streamed =
      cpu::last_level_cache_bytes() / (2 * kBitsDevices * sizeof(float)) + 1000;
  Status wrong;
  const Status ended = for_each_reduction([&](DType dtype, ReduceOp op) {
    return visit_dtype(dtype, [&]<class T>() -> Status {
      Digest digest;
      // In the entries, in chunks of few lines, and in chunks of blocks.
      std::vector<int64_t> sizes = {5, 1000, 9001};
      if (dtype == DType::kFloat32 && op == ReduceOp::kSum) sizes.push_back(streamed);
      for (const int64_t size : sizes) {
        Status* const looked_at = compare_with_scalars ? &wrong : nullptr;
        TESSERA_RETURN_IF_ERROR(add_reductions<T>(m, op, size, digest, looked_at));
      }
      digests[static_cast<int>(dtype)][static_cast<int>(op)][m.position] = digest.value();
      return absl::OkStatus();
    });
  });
  return wrong.ok() ? ended : wrong;
}

// How many elements of the sum over all devices change when it is taken the other way round.
template <class T>
int64_t num_sums_that_depend_on_order(int64_t n) {
  int64_t result = 0;
  for (int64_t i = 0; i < n; ++i) {
    T up = term<T>(0, i);
    T down = term<T>(kBitsDevices - 1, i);
    for (int k = 1; k < kBitsDevices; ++k) {
      up = static_cast<T>(up + term<T>(k, i));
      down = static_cast<T>(down + term<T>(kBitsDevices - 1 - k, i));
    }
    const bool are_numbers = up == up && down == down;
    result += are_numbers && up != down ? 1 : 0;
  }
  return result;
}

TEST(BitsTest, TheSumsOfTheTermsDependOnTheirOrder) {
  EXPECT_GT(num_sums_that_depend_on_order<double>(1000), 300);
  EXPECT_GT(num_sums_that_depend_on_order<float>(1000), 300);
  EXPECT_GT(num_sums_that_depend_on_order<Eigen::half>(1000), 300);
  EXPECT_GT(num_sums_that_depend_on_order<Eigen::bfloat16>(1000), 300);
}

// "sum f32 of devices 3 7", a line for each reduction whose results differ.
std::string differences(const Digests& got, const Digests& wanted) {
  std::string text;
  for_each_reduction([&](DType dtype, ReduceOp op) {
    const auto& row = got[static_cast<int>(dtype)][static_cast<int>(op)];
    const auto& wanted_row = wanted[static_cast<int>(dtype)][static_cast<int>(op)];
    std::string devices;
    for (int device = 0; device < kBitsDevices; ++device) {
      const bool is_right = row[device] == wanted_row[device] && row[device] != 0;
      if (!is_right) absl::StrAppend(&devices, " ", device);
    }
    if (!devices.empty()) {
      absl::StrAppend(&text, reduce_op_name(op), " ", dtype_name(dtype), " of devices", devices,
                      "\n");
    }
    return absl::OkStatus();
  }).IgnoreError();
  return text;
}

TEST(BitsTest, EveryReductionHasTheSameBitsForEverySplitOverClients) {
  Bits first = {};
  for (const JobForm& form : kForms) {
    SCOPED_TRACE(form.name);
    Shared<Bits> bits;
    const auto body = [&](Client& client) -> Status {
      TESSERA_RETURN_IF_ERROR(run_members(client, all_devices(client), [&](const Member& m) {
        return member_bits(m, client.num_clients() == 1 && !kSanitized, bits->of_collectives);
      }));
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
      return for_each_reduction([&](DType dtype, ReduceOp op) {
        uint64_t* const row = bits->of_relayouts[static_cast<int>(dtype)][static_cast<int>(op)];
        return visit_dtype(dtype,
                           [&]<class T>() { return add_relayouts<T>(client, mesh, op, row); });
      });
    };
    ASSERT_THAT(run_form(form, 0, body), IsOk());
    if (form.num_clients == 1) first = *bits;
    EXPECT_EQ(differences(bits->of_collectives, first.of_collectives), "")
        << "collectives, in other bits than with one client";
    EXPECT_EQ(differences(bits->of_relayouts, first.of_relayouts), "")
        << "relayouts, in other bits than with one client";
  }
}

}  // namespace
}  // namespace tessera::testing
