// SPDX-License-Identifier: Apache-2.0
//
// The network, forward and backward. Its letters (a to g) are the order to read it in.
#include "examples/digits_gpu/digits_network.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera::examples {
namespace {

// Uniform in [-limit, limit), with the limit of Glorot and Bengio, 2010.
DTensor random_weights(const Shape& shape, LayoutArg layout, random::Key key) {
  const double limit = std::sqrt(6.0 / static_cast<double>(shape[0] + shape[1]));
  return random::uniform<float>(key, shape, layout, -limit, limit);
}

// 0..n-1 in an order that the key decides.
StatusOr<std::vector<int64_t>> shuffled(const Mesh& mesh, random::Key key, int64_t n) {
  TESSERA_ASSIGN_OR_RETURN(
      HostTensor<int64_t> order,
      random::permutation(key, n, Layout::replicated(mesh, 1)).to_host<int64_t>());
  return std::move(order.data);
}

}  // namespace

// a. Weights are made where they live: each device draws the numbers of its own box.
DigitsNetwork::DigitsNetwork(Mesh mesh, const NetworkOptions& options, DigitsMath math)
    : mesh_(std::move(mesh)),
      options_(options),
      math_(std::move(math)),
      w1_{random_weights({kNumPixels, options.num_hidden}, layout("[-, model]"),
                         random::Key::from_seed(options.seed).fold_in(1).fold_in(0)),
          zeros<float>({kNumPixels, options.num_hidden}, layout("[-, model]"))},
      b1_{zeros<float>({options.num_hidden}, layout("[model]")),
          zeros<float>({options.num_hidden}, layout("[model]"))},
      w2_{random_weights({options.num_hidden, kNumDigits}, layout("[model, -]"),
                         random::Key::from_seed(options.seed).fold_in(1).fold_in(1)),
          zeros<float>({options.num_hidden, kNumDigits}, layout("[model, -]"))},
      b2_{zeros<float>({kNumDigits}, layout("[-]")), zeros<float>({kNumDigits}, layout("[-]"))},
      tally_(zeros<double>({2}, layout("[-] sum{batch}"))) {}

// b. So are batches: each device takes its own rows of the batch, by their index in it. Any size
//    will do; 29 images over 4 devices are 8, 7, 7 and 7.
DigitsNetwork::Batch DigitsNetwork::load(const Digits& digits,
                                         absl::Span<const int64_t> images) const {
  const int64_t size = static_cast<int64_t>(images.size());
  const auto fill_pixels = [&](const Box& box, absl::Span<float> out) {
    for (int64_t i = 0; i < box.sizes[0]; ++i) {
      const uint8_t* pixels = &digits.pixels[images[box.offsets[0] + i] * kNumPixels];
      std::transform(pixels, pixels + kNumPixels, &out[i * kNumPixels],
                     [](uint8_t pixel) { return static_cast<float>(pixel) / kMaxPixel; });
    }
  };
  const auto fill_labels = [&](const Box& box, absl::Span<int32_t> out) {
    for (int64_t i = 0; i < box.sizes[0]; ++i) {
      out[i] = digits.labels[images[box.offsets[0] + i]];
    }
  };
  return {size, from_function<float>({size, kNumPixels}, layout("[batch, -]"), fill_pixels),
          from_function<int32_t>({size}, layout("[batch]"), fill_labels)};
}

// c. The first layer needs no communication: a device has some rows of x and some columns of W1,
//    and so all that its block of `hidden` depends on.
DTensor DigitsNetwork::hidden_of(const Batch& batch) const {
  return local_map(layout("[batch, model]"), {batch.size, options_.num_hidden}, DType::kFloat32,
                   {batch.x, w1_.value, b1_.value}, math_.hidden);
}

// d. The second layer contracts the split dim, so a device has only a term of the product. The
//    layout says so, sum{model}, and the relayout adds the terms.
DTensor DigitsNetwork::probabilities_of(const Batch& batch, const DTensor& hidden) const {
  const Shape shape = {batch.size, kNumDigits};
  const DTensor terms = local_map(layout("[batch, -] sum{model}"), shape, DType::kFloat32,
                                  {hidden, w2_.value}, math_.product);
  const DTensor product = relayout(terms, layout("[batch, -]"));
  return local_map(layout("[batch, -]"), shape, DType::kFloat32, {product, b2_.value},
                   math_.softmax);
}

// e. Backwards. Gradients of the weights are sums over images, and a device has some of the images:
//    they are partial along `batch`.
void DigitsNetwork::train(const Digits& digits, absl::Span<const int64_t> images) {
  const Batch batch = load(digits, images);
  const DTensor hidden = hidden_of(batch);
  const DTensor p = probabilities_of(batch, hidden);
  count(batch, p);

  // The mean is over the whole batch, not over the rows of a device: so the split does not matter.
  const float scale = 1.0f / static_cast<float>(batch.size);
  const DTensor d_logits = local_map(layout("[batch, -]"), {batch.size, kNumDigits},
                                     DType::kFloat32, {p, batch.labels}, math_.d_logits(scale));
  const DTensor d_hidden =
      local_map(layout("[batch, model]"), {batch.size, options_.num_hidden}, DType::kFloat32,
                {d_logits, w2_.value, hidden}, math_.d_hidden);

  const auto gradient = [](const Parameter& parameter, StatusOr<Layout> terms,
                           std::vector<DTensor> inputs, const LocalFn& fn) {
    return local_map(terms, parameter.value.shape(), DType::kFloat32, inputs, fn);
  };
  const DTensor d_w1 =
      gradient(w1_, layout("[-, model] sum{batch}"), {batch.x, d_hidden}, math_.transposed_product);
  const DTensor d_b1 = gradient(b1_, layout("[model] sum{batch}"), {d_hidden}, math_.sum_of_rows);
  const DTensor d_w2 =
      gradient(w2_, layout("[model, -] sum{batch}"), {hidden, d_logits}, math_.transposed_product);
  const DTensor d_b2 = gradient(b2_, layout("[-] sum{batch}"), {d_logits}, math_.sum_of_rows);

  descend(w1_, d_w1);
  descend(b1_, d_b1);
  descend(w2_, d_w2);
  descend(b2_, d_b2);
}

// The relayout to the layout of the weight, which is not partial, adds the terms of the gradient:
// an all-reduce among the devices that share this part of the weight.
void DigitsNetwork::descend(Parameter& parameter, const DTensor& gradient) const {
  const auto combine = [&](const DTensor& a, float scale_a, const DTensor& b, float scale_b) {
    return local_map(a.layout(), a.shape(), DType::kFloat32, {a, b},
                     math_.combine(scale_a, scale_b));
  };
  const DTensor sum = relayout(gradient, parameter.value.layout());
  parameter.velocity = combine(parameter.velocity, options_.momentum, sum, 1.0f);
  parameter.value = combine(parameter.value, 1.0f, parameter.velocity, -options_.learning_rate);
}

// f. The tally stays partial while it grows: each device counts its own images, and nothing is sent
// until the sum is wanted.
void DigitsNetwork::count(const Batch& batch, const DTensor& probabilities) {
  tally_ = local_map(layout("[-] sum{batch}"), {2}, DType::kFloat64,
                     {tally_, probabilities, batch.labels}, math_.count);
}

void DigitsNetwork::evaluate(const Digits& digits, absl::Span<const int64_t> images) {
  const Batch batch = load(digits, images);
  count(batch, probabilities_of(batch, hidden_of(batch)));
}

StatusOr<Tally> DigitsNetwork::read_tally() {
  const DTensor sum = relayout(tally_, layout("[-]"));
  tally_ = zeros<double>({2}, layout("[-] sum{batch}"));
  TESSERA_ASSIGN_OR_RETURN(ShardView<double> values, sum.shard<double>(0));
  return Tally{.loss = values.data[0], .num_right = values.data[1]};
}

std::vector<DTensor> DigitsNetwork::weights() const {
  return {w1_.value, b1_.value, w2_.value, b2_.value};
}

// g. Every client shuffles in the same way, so that all agree which images are held out and which
//    are in a batch. Each device holds its own rows of a batch.
StatusOr<Data> hold_out(Digits digits, const Mesh& mesh, uint64_t seed) {
  const int64_t n = digits.num_images();
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> order,
                           shuffled(mesh, random::Key::from_seed(seed).fold_in(0), n));
  const int64_t num_train = n - n / 5;
  return Data{.digits = std::move(digits),
              .train = {order.begin(), order.begin() + num_train},
              .held_out = {order.begin() + num_train, order.end()}};
}

StatusOr<Tally> train_epoch(DigitsNetwork& network, const Data& data, const EpochOptions& options) {
  const int64_t n = static_cast<int64_t>(data.train.size());
  const random::Key key = random::Key::from_seed(options.seed).fold_in(2).fold_in(options.epoch);
  TESSERA_ASSIGN_OR_RETURN(std::vector<int64_t> images, shuffled(network.mesh(), key, n));
  for (int64_t& image : images) image = data.train[image];
  for (int64_t begin = 0; begin < n; begin += options.batch_size) {
    network.train(data.digits, absl::MakeConstSpan(images).subspan(begin, options.batch_size));
  }
  return network.read_tally();
}

}  // namespace tessera::examples
