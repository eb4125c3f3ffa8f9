// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/connections.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/text.h"

namespace tessera::ucx {
namespace {

// A tag of UCX: the sender's client id, 23 bits; whether it is a greeting, one bit; 40 bits.
constexpr int kTagBits = 40;
constexpr uint64_t kGreeting = uint64_t{1} << kTagBits;
constexpr int kClientShift = kTagBits + 1;
static_assert(transport::kNumTags == uint64_t{1} << kTagBits);

// Rounds of progress in which forced ends have to be reported; what is left is an orphan.
constexpr int kEndRounds = 64;
// Rounds of progress before the engine looks for new submissions.
constexpr int kRounds = 16;

}  // namespace

Connections::Connections(const Coordinator& coordinator, std::string interface, Site& site)
    : coordinator_(coordinator), interface_(std::move(interface)), site_(site) {}

Connections::~Connections() { TESSERA_CHECK(slots_.empty(), "connections end without end()"); }

Connections::Peer& Connections::peer_of(int client) {
  const auto [it, added] = peers_.try_emplace(client);
  if (added) {
    it->second.owner = this;
    it->second.client = client;
  }
  return it->second;
}

std::string Connections::name_of(int client) const {
  return coordinator_.members()[client].to_string();
}

// --- Connecting.

StatusOr<Connections::Slot*> Connections::untainted_slot() {
  for (Slot& slot : slots_) {
    if (!slot.is_tainted) return &slot;
  }
  if (context_ == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(context_, Context::create(interface_));
  }
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, Worker::create(context_));
  slots_.emplace_back().worker = std::move(worker);
  return &slots_.back();
}

void Connections::release_slot(Peer& peer) {
  Slot* const slot = std::exchange(peer.slot, nullptr);
  if (--slot->num_users > 0 || !slot->is_tainted) return;
  slots_.remove_if([&](const Slot& other) { return &other == slot; });
}

StatusOr<std::string> Connections::offer(int client, uint64_t number) {
  keep_messages_of_this_thread();
  Peer& peer = peer_of(client);
  if (peer.slot == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(peer.slot, untainted_slot());
    ++peer.slot->num_users;
  }
  peer.number = number;
  return absl::StrCat(absl::BytesToHexString(peer.slot->worker->address()), " ", context_->place());
}

Status Connections::open(int client, const transport::Address& address) {
  keep_messages_of_this_thread();
  Peer& peer = peer_of(client);
  peer.place = address.place;
  TESSERA_RETURN_IF_ERROR(open_endpoint(peer, bytes_of_hex(address.word).value_or("")));
  greet(peer);
  return absl::OkStatus();
}

Status Connections::open_endpoint(Peer& peer, const std::string& address) {
  const UcxApi& api = context_->api();
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = on_error, .arg = &peer};
  const ucs_status_t status =
      api.ucp_ep_create(peer.slot->worker->handle(), &params, &peer.endpoint);
  if (status == UCS_OK) return absl::OkStatus();
  peer.endpoint = nullptr;
  return absl::UnavailableError(
      describe_error(api,
                     absl::StrCat(name_of(peer.client), " at ", peer.place,
                                  " cannot be reached from ", context_->place()),
                     status));
}

// Both ends send the number of the connection; when one has both sent and received, the way is open
// in both directions.
void Connections::greet(Peer& peer) {
  peer.greeting_out = peer.number;
  peer.num_greetings = 0;
  for (const Direction direction : {Direction::kReceive, Direction::kSend}) {
    Operation::List list(1);
    Operation& operation = list.front();
    operation.direction = direction;
    operation.client = peer.client;
    operation.bytes = reinterpret_cast<std::byte*>(
        direction == Direction::kSend ? &peer.greeting_out : &peer.greeting_in);
    operation.num_bytes = sizeof peer.greeting_in;
    operation.done = [this, &peer, number = peer.number](const Status& status) {
      take_greeting(peer, number, status);
    };
    hand_over(peer, list, kGreeting | peer.number);
  }
}

void Connections::take_greeting(Peer& peer, uint64_t number, const Status& status) {
  if (!status.ok() || peer.number != number || peer.endpoint == nullptr) return;
  if (++peer.num_greetings == 2) site_.opened(peer.client);
}

// --- Messages.

void Connections::start(Operation::List& from) {
  const Operation& operation = from.front();
  hand_over(peer_of(operation.client), from, operation.tag);
}

void Connections::hand_over(Peer& peer, Operation::List& from, uint64_t tag) {
  peer.pending.splice(peer.pending.end(), from, from.begin());
  Operation& operation = peer.pending.back();
  operation.owner = this;
  operation.home = &peer.pending;
  operation.self = std::prev(peer.pending.end());

  const UcxApi& api = context_->api();
  const auto tag_of = [&](int sender) {
    return static_cast<uint64_t>(sender) << kClientShift | tag;
  };
  ucp_request_param_t params = {};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.user_data = &operation;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  ucs_status_ptr_t request;
  handed_over_ = &operation;
  if (operation.direction == Direction::kSend) {
    params.cb.send = on_sent;
    request = api.ucp_tag_send_nbx(peer.endpoint, operation.bytes, operation.num_bytes,
                                   tag_of(coordinator_.client_id()), &params);
  } else {
    params.cb.recv = on_received;
    // UCX 1.13 does not say how long a message is whose receive completes at once. With the flag
    // the callback runs inside the call, and is told.
    params.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    request = api.ucp_tag_recv_nbx(peer.slot->worker->handle(), operation.bytes,
                                   operation.num_bytes, tag_of(peer.client), ~uint64_t{0}, &params);
  }
  const bool has_finished = std::exchange(handed_over_, nullptr) == nullptr;
  if (!UCS_PTR_IS_PTR(request)) {
    if (!has_finished) finish(operation, UCS_PTR_STATUS(request), operation.num_bytes);
  } else if (has_finished) {
    api.ucp_request_free(request);
  } else {
    operation.request = request;
  }
}

void Connections::on_sent(void*, ucs_status_t status, void* user_data) {
  Operation& operation = *static_cast<Operation*>(user_data);
  static_cast<Connections*>(operation.owner)->finish(operation, status, operation.num_bytes);
}

void Connections::on_received(void*, ucs_status_t status, const ucp_tag_recv_info_t* info,
                              void* user_data) {
  Operation& operation = *static_cast<Operation*>(user_data);
  static_cast<Connections*>(operation.owner)
      ->finish(operation, status, status == UCS_OK ? info->length : 0);
}

void Connections::finish(Operation& operation, ucs_status_t status, size_t num_bytes) {
  if (handed_over_ == &operation) handed_over_ = nullptr;
  if (operation.request != nullptr) context_->api().ucp_request_free(operation.request);
  Operation::List ended;  // destroyed at the end: `done` first, then the keeper
  ended.splice(ended.begin(), *operation.home, operation.self);
  if (operation.done) operation.done(result_of(operation, status, num_bytes));
}

Status Connections::result_of(const Operation& operation, ucs_status_t status, size_t num_bytes) {
  if (!operation.forced_end.ok()) return operation.forced_end;
  const bool is_receive = operation.direction == Direction::kReceive;
  const bool has_size = !is_receive || num_bytes == operation.num_bytes;
  if (status == UCS_OK && has_size) return absl::OkStatus();
  if (status == UCS_OK || (status == UCS_ERR_MESSAGE_TRUNCATED && is_receive)) {
    return transport::wrong_size(name_of(operation.client), operation,
                                 status == UCS_OK ? absl::StrCat(num_bytes) : "more");
  }
  return note_broken(peer_of(operation.client), status);
}

// --- Ends.

void Connections::on_error(void* user_data, ucp_ep_h endpoint, ucs_status_t status) {
  Peer& peer = *static_cast<Peer*>(user_data);
  if (peer.endpoint != endpoint) return;  // closed already
  (void)peer.owner->note_broken(peer, status);
}

void Connections::on_closed(void* request, ucs_status_t, void* connections) {
  static_cast<Connections*>(connections)->context_->api().ucp_request_free(request);
}

Status Connections::note_broken(Peer& peer, ucs_status_t status) {
  if (peer.broken.ok()) {
    peer.broken = absl::UnavailableError(
        describe_error(context_->api(),
                       absl::StrCat("the connection to ", name_of(peer.client), " at ", peer.place,
                                    " from ", context_->place(), " is broken"),
                       status));
    any_broken_ = true;
  }
  return peer.broken;
}

void Connections::tell_broken() {
  if (!std::exchange(any_broken_, false)) return;
  for (auto& [client, peer] : peers_) {
    if (const Status reason = std::exchange(peer.broken, absl::OkStatus()); !reason.ok()) {
      site_.broken(client, reason);
    }
  }
}

void Connections::close(int client, const Status& reason) {
  Peer& peer = peer_of(client);
  peer.broken = absl::OkStatus();
  if (peer.endpoint != nullptr) {
    peer.slot->is_tainted = true;
    close_endpoint(peer, reason);
    end_pending(peer, reason);
  }
  release_slot(peer);
}

void Connections::close_endpoint(Peer& peer, const Status& reason) {
  ucp_request_param_t params = {};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  params.cb.send = on_closed;
  params.user_data = this;
  for (Operation& operation : peer.pending) operation.forced_end = reason;
  // An error leaves the endpoint to the worker, which is destroyed in any case.
  (void)context_->api().ucp_ep_close_nbx(std::exchange(peer.endpoint, nullptr), &params);
}

void Connections::end_pending(Peer& peer, const Status& reason) {
  Worker& worker = *peer.slot->worker;
  // The callback of a cancelled receive runs here or in progress(), and removes it from the list.
  std::vector<void*> receives;
  for (const Operation& operation : peer.pending) {
    if (operation.direction == Direction::kReceive) receives.push_back(operation.request);
  }
  for (void* const request : receives) {
    context_->api().ucp_request_cancel(worker.handle(), request);
  }
  for (int i = 0; i < kEndRounds && !peer.pending.empty(); ++i) worker.progress();
  while (!peer.pending.empty()) {
    Operation& operation = peer.pending.front();
    operation.home = &peer.slot->orphans;
    peer.slot->orphans.splice(peer.slot->orphans.end(), peer.pending, operation.self);
    std::exchange(operation.done, nullptr)(reason);
  }
}

void Connections::end() {
  for (auto& [client, peer] : peers_) peer.slot = nullptr;
  slots_.clear();
  context_.reset();
}

void Connections::abandon() {
  // Operations and keepers are the parent's as well: releasing them could unmap shared memory.
  auto* const leaked_slots = new std::list<Slot>(std::move(slots_));
  slots_.clear();
  auto* const leaked_peers = new std::map<int, Peer>(std::move(peers_));
  auto* const leaked_context = new std::shared_ptr<const Context>(std::move(context_));
  (void)leaked_slots, (void)leaked_peers, (void)leaked_context;
}

// --- Progress.

bool Connections::progress() {
  // Any thread that waits does the engine's work.
  keep_messages_of_this_thread();
  bool any = false;
  for (Slot& slot : slots_) {
    for (int i = 0; i < kRounds && slot.worker->progress(); ++i) any = true;
  }
  tell_broken();
  return any;
}

bool Connections::arm() {
  return std::all_of(slots_.begin(), slots_.end(),
                     [](const Slot& slot) { return slot.worker->arm(); });
}

void Connections::append_descriptors(std::vector<pollfd>& descriptors) const {
  for (const Slot& slot : slots_) {
    descriptors.push_back({.fd = slot.worker->event_fd(), .events = POLLIN, .revents = 0});
  }
}

}  // namespace tessera::ucx
