// SPDX-License-Identifier: Apache-2.0
//
// The order and the values of add_nested(), against a loop over scalars.
#include "collectives/span/nested_sums.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "base/reduce_op.h"
#include "gtest/gtest.h"

namespace tessera::span {
namespace {

// More than a block, and no multiple of one.
constexpr int64_t kElements = (64 << 10) / sizeof(float) * 2 + 13;

float reduced(ReduceOp op, float a, float b) {
  switch (op) {
    case ReduceOp::kProd:
      return a * b;
    case ReduceOp::kMin:
      return std::fmin(a, b);
    case ReduceOp::kMax:
      return std::fmax(a, b);
    default:
      return a + b;
  }
}

std::vector<float> oracle(ReduceOp op, const std::vector<std::vector<std::vector<float>>>& hosts) {
  std::vector<float> sum;
  for (int64_t i = 0; i < kElements; ++i) {
    float all = 0;
    for (size_t h = 0; h < hosts.size(); ++h) {
      float of_host = hosts[h][0][i];
      for (size_t t = 1; t < hosts[h].size(); ++t) of_host = reduced(op, of_host, hosts[h][t][i]);
      all = h == 0 ? of_host : reduced(op, all, of_host);
    }
    sum.push_back(all);
  }
  return sum;
}

// Every way to have 1 to 3 terms on each of 1 to 3 hosts, with terms whose sum depends on the
// order.
TEST(NestedSumsTest, EachHostsTermsAreAddedFirst) {
  std::mt19937 random(20261123);
  for (int shape = 0; shape < 27 + 9 + 3; ++shape) {
    const int num_hosts = shape < 3 ? 1 : shape < 12 ? 2 : 3;
    int code = shape - (num_hosts == 1 ? 0 : num_hosts == 2 ? 3 : 12);
    std::vector<std::vector<std::vector<float>>> hosts;
    TermsByHost terms;
    for (int h = 0; h < num_hosts; ++h, code /= 3) {
      hosts.emplace_back(code % 3 + 1, std::vector<float>(kElements));
    }
    for (auto& host : hosts) {
      terms.emplace_back();
      for (std::vector<float>& term : host) {
        for (float& x : term) x = std::uniform_real_distribution<float>(-1, 1)(random);
        term[7] = std::numeric_limits<float>::quiet_NaN();
        terms.back().push_back(reinterpret_cast<const std::byte*>(term.data()));
      }
    }
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax}) {
      std::vector<float> outs[2] = {std::vector<float>(kElements), std::vector<float>(kElements)};
      std::byte* const to[] = {reinterpret_cast<std::byte*>(outs[0].data()),
                               reinterpret_cast<std::byte*>(outs[1].data())};
      add_nested(DType::kFloat32, op, terms, to, kElements, cpu::Stores::kCached);
      const std::vector<float> expected = oracle(op, hosts);
      for (const std::vector<float>& out : outs) {
        for (int64_t i = 0; i < kElements; ++i) {
          if (std::isnan(expected[i]) && std::isnan(out[i])) continue;
          ASSERT_EQ(out[i], expected[i])
              << "shape " << shape << ", " << reduce_op_name(op) << ", element " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::span
