// SPDX-License-Identifier: Apache-2.0
//
// Runs the examples in separate processes, as a user does, and reads their output.
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/seed.h"

namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr int kTimeLimitSeconds = 300;
constexpr char kFourByTwo[] = "job/tessera_run --clients 4 --devices-per-client 2 ";

struct Result {
  int exit_code = -1;  // 124: ran past the limit
  std::string output;  // stdout and stderr
};

// Runs a command line from the root of the runfiles.
Result run(const std::string& command) {
  const std::string bounded =
      absl::StrCat("timeout -k 5 ", kTimeLimitSeconds, " ", command, " 2>&1 < /dev/null");
  std::FILE* pipe = popen(bounded.c_str(), "r");
  EXPECT_NE(pipe, nullptr) << command;
  Result result;
  char chunk[4096];
  while (const size_t count = std::fread(chunk, 1, sizeof chunk, pipe)) {
    result.output.append(chunk, count);
  }
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

int count_lines_with(const std::string& output, const std::string& part) {
  int count = 0;
  for (absl::string_view line : absl::StrSplit(output, '\n'))
    count += absl::StrContains(line, part);
  return count;
}

std::string temporary(const std::string& name) {
  return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The number behind a mark.
double number_after(const std::string& output, const std::string& mark) {
  const size_t at = output.find(mark);
  EXPECT_NE(at, std::string::npos) << mark << " is not in:\n" << output;
  return at == std::string::npos ? NAN : std::strtod(&output[at + mark.size()], nullptr);
}

// ThreadSanitizer sees the memory of Debian's gRPC and Abseil, which are not instrumented, but not
// the synchronization of accesses to it.
class SanitizerOptions : public ::testing::Environment {
 public:
  void SetUp() override {
    const std::string path = temporary("suppressions.txt");
    std::ofstream(path) << "race:grpc\nrace:libgpr\nrace:tessera::rpc\n"
                           "race:absl::*::Status::Unref\n";
    const char* given = std::getenv("TSAN_OPTIONS");
    const std::string options = absl::StrCat(
        given == nullptr ? "" : given, ":ignore_noninstrumented_modules=1:suppressions=", path);
    ASSERT_EQ(setenv("TSAN_OPTIONS", options.c_str(), 1), 0);
  }
};
[[maybe_unused]] ::testing::Environment* const kSanitizerOptions =
    ::testing::AddGlobalTestEnvironment(new SanitizerOptions);

TEST(QuickstartTest, DrawsWhoHoldsWhat) {
  const Result result = run("examples/01_quickstart");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(
      result.output,
      AllOf(HasSubstr("[-, -] on {batch=4, model=2}, shape [10, 6]\n"),
            HasSubstr("    0:10 | 0-7 |\n"), HasSubstr("     3:5 | 2,3 |\n"),
            HasSubstr("     3:5 |  2  |  3  |\n"),
            HasSubstr("device 2 holds [3:5, 0:6] of [batch, -], and its first element is 18"),
            HasSubstr("did you mean \"batch\""),
            HasSubstr("all devices of {batch=4, model=2} have reached the barrier")));
}

TEST(MultiClientTest, MovesRowsToColumnsAndAddsTerms) {
  const Result result = run(absl::StrCat(kFourByTwo, "examples/02_multi_client"));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("client 3 of 4 has 2 of 8 devices"), HasSubstr("all_to_all"),
                    HasSubstr("[x, -] [7:8, 0:8]: 70 71 72 73 74 75 76 77"),
                    HasSubstr("[-, x] [0:8, 5:6]: 5 15 25 35 45 55 65 75"),
                    HasSubstr("[-] [0:8]: 280 288 296 304 312 320 328 336")));
  EXPECT_EQ(count_lines_with(result.output, "every client has the last element, 77"), 4);
  EXPECT_EQ(count_lines_with(result.output, "done"), 4);
}

TEST(FailureTest, TheOthersLearnWhoDidNotCome) {
  const Result result = run("job/tessera_run --clients 4 examples/04_failure");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(count_lines_with(result.output, "client 2 forgets the barrier"), 1) << result.output;
  EXPECT_EQ(count_lines_with(result.output, "DEADLINE_EXCEEDED: barrier \"end_of_epoch\""), 3)
      << result.output;
  EXPECT_EQ(count_lines_with(result.output, "3 of 4 clients arrived in "), 3) << result.output;
  EXPECT_EQ(count_lines_with(result.output, " s; missing client 2 ("), 3) << result.output;
  EXPECT_EQ(count_lines_with(result.output, "left in order"), 3) << result.output;
}

TEST(FailureTest, TooFewClientsAreTold) {
  const Result result = run("job/tessera_run --clients 2 examples/04_failure");
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, HasSubstr("start 3 clients or more")) << result.output;
}

TEST(BarrierBeforeExitTest, EveryClientHasItsRows) {
  const Result result = run("job/tessera_run --clients 4 examples/05_barrier_before_exit");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  for (int id = 0; id < 4; ++id) {
    const std::string line =
        absl::StrCat("client ", id, " holds [", 2 * id, ":", 2 * id + 2,
                     ", 0:2] of [batch, -], from ", 4 * id, " to ", 4 * id + 3);
    EXPECT_EQ(count_lines_with(result.output, line), 1) << line << "\n" << result.output;
  }
}

// Trains for some epochs, and returns the loss of each.
std::vector<double> losses(const std::string& launcher, int epochs, const std::string& name) {
  const std::string path = temporary(name);
  const Result result =
      run(absl::StrCat(launcher, "examples/03_digits --epochs=", epochs, " --loss_file=", path));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  std::vector<double> values;
  for (absl::string_view line : absl::StrSplit(read_file(path), '\n', absl::SkipEmpty())) {
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(line, &value)) << line;
    values.push_back(value);
  }
  return values;
}

TEST(DigitsTest, LearnsToReadOnFourClientsOfTwoDevices) {
  const std::string saved = temporary("digits");
  const std::string exported = temporary("digits.safetensors");
  const Result result =
      run(absl::StrCat(kFourByTwo, "examples/03_digits --save=", saved, " --export=", exported));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("clients 4, mesh {batch=4, model=2}, 1438 images to learn from, 359"),
                    ContainsRegex("epoch  40  loss 0\\.0[0-9]+  accuracy [01]\\.[0-9]+ +[0-9]+ "
                                  "examples/s")));
  const std::string mark = "held-out accuracy ";
  const double accuracy = number_after(result.output, mark);
  EXPECT_GE(accuracy, 0.95) << result.output;
  EXPECT_EQ(count_lines_with(result.output, mark), 1);

  // The weights under other layouts, with other numbers of clients.
  const std::pair<const char*, std::string> others[] = {
      {"", saved},
      {"", exported},
      {"job/tessera_run --clients 2 --devices-per-client 3 ", saved + " --model=3"},
      {"job/tessera_run --clients 2 --devices-per-client 3 ", exported + " --model=2"}};
  for (const auto& [launcher, weights] : others) {
    const Result other = run(absl::StrCat(launcher, "examples/03_classify --weights=", weights));
    EXPECT_EQ(other.exit_code, 0) << other.output;
    EXPECT_EQ(number_after(other.output, mark), accuracy) << other.output;
  }
}

TEST(DigitsTest, WeightsOfAnotherProgramHaveNoSeed) {
  const std::string path = temporary("empty.safetensors");
  std::ofstream(path) << std::string("\2\0\0\0\0\0\0\0{}", 10);
  const Result result = run("examples/03_classify --weights=" + path);
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, HasSubstr("empty.safetensors\" has no seed; give weights that "
                                       "03_digits has saved"));
}

TEST(DigitsTest, TheLossCurveDoesNotDependOnTheLayout) {
  constexpr int kEpochs = 8;
  const std::vector<double> one = losses("", kEpochs, "one");
  const std::vector<double> eight = losses("env TESSERA_LOCAL_DEVICES=8 ", kEpochs, "eight");
  const std::vector<double> four_by_two = losses(kFourByTwo, kEpochs, "four_by_two");
  ASSERT_EQ(one.size(), static_cast<size_t>(kEpochs));
  ASSERT_EQ(eight.size(), one.size());
  ASSERT_EQ(four_by_two.size(), one.size());
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    EXPECT_NEAR(eight[epoch], one[epoch], 1e-5) << "epoch " << epoch + 1;
    EXPECT_NEAR(four_by_two[epoch], one[epoch], 1e-5) << "epoch " << epoch + 1;
  }
  EXPECT_LT(one.back(), one.front() / 4);
}

TEST(DigitsTest, TheSameLayoutGivesTheSameBits) {
  constexpr int kEpochs = 3;
  const std::vector<double> first = losses(kFourByTwo, kEpochs, "first");
  EXPECT_EQ(first.size(), static_cast<size_t>(kEpochs));
  EXPECT_EQ(losses(kFourByTwo, kEpochs, "second"), first);
  // The assignment of devices to clients does not matter either.
  EXPECT_EQ(losses("env TESSERA_LOCAL_DEVICES=8 ", kEpochs, "third"), first);
}

TEST(DigitsTest, AnyMeshWillDo) {
  const Result result = run("examples/03_digits --devices=6 --batch=3 --epochs=1 --batch_size=100");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("clients 1, mesh {batch=3, model=2}"),
                                   HasSubstr("epoch   1  loss ")));
}

TEST(DigitsTest, TrainsOnAGpu) {
  if (std::getenv("TESSERA_TEST_GPU") == nullptr) GTEST_SKIP() << "$TESSERA_TEST_GPU is not set";
  const Result result = run("examples/03_digits --device=cuda --epochs=1");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("epoch   1  loss "));
}

// If CUDA may use no GPU, or the build has no CUDA, the program says so on any machine.
TEST(DigitsTest, SaysWhatIsMissingWithoutAGpu) {
  const Result result =
      run("env CUDA_VISIBLE_DEVICES=-1 examples/03_digits --device=cuda --epochs=1");
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, AnyOf(HasSubstr("no GPU: "), HasSubstr("install CUDA 12.1 or later")));
}

// The losses that 12_resume prints, of steps that follow one another.
struct ResumeRun {
  int begins_after = -1;
  std::vector<double> losses;
};
ResumeRun resume(const std::string& launcher, const std::string& flags) {
  const Result result = run(absl::StrCat(launcher, "examples/12_resume --steps=60 ", flags));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  ResumeRun found;
  found.begins_after = static_cast<int>(number_after(result.output, "begins after step "));
  int step = found.begins_after;
  for (absl::string_view line : absl::StrSplit(result.output, '\n')) {
    const size_t at = line.find("step ");
    if (!absl::StrContains(line, "  loss ") || at == line.npos) continue;
    EXPECT_EQ(std::atoi(std::string(line.substr(at + 5)).c_str()), ++step) << line;
    found.losses.push_back(number_after(std::string(line), "  loss "));
  }
  EXPECT_EQ(step, 60) << result.output;
  return found;
}

class ResumeTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Sums, ResumeTest, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "exact" : "rounded");
});

// Two saves may be under way when the clients are killed, so the newest complete checkpoint is of
// one of the last three saves.
TEST_P(ResumeTest, AKilledRunContinuesOnAnotherMesh) {
  constexpr int kSaveEvery = 5;
  std::mt19937_64 random(tessera::testing::test_seed());
  const int stop_at = std::uniform_int_distribution<int>(3 * kSaveEvery, 59)(random);
  const auto flags = [&](const std::string& name) {
    return absl::StrCat(GetParam() ? "--exact" : "--noexact", " --save_every=", kSaveEvery,
                        " --root=", temporary(absl::StrCat(name, GetParam())));
  };
  const ResumeRun whole = resume(kFourByTwo, flags("whole"));
  EXPECT_EQ(whole.begins_after, 0);
  EXPECT_LT(whole.losses.back(), whole.losses.front());

  const Result killed = run(absl::StrCat(kFourByTwo, "examples/12_resume --steps=60 ",
                                         flags("killed"), " --stop_at=", stop_at));
  EXPECT_EQ(killed.exit_code, 128 + SIGKILL) << killed.output;

  const ResumeRun rest = resume("job/tessera_run --clients 2 --devices-per-client 2 ",
                                flags("killed") + " --model=4 --seed=5");
  EXPECT_EQ(rest.begins_after % kSaveEvery, 0);
  EXPECT_LE(rest.begins_after, stop_at);
  EXPECT_GT(rest.begins_after, stop_at - 3 * kSaveEvery);
  const double tolerance = GetParam() ? 0 : 1e-5;
  for (size_t i = 0; i < rest.losses.size(); ++i) {
    EXPECT_NEAR(rest.losses[i], whole.losses[rest.begins_after + i], tolerance)
        << "step " << rest.begins_after + i + 1 << ", killed after step " << stop_at;
  }
}

TEST(PreemptedTest, SavesAndLeavesWithACodeOfItsOwn) {
  const std::string root = temporary("preempted");
  const std::string log = temporary("preempted.log");
  const Result result = run(absl::StrCat(
      "sh -c 'env TESSERA_LOCAL_DEVICES=2 examples/12_resume --steps=1000000 ",
      "--save_every=1000000 --root=", root, " > ", log, " 2>&1 & ", "until grep -q \"step    3\" ",
      log, "; do sleep 0.1; done; ", "kill -TERM $!; wait $!'"));
  EXPECT_EQ(result.exit_code, 42) << result.output << read_file(log);
  const int steps = count_lines_with(read_file(log), "  loss ");
  const Result rest = run(absl::StrCat("examples/12_resume --root=", root, " --steps=", steps));
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_THAT(rest.output, HasSubstr(absl::StrCat("begins after step ", steps)));
}

// On a GPU where there is one.
TEST(CustomKernelTest, FindsTheMostSteps) {
  const Result result = run("examples/13_custom_kernel");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("at most 524 steps"));
}

TEST(MatmulTimingTest, ShowsWhatAClockThatDoesNotWaitMeasures) {
  const Result result = run("examples/06_matmul_timing --size=128 --devices=4");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("[x, -] times [-, -] is [x, -]"),
                                   HasSubstr("without sync_devices()"), HasSubstr("GFLOP/s")));
}

// The output of 07_language_model, with the losses of its steps.
struct Written {
  std::vector<double> losses;
  std::string output;
};

Written learn(const std::string& launcher, const std::string& flags) {
  const Result result = run(absl::StrCat(launcher, "examples/07_language_model ", flags));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  Written written = {{}, result.output};
  const std::string mark = "  loss ";
  for (size_t at = result.output.find(mark); at != std::string::npos;
       at = result.output.find(mark, at + 1)) {
    written.losses.push_back(std::strtod(&result.output[at + mark.size()], nullptr));
  }
  return written;
}

// The loss is measured on held-out text. The entropy of a character after a known character is
// 2.41: a lower loss needs characters further back.
TEST(LanguageModelTest, LearnsToWriteOnFourClientsOfTwoDevices) {
  const Written written = learn(kFourByTwo, "--steps=200 --sample=100");
  EXPECT_THAT(written.output, HasSubstr("clients 4, mesh {batch=4, model=2}, 64751 characters"));
  ASSERT_EQ(written.losses.size(), 21u) << written.output;
  EXPECT_NEAR(written.losses.front(), std::log(70), 0.5);
  EXPECT_NEAR(number_after(written.output, "without context it would be "), 3.112, 0.001);
  EXPECT_LT(number_after(written.output, "held-out loss "), 2.3) << written.output;
  // The beginning of the text, from which it continues.
  const size_t sample = written.output.find("It is a truth univ");
  ASSERT_NE(sample, std::string::npos) << written.output;
  EXPECT_GE(written.output.size() - sample, 100u);
}

TEST(LanguageModelTest, TheLossCurveDoesNotDependOnTheMesh) {
  const std::string flags = "--steps=30 --sample=0";
  const Written one = learn("env TESSERA_LOCAL_DEVICES=1 ", flags);
  ASSERT_EQ(one.losses.size(), 4u) << one.output;
  const Written others[] = {learn("env TESSERA_LOCAL_DEVICES=8 ", flags),
                            learn("", flags + " --devices=3 --model=3"), learn(kFourByTwo, flags)};
  for (const Written& other : others) {
    ASSERT_EQ(other.losses.size(), one.losses.size()) << other.output;
    for (size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(other.losses[i], one.losses[i], 1e-5) << other.output;
    }
  }
}

TEST(LanguageModelTest, TheSameMeshGivesTheSameBits) {
  const std::string flags = "--steps=10 --sample=20";
  const auto results_of = [](const Written& written) {
    return written.output.substr(std::min(written.output.find("held-out"), written.output.size()));
  };
  const Written first = learn("env TESSERA_LOCAL_DEVICES=8 ", flags);
  const Written second = learn("env TESSERA_LOCAL_DEVICES=8 ", flags);
  EXPECT_EQ(first.losses.size(), 2u) << first.output;
  EXPECT_EQ(second.losses, first.losses);
  EXPECT_EQ(results_of(second), results_of(first));
  EXPECT_THAT(results_of(first), HasSubstr("It is a truth"));
  // The assignment of devices to clients does not matter.
  EXPECT_EQ(learn(kFourByTwo, flags).losses, first.losses);
}

TEST(LanguageModelTest, AShortTextIsRefused) {
  const std::string path = temporary("short.txt");
  std::ofstream(path) << "too short";
  const Result result = run("examples/07_language_model --data=" + path);
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output,
              HasSubstr("short.txt\" has 9 characters; give a text of 640 or more with --data"));
}

// The last loss.
double fitted(const std::string& launcher) {
  const Result result = run(absl::StrCat(launcher, "examples/08_fit"));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const size_t at = result.output.rfind("loss ");
  return at == std::string::npos ? 1 : std::strtod(result.output.c_str() + at + 5, nullptr);
}

TEST(FitTest, GivesTheSameLossOnAnyMesh) {
  const double one = fitted("env TESSERA_LOCAL_DEVICES=1 ");
  EXPECT_LT(one, 0.01);
  EXPECT_NEAR(fitted("env TESSERA_LOCAL_DEVICES=3 "), one, 1e-4);
  EXPECT_NEAR(fitted(kFourByTwo), one, 1e-4);
}

// The losses that a run prints, each with its position in the data.
struct InputRun {
  std::vector<double> losses;
  std::vector<std::string> states;
};
InputRun run_input(const std::string& launcher, const std::string& flags = "") {
  const Result result = run(absl::StrCat(launcher, "examples/09_input ", flags));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  InputRun found;
  const std::string& text = result.output;
  for (size_t at = text.find("loss "); at != std::string::npos; at = text.find("loss ", at)) {
    at += 5;
    found.losses.push_back(std::strtod(text.c_str() + at, nullptr));
    const size_t state = text.find('{', at);
    found.states.push_back(text.substr(state, text.find('}', state) + 1 - state));
  }
  return found;
}

TEST(InputTest, ReadsTheSameBatchesOnAnyMesh) {
  const InputRun one = run_input("env TESSERA_LOCAL_DEVICES=1 ");
  ASSERT_EQ(one.losses.size(), 5u);
  EXPECT_LT(one.losses.back(), 0.6);
  const InputRun eight = run_input(kFourByTwo);
  EXPECT_EQ(eight.states, one.states);
  ASSERT_EQ(eight.losses.size(), one.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(eight.losses[i], one.losses[i], 1e-3);
  }
  // 75 - 16 batches follow the second position; every 15th of them is printed.
  const InputRun rest = run_input("env TESSERA_LOCAL_DEVICES=2 ", "--from='" + one.states[1] + "'");
  EXPECT_EQ(rest.losses.size(), 4u);
}

TEST(ParameterServerTest, CountsEveryStepOnceAlthoughAWorkerIsKilled) {
  const std::string path = temporary("parameter_server");
  const Result result = run(absl::StrCat("examples/10_parameter_server --save=", path));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(
      result.output,
      AllOf(HasSubstr("2 workers, 2 parameter servers\n"), HasSubstr("worker 1 is killed\n"),
            HasSubstr("weights 0, 1, 2, 3\n"), HasSubstr("200 steps, of which 200 count\n")));
  const Result rest = run(absl::StrCat("examples/10_parameter_server --restore=", path));
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_THAT(rest.output, HasSubstr("200 steps, of which 400 count\n"));
}

// The numbers that a run prints after each occurrence of the word.
std::vector<double> numbers_after(const std::string& text, const std::string& word) {
  std::vector<double> numbers;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at)) {
    at += word.size();
    numbers.push_back(std::strtod(text.c_str() + at, nullptr));
  }
  return numbers;
}

TEST(StrategiesTest, GiveTheSameLossesAndAccuracy) {
  const auto run_under = [](const std::string& strategy, const std::string& launcher) {
    const Result result =
        run(absl::StrCat(launcher, "examples/11_strategies --strategy=", strategy));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return result.output;
  };
  const std::string saved = temporary("strategies");
  const std::string one = run_under(absl::StrCat("one_device --save=", saved), "");
  const std::vector<double> losses = numbers_after(one, "loss ");
  ASSERT_EQ(losses.size(), 5u);
  EXPECT_LT(losses.back(), 0.3);
  const std::vector<double> accuracies = numbers_after(one, "accuracy ");
  ASSERT_EQ(accuracies.size(), 5u);
  EXPECT_GT(accuracies.back(), 92);
  EXPECT_THAT(one, HasSubstr("step 71 of 71"));
  const std::pair<const char*, std::string> others[] = {
      {"mirrored", "env TESSERA_LOCAL_DEVICES=2 "},
      {"mirrored", "env TESSERA_LOCAL_DEVICES=8 "},
      {"central", "env TESSERA_LOCAL_DEVICES=4 "},
      {"multi_worker", kFourByTwo}};
  for (const auto& [strategy, launcher] : others) {
    const std::string output = run_under(strategy, launcher);
    EXPECT_THAT(numbers_after(output, "loss "), Pointwise(DoubleNear(1e-3), losses)) << strategy;
    // In %: two of 1,920 examples.
    EXPECT_THAT(numbers_after(output, "accuracy "), Pointwise(DoubleNear(0.11), accuracies))
        << strategy;
  }
  // The saved model is trained further by another strategy.
  const std::string rest = run_under(absl::StrCat("multi_worker --restore=", saved), kFourByTwo);
  ASSERT_EQ(numbers_after(rest, "loss ").size(), 5u) << rest;
  EXPECT_LT(numbers_after(rest, "loss ")[0], losses[0] / 2);
  const Result unknown = run("examples/11_strategies --strategy=tpu");
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.output, HasSubstr("there is no strategy tpu; use one_device, mirrored"));
}

struct MistakeCase {
  const char* name;
  const char* command;
  const char* message;
};

class MistakeTest : public ::testing::TestWithParam<MistakeCase> {};

TEST_P(MistakeTest, IsAnErrorThatSaysSo) {
  const Result result = run(absl::StrCat("examples/", GetParam().command));
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Flags, MistakeTest,
    ::testing::Values(
        MistakeCase{"no_such_file", "03_digits --data=nowhere.csv", "cannot open \"nowhere.csv\""},
        MistakeCase{"malformed_file", "03_digits --data=examples/01_quickstart",
                    "\"examples/01_quickstart\", line 1, column 1: field 1 is "},
        MistakeCase{"device", "03_digits --device=tpu",
                    "--device is \"tpu\"; it should be \"cpu\" or \"cuda\""},
        MistakeCase{"batch_size", "03_digits --batch_size=0",
                    "--batch_size is 0; it should be at least 1"},
        MistakeCase{"epochs", "03_digits --epochs=-1", "--epochs is -1; it should be at least 0"},
        MistakeCase{"steps", "07_language_model --steps=-1",
                    "--steps is -1; it should be at least 0"},
        MistakeCase{"pieces", "07_language_model --pieces=0",
                    "--pieces is 0; it should be at least 1"},
        MistakeCase{"sample", "07_language_model --sample=-1",
                    "--sample is -1; it should be at least 0"},
        MistakeCase{"root", "12_resume", "--root is empty; give a folder for the checkpoints"},
        MistakeCase{"save_every", "12_resume --save_every=0",
                    "--save_every is 0; it should be at least 1"},
        MistakeCase{"mesh", "03_digits --devices=4 --batch=3", "has 3 devices, 4 ids"},
        MistakeCase{"export", "03_digits --epochs=0 --export=no/such/folder/w.safetensors",
                    "no/such/folder"},
        MistakeCase{"weights", "03_classify --weights=no/such/file", "no/such/file"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
