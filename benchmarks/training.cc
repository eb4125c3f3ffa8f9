// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/training.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "benchmarks/peers/worker.h"

namespace tessera::bench {
namespace {

constexpr uint32_t kDataSeed = 1000;
// Random weights are noise times this factor, so their standard deviation is 0.1.
constexpr float kFactor = 0.35F;
// Wider transformers have smaller weights, so that they train at the same rate. At 64 numbers per
// token it is kFactor.
float factor_of(const TransformerSize& size) {
  return kFactor * std::sqrt(64 / static_cast<float>(size.width));
}

// Calls fn(global index in row-major order, element) for the elements of a box.
template <class T, class Fn>
void fill_box(const Shape& shape, const Box& box, absl::Span<T> out, Fn fn) {
  std::vector<int64_t> at(shape.size(), 0);
  for (T& element : out) {
    int64_t index = 0;
    for (size_t d = 0; d < shape.size(); ++d) index = index * shape[d] + box.offsets[d] + at[d];
    element = fn(index);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < box.sizes[d]) break;
      at[d] = 0;
    }
  }
}

DTensor integers(const Shape& shape, const LayoutArg& layout,
                 const std::function<int64_t(int64_t)>& fn) {
  return from_function<int64_t>(shape, layout, [&](const Box& box, absl::Span<int64_t> out) {
    fill_box(shape, box, out, fn);
  });
}

// 0 to bound - 1.
int64_t token(int64_t index, int64_t bound) {
  return static_cast<int64_t>((noise(kDataSeed, index) + 0.5F) * static_cast<float>(bound));
}

DTensor normalized(Weights& w, const DTensor& x) {
  const int64_t width = x.shape().back();
  const DTensor scale = w.next({width}, "[-]", 0, 1);
  return ops::layer_norm(x, scale, w.next({width}, "[-]", 0), 1e-5);
}

DTensor attend(Weights& w, const TransformerSize& size, const DTensor& x) {
  const auto project = [&] {
    const DTensor weight =
        w.next({size.width, size.heads, size.depth()}, "[-, model, -]", factor_of(size));
    return ops::einsum("btw,whd->bhtd", {x, weight});
  };
  const DTensor q = project();
  const DTensor k = project();
  const DTensor v = project();
  const DTensor heads = ops::attention(q, k, v, {.causal = true});
  const DTensor weight =
      w.next({size.heads, size.depth(), size.width}, "[model, -, -]", factor_of(size));
  return ops::einsum("bhtd,hdw->btw", {heads, weight});
}

DTensor think(Weights& w, const TransformerSize& size, const DTensor& x) {
  const DTensor up =
      ops::matmul(x, w.next({size.width, size.hidden()}, "[-, model]", factor_of(size)));
  const DTensor hidden = ops::gelu(up + w.next({size.hidden()}, "[model]", 0));
  const DTensor down = w.next({size.hidden(), size.width}, "[model, -]", factor_of(size));
  return ops::matmul(hidden, down) + w.next({size.width}, "[-]", 0);
}

DTensor logits_of(Weights& w, const TransformerSize& size, const DTensor& tokens) {
  const DTensor embedding = w.next({size.vocabulary, size.width}, "[model, -]", factor_of(size));
  DTensor x = ops::take(embedding, tokens, 0) +
              w.next({size.context, size.width}, "[-, -]", factor_of(size));
  for (int64_t block = 0; block < size.blocks; ++block) {
    x = x + attend(w, size, normalized(w, x));
    x = x + think(w, size, normalized(w, x));
  }
  return ops::einsum("btw,vw->btv", {normalized(w, x), embedding});
}

}  // namespace

DTensor noise_tensor(uint32_t seed, const Shape& shape, const LayoutArg& layout, float factor,
                     float offset) {
  return from_function<float>(shape, layout, [&](const Box& box, absl::Span<float> out) {
    fill_box(shape, box, out, [&](int64_t i) { return noise(seed, i) * factor + offset; });
  });
}

DTensor Weights::next(const Shape& shape, absl::string_view layout, float factor, float offset) {
  if (next_ == variables_.size()) {
    const auto seed = static_cast<uint32_t>(next_ + 1);
    const DTensor initial = noise_tensor(seed, shape, Layout::parse(mesh_, layout), factor, offset);
    variables_.emplace_back("weight", initial);
    values_.push_back(tape_->watch(variables_.back().value()));
  }
  const DTensor& value = values_[next_++];
  return value.dtype() == dtype_ ? value : ops::cast(value, dtype_);
}

void Weights::read(Tape& tape) {
  tape_ = &tape;
  next_ = 0;
  values_.clear();
  for (const Variable& variable : variables_) values_.push_back(tape.watch(variable.value()));
}

Training::Training(const Mesh& mesh, const DigitsSize& size) : weights_(mesh, DType::kFloat32) {
  const DTensor x = noise_tensor(kDataSeed, {size.images, size.inputs},
                                 Layout::parse(mesh, "[batch, -]"), 1, 0.5F);
  const DTensor labels = integers({size.images}, Layout::parse(mesh, "[batch]"),
                                  [&](int64_t i) { return (7 * i + 3) % size.classes; });
  network_ = [=](Weights& w) {
    const DTensor w1 = w.next({size.inputs, size.hidden}, "[-, model]", kFactor);
    const DTensor b1 = w.next({size.hidden}, "[model]", 0);
    const DTensor w2 = w.next({size.hidden, size.classes}, "[model, -]", kFactor);
    const DTensor b2 = w.next({size.classes}, "[-]", 0);
    const DTensor hidden = ops::relu(ops::matmul(x, w1) + b1);
    const DTensor logits = ops::matmul(hidden, w2, x.layout()) + b2;
    return ops::mean(ops::softmax_cross_entropy(logits, labels));
  };
  optimizer_ = [sgd = Sgd{.learning_rate = 0.05, .momentum = 0.9}](
                   absl::Span<Variable> variables, absl::Span<const DTensor> gradients) mutable {
    return sgd.apply(variables, gradients);
  };
}

Training::Training(const Mesh& mesh, const TransformerSize& size) : weights_(mesh, size.dtype) {
  // Each piece has one more token, which is the last to predict.
  const StatusOr<Layout> rows = Layout::parse(mesh, "[batch, -]");
  const auto tokens_from = [&](int64_t first) {
    return integers({size.pieces, size.context}, rows, [&, first](int64_t i) {
      const int64_t index = i / size.context * (size.context + 1) + i % size.context + first;
      return token(index, size.vocabulary);
    });
  };
  network_ = [size, tokens = tokens_from(0), next = tokens_from(1)](Weights& w) {
    DTensor logits = logits_of(w, size, tokens);
    if (size.dtype != DType::kFloat32) logits = ops::cast(logits, DType::kFloat32);
    return ops::mean(ops::softmax_cross_entropy(logits, next));
  };
  optimizer_ = [adam = AdamW{.learning_rate = 0.003, .beta2 = 0.99}](
                   absl::Span<Variable> variables, absl::Span<const DTensor> gradients) mutable {
    return adam.apply(variables, gradients);
  };
}

Status Training::start_step() {
  Tape tape;
  weights_.read(tape);
  loss_ = network_(weights_);
  return optimizer_(weights_.variables(), tape.gradient(*loss_, weights_.values()));
}

Status Training::await() const {
  for (const Variable& variable : weights_.variables()) {
    TESSERA_RETURN_IF_ERROR(variable.value().await());
  }
  return loss_->await();
}

Status Training::step() {
  TESSERA_RETURN_IF_ERROR(start_step());
  return await();
}

StatusOr<float> Training::loss() const {
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> loss, loss_->to_host<float>());
  return loss.data[0];
}

StatusOr<ReplicaTraining> ReplicaTraining::create(distribute::Strategy strategy,
                                                  const DigitsSize& size) {
  ReplicaTraining training(std::move(strategy), size);
  const Mesh& mesh = training.strategy_.mesh();
  training.data_ = {noise_tensor(kDataSeed, {size.images, size.inputs},
                                 Layout::parse(mesh, "[replica, -]"), 1, 0.5F),
                    integers({size.images}, Layout::parse(mesh, "[replica]"),
                             [&](int64_t i) { return (7 * i + 3) % size.classes; })};
  const Shape shapes[] = {
      {size.inputs, size.hidden}, {size.hidden}, {size.hidden, size.classes}, {size.classes}};
  for (const Shape& shape : shapes) {
    const auto seed = static_cast<uint32_t>(training.weights_.size() + 1);
    const DTensor initial =
        noise_tensor(seed, shape, Layout::replicated(mesh, static_cast<int>(shape.size())),
                     shape.size() == 1 ? 0 : kFactor);
    TESSERA_ASSIGN_OR_RETURN(distribute::DistributedVariable weight,
                             training.strategy_.variable(absl::StrCat("weight", seed), initial));
    training.weights_.push_back(std::move(weight));
  }
  return training;
}

std::vector<DTensor> ReplicaTraining::gradients(distribute::ReplicaContext& replica,
                                                const DTensor& x, const DTensor& labels) const {
  Tape tape;
  std::vector<DTensor> w;
  for (const distribute::DistributedVariable& weight : weights_) {
    w.push_back(tape.watch(weight.value(replica)));
  }
  const DTensor hidden = ops::relu(ops::matmul(x, w[0]) + w[1]);
  const DTensor logits = ops::matmul(hidden, w[2]) + w[3];
  const DTensor loss = ops::sum(ops::softmax_cross_entropy(logits, labels)) / size_.images;
  std::vector<DTensor> results = tape.gradient(loss, w);
  results.push_back(loss);
  return results;
}

Status ReplicaTraining::step() {
  const std::vector<distribute::PerReplica> results =
      strategy_.run([this](distribute::ReplicaContext& replica, const DTensor& x,
                           const DTensor& labels) { return gradients(replica, x, labels); },
                    data_[0], data_[1]);
  std::vector<Variable> variables;
  std::vector<Layout> layouts;
  for (distribute::DistributedVariable& weight : weights_) {
    variables.push_back(weight.variable());
    layouts.push_back(weight.variable().layout());
  }
  const std::vector<distribute::DistributedValues> parts(results.begin(), results.end() - 1);
  const std::vector<DTensor> sums = strategy_.batch_reduce_to(ReduceOp::kSum, parts, layouts);
  TESSERA_RETURN_IF_ERROR(optimizer_.apply(variables, sums));
  for (const Variable& variable : variables) {
    TESSERA_RETURN_IF_ERROR(variable.value().await());
  }
  loss_ = results.back();
  return loss_->await();
}

StatusOr<float> ReplicaTraining::loss() const {
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> loss,
                           strategy_.reduce(ReduceOp::kSum, *loss_).to_host<float>());
  return loss.data[0];
}

}  // namespace tessera::bench
