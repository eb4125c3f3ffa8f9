// SPDX-License-Identifier: Apache-2.0
#include "job/environment/host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr const char* kHostId = "TESSERA_HOST_ID";
constexpr const char* kPidPart = " pid ";
constexpr size_t kMostHostIdBytes = 128;

// The number of a namespace of this process, "?" where /proc is hidden.
std::string namespace_of(const char* kind) {
  struct stat found = {};
  if (stat(absl::StrCat("/proc/self/ns/", kind).c_str(), &found) != 0) return "?";
  return absl::StrCat(found.st_ino);
}

std::string find_host_id() {
  if (const char* asked = std::getenv(kHostId); asked != nullptr) return asked;
  const std::string boot = boot_id();
  // Where /proc is hidden, hosts are told apart by name.
  if (boot.empty()) return host_name();
  return absl::StrCat(boot, " net ", namespace_of("net"), kPidPart, namespace_of("pid"));
}

}  // namespace

Status check_host_id(const char* asked) {
  if (asked == nullptr) return absl::OkStatus();
  const absl::string_view id = asked;
  const bool is_printable = std::all_of(id.begin(), id.end(), absl::ascii_isgraph);
  if (!id.empty() && id.size() <= kMostHostIdBytes && is_printable) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      kHostId, " is ", in_quotes(id.substr(0, kMostHostIdBytes)), "; it should be 1 to ",
      kMostHostIdBytes, " visible characters, the same for all clients of a host"));
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown-host";
}

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

Status check_host_id() { return check_host_id(std::getenv(kHostId)); }

MemberInfo describe_this_process() {
  MemberInfo info;
  info.host = host_name();
  info.host_id = find_host_id();
  info.pid = getpid();
  std::random_device random;
  info.incarnation = uint64_t{random()} << 32 | random();
  return info;
}

bool are_on_one_host(const MemberInfo& a, const MemberInfo& b) { return a.host_id == b.host_id; }

bool may_share_loopback(const MemberInfo& a, const MemberInfo& b) {
  // "BOOT net NUMBER pid NUMBER", else an id that was given.
  const auto network = [](const MemberInfo& member) -> absl::string_view {
    const size_t end = member.host_id.find(kPidPart);
    return end == std::string::npos ? "" : absl::string_view(member.host_id).substr(0, end);
  };
  return network(a).empty() || network(b).empty() || network(a) == network(b);
}

std::vector<int> number_hosts(absl::Span<const MemberInfo> members) {
  std::map<absl::string_view, int> numbers;
  std::vector<int> host_of;
  for (const MemberInfo& member : members) {
    const int next = static_cast<int>(numbers.size());
    host_of.push_back(numbers.emplace(member.host_id, next).first->second);
  }
  return host_of;
}

std::string random_token() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&token, absl::Hex(random(), absl::kZeroPad8));
  return token;
}

}  // namespace tessera
