// SPDX-License-Identifier: Apache-2.0
//
// The messages of a Rendezvous: which members are missing, and in what members differ.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/format.h"
#include "base/reduce_op.h"
#include "base/stable_hash.h"
#include "base/status.h"
#include "collectives/counts.h"
#include "collectives/host/activity.h"
#include "collectives/host/rendezvous.h"

namespace tessera::host {
namespace {

absl::Span<const int32_t> ids_of(GroupBlock* block) {
  return {device_ids(block), block->num_members};
}

// A text that another process has written: it may be overwritten while it is read.
std::string read_text(const char* text, size_t size) { return {text, strnlen(text, size)}; }

// The text of equal parts is built only when it is read: members write none.
std::string detail_of(const MemberEntry& entry, int num_members) {
  if (entry.signature.detail_hash == stable_hash("")) return "";
  const Counts equal = Counts::equal(num_members, entry.part_count);
  if (entry.signature.detail_hash != equal.hash()) return read_text(entry.detail, kDetailBytes);
  return equal.to_string().substr(0, kDetailBytes - 1);
}

// "relayout #12" of "relayout #12 [x, -] -> [-, x] on {x=2}, ...": where the message goes on with
// what both clients have, the layouts would be in it twice. Other labels as they are.
absl::string_view name_of(absl::string_view label) {
  constexpr absl::string_view kNumbered = "relayout #";
  if (label.substr(0, kNumbered.size()) != kNumbered) return label;
  return label.substr(0, label.find(' ', kNumbered.size()));
}

}  // namespace

std::vector<bool> Rendezvous::arrivals(uint32_t seq, const State& state) const {
  const bool all = state.phase != Phase::kOpen;
  constexpr int kTries = kStepped ? 1 : 200;
  std::vector<bool> arrived(size(), all);
  // A member writes its place into the entry before it is counted. A member that was held up in
  // between has a place beyond those counted, or the same place as another one: it finds the record
  // settled, and then clears its place.
  for (int tries = 0; !all && tries < kTries; ++tries) {
    for (int m = 0; m < size(); ++m) {
      const MemberEntry& other = entry(seq, m);
      arrived[m] = other.seq.load(std::memory_order_acquire) == seq &&
                   other.place.load(std::memory_order_relaxed) <= state.arrived;
    }
    if (std::count(arrived.begin(), arrived.end(), true) <= static_cast<int>(state.arrived)) break;
    sched_yield();
  }
  return arrived;
}

Status Rendezvous::describe_missing(const Op& op, const State& before) const {
  return describe_missing(op, arrivals(op.seq, before), before.phase == Phase::kOpen);
}

Status Rendezvous::describe_behind(const Op& op) const {
  const uint32_t before = seq_before(op.seq, num_records());
  std::vector<bool> has_passed(size());
  for (int m = 0; m < size(); ++m) {
    has_passed[m] = !is_later(before, progress_[m].left.load(std::memory_order_acquire));
  }
  return describe_missing(op, has_passed, /*is_open=*/true);
}

Status Rendezvous::describe_missing(const Op& op, const std::vector<bool>& arrived,
                                    bool is_open) const {
  struct Client {
    int num_members = 0;
    std::vector<int> missing;  // members
  };
  std::map<int, Client> clients;
  int num_missing_clients = 0;
  for (int m = 0; m < size(); ++m) {
    Client& client = clients[members_[m].client_id];
    ++client.num_members;
    if (arrived[m]) continue;
    if (client.missing.empty()) ++num_missing_clients;
    client.missing.push_back(m);
  }
  const std::string waited = format_duration(
      op.deadline == absl::InfiniteFuture() ? steady_now() - op.start : op.deadline - op.start);
  const bool one_client = clients.size() == 1;
  const int num_all = one_client ? size() : static_cast<int>(clients.size());
  int num_missing = num_missing_clients;
  if (one_client) num_missing = static_cast<int>(clients.begin()->second.missing.size());
  const bool is_unclear = num_missing == 0 && is_open;
  if (is_unclear) num_missing = 1;
  std::string text = absl::StrCat(label_of(op), ": ", num_all - num_missing, " of ", num_all,
                                  one_client ? " devices" : " clients", " arrived in ", waited);
  if (is_unclear) absl::StrAppend(&text, "; one was about to arrive");
  if (num_missing == 0) absl::StrAppend(&text, "; some had not finished");
  const char* separator = "; missing ";
  int num_named = 0;
  for (const auto& [id, client] : clients) {
    if (client.missing.empty()) continue;
    std::string name = link_->member(id).to_string();
    // Devices are named if other devices of the client have arrived, or if it is the only client.
    if (one_client || static_cast<int>(client.missing.size()) < client.num_members) {
      absl::StrAppend(&name, client.missing.size() == 1 ? " device " : " devices ",
                      absl::StrJoin(client.missing, ", ", [&](std::string* out, int m) {
                        absl::StrAppend(out, members_[m].device_id);
                      }));
    }
    absl::StrAppend(&name, ", ", last_seen(id, members_[client.missing[0]].ordinal).to_string());
    constexpr size_t kMoreBytes = 32;
    if (num_named > 0 && text.size() + name.size() + kMoreBytes > block_->verdict_bytes) {
      absl::StrAppend(&text, "; and ", num_missing_clients - num_named, " more");
      break;
    }
    absl::StrAppend(&text, separator, name);
    separator = "; ";
    ++num_named;
  }
  return absl::DeadlineExceededError(text);
}

// Where a member has not arrived (check_conflicts()), the operation may time out and its record be
// reused in the middle of this: then what is found is wrong. It becomes the verdict only by a
// compare-and-swap from the state in which the operation is still open, and a record is not reused
// before that state has changed.
Status Rendezvous::find_mismatch(const Op& op) const {
  // The first member that has arrived is compared with the others in order, so that all members
  // that see the same arrivals name the same two.
  int first = 0;
  while (first < op.member && is_missing(op.seq, first)) ++first;
  const MemberEntry& a = entry(op.seq, first);
  for (int m = first + 1; m < size(); ++m) {
    const MemberEntry& b = entry(op.seq, m);
    if (b.seq.load(std::memory_order_acquire) != op.seq) continue;
    step();  // a member may be held up here while the record is reused
    if (a.signature == b.signature) continue;
    const auto differ = [&](absl::string_view field, const auto& x, const auto& y) {
      const bool is_plural = field == "layouts" || field == "counts";
      const bool says_both = field == "layouts" || field == "operation";
      const std::string label = label_of(a);
      const std::string x_text = absl::StrCat(x);
      const std::string y_text = absl::StrCat(y);
      // Entries have room for so much of a text.
      const bool is_cut = x_text == y_text;
      return absl::InvalidArgumentError(absl::StrCat(
          says_both ? name_of(label) : label, ": ", field, is_plural ? " differ" : " differs",
          " between clients: ", link_->member(members_[first].client_id).to_string(), " device ",
          members_[first].device_id, " has ", x_text, ", ",
          link_->member(members_[m].client_id).to_string(), " device ", members_[m].device_id,
          " has ", y_text, is_cut ? ", which differ in what is left out here" : "",
          "; it is operation ", op.seq, " of the group; make the same call on every client"));
    };
    const Signature& x = a.signature;
    const Signature& y = b.signature;
    if (x.kind != y.kind) return differ("operation", label_of(a), label_of(b));
    if (x.dtype != y.dtype) return differ("dtype", dtype_name(x.dtype), dtype_name(y.dtype));
    if (x.reduction != y.reduction) {
      return differ("reduction", reduce_op_name(x.reduction), reduce_op_name(y.reduction));
    }
    if (x.root != y.root) return differ("root", x.root, y.root);
    if (x.detail_hash != y.detail_hash) {
      return differ(op.detail_field, detail_of(a, size()), detail_of(b, size()));
    }
    if (x.count != y.count) return differ("count", x.count, y.count);
    const auto sharing = [](bool inlined) { return inlined ? "none" : "some"; };
    return differ("sharing of outputs", sharing(x.inlined), sharing(y.inlined));
  }
  return absl::OkStatus();
}

std::string Rendezvous::label_of(const Signature& signature,
                                 absl::Span<const int32_t> device_ids) const {
  return default_label(signature.kind, signature.dtype, signature.reduction, signature.count,
                       device_ids);
}

std::string Rendezvous::label_of(const Op& op) const {
  const bool has_label = op.label != nullptr && !op.label->empty();
  return has_label ? op.label->to_string() : label_of(op.signature, ids_of(block_));
}

std::string Rendezvous::label_of(const MemberEntry& entry) const {
  if (entry.label_size != 0) return read_text(entry.label, kLabelBytes);
  return label_of(entry.signature, ids_of(block_));
}

ActivitySnapshot Rendezvous::last_seen(int client, int ordinal) const {
  ActivitySnapshot seen = read_activity(activity_slot(link_->control(client), ordinal));
  if (seen.has_label) return seen;
  int32_t own_id = ordinal;
  for (int i = 0; i < client; ++i) own_id += link_->member(i).num_local_devices;
  std::vector<int32_t> ids;
  // A torn snapshot may have an invalid offset, which is not followed.
  if (seen.consistent && seen.block_offset != 0) ids = ids_in(seen);
  if (seen.consistent && seen.block_offset == 0) ids = {own_id};
  seen.label = default_label(seen.op, seen.dtype, seen.reduction, seen.count, ids);
  return seen;
}

int Rendezvous::client_of(int device_id) const {
  int client = 0;
  for (int first = 0; client + 1 < link_->num_clients(); ++client) {
    first += link_->member(client).num_local_devices;
    if (device_id < first) break;
  }
  return client;
}

}  // namespace tessera::host
