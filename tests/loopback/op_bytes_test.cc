// SPDX-License-Identifier: Apache-2.0
//
// Compares the bytes that move with the predictions of layout inference. Each device is a host of
// its own, so that its receives pass an engine, which counts them. For operations with random
// layouts of their operands, partial ones too, the count equals the bytes of the plans of their
// moves, for each device. A partial result is read later, and those bytes are counted too.
//
// An all_reduce of more than two members adds chunks of whole lines of 64 bytes, where the plan has
// chunks of equal size: there a device may receive some lines more or less. All moves are of more
// than 1 KiB: smaller ones are in letters.
//
// $TESSERA_TEST_SEED decides the layouts, $TESSERA_OP_BYTES_SAMPLES how many are tried of each row.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/format.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/device_op.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "ops/all_operations.h"
#include "ops/decision.h"
#include "ops/infer.h"
#include "ops/operand_type.h"
#include "ops/out.h"
#include "relayout/fetch.h"
#include "relayout/plan.h"
#include "tests/support/clients.h"
#include "tests/support/matchers.h"
#include "tests/support/ops/cases.h"
#include "tests/support/ops/every_layout.h"
#include "tests/support/ops/table.h"
#include "tests/support/seed.h"
#include "transport/engine.h"

namespace tessera::testing {
namespace {

using transport::Engine;

constexpr int kDevices = 4;
constexpr const char* kMeshes[] = {"{x=4}", "{x=2, y=2}"};

// The bytes that the client of this process has received for runs of groups: letters have other
// tags.
std::atomic<int64_t> received{0};

class CountingEngine final : public Engine {
 public:
  explicit CountingEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
  ~CountingEngine() override { stop(); }

  Status connect(absl::Span<const int> clients, absl::Time deadline) override {
    return engine_->connect(clients, deadline);
  }
  Status connect_all(absl::Span<const int> clients, absl::Time deadline) override {
    return engine_->connect_all(clients, deadline);
  }
  void send(int client, transport::Tag tag, absl::Span<const std::byte> bytes, Keeper keeper,
            Done done) override {
    engine_->send(client, tag, bytes, std::move(keeper), std::move(done));
  }
  void receive(int client, transport::Tag tag, absl::Span<std::byte> bytes, Keeper keeper,
               Done done) override {
    if (tag >= transport::kFirstTagOfRuns) received += static_cast<int64_t>(bytes.size());
    engine_->receive(client, tag, bytes, std::move(keeper), std::move(done));
  }
  void cut(int client, const Status& reason) override { engine_->cut(client, reason); }
  void wait(Wait& wait, absl::Duration limit) override { engine_->wait(wait, limit); }
  void wake(Wait& wait) override { engine_->wake(wait); }
  void set_lost_listener(LostListener listener) override {
    engine_->set_lost_listener(std::move(listener));
  }
  void stop() override { engine_->stop(); }

 private:
  const std::unique_ptr<Engine> engine_;
};

struct Row {
  const char* ops;  // names, separated by blanks: the row is of each
  const char* attributes;
  const char* dtypes;
  const char* shapes;
};

// Operations of one plan, for all layouts. Sizes that the meshes divide, and that they do not.
// clang-format off
constexpr Row kRows[] = {
    {"neg exp", "-", "f64", "[96, 64]"},
    {"neg", "-", "f64", "[3, 17, 65]"},
    {"add mul maximum", "-", "f64; f64", "[97, 65]; [97, 65]"},
    {"add mul", "-", "f64; f64", "[6, 1026]; [1026]"},
    {"select", "-", "bool; f64; f64", "[80, 90]; [80, 90]; [80, 90]"},
    {"sum max mean", "dims=[1]", "f64", "[2050, 6]"},
    {"prod min", "dims=[0]; keep_dims", "f64", "[6, 2050]"},
    {"transpose", "permutation=[1, 0]", "f64", "[97, 65]"},
    {"reshape", "shape=[4, 24, 64]", "f64", "[96, 64]"},
    {"reshape", "shape=[6208]", "f64", "[97, 64]"},
    {"slice", "starts=[1, 8]; limits=[95, 64]", "f64", "[96, 64]"},
    {"flip", "dims=[0]", "f64", "[97, 65]"},
    {"roll", "shift=3; dim=0", "f64", "[97, 65]"},
    {"pad", "low=[1, 0]; high=[2, 0]; value=0", "f64", "[97, 65]"},
    {"tile", "repeats=[2, 1]", "f64", "[97, 65]"},
    {"concat", "dim=0", "f64; f64", "[97, 65]; [50, 65]"},
    {"matmul", "-", "f64; f64", "[96, 64]; [64, 80]"},
    {"matmul", "-", "f64; f64", "[97, 65]; [65, 79]"},
    {"matmul", "-", "f64; f64", "[4, 33, 34]; [34, 35]"},
    {"einsum", "equation=bij,bkj->bik", "f64; f64", "[6, 33, 34]; [6, 35, 34]"},
    {"take", "dim=0", "f64; i32", "[97, 65]; [1500]"},
    {"scatter_add", "dim=0", "f64; i32; f64", "[97, 65]; [1500]; [1500, 65]"},
    {"conv2d", "strides=[1, 1]; padding=[[1, 1], [1, 1]]", "f64; f64",
     "[4, 18, 17, 8]; [3, 3, 8, 16]"},
    {"max_pool2d avg_pool2d", "window=[2, 2]; strides=[2, 2]; padding=[[0, 0], [0, 0]]", "f64",
     "[4, 18, 17, 8]"},
};
// clang-format on

// Small whole numbers, which are indices of rows too.
constexpr char kFormula[] = "(7i+3)%11-0";

StatusOr<std::vector<OpCase>> cases() {
  std::vector<OpCase> cases;
  for (const Row& row : kRows) {
    std::vector<std::string> formulas(absl::StrSplit(row.dtypes, "; "));
    for (std::string& formula : formulas) formula = kFormula;
    for (absl::string_view name : absl::StrSplit(row.ops, ' ')) {
      TESSERA_ASSIGN_OR_RETURN(
          OpCase each, make_op_case({absl::StrCat(name), absl::StrCat(name), row.attributes, "-",
                                     row.dtypes, row.shapes, "-", absl::StrJoin(formulas, "; ")}));
      cases.push_back(std::move(each));
    }
  }
  return cases;
}

// The bytes promised to the device at a position.
struct Promise {
  int64_t bytes = 0;
  // How far it may be away, by the chunks of all_reduces.
  int64_t slack = 0;
  // "1.5 KiB to a device at most", of each move.
  std::vector<std::string> texts;

  Status add(const ops::Operand& from, const Layout& to, const PlanOptions& options,
             int64_t position) {
    if (from.layout == to) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const RelayoutPlan plan,
                             plan_relayout(from.layout, to, from.shape, from.dtype, options));
    bytes += plan.received_bytes(position);
    constexpr int64_t kLines = 2 * 64;
    for (const PlanStep& step : plan.steps()) {
      // The terms of the other members for its chunk, and of their chunks the sums.
      if (step.kind() == StepKind::kAllReduce) slack += (step.group_size() - 2) * kLines;
    }
    add_text(plan.max_received_bytes());
    return absl::OkStatus();
  }
  void add(const Fetch& fetch, int64_t position) {
    bytes += fetch.received_bytes(position);
    add_text(fetch.max_received_bytes());
  }
  void add_text(int64_t most_bytes) {
    texts.push_back(absl::StrCat(format_bytes(most_bytes), " to a device at most"));
  }
};

StatusOr<Promise> promise_of(const OpCase& row, const std::vector<DTensor>& operands,
                             const ops::Out& out, int64_t position) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : row.attributes) texts.push_back(absl::StrCat(name, "=", value));
  TESSERA_ASSIGN_OR_RETURN(const ops::AttributeTexts attributes,
                           ops::parse_attributes(absl::StrJoin(texts, "; ")));
  TESSERA_ASSIGN_OR_RETURN(const ops::OpPlan plan,
                           ops::plan_operation(row.op, ops::types_of(operands), attributes));
  std::vector<ops::Operand> given;
  for (const DTensor& each : operands) given.push_back({each.layout(), each.shape(), each.dtype()});
  std::optional<Layout> asked;
  if (out.layout.has_value()) asked = *out.layout->layout();
  const PlanOptions options = internal::plan_options_of(operands[0]);
  TESSERA_ASSIGN_OR_RETURN(const ops::LayoutDecision decided,
                           ops::decide_layouts(row.op.c_str(), plan, given, asked, options));
  Promise promise;
  for (size_t i = 0; i < given.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(
        promise.add(given[i], decided.assignment.operands[i], options, position));
    if (decided.assignment.fetches[i] != nullptr) {
      promise.add(*decided.assignment.fetches[i], position);
    }
  }
  if (!asked.has_value()) return promise;
  TESSERA_RETURN_IF_ERROR(
      promise.add({decided.assignment.result, plan.shape, plan.dtype}, *asked, options, position));
  return promise;
}

// Checks the bytes received for the tensor, from a reading of the count on.
Status check_received(const DTensor& tensor, int64_t before, const Promise& promise) {
  TESSERA_RETURN_IF_ERROR(tensor.await());
  const int64_t bytes = received - before;
  TESSERA_REQUIRE(std::abs(bytes - promise.bytes) <= promise.slack, "received ", bytes,
                  " bytes, promised ", promise.bytes, "; ", tensor.explain());
  return absl::OkStatus();
}

class Sampler {
 public:
  Sampler(const Client& client, uint64_t seed) : client_(client), random_(seed) {}

  Status check(const OpCase& row) {
    std::string subject = row.op;
    const Status status = check(row, subject);
    return with_context(status, subject);
  }
  int num_calls() const { return num_calls_; }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  Status check(OpCase row, std::string& subject) {
    const char* mesh = kMeshes[random_() % std::size(kMeshes)];
    absl::StrAppend(&subject, " on ", mesh);
    std::vector<DTensor> operands;
    for (OpOperand& operand : row.operands) {
      operand.mesh = mesh;
      operand.layout = pick(mesh, operand.shape, operand.dtype, true);
      absl::StrAppend(&subject, " ", operand.layout);
      TESSERA_ASSIGN_OR_RETURN(const DTensor made, make_operand(client_, operand, meshes_));
      TESSERA_RETURN_IF_ERROR(made.await());
      operands.push_back(made);
    }
    const DTensor first = run_row(row, operands, {});
    TESSERA_RETURN_IF_ERROR(first.await());
    if (random_() % 3 == 0) {
      row.out = pick(mesh, first.shape(), first.dtype(), random_() % 2 == 0);
      absl::StrAppend(&subject, " -> ", row.out);
    }
    TESSERA_ASSIGN_OR_RETURN(const ops::Out out, make_out(client_, row, meshes_));
    const int64_t position = *meshes_.at(mesh).position_of_device(client_.client_id());
    TESSERA_ASSIGN_OR_RETURN(const Promise promise, promise_of(row, operands, out, position));
    const int64_t before = received;
    const DTensor result = run_row(row, operands, out);
    TESSERA_RETURN_IF_ERROR(check_received(result, before, promise));
    TESSERA_RETURN_IF_ERROR(check_explained(result, promise));
    ++num_calls_;
    num_bytes_ += promise.bytes;
    return result.layout().is_partial() ? read_later(result, mesh, position) : absl::OkStatus();
  }

  // The terms become one when another operation, or the program, needs the values.
  Status read_later(const DTensor& partial, const char* mesh, int64_t position) {
    TESSERA_ASSIGN_OR_RETURN(
        const Layout to,
        Layout::parse(meshes_.at(mesh), pick(mesh, partial.shape(), partial.dtype(), false)));
    Promise promise;
    TESSERA_RETURN_IF_ERROR(promise.add({partial.layout(), partial.shape(), partial.dtype()}, to,
                                        internal::plan_options_of(partial), position));
    const int64_t before = received;
    const DTensor whole = relayout(partial, to);
    num_bytes_ += promise.bytes;
    return with_context(check_received(whole, before, promise),
                        absl::StrCat("read as ", to.to_string()));
  }

  // The moves in explain() have the bytes that were counted.
  static Status check_explained(const DTensor& result, const Promise& promise) {
    std::vector<std::string> lines;
    for (absl::string_view line : absl::StrSplit(result.explain(), '\n')) {
      if (absl::EndsWith(line, " to a device at most")) lines.emplace_back(line);
    }
    TESSERA_REQUIRE(lines.size() == promise.texts.size(), result.explain());
    for (size_t i = 0; i < lines.size(); ++i) {
      TESSERA_REQUIRE(absl::EndsWith(lines[i], absl::StrCat(", ", promise.texts[i])), lines[i],
                      " instead of ", promise.texts[i]);
    }
    return absl::OkStatus();
  }

  std::string pick(const char* mesh, const Shape& shape, DType dtype, bool may_be_partial) {
    std::vector<Layout>& all = layouts_[{mesh, shape.size(), dtype}];
    if (all.empty()) {
      all = every_layout(*Mesh::parse(mesh), static_cast<int>(shape.size()), dtype);
    }
    for (;;) {
      const Layout& layout = all[random_() % all.size()];
      if (may_be_partial || !layout.is_partial()) return layout.to_string();
    }
  }

  const Client& client_;
  std::mt19937_64 random_;
  std::map<std::string, Mesh> meshes_;
  std::map<std::tuple<std::string, size_t, DType>, std::vector<Layout>> layouts_;
  int num_calls_ = 0;
  int64_t num_bytes_ = 0;
};

int samples() {
  const char* text = std::getenv("TESSERA_OP_BYTES_SAMPLES");
  int count = 6;
  if (text != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(text, &count)) << "TESSERA_OP_BYTES_SAMPLES=" << text;
  }
  return count;
}

TEST(OpBytesTest, DevicesReceiveWhatIsPromised) {
  const uint64_t seed = test_seed();
  const int num_samples = samples();
  const StatusOr<std::vector<OpCase>> rows = cases();
  ASSERT_THAT(rows, IsOk());
  JobSpec spec = {.setting = Setting::kProcesses,
                  .num_clients = kDevices,
                  .hooks = {.host_ids = on_hosts(kDevices, kDevices)}};
  spec.hooks.wrap_engine = [](std::unique_ptr<Engine> engine) -> StatusOr<std::unique_ptr<Engine>> {
    return std::make_unique<CountingEngine>(std::move(engine));
  };
  EXPECT_THAT(run_clients(spec,
                          [&](Client& client) -> Status {
                            Sampler sampler(client, seed);
                            std::string failures;
                            for (const OpCase& row : *rows) {
                              for (int k = 0; k < num_samples; ++k) {
                                const Status status = sampler.check(row);
                                if (!status.ok())
                                  absl::StrAppend(&failures, status.message(), "\n");
                              }
                            }
                            if (client.client_id() == 0) {
                              std::cout << sampler.num_calls() << " calls, "
                                        << format_bytes(sampler.num_bytes())
                                        << " to the first device\n";
                            }
                            TESSERA_REQUIRE(failures.empty(), failures);
                            TESSERA_REQUIRE(sampler.num_bytes() > 0);
                            return absl::OkStatus();
                          }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
