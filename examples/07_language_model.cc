// SPDX-License-Identifier: Apache-2.0
//
// A language model: a small transformer learns to write, one character at a time, from eight
// chapters of Jane Austen, on any number of devices and clients.
//
//   bazel build //job:tessera_run //examples:07_language_model
//   P=bazel-bin/examples/07_language_model
//   bazel-bin/job/tessera_run --clients 4 --devices-per-client 2 $P
//
// The mesh has an axis `batch`, which splits the pieces of text (data parallel), and an axis
// `model`, which splits the heads, the hidden units and the vocabulary (tensor parallel). The
// program gives layouts only to weights and texts. The layouts of all other tensors follow:
//
//   tensor                        shape                          layout
//   tokens                        [pieces, kContext]             [batch, -]
//   embedding                     [vocabulary, kWidth]           [model, -]
//   embedding taken at tokens     [pieces, kContext, kWidth]     [batch, -, -] sum{model}
//   queries, keys, values         [pieces, kHeads, ..., kDepth]  [batch, model, -, -]
//   outputs of the heads, summed  [pieces, kContext, kWidth]     [batch, -, -] sum{model}
//   logits                        [pieces, kContext, vocabulary] [batch, -, model]
//
// A partial tensor, sum{model}, is reduced when an operation needs its value. Here layer_norm does,
// twice in a block and direction. The losses are the same on every mesh, up to rounding.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "examples/data_file.h"
#include "examples/flag_limits.h"
#include "tessera/tessera.h"

ABSL_FLAG(int, steps, 300, "steps of the optimizer");
ABSL_FLAG(int, pieces, 32, "pieces of text per step");
ABSL_FLAG(int, sample, 300, "characters to write at the end");
ABSL_FLAG(uint64_t, seed, 1, "of the first weights, of the pieces of text, and of the sample");
ABSL_FLAG(std::string, data, "", "a text; empty: examples/data/pride_and_prejudice.txt");
ABSL_FLAG(int, devices, 0, "devices of this client; 0: as tessera_run says, else 1");
ABSL_FLAG(int, model, 0,
          "size of the mesh axis that splits the model; 0: 2 if there are 4, 6, 8, ... devices, "
          "else 1");

namespace {

using namespace tessera;

constexpr char kText[] = "pride_and_prejudice.txt";
constexpr int64_t kContext = 32;  // characters on which a prediction may depend
constexpr int64_t kWidth = 64;    // numbers per character
constexpr int64_t kHeads = 4;
constexpr int64_t kDepth = kWidth / kHeads;
constexpr int64_t kHidden = 4 * kWidth;
constexpr int kBlocks = 2;

// 1. The weights. The model makes a weight, with its layout, when it first uses it. Its numbers
//    depend only on the key and on their global indices: no device needs numbers of another device,
//    and they are the same on every mesh.
struct Initial {
  double mean = 0;
  double stddev = 0;
};
constexpr Initial kRandom = {.stddev = 0.1};

class Weights {
 public:
  Weights(Mesh mesh, random::Key key) : mesh_(std::move(mesh)), key_(key) {}

  DTensor operator()(const std::string& name, const Shape& shape, absl::string_view layout,
                     Initial initial = kRandom) {
    const size_t num_weights = parameters_.names().size();
    const size_t place = parameters_.find(name).value_or(num_weights);
    if (place == num_weights) {
      const Variable& weight = parameters_.add(
          name, random::normal<float>(key_.fold_in(num_weights), shape,
                                      Layout::parse(mesh_, layout), initial.mean, initial.stddev));
      values_.push_back(watched(weight));
    }
    return values_[place];
  }
  // Takes the current values of the variables, and lets the tape watch them unless it is null.
  void read(Tape* tape) {
    tape_ = tape;
    values_.clear();
    for (const Variable& variable : parameters_.variables()) values_.push_back(watched(variable));
  }
  const nn::Parameters& parameters() const { return parameters_; }
  const std::vector<DTensor>& values() const { return values_; }

 private:
  DTensor watched(const Variable& variable) const {
    return tape_ == nullptr ? variable.value() : tape_->watch(variable.value());
  }

  Mesh mesh_;
  random::Key key_;
  Tape* tape_ = nullptr;
  nn::Parameters parameters_;
  std::vector<DTensor> values_;
};

// 2. The model: a transformer that normalizes before each half of a block. Letters of einsum:
//    b piece, t place in it, w width, h head, d depth, v character of the vocabulary.
DTensor normalized(Weights& w, const std::string& name, const DTensor& x) {
  return ops::layer_norm(x, w(name + ".scale", {kWidth}, "[-]", {.mean = 1}),
                         w(name + ".bias", {kWidth}, "[-]", {}), 1e-5);
}

// Each device computes the heads whose weights it has. The last product sums over heads, of which
// each device has some, so the result is partial.
DTensor attend(Weights& w, const std::string& name, const DTensor& x) {
  const auto project = [&](const char* which) {
    const DTensor weight = w(name + which, {kWidth, kHeads, kDepth}, "[-, model, -]");
    return ops::einsum("btw,whd->bhtd", {x, weight});
  };
  const DTensor q = project(".q");
  const DTensor k = project(".k");
  const DTensor v = project(".v");
  const DTensor heads = ops::attention(q, k, v, {.causal = true});
  const DTensor weight = w(name + ".out", {kHeads, kDepth, kWidth}, "[model, -, -]");
  return ops::einsum("bhtd,hdw->btw", {heads, weight});
}

// The structure of attend(), with hidden units in place of heads.
DTensor think(Weights& w, const std::string& name, const DTensor& x) {
  const DTensor up = ops::matmul(x, w(name + ".up", {kWidth, kHidden}, "[-, model]"));
  const DTensor hidden = ops::gelu(up + w(name + ".up_bias", {kHidden}, "[model]", {}));
  return ops::matmul(hidden, w(name + ".down", {kHidden, kWidth}, "[model, -]")) +
         w(name + ".down_bias", {kWidth}, "[-]", {});
}

// For each place of each piece, the likelihood of each character to be the next one. A device has
// some rows of the embedding: take() gives 0 for the others, so that the sum over `model` is the
// row.
DTensor logits_of(Weights& w, const DTensor& tokens, int64_t vocabulary) {
  const DTensor embedding = w("embedding", {vocabulary, kWidth}, "[model, -]");
  DTensor x = ops::take(embedding, tokens, 0) + w("places", {kContext, kWidth}, "[-, -]");
  for (int block = 0; block < kBlocks; ++block) {
    const std::string name = absl::StrCat("block", block);
    x = x + attend(w, name + ".attend", normalized(w, name + ".before_attend", x));
    x = x + think(w, name + ".think", normalized(w, name + ".before_think", x));
  }
  return ops::einsum("btw,vw->btv", {normalized(w, "last", x), embedding});
}

// 3. The text, as numbers of characters. It is small, so every device has all of it.
struct Text {
  std::string characters;   // the vocabulary
  int64_t size, num_train;  // the last tenth is held out
  double entropy;           // of single characters: a lower loss needs context
  DTensor tokens;

  int64_t vocabulary() const { return static_cast<int64_t>(characters.size()); }
};

Text load_text(const Mesh& mesh, const std::string& data) {
  const std::set<char> distinct(data.begin(), data.end());
  const std::string characters(distinct.begin(), distinct.end());
  std::vector<int64_t> tokens;
  std::vector<double> counts(characters.size());
  for (const char c : data) {
    tokens.push_back(static_cast<int64_t>(characters.find(c)));
    ++counts[tokens.back()];
  }
  const auto size = static_cast<int64_t>(data.size());
  double entropy = std::log(size);
  for (const double count : counts) entropy -= count / data.size() * std::log(count);
  return {characters, size, size - size / 10, entropy,
          from_host<int64_t>(tokens, {size}, Layout::replicated(mesh, 1))};
}

// The mean loss of predicting each character from the characters before it, in the pieces of text
// that begin at `starts` ([pieces, 1], split along `batch`).
DTensor loss_of(Weights& w, const Text& text, const DTensor& starts) {
  const DTensor places =
      starts + iota<int64_t>({kContext}, Layout::replicated(starts.layout().mesh(), 1));
  const DTensor tokens = ops::take(text.tokens, places, 0);
  const DTensor next = ops::take(text.tokens, places + 1, 0);
  return ops::mean(ops::softmax_cross_entropy(logits_of(w, tokens, text.vocabulary()), next));
}

// 4. Training. Calls return before the devices have run, so the client is ahead of its devices.
//    Each step waits for the loss of the step before. Otherwise tensors of many steps would be in
//    memory at once.
Status train(const Client& client, Weights& w, const Text& text, random::Key key,
             const LayoutArg& rows) {
  AdamW optimizer{.learning_rate = 0.003, .beta2 = 0.99, .shard_state = true};
  const absl::Time start = absl::Now();
  const int num_steps = absl::GetFlag(FLAGS_steps);
  std::optional<DTensor> last_loss;
  for (int step = 1; step <= num_steps; ++step) {
    const DTensor starts = random::randint<int64_t>(
        key.fold_in(step), {absl::GetFlag(FLAGS_pieces), 1}, rows, 0, text.num_train - kContext);
    Tape tape;
    w.read(&tape);
    const DTensor loss = loss_of(w, text, starts);

    // Gradients are sums over pieces, of which each device has some, so they are all-reduced along
    // `batch`. Each device then updates the part of each weight for which it keeps the state of
    // AdamW, and the new values are all-gathered.
    const ClippedGradients clipped = clip_by_global_norm(tape.gradient(loss, w.values()), 1);
    TESSERA_RETURN_IF_ERROR(optimizer.apply(w.parameters().variables(), clipped.gradients));
    if (last_loss.has_value()) TESSERA_RETURN_IF_ERROR(last_loss->await());
    last_loss = loss;

    if (step % 10 != 0 && step != 1 && step != num_steps) continue;
    TESSERA_ASSIGN_OR_RETURN(const float value, loss.item<float>());
    if (client.client_id() != 0) continue;
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    absl::PrintF("step %4d  loss %.9g  %4.0f ms/step\n", step, value, 1000 * seconds / step);
    std::fflush(stdout);
  }
  w.read(nullptr);
  return absl::OkStatus();
}

// The mean loss on all pieces of the held-out text.
StatusOr<float> test(Weights& w, const Text& text, const LayoutArg& rows) {
  const int64_t num_pieces = (text.size - text.num_train - 1) / kContext;
  const DTensor starts = iota<int64_t>({num_pieces, 1}, rows) * kContext + text.num_train;
  return loss_of(w, text, starts).item<float>();
}

// 5. Writing. Each character is drawn with the probability that the model gives it: the index of
//    the largest of the logits with Gumbel noise is such a draw. The next prediction includes it.
//    No number leaves the devices before all characters are drawn.
StatusOr<std::string> write(Weights& w, const Text& text, random::Key key) {
  const Mesh& mesh = text.tokens.layout().mesh();
  const int64_t vocabulary = text.vocabulary();
  DTensor context = ops::reshape(text.tokens[{Range{0, kContext}}], {1, kContext});
  std::vector<DTensor> written = {context};
  for (int i = 0; i < absl::GetFlag(FLAGS_sample); ++i) {
    const DTensor logits = logits_of(w, context, vocabulary)[{kAll, Range{-1}}];
    const DTensor u =
        random::uniform<float>(key.fold_in(i), {vocabulary}, Layout::replicated(mesh, 1));
    const DTensor next = ops::argmax(logits * 1.25 - ops::log(-ops::log(u)), -1);
    context = ops::concat({context[{kAll, Range{1}}], next}, 1);
    written.push_back(next);
  }
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<int64_t> tokens,
                           ops::concat(written, 1).to_host<int64_t>());
  std::string result;
  for (const int64_t token : tokens.data) result += text.characters[token];
  return result;
}

Status run(const char* program) {
  TESSERA_RETURN_IF_ERROR(examples::check_at_least(0, "steps", absl::GetFlag(FLAGS_steps)));
  TESSERA_RETURN_IF_ERROR(examples::check_at_least(1, "pieces", absl::GetFlag(FLAGS_pieces)));
  TESSERA_RETURN_IF_ERROR(examples::check_at_least(0, "sample", absl::GetFlag(FLAGS_sample)));
  std::string path = absl::GetFlag(FLAGS_data);
  if (path.empty()) {
    TESSERA_ASSIGN_OR_RETURN(path, examples::find_data(program, kText));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string data, examples::read_data(path, kText));
  if (data.size() < 20 * kContext) {
    return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" has ", data.size(),
                                                   " characters; give a text of ", 20 * kContext,
                                                   " or more with --data"));
  }
  ClientOptions options;
  options.num_local_devices = absl::GetFlag(FLAGS_devices);
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
  const auto num_devices = static_cast<int64_t>(client.devices().size());
  int64_t model = absl::GetFlag(FLAGS_model);
  if (model < 1) model = num_devices >= 4 && num_devices % 2 == 0 ? 2 : 1;
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh,
                           create_mesh(client, {{"batch", num_devices / model}, {"model", model}}));
  TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[batch, -]"));
  const Text text = load_text(mesh, data);
  const bool is_first = client.client_id() == 0;
  if (is_first) {
    absl::PrintF("clients %d, mesh %s, %d characters, of %d kinds\n", client.num_clients(),
                 mesh.to_string(), text.size, text.vocabulary());
  }
  const random::Key key = random::Key::from_seed(absl::GetFlag(FLAGS_seed));
  Weights weights(mesh, key.fold_in(0));
  TESSERA_RETURN_IF_ERROR(train(client, weights, text, key.fold_in(1), rows));
  TESSERA_ASSIGN_OR_RETURN(const float loss, test(weights, text, rows));
  TESSERA_ASSIGN_OR_RETURN(const std::string sample, write(weights, text, key.fold_in(2)));
  if (is_first) {
    absl::PrintF("held-out loss %.4f; without context it would be %.4f\n%s\n", loss, text.entropy,
                 sample);
  }
  return client.shutdown();
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("trains a small language model");
  absl::ParseCommandLine(argc, argv);
  const Status status = run(argv[0]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
