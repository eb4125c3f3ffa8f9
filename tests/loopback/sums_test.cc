// SPDX-License-Identifier: Apache-2.0
//
// The order in which members on several hosts add: the bits of sums and products, against a loop
// over scalars in the order that ReductionOrder states. With kFlat they equal the bits of one host.
#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

struct Form {
  std::string name;
  std::vector<std::string> host_ids;  // by client, with one device each
};

// Values between 0.5 and 1.5 whose sums depend on the order.
template <class T>
T term(int member, int64_t i) {
  const uint64_t bits =
      (i + 1) * uint64_t{0x9e3779b97f4a7c15} ^ (member + 1) * uint64_t{0xbf58476d1ce4e5b9};
  return T(0.5) + static_cast<T>(bits % 1000003) / T(1000003);
}

template <class T>
T reduced(ReduceOp op, T a, T b) {
  return op == ReduceOp::kProd ? a * b : a + b;
}

// All elements of the reduction.
template <class T>
std::vector<T> reduced_terms(const Form& form, ReductionOrder order, ReduceOp op, int64_t size) {
  const int n = static_cast<int>(form.host_ids.size());
  std::vector<std::vector<int>> hosts;  // members that are added first
  std::map<std::string, size_t> known;
  for (int m = 0; m < n; ++m) {
    const bool is_flat = order == ReductionOrder::kFlat;
    const std::string id = is_flat ? absl::StrCat(m) : form.host_ids[m];
    const size_t h = known.emplace(id, hosts.size()).first->second;
    if (h == hosts.size()) hosts.emplace_back();
    hosts[h].push_back(m);
  }
  std::vector<T> all(size);
  for (int64_t i = 0; i < size; ++i) {
    for (size_t h = 0; h < hosts.size(); ++h) {
      T sum = term<T>(hosts[h][0], i);
      for (size_t t = 1; t < hosts[h].size(); ++t) {
        sum = reduced(op, sum, term<T>(hosts[h][t], i));
      }
      all[i] = h == 0 ? sum : reduced(op, all[i], sum);
    }
  }
  return all;
}

template <class T>
Status expect_equal(absl::string_view what, const std::vector<T>& got, const std::vector<T>& all,
                    int64_t first) {
  const auto wrong = std::mismatch(got.begin(), got.end(), all.begin() + first).first;
  if (wrong == got.end()) return absl::OkStatus();
  const int64_t i = wrong - got.begin();
  return absl::InternalError(
      absl::StrCat(what, ", element ", first + i, ": got ", got[i], ", want ", all[first + i]));
}

// The three kinds that reduce.
template <class T>
Status check(const Group& group, const Form& form, ReductionOrder order, int64_t size) {
  const int n = group.size();
  std::vector<T> in;
  for (int64_t i = 0; i < size; ++i) in.push_back(term<T>(group.position(), i));
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd}) {
    const std::vector<T> all = reduced_terms<T>(form, order, op, size);
    std::vector<T> out(size);
    TESSERA_RETURN_IF_ERROR(group.all_reduce(in, out, op).await());
    TESSERA_RETURN_IF_ERROR(expect_equal("all_reduce", out, all, 0));
    std::vector<T> in_place = in;
    TESSERA_RETURN_IF_ERROR(group.all_reduce(in_place, in_place, op).await());
    TESSERA_RETURN_IF_ERROR(expect_equal("all_reduce in place", in_place, all, 0));
    for (const int root : {0, n - 1}) {
      std::vector<T> at_root(group.position() == root ? size : 0);
      TESSERA_RETURN_IF_ERROR(group.reduce(in, at_root, op, root).await());
      TESSERA_RETURN_IF_ERROR(expect_equal("reduce", at_root, all, 0));
    }
    std::vector<int64_t> counts(n, size / n);
    counts[n - 1] += size % n;
    std::vector<T> part(counts[group.position()]);
    TESSERA_RETURN_IF_ERROR(group.reduce_scatter(in, part, op, counts).await());
    TESSERA_RETURN_IF_ERROR(
        expect_equal("reduce_scatter", part, all, group.position() * (size / n)));
  }
  return absl::OkStatus();
}

class SumsTest : public ::testing::TestWithParam<Form> {};

TEST_P(SumsTest, AddInTheOrderOfTheOption) {
  const Form& form = GetParam();
  for (const ReductionOrder order : {ReductionOrder::kByHost, ReductionOrder::kFlat}) {
    const int n = static_cast<int>(form.host_ids.size());
    EXPECT_THAT(run_clients({.setting = Setting::kThreads,
                             .num_clients = n,
                             .options = {.reduction_order = order},
                             .hooks = {.host_ids = form.host_ids}},
                            [&](Client& client) -> Status {
                              std::vector<int> ids(n);
                              std::iota(ids.begin(), ids.end(), 0);
                              TESSERA_ASSIGN_OR_RETURN(const Group group, client.group(ids));
                              // In the letters; fewer elements than members.
                              for (const int64_t size : {3, 100, 1000}) {
                                TESSERA_RETURN_IF_ERROR(
                                    with_context(check<float>(group, form, order, size), "f32"));
                                TESSERA_RETURN_IF_ERROR(
                                    with_context(check<double>(group, form, order, size), "f64"));
                              }
                              // Several blocks.
                              return with_context(check<float>(group, form, order, 270001), "f32");
                            }),
                IsOk())
        << reduction_order_name(order);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, SumsTest,
                         ::testing::Values(Form{"two_by_two", {"a", "a", "b", "b"}},
                                           Form{"in_turn", {"a", "b", "a", "b"}},
                                           Form{"uneven", {"b", "a", "a", "a"}},
                                           Form{"three_hosts", {"a", "b", "b", "c", "a"}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::testing
