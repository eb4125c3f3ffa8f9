// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/member_texts.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/format.h"
#include "base/reduce_op.h"
#include "base/stable_hash.h"
#include "collectives/counts.h"

namespace tessera::host {
namespace {

// The text of equal parts is built only when it is read: members do not store a text.
std::string detail_of(const Statement& statement, int num_members) {
  const uint64_t hash = statement.signature.detail_hash;
  if (hash == stable_hash("")) return "";
  const Counts equal = Counts::equal(num_members, statement.part_count);
  return hash == equal.hash() ? equal.to_string().substr(0, kDetailBytes - 1) : statement.detail;
}

}  // namespace

absl::string_view name_of_operation(absl::string_view label) {
  const size_t number = label.find(" #");
  if (number == label.npos || label.find('"') < number) return label;
  return label.substr(0, label.find(' ', number + 1));
}

Status describe_difference(const Statement& a, const Statement& b, absl::string_view detail_field,
                           int num_members, uint32_t seq) {
  const auto differ = [&](absl::string_view field, const auto& x, const auto& y) {
    const bool is_plural = field == "layouts" || field == "calls" || field == "counts";
    const bool says_both = field == "layouts" || field == "calls" || field == "operation";
    const std::string x_text = absl::StrCat(x);
    const std::string y_text = absl::StrCat(y);
    // Entries have room for so much of a text.
    const bool is_cut = x_text == y_text;
    return absl::InvalidArgumentError(absl::StrCat(
        says_both ? name_of_operation(a.label) : absl::string_view(a.label), ": ", field,
        is_plural ? " differ" : " differs", " between clients: ", a.member, " has ", x_text, ", ",
        b.member, " has ", y_text, is_cut ? ", which differ in what is left out here" : "",
        "; it is operation ", seq, " of the group; make the same call on every client"));
  };
  const Signature& x = a.signature;
  const Signature& y = b.signature;
  if (x == y) return absl::OkStatus();
  if (x.kind != y.kind) return differ("operation", a.label, b.label);
  if (x.dtype != y.dtype) return differ("dtype", dtype_name(x.dtype), dtype_name(y.dtype));
  if (x.reduction != y.reduction) {
    return differ("reduction", reduce_op_name(x.reduction), reduce_op_name(y.reduction));
  }
  if (x.order != y.order) {
    return differ("reduction order", reduction_order_name(x.order), reduction_order_name(y.order));
  }
  if (x.root != y.root) return differ("root", x.root, y.root);
  if (x.detail_hash != y.detail_hash) {
    return differ(detail_field, detail_of(a, num_members), detail_of(b, num_members));
  }
  if (x.count != y.count) return differ("count", x.count, y.count);
  const auto sharing = [](bool inlined) { return inlined ? "none" : "some"; };
  return differ("sharing of outputs", sharing(x.inlined), sharing(y.inlined));
}

namespace {

// The members that are missing, by client.
struct MissingMembers {
  struct Client {
    int num_members = 0;
    std::vector<int> missing;  // members
  };
  std::map<int, Client> clients;
  int num_clients = 0;  // with missing members
  int num_members = 0;

  // Where all members are of one client, its devices are counted and named.
  bool is_one_client() const { return clients.size() == 1; }
  int num_missing() const { return is_one_client() ? num_members : num_clients; }
  int num_all() const {
    return is_one_client() ? clients.begin()->second.num_members : static_cast<int>(clients.size());
  }
  const char* counted() const { return is_one_client() ? " devices" : " clients"; }
};

MissingMembers find_missing(absl::Span<const shm::GroupMember> members,
                            absl::FunctionRef<bool(int member)> is_missing) {
  MissingMembers result;
  for (int m = 0; m < static_cast<int>(members.size()); ++m) {
    MissingMembers::Client& client = result.clients[members[m].client_id];
    ++client.num_members;
    if (!is_missing(m)) continue;
    if (client.missing.empty()) ++result.num_clients;
    client.missing.push_back(m);
    ++result.num_members;
  }
  return result;
}

// Names the first, and as many others as fit.
void append_names(const MissingMembers& missing, absl::Span<const shm::GroupMember> members,
                  size_t most_bytes, absl::FunctionRef<std::string(int client)> name_of,
                  absl::FunctionRef<std::string(const shm::GroupMember&)> last_seen,
                  std::string& text) {
  const char* separator = " ";
  int num_named = 0;
  for (const auto& [id, client] : missing.clients) {
    if (client.missing.empty()) continue;
    std::string name = name_of(id);
    // Devices are named if other devices of the client have arrived, or if it is the only client.
    const bool are_some = static_cast<int>(client.missing.size()) < client.num_members;
    if (missing.is_one_client() || are_some) {
      absl::StrAppend(&name, client.missing.size() == 1 ? " device " : " devices ",
                      absl::StrJoin(client.missing, ", ", [&](std::string* out, int m) {
                        absl::StrAppend(out, members[m].device_id);
                      }));
    }
    const std::string seen = last_seen(members[client.missing[0]]);
    if (!seen.empty()) absl::StrAppend(&name, ", ", seen);
    constexpr size_t kMoreBytes = 32;
    if (num_named > 0 && text.size() + name.size() + kMoreBytes > most_bytes) {
      absl::StrAppend(&text, "; and ", missing.num_clients - num_named, " more");
      break;
    }
    absl::StrAppend(&text, separator, name);
    separator = "; ";
    ++num_named;
  }
}

}  // namespace

Status describe_missing(const Missing& missing, absl::FunctionRef<std::string(int client)> name_of,
                        absl::FunctionRef<std::string(const shm::GroupMember&)> last_seen) {
  const MissingMembers members =
      find_missing(missing.members, [&](int m) { return !missing.arrived[m]; });
  const bool is_unclear = members.num_missing() == 0 && missing.is_open;
  const int num_missing = is_unclear ? 1 : members.num_missing();
  const std::string arrived = absl::StrCat(members.num_all() - num_missing, " of ",
                                           members.num_all(), members.counted(), " arrived");
  std::string text = absl::StrCat(missing.label, ": ", not_in_time(arrived, missing.waited));
  if (is_unclear) absl::StrAppend(&text, "; one was about to arrive");
  if (num_missing == 0) absl::StrAppend(&text, "; some had not finished");
  if (members.num_members > 0) {
    absl::StrAppend(&text, "; missing");
    append_names(members, missing.members, missing.most_bytes, name_of, last_seen, text);
  }
  return absl::DeadlineExceededError(text);
}

std::string describe_awaited(const AwaitedMembers& awaited,
                             absl::FunctionRef<std::string(int client)> name_of,
                             absl::FunctionRef<std::string(const shm::GroupMember&)> doing) {
  constexpr size_t kMostBytes = 1024;  // of one line
  const MissingMembers members =
      find_missing(awaited.members, [&](int m) { return awaited.awaited[m]; });
  const int num_there =
      awaited.all_arrived ? members.num_all() : members.num_all() - members.num_missing();
  std::string text = absl::StrCat(num_there, " of ", members.num_all(), members.counted(),
                                  " arrived; ", awaited.all_arrived ? "unfinished" : "missing");
  append_names(members, awaited.members, kMostBytes, name_of, doing, text);
  return text;
}

Status describe_conflict(std::vector<ConflictingWait> waits) {
  const auto is_before = [](const ConflictingWait& a, const ConflictingWait& b) {
    return a.device_id < b.device_id;
  };
  std::rotate(waits.begin(), std::min_element(waits.begin(), waits.end(), is_before), waits.end());
  std::set<absl::string_view> labels;
  for (const ConflictingWait& wait : waits) labels.insert(wait.label);
  std::vector<std::string> texts;
  for (const ConflictingWait& wait : waits) {
    texts.push_back(absl::StrCat(wait.client, " waits in ", wait.label));
    if (labels.size() == waits.size()) continue;
    absl::StrAppend(&texts.back(), " in the group of devices ", absl::StrJoin(wait.group, ", "));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("operations differ between clients: ", absl::StrJoin(texts, ", "),
                   "; make the same calls in the same order on every client"));
}

}  // namespace tessera::host
