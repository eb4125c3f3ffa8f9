// SPDX-License-Identifier: Apache-2.0
//
// Cutting into lines and writing without blocking, without processes.
#include "job/launcher/line_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

std::vector<std::string> split(const std::vector<std::string>& pieces) {
  std::vector<std::string> lines;
  const auto on_line = [&](absl::string_view line) { lines.emplace_back(line); };
  LineSplitter splitter;
  for (const std::string& piece : pieces) splitter.append(piece, on_line);
  splitter.finish(on_line);
  return lines;
}

TEST(LineSplitterTest, LinesAreTheSameHoweverTheBytesCome) {
  const std::string text = "first\n\nthird\nlast";
  for (size_t size = 1; size <= text.size(); ++size) {
    std::vector<std::string> pieces;
    for (size_t i = 0; i < text.size(); i += size) pieces.push_back(text.substr(i, size));
    EXPECT_THAT(split(pieces), ElementsAre("first", "", "third", "last")) << size;
  }
  EXPECT_THAT(split({}), SizeIs(0));
  EXPECT_THAT(split({"whole\n"}), ElementsAre("whole"));
}

TEST(LineSplitterTest, LineAboveTheLimitIsCut) {
  const std::vector<std::string> lines =
      split({std::string(LineSplitter::kMaxLineBytes, 'x'), "yz\n", "next\n"});
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(lines[0].size(), LineSplitter::kMaxLineBytes + 2);
  EXPECT_EQ(lines[1], "next");
}

// Small enough to read in one piece, large enough for many writes and for a full pipe.
TEST(OutputSinkTest, KeepsWhatAFullPipeDoesNotTake) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  OutputSink sink(fds[1]);
  std::string expected;
  for (int i = 0; i < 200000; ++i) expected += std::to_string(i) + "\n";
  sink.append(expected);
  EXPECT_FALSE(sink.is_full());
  sink.append(std::string(OutputSink::kFullBytes, 'x'));
  EXPECT_TRUE(sink.is_full());
  expected += std::string(OutputSink::kFullBytes, 'x');

  std::string received;
  std::string bytes(65536, '\0');
  while (sink.has_pending()) {
    sink.drain();
    const ssize_t size = read(fds[0], bytes.data(), bytes.size());
    ASSERT_GT(size, 0);
    received.append(bytes, 0, static_cast<size_t>(size));
  }
  close(fds[1]);
  for (ssize_t size; (size = read(fds[0], bytes.data(), bytes.size())) > 0;) {
    received.append(bytes, 0, static_cast<size_t>(size));
  }
  close(fds[0]);
  EXPECT_TRUE(received == expected);
  EXPECT_EQ(sink.error(), 0);
}

TEST(OutputSinkTest, DropsEverythingOnceItsReaderIsGone) {
  signal(SIGPIPE, SIG_IGN);
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  OutputSink sink(fds[1]);
  close(fds[0]);
  sink.append("x\n");
  sink.drain();
  EXPECT_EQ(sink.error(), EPIPE);
  sink.append("y\n");
  EXPECT_FALSE(sink.has_pending());
  close(fds[1]);
}

TEST(LinePrefixTest, ColourSurroundsTheClient) {
  EXPECT_EQ(line_prefix(2, false), "[client 2] ");
  EXPECT_EQ(line_prefix(2, true), "\x1b[32m[client 2]\x1b[0m ");
}

}  // namespace
}  // namespace tessera
