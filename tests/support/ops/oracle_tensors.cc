// SPDX-License-Identifier: Apache-2.0
//
// The oracle of operations that move elements, of products, and of operations of neural networks.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "tests/support/ops/oracle.h"

namespace tessera::testing::oracle {
namespace {

using Tensors = absl::Span<const Dense>;

bool is_second(const OpCase& row) {
  return row.id.size() > 2 && row.id.substr(row.id.size() - 2) == ".1";
}

// ---- Movements

Dense transpose(const OpCase& row, Tensors x) {
  std::vector<int64_t> permutation = row.integers("permutation");
  Shape shape;
  for (int64_t& dim : permutation) {
    dim = dim_of(dim, permutation.size());
    shape.push_back(x[0].shape[dim]);
  }
  return make(x[0].dtype, shape, [&](const Index& i) {
    Index from(i.size());
    for (size_t dim = 0; dim < i.size(); ++dim) from[permutation[dim]] = i[dim];
    return at(x[0], from);
  });
}

Dense reshape(const OpCase& row, Tensors x) {
  return {x[0].dtype, row.integers("shape"), x[0].data};
}

Dense expand_dims(const OpCase& row, Tensors x) {
  Shape shape = x[0].shape;
  shape.insert(shape.begin() + dim_of(row.integer("dim"), shape.size() + 1), 1);
  return {x[0].dtype, shape, x[0].data};
}

Dense squeeze(const OpCase& row, Tensors x) {
  Shape shape = x[0].shape;
  shape.erase(shape.begin() + dim_of(row.integer("dim"), shape.size()));
  return {x[0].dtype, shape, x[0].data};
}

Dense broadcast_to(const OpCase& row, Tensors x) {
  return make(x[0].dtype, row.integers("shape"),
              [&](const Index& i) { return at_broadcast(x[0], i); });
}

Dense concat(const OpCase& row, Tensors x) {
  const int64_t dim = dim_of(row.integer("dim"), x[0].shape.size());
  Shape shape = x[0].shape;
  shape[dim] = 0;
  for (const Dense& each : x) shape[dim] += each.shape[dim];
  return make(x[0].dtype, shape, [&](const Index& i) {
    size_t part = 0;
    int64_t k = i[dim];
    for (; k >= x[part].shape[dim]; ++part) k -= x[part].shape[dim];
    return at(x[part], with(i, dim, k));
  });
}

Dense stack(const OpCase& row, Tensors x) {
  const int64_t dim = dim_of(row.integer("dim"), x[0].shape.size() + 1);
  Shape shape = x[0].shape;
  shape.insert(shape.begin() + dim, static_cast<int64_t>(x.size()));
  return make(x[0].dtype, shape, [&](Index i) {
    const int64_t part = i[dim];
    i.erase(i.begin() + dim);
    return at(x[part], i);
  });
}

Dense split(const OpCase& row, Tensors x) {
  const int64_t dim = dim_of(row.integer("dim"), x[0].shape.size());
  const std::vector<int64_t> sizes = row.integers("sizes");
  Shape shape = x[0].shape;
  shape[dim] = sizes[is_second(row) ? 1 : 0];
  return make(x[0].dtype, shape, [&](const Index& i) {
    return at(x[0], with(i, dim, i[dim] + (is_second(row) ? sizes[0] : 0)));
  });
}

Dense slice(const OpCase& row, Tensors x) {
  const std::vector<int64_t> starts = row.integers("starts");
  const std::vector<int64_t> limits = row.integers("limits");
  std::vector<int64_t> strides(starts.size(), 1);
  if (row.has("strides")) strides = row.integers("strides");
  Shape shape;
  for (size_t dim = 0; dim < starts.size(); ++dim) {
    shape.push_back((limits[dim] - starts[dim] + strides[dim] - 1) / strides[dim]);
  }
  return make(x[0].dtype, shape, [&](Index i) {
    for (size_t dim = 0; dim < i.size(); ++dim) i[dim] = starts[dim] + i[dim] * strides[dim];
    return at(x[0], i);
  });
}

Dense pad(const OpCase& row, Tensors x) {
  const std::vector<int64_t> low = row.integers("low");
  const std::vector<int64_t> high = row.integers("high");
  Shape shape = x[0].shape;
  for (size_t dim = 0; dim < shape.size(); ++dim) shape[dim] += low[dim] + high[dim];
  return make(x[0].dtype, shape, [&](Index i) {
    for (size_t dim = 0; dim < i.size(); ++dim) {
      i[dim] -= low[dim];
      if (i[dim] < 0 || i[dim] >= x[0].shape[dim]) return row.real("value");
    }
    return at(x[0], i);
  });
}

Dense narrow(const OpCase& row, Tensors x) {
  const int64_t dim = dim_of(row.integer("dim"), x[0].shape.size());
  Shape shape = x[0].shape;
  shape[dim] = row.integer("length");
  return make(x[0].dtype, shape, [&](Index i) {
    i[dim] += row.integer("start");
    return at(x[0], i);
  });
}

Dense full_like(Tensors x, double value) {
  return make(x[0].dtype, x[0].shape, [&](const Index&) { return value; });
}

// The lower triangle, or the upper one.
Dense triangle(const OpCase& row, Tensors x, bool is_lower) {
  const int64_t diagonal = row.has("diagonal") ? row.integer("diagonal") : 0;
  return make(x[0].dtype, x[0].shape, [&](const Index& i) {
    const int64_t place = i[i.size() - 1] - i[i.size() - 2];
    return (is_lower ? place <= diagonal : place >= diagonal) ? at(x[0], i) : 0;
  });
}

Dense flip(const OpCase& row, Tensors x) {
  const std::vector<int64_t> dims = row.integers("dims");
  return make(x[0].dtype, x[0].shape, [&](Index i) {
    for (const int64_t each : dims) {
      const int64_t dim = dim_of(each, i.size());
      i[dim] = x[0].shape[dim] - 1 - i[dim];
    }
    return at(x[0], i);
  });
}

Dense roll(const OpCase& row, Tensors x) {
  const int64_t dim = dim_of(row.integer("dim"), x[0].shape.size());
  const int64_t size = x[0].shape[dim];
  return make(x[0].dtype, x[0].shape, [&](const Index& i) {
    const int64_t from = (i[dim] - row.integer("shift")) % size;
    return at(x[0], with(i, dim, (from + size) % size));
  });
}

Dense tile(const OpCase& row, Tensors x) {
  const std::vector<int64_t> repeats = row.integers("repeats");
  Shape shape = x[0].shape;
  for (size_t dim = 0; dim < shape.size(); ++dim) shape[dim] *= repeats[dim];
  return make(x[0].dtype, shape, [&](Index i) {
    for (size_t dim = 0; dim < i.size(); ++dim) i[dim] %= x[0].shape[dim];
    return at(x[0], i);
  });
}

Dense one_hot(const OpCase& row, Tensors x) {
  Shape shape = x[0].shape;
  shape.push_back(row.integer("depth"));
  return make(DType::kFloat32, shape, [&](Index i) {
    const int64_t k = i.back();
    i.pop_back();
    return at(x[0], i) == static_cast<double>(k) ? 1.0 : 0.0;
  });
}

Dense take(const OpCase& row, Tensors x) {
  const int64_t dim = dim_of(row.integer("dim"), x[0].shape.size());
  const Shape& indices = x[1].shape;
  Shape shape = x[0].shape;
  shape.erase(shape.begin() + dim);
  shape.insert(shape.begin() + dim, indices.begin(), indices.end());
  return make(x[0].dtype, shape, [&](Index i) {
    const auto first = i.begin() + dim;
    const auto end = first + static_cast<int64_t>(indices.size());
    const auto index = static_cast<int64_t>(at(x[1], Index(first, end)));
    i.insert(i.erase(first, end), index);
    return at(x[0], i);
  });
}

Dense scatter_add(const OpCase& row, Tensors x) {
  const int64_t dim = dim_of(row.integer("dim"), x[0].shape.size());
  return make(x[0].dtype, x[0].shape, [&](const Index& i) {
    double value = at(x[0], i);
    for (int64_t k = 0; k < x[1].shape[0]; ++k) {
      if (static_cast<int64_t>(at(x[1], {k})) == i[dim]) value += at(x[2], with(i, dim, k));
    }
    return value;
  });
}

// ---- Products

// By numpy.matmul: a vector is a row on the left and a column on the right.
Dense matmul(const OpCase&, Tensors x) {
  Dense a = x[0];
  Dense b = x[1];
  const bool is_row = a.shape.size() == 1;
  const bool is_column = b.shape.size() == 1;
  if (is_row) a.shape.insert(a.shape.begin(), 1);
  if (is_column) b.shape.push_back(1);
  const size_t a_rank = a.shape.size();
  const size_t b_rank = b.shape.size();
  Shape shape = broadcast_shape(Shape(a.shape.begin(), a.shape.end() - 2),
                                Shape(b.shape.begin(), b.shape.end() - 2));
  shape.insert(shape.end(), {a.shape[a_rank - 2], b.shape[b_rank - 1]});
  const int64_t summed = a.shape[a_rank - 1];
  Dense result = make(a.dtype, shape, [&](const Index& i) {
    double sum = 0;
    for (int64_t k = 0; k < summed; ++k) {
      Index left(i.end() - static_cast<int64_t>(std::min(i.size(), a_rank)), i.end());
      Index right(i.end() - static_cast<int64_t>(std::min(i.size(), b_rank)), i.end());
      for (size_t dim = 0; dim + 2 < a_rank; ++dim) left[dim] %= a.shape[dim];
      for (size_t dim = 0; dim + 2 < b_rank; ++dim) right[dim] %= b.shape[dim];
      left[a_rank - 1] = k;
      right[b_rank - 2] = k;
      sum += at(a, left) * at(b, right);
    }
    return sum;
  });
  if (is_column) result.shape.pop_back();
  if (is_row) result.shape.erase(result.shape.end() - (is_column ? 1 : 2));
  return result;
}

// Requires an equation with an arrow, without blanks.
Dense einsum(const OpCase& row, Tensors x) {
  const std::vector<std::string> sides = absl::StrSplit(row.attributes.at("equation"), "->");
  const std::vector<std::string> inputs = absl::StrSplit(sides[0], ',');
  std::map<char, int64_t> sizes;
  for (size_t k = 0; k < x.size(); ++k) {
    for (size_t dim = 0; dim < inputs[k].size(); ++dim) sizes[inputs[k][dim]] = x[k].shape[dim];
  }
  Shape shape;
  for (const char letter : sides[1]) shape.push_back(sizes[letter]);
  std::string summed;
  Shape inner;
  for (const auto& [letter, size] : sizes) {
    if (sides[1].find(letter) != std::string::npos) continue;
    summed += letter;
    inner.push_back(size);
  }
  return make(x[0].dtype, shape, [&](const Index& i) {
    std::map<char, int64_t> index;
    for (size_t dim = 0; dim < i.size(); ++dim) index[sides[1][dim]] = i[dim];
    double sum = 0;
    for_each_index(inner, [&](const Index& k) {
      for (size_t s = 0; s < summed.size(); ++s) index[summed[s]] = k[s];
      double product = 1;
      for (size_t operand = 0; operand < x.size(); ++operand) {
        Index own;
        for (const char letter : inputs[operand]) own.push_back(index[letter]);
        product *= at(x[operand], own);
      }
      sum += product;
    });
    return sum;
  });
}

// ---- Neural networks

double exponential_sum(const Values& values) {
  double sum = 0;
  for (const double each : values) sum += std::exp(each);
  return sum;
}

Dense softmax(const OpCase& row, Tensors x, bool takes_log) {
  const int64_t dim = dim_of(row.integer("dim"), x[0].shape.size());
  return make(x[0].dtype, x[0].shape, [&](const Index& i) {
    const double sum = exponential_sum(line(x[0], dim, i));
    return takes_log ? at(x[0], i) - std::log(sum) : std::exp(at(x[0], i)) / sum;
  });
}

Dense layer_norm(const OpCase& row, Tensors x) {
  const int64_t dim = static_cast<int64_t>(x[0].shape.size()) - 1;
  return make(x[0].dtype, x[0].shape, [&](const Index& i) {
    const Values values = line(x[0], dim, i);
    const auto n = static_cast<double>(values.size());
    double mean = 0;
    for (const double each : values) mean += each / n;
    double variance = 0;
    for (const double each : values) variance += (each - mean) * (each - mean) / n;
    return (at(x[0], i) - mean) / std::sqrt(variance + row.real("epsilon")) * at(x[1], {i[dim]}) +
           at(x[2], {i[dim]});
  });
}

// Labels are classes, or probabilities of the dtype of logits.
Dense cross_entropy(const OpCase&, Tensors x) {
  const Shape shape(x[0].shape.begin(), x[0].shape.end() - 1);
  const int64_t dim = static_cast<int64_t>(shape.size());
  return make(x[0].dtype, shape, [&](const Index& i) {
    Index first = i;
    first.push_back(0);
    const Values logits = line(x[0], dim, first);
    const double log_sum = std::log(exponential_sum(logits));
    if (!is_floating_point(x[1].dtype)) {
      return log_sum - logits[static_cast<size_t>(at(x[1], i))];
    }
    const Values labels = line(x[1], dim, first);
    double loss = 0;
    for (size_t k = 0; k < logits.size(); ++k) loss += labels[k] * (log_sum - logits[k]);
    return loss;
  });
}

Dense attention(const OpCase& row, Tensors x) {
  const Dense& q = x[0];
  const Dense& k = x[1];
  const Dense& v = x[2];
  const int64_t queries = q.shape[2];
  const int64_t keys = k.shape[2];
  const int64_t depth = q.shape[3];
  const bool is_causal = row.attributes.at("causal") == "true";
  const double scale =
      row.has("scale") ? row.real("scale") : 1 / std::sqrt(static_cast<double>(depth));
  return make(q.dtype, {q.shape[0], q.shape[1], queries, v.shape[3]}, [&](const Index& i) {
    double sum = 0;
    double weighted = 0;
    for (int64_t key = 0; key < keys; ++key) {
      // The last query is aligned with the last key.
      if (is_causal && key > i[2] + keys - queries) continue;
      double score = 0;
      for (int64_t d = 0; d < depth; ++d) {
        score += at(q, {i[0], i[1], i[2], d}) * at(k, {i[0], i[1], key, d});
      }
      const double weight = std::exp(score * scale);
      sum += weight;
      weighted += weight * at(v, {i[0], i[1], key, i[3]});
    }
    return weighted / sum;
  });
}

// The attributes of conv2d and the pools.
struct Windows {
  std::vector<int64_t> window, strides, padding, dilation = {1, 1};

  Windows(const OpCase& row, std::vector<int64_t> sizes)
      : window(std::move(sizes)),
        strides(row.integers("strides")),
        padding(row.integers("padding")) {
    if (row.has("dilation")) dilation = row.integers("dilation");
  }
  // The size of the result along height (0) or width (1).
  int64_t size(int k, int64_t of) const {
    const int64_t reach = (window[k] - 1) * dilation[k] + 1;
    return (of + padding[2 * k] + padding[2 * k + 1] - reach) / strides[k] + 1;
  }
  // The coordinate of element t of window o.
  int64_t place(int k, int64_t o, int64_t t) const {
    return o * strides[k] + t * dilation[k] - padding[2 * k];
  }
};

Dense conv2d(const OpCase& row, Tensors x) {
  const Shape& in = x[0].shape;
  const Shape& filter = x[1].shape;
  const Windows windows(row, {filter[0], filter[1]});
  const Shape shape = {in[0], windows.size(0, in[1]), windows.size(1, in[2]), filter[3]};
  return make(x[0].dtype, shape, [&](const Index& i) {
    double sum = 0;
    for_each_index({filter[0], filter[1], filter[2]}, [&](const Index& t) {
      const int64_t h = windows.place(0, i[1], t[0]);
      const int64_t w = windows.place(1, i[2], t[1]);
      if (h < 0 || h >= in[1] || w < 0 || w >= in[2]) return;
      sum += at(x[0], {i[0], h, w, t[2]}) * at(x[1], {t[0], t[1], t[2], i[3]});
    });
    return sum;
  });
}

Dense pool(const OpCase& row, Tensors x, bool is_max) {
  const Shape& in = x[0].shape;
  const std::vector<int64_t> window = row.integers("window");
  const Windows windows(row, window);
  const Shape shape = {in[0], windows.size(0, in[1]), windows.size(1, in[2]), in[3]};
  return make(x[0].dtype, shape, [&](const Index& i) {
    double sum = 0;
    double largest = std::numeric_limits<double>::quiet_NaN();
    double count = 0;
    for_each_index({window[0], window[1]}, [&](const Index& t) {
      const int64_t h = windows.place(0, i[1], t[0]);
      const int64_t w = windows.place(1, i[2], t[1]);
      if (h < 0 || h >= in[1] || w < 0 || w >= in[2]) return;
      sum += at(x[0], {i[0], h, w, i[3]});
      largest = std::fmax(largest, at(x[0], {i[0], h, w, i[3]}));
      ++count;
    });
    return is_max ? largest : sum / count;
  });
}

// ---- Functions of table.cc

Dense elementwise(const OpCase&, Tensors x) {
  if (x.size() == 1) {
    return make(x[0].dtype, x[0].shape,
                [&](const Index& i) { return at(x[0], i) * at(x[0], i) - 2 * at(x[0], i); });
  }
  Shape shape = broadcast_shape(x[0].shape, x[1].shape);
  if (x.size() == 3) shape = broadcast_shape(shape, x[2].shape);
  return make(x[0].dtype, shape, [&](const Index& i) {
    const double a = at_broadcast(x[0], i);
    const double b = at_broadcast(x[1], i);
    if (x.size() == 2) return a * b - a;
    return b > 0 ? a * b : at_broadcast(x[2], i);
  });
}

Dense local_map(const OpCase& row, Tensors x) {
  if (x.size() == 2) return matmul(row, x);
  return make(x[0].dtype, x[0].shape, [&](const Index& i) {
    double weight = 1;
    for (const int64_t coordinate : i) weight += static_cast<double>(coordinate);
    return at(x[0], i) * weight;
  });
}

}  // namespace

std::map<std::string, Oracle> movements() {
  return {
      {"transpose", transpose},
      {"reshape", reshape},
      {"expand_dims", expand_dims},
      {"squeeze", squeeze},
      {"broadcast_to", broadcast_to},
      {"concat", concat},
      {"stack", stack},
      {"split", split},
      {"slice", slice},
      {"narrow", narrow},
      {"zeros_like", [](const OpCase&, Tensors x) { return full_like(x, 0); }},
      {"ones_like", [](const OpCase&, Tensors x) { return full_like(x, 1); }},
      {"full_like", [](const OpCase& row, Tensors x) { return full_like(x, row.real("value")); }},
      {"tril", [](const OpCase& row, Tensors x) { return triangle(row, x, true); }},
      {"triu", [](const OpCase& row, Tensors x) { return triangle(row, x, false); }},
      {"pad", pad},
      {"flip", flip},
      {"roll", roll},
      {"tile", tile},
      {"one_hot", one_hot},
      {"take", take},
      {"scatter_add", scatter_add},
  };
}

std::map<std::string, Oracle> functions() {
  return {{"elementwise", elementwise}, {"local_map", local_map}};
}

std::map<std::string, Oracle> products() { return {{"matmul", matmul}, {"einsum", einsum}}; }

std::map<std::string, Oracle> networks() {
  return {
      {"softmax", [](const OpCase& row, Tensors x) { return softmax(row, x, false); }},
      {"log_softmax", [](const OpCase& row, Tensors x) { return softmax(row, x, true); }},
      {"layer_norm", layer_norm},
      {"softmax_cross_entropy", cross_entropy},
      {"attention", attention},
      {"conv2d", conv2d},
      {"max_pool2d", [](const OpCase& row, Tensors x) { return pool(row, x, true); }},
      {"avg_pool2d", [](const OpCase& row, Tensors x) { return pool(row, x, false); }},
  };
}

}  // namespace tessera::testing::oracle
