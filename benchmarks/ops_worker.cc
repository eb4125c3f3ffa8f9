// SPDX-License-Identifier: Apache-2.0
//
// Operations of Tessera as a contestant of `tools/bench ops`.
//
//   ops_worker PREFIX                   a job of one client; $TESSERA_LOCAL_DEVICES says how many
//                                       devices it has
//
//   eager op=add|matmul|contracted side=16     of matrices split over {x=P/2, y=2}
//   matmul rows= columns= summed= dtype=f32|f64|bf16
//   function op=add|relu|... rows= columns=    of f32
//   random op=normal|uniform rows= columns=
//   adamw rows= columns=
//   step network=digits|transformer batch= model=     training on a mesh {batch, model}; sizes of
//                                                     the network by the names of training.h
//   replicas                                          training by a mirrored strategy
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/peers/worker.h"
#include "benchmarks/training.h"
#include "tessera/tessera.h"

namespace tessera::bench {
namespace {

std::string text_of(const Status& status) {
  return status.ok() ? "" : std::string(status.ToString());
}

// The mean of |x| with weights 1 to 7 in turn; NaN if the tensor carries an error.
double value_of(const DTensor& x) {
  const StatusOr<HostTensor<float>> host = ops::cast<float>(x).to_host<float>();
  if (!host.ok()) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (size_t i = 0; i < host->data.size(); ++i) {
    sum += std::abs(static_cast<double>(host->data[i])) * static_cast<double>(i % 7 + 1);
  }
  return sum / static_cast<double>(host->data.size());
}

using Function = std::function<DTensor(const DTensor& x, const DTensor& y)>;

// Functions of matrices x and y, by name.
const std::map<std::string, Function>& functions() {
  static const auto* const kFunctions = new std::map<std::string, Function>{
      {"add", [](const DTensor& x, const DTensor& y) { return x + y; }},
      {"relu", [](const DTensor& x, const DTensor&) { return ops::relu(x); }},
      {"exp", [](const DTensor& x, const DTensor&) { return ops::exp(x); }},
      {"tanh", [](const DTensor& x, const DTensor&) { return ops::tanh(x); }},
      {"gelu", [](const DTensor& x, const DTensor&) { return ops::gelu(x); }},
      {"softmax", [](const DTensor& x, const DTensor&) { return ops::softmax(x, -1); }},
      {"chain", [](const DTensor& x, const DTensor& y) { return ops::relu((x + y) * 0.5 - y); }},
      {"chain_in_one",
       [](const DTensor& x, const DTensor& y) {
         return ops::elementwise<float, float, float>(
             [](float a, float b) {
               const float z = (a + b) * 0.5F - b;
               return z > 0 ? z : 0;
             },
             x, y);
       }},
  };
  return *kFunctions;
}

class OpsWorker : public Contestant {
 public:
  static StatusOr<std::unique_ptr<OpsWorker>> create() {
    TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({}));
    return std::unique_ptr<OpsWorker>(new OpsWorker(std::move(client)));
  }

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string barrier() override { return text_of(client_.sync_devices()); }

  std::string prepare(const Command& command, Operation* operation) override {
    operation->poison = [](int, bool) {};
    operation->check = [](int, bool) { return std::string(); };
    return text_of(prepare_any(command, operation));
  }

  Status shutdown() { return client_.shutdown(); }

 private:
  explicit OpsWorker(Client client) : client_(std::move(client)) {}

  Status prepare_any(const Command& command, Operation* operation) {
    const std::string& kind = command.operation;
    if (kind == "step") return prepare_step(command, operation);
    if (kind == "replicas") return prepare_replicas(command, operation);
    if (kind == "eager") return prepare_eager(command, operation);
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, mesh_of({{"x", num_devices()}}));
    if (kind == "matmul") return prepare_matmul(command, mesh, operation);
    const Shape shape = {command.number("rows", 4096), command.number("columns", 1024)};
    TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[x, -]"));
    if (kind == "function") return prepare_function(command, shape, rows, operation);
    if (kind == "random") return prepare_random(command, shape, rows, operation);
    if (kind == "adamw") return prepare_adamw(shape, rows, operation);
    return absl::InvalidArgumentError(absl::StrCat("ops_worker cannot ", kind));
  }

  int64_t num_devices() const { return static_cast<int64_t>(client_.devices().size()); }

  // Keeps each mesh, because creating one is a collective.
  StatusOr<Mesh> mesh_of(const std::vector<MeshAxis>& axes) {
    std::string name;
    for (const MeshAxis& axis : axes) absl::StrAppend(&name, axis.name, "=", axis.size, " ");
    const auto it = meshes_.find(name);
    if (it != meshes_.end()) return it->second;
    TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client_, axes));
    return meshes_.emplace(name, std::move(mesh)).first->second;
  }

  // Each call makes a new result. The latest result of each set is kept, as in a program.
  static void repeat(int64_t sets, std::function<DTensor(int set)> fn, Operation* operation) {
    auto results = std::make_shared<std::vector<std::optional<DTensor>>>(sets);
    operation->call = [results, fn = std::move(fn)](int set) {
      (*results)[set] = fn(set);
      return text_of((*results)[set]->await());
    };
    operation->value = [results] { return value_of(*(*results)[0]); };
  }

  Status prepare_eager(const Command& command, Operation* operation) {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, mesh_of({{"x", num_devices() / 2}, {"y", 2}}));
    const int64_t side = command.number("side", 16);
    const auto operand = [&](uint32_t seed, absl::string_view layout) {
      return noise_tensor(seed, {side, side}, Layout::parse(mesh, layout));
    };
    const std::string op = command.text("op");
    if (op == "add") {
      repeat(
          1, [x = operand(1, "[x, -]"), y = operand(2, "[x, -]")](int) { return x + y; },
          operation);
    } else if (op == "matmul") {
      repeat(
          1,
          [x = operand(1, "[x, -]"), y = operand(2, "[-, y]")](int) { return ops::matmul(x, y); },
          operation);
    } else if (op == "contracted") {
      TESSERA_ASSIGN_OR_RETURN(const Layout whole, Layout::parse(mesh, "[-, -]"));
      repeat(
          1,
          [x = operand(1, "[-, x]"), y = operand(2, "[x, -]"), whole](int) {
            return ops::matmul(x, y, whole);
          },
          operation);
    } else {
      return absl::InvalidArgumentError(absl::StrCat("ops_worker cannot eager ", op));
    }
    return absl::OkStatus();
  }

  static Status prepare_matmul(const Command& command, const Mesh& mesh, Operation* operation) {
    const std::string name = command.text("dtype");
    const DType dtype = name == "f64"    ? DType::kFloat64
                        : name == "bf16" ? DType::kBFloat16
                                         : DType::kFloat32;
    TESSERA_ASSIGN_OR_RETURN(const Layout whole, Layout::parse(mesh, "[-, -]"));
    const int64_t summed = command.number("summed", 1);
    const DTensor a = ops::cast(noise_tensor(1, {command.number("rows", 1), summed}, whole), dtype);
    const DTensor b =
        ops::cast(noise_tensor(2, {summed, command.number("columns", 1)}, whole), dtype);
    TESSERA_RETURN_IF_ERROR(a.await());
    TESSERA_RETURN_IF_ERROR(b.await());
    repeat(
        1, [a, b](int) { return ops::matmul(a, b); }, operation);
    return absl::OkStatus();
  }

  static Status prepare_function(const Command& command, const Shape& shape, const Layout& layout,
                                 Operation* operation) {
    const std::string op = command.text("op");
    const auto sets = static_cast<uint32_t>(command.number("sets", 1));
    std::vector<DTensor> x;
    std::vector<DTensor> y;
    for (uint32_t s = 0; s < sets; ++s) {
      x.push_back(noise_tensor(2 * s + 1, shape, layout, 4));
      y.push_back(noise_tensor(2 * s + 2, shape, layout, 4));
    }
    Function fn;
    if (op == "layer_norm") {
      TESSERA_ASSIGN_OR_RETURN(const Layout whole, Layout::parse(layout.mesh(), "[-]"));
      fn = [scale = noise_tensor(100, {shape[1]}, whole),
            bias = noise_tensor(101, {shape[1]}, whole)](const DTensor& x, const DTensor&) {
        return ops::layer_norm(x, scale, bias, 1e-5);
      };
    } else {
      const auto it = functions().find(op);
      if (it == functions().end()) {
        return absl::InvalidArgumentError(absl::StrCat("ops_worker cannot function ", op));
      }
      fn = it->second;
    }
    repeat(
        sets, [=](int set) { return fn(x[set], y[set]); }, operation);
    return absl::OkStatus();
  }

  static Status prepare_random(const Command& command, const Shape& shape, const Layout& layout,
                               Operation* operation) {
    const bool is_normal = command.text("op") == "normal";
    const random::Key key = random::Key::from_seed(1);
    repeat(
        command.number("sets", 1),
        [=, call = uint64_t{0}](int) mutable {
          const random::Key next = key.fold_in(++call);
          return is_normal ? random::normal<float>(next, shape, layout)
                           : random::uniform<float>(next, shape, layout);
        },
        operation);
    return absl::OkStatus();
  }

  static Status prepare_adamw(const Shape& shape, const Layout& layout, Operation* operation) {
    auto variable =
        std::make_shared<std::vector<Variable>>(1, Variable("w", noise_tensor(1, shape, layout)));
    auto adam = std::make_shared<AdamW>();
    operation->call = [=, gradient = noise_tensor(2, shape, layout)](int) {
      const Status status = adam->apply(*variable, {&gradient, 1});
      return text_of(status.ok() ? (*variable)[0].value().await() : status);
    };
    operation->value = [variable] { return value_of((*variable)[0].value()); };
    return absl::OkStatus();
  }

  Status prepare_step(const Command& command, Operation* operation) {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, mesh_of({{"batch", command.number("batch", 1)},
                                                       {"model", command.number("model", 1)}}));
    std::shared_ptr<Training> training;
    if (command.text("network") == "digits") {
      training = std::make_shared<Training>(mesh, digits_size(command));
    } else {
      TransformerSize size;
      size.pieces = command.number("pieces", size.pieces);
      size.context = command.number("context", size.context);
      size.width = command.number("width", size.width);
      size.blocks = command.number("blocks", size.blocks);
      training = std::make_shared<Training>(mesh, size);
    }
    repeat_steps(training, operation);
    return absl::OkStatus();
  }

  Status prepare_replicas(const Command& command, Operation* operation) {
    TESSERA_ASSIGN_OR_RETURN(const distribute::Strategy strategy,
                             distribute::mirrored_strategy(client_));
    TESSERA_ASSIGN_OR_RETURN(ReplicaTraining training,
                             ReplicaTraining::create(strategy, digits_size(command)));
    repeat_steps(std::make_shared<ReplicaTraining>(std::move(training)), operation);
    return absl::OkStatus();
  }

  static DigitsSize digits_size(const Command& command) {
    DigitsSize size;
    size.images = command.number("images", size.images);
    size.inputs = command.number("inputs", size.inputs);
    size.hidden = command.number("hidden", size.hidden);
    return size;
  }

  template <class AnyTraining>
  static void repeat_steps(std::shared_ptr<AnyTraining> training, Operation* operation) {
    operation->call = [training](int) { return text_of(training->step()); };
    operation->value = [training]() -> double {
      for (int i = 0; i < 5; ++i) training->step().IgnoreError();  // loss() has the error
      const StatusOr<float> loss = training->loss();
      return loss.ok() ? *loss : std::numeric_limits<double>::quiet_NaN();
    };
  }

  Client client_;
  std::map<std::string, Mesh> meshes_;
};

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using tessera::bench::OpsWorker;
  if (argc != 2) {
    std::fprintf(stderr, "usage: ops_worker PREFIX; tools/bench ops starts it\n");
    return 2;
  }
  return tessera::bench::serve_and_shutdown("ops_worker", OpsWorker::create(), argv[1]);
}
