// SPDX-License-Identifier: Apache-2.0
//
// Any text with a right checksum, read as the manifest of a checkpoint, is refused with a message,
// or gives an Info that formats and parses back equal.
//
// The first byte chooses what the text is: the whole manifest, its members after the fixed ones, or
// one tensor in a file of 1 MiB.
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "checkpoint/checksum.h"
#include "checkpoint/info.h"
#include "checkpoint/manifest.h"
#include "fuzz/fuzz.h"

namespace tessera::checkpoint::internal {
namespace {

using fuzz::require;

constexpr absl::string_view kFixed =
    R"({"format":"tessera.checkpoint","version":1,"save_id":"7c9e6679a1b2c3d4","step":1,)"
    R"("time":"2026-11-22T13:05:00Z","clients":1,"metadata":{},"block_bytes":4194304,)";
constexpr absl::string_view kFile =
    R"("files":[{"name":"f","bytes":1048576,"blocks":["0000000000000000"]}],"tensors":[)";

std::string with_checksum(const std::string& text) {
  return absl::StrCat(text, "\"xxh3\": \"", checksum128_hex(text), "\"}\n");
}

// Without the members after the text, which the checksum member ends.
std::string manifest_of(int kind, absl::string_view text) {
  switch (kind) {
    case 0:
      return with_checksum(std::string(text));
    case 1:
      return with_checksum(absl::StrCat(kFixed, text));
    default:
      return with_checksum(absl::StrCat(kFixed, kFile, text, "],"));
  }
}

void check_manifest(const std::string& manifest) {
  const StatusOr<Info> info = parse_manifest(manifest);
  if (!info.ok()) {
    const absl::StatusCode code = info.status().code();
    require(code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kUnimplemented,
            info.status().ToString());
    require(!info.status().message().empty(), manifest);
    return;
  }
  require(check_info(*info).ok(), manifest);
  const std::string text = format_manifest(*info);
  const StatusOr<Info> again = parse_manifest(text);
  require(again.ok() && *again == *info, text);
}

}  // namespace
}  // namespace tessera::checkpoint::internal

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  tessera::checkpoint::internal::check_manifest(
      tessera::checkpoint::internal::manifest_of(data[0] % 3, text));
  return 0;
}
