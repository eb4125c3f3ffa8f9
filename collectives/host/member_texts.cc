// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/member_texts.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/stable_hash.h"
#include "collectives/counts.h"

namespace tessera::host {
namespace {

// The text of equal parts is built only when it is read: members write none.
std::string detail_of(const Statement& statement, int num_members) {
  const uint64_t hash = statement.signature.detail_hash;
  if (hash == stable_hash("")) return "";
  const Counts equal = Counts::equal(num_members, statement.part_count);
  return hash == equal.hash() ? equal.to_string().substr(0, kDetailBytes - 1) : statement.detail;
}

// "relayout #12" of "relayout #12 [x, -] -> [-, x] on {x=2}, ...": where the message goes on with
// what both clients have, the layouts would be in it twice. Labels without a number, and those that
// quote a name, as they are.
absl::string_view name_of(absl::string_view label) {
  const size_t number = label.find(" #");
  if (number == label.npos || label.find('"') < number) return label;
  return label.substr(0, label.find(' ', number + 1));
}

}  // namespace

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
        says_both ? name_of(a.label) : absl::string_view(a.label), ": ", field,
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

Status describe_missing(const Missing& missing, absl::FunctionRef<std::string(int client)> name_of,
                        absl::FunctionRef<std::string(const GroupMember&)> last_seen) {
  struct Client {
    int num_members = 0;
    std::vector<int> missing;  // members
  };
  std::map<int, Client> clients;
  int num_missing_clients = 0;
  const int size = static_cast<int>(missing.members.size());
  for (int m = 0; m < size; ++m) {
    Client& client = clients[missing.members[m].client_id];
    ++client.num_members;
    if (missing.arrived[m]) continue;
    if (client.missing.empty()) ++num_missing_clients;
    client.missing.push_back(m);
  }
  const bool one_client = clients.size() == 1;
  const int num_all = one_client ? size : static_cast<int>(clients.size());
  int num_missing = num_missing_clients;
  if (one_client) num_missing = static_cast<int>(clients.begin()->second.missing.size());
  const bool is_unclear = num_missing == 0 && missing.is_open;
  if (is_unclear) num_missing = 1;
  std::string text =
      absl::StrCat(missing.label, ": ", num_all - num_missing, " of ", num_all,
                   one_client ? " devices" : " clients", " arrived in ", missing.waited);
  if (is_unclear) absl::StrAppend(&text, "; one was about to arrive");
  if (num_missing == 0) absl::StrAppend(&text, "; some had not finished");
  const char* separator = "; missing ";
  int num_named = 0;
  for (const auto& [id, client] : clients) {
    if (client.missing.empty()) continue;
    std::string name = name_of(id);
    // Devices are named if other devices of the client have arrived, or if it is the only client.
    if (one_client || static_cast<int>(client.missing.size()) < client.num_members) {
      absl::StrAppend(&name, client.missing.size() == 1 ? " device " : " devices ",
                      absl::StrJoin(client.missing, ", ", [&](std::string* out, int m) {
                        absl::StrAppend(out, missing.members[m].device_id);
                      }));
    }
    const std::string seen = last_seen(missing.members[client.missing[0]]);
    if (!seen.empty()) absl::StrAppend(&name, ", ", seen);
    constexpr size_t kMoreBytes = 32;
    if (num_named > 0 && text.size() + name.size() + kMoreBytes > missing.most_bytes) {
      absl::StrAppend(&text, "; and ", num_missing_clients - num_named, " more");
      break;
    }
    absl::StrAppend(&text, separator, name);
    separator = "; ";
    ++num_named;
  }
  return absl::DeadlineExceededError(text);
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
