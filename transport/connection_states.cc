// SPDX-License-Identifier: Apache-2.0
#include "transport/connection_states.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::transport {

ConnectionStates::ConnectionStates(const Coordinator& coordinator, const MakeConnections& make,
                                   Engine::LostListener lost)
    : coordinator_(coordinator), lost_(std::move(lost)), library_(make(coordinator, *this)) {}

ConnectionStates::Peer& ConnectionStates::peer_of(int client) {
  const auto [it, added] = peers_.try_emplace(client);
  if (added) it->second.status = not_connected(client);
  return it->second;
}

Status ConnectionStates::not_connected(int client) const {
  return absl::FailedPreconditionError(
      absl::StrCat("not connected to ", coordinator_.members()[client].to_string()));
}

StatusOr<Offer> ConnectionStates::offer(int client) {
  TESSERA_RETURN_IF_ERROR(end_);
  Peer& peer = peer_of(client);
  if (peer.state == State::kConnected) return Offer{.is_connected = true};
  Offer offer = {.number = peer.number, .num_cuts = peer.num_cuts};
  if (!absl::IsFailedPrecondition(peer.status)) peer.status = not_connected(client);
  TESSERA_ASSIGN_OR_RETURN(offer.text, library_->offer(client, peer.number));
  if (peer.state == State::kNone) peer.state = State::kOffered;
  return offer;
}

void ConnectionStates::meet(int client, const Offer& own, const std::string& peer_text,
                            Engine::Done done) {
  if (!end_.ok()) return done(end_);
  Peer& peer = peer_of(client);
  if (peer.num_cuts != own.num_cuts) return done(peer.status);
  if (peer.state == State::kConnected) return done(absl::OkStatus());
  peer.waiting.push_back(std::move(done));
  if (peer.state == State::kMeeting) return;
  peer.state = State::kMeeting;  // open() may find that the peer is there
  const Status status = library_->open(client, Address::parse(peer_text));
  if (status.ok()) return;
  peer.state = State::kOffered;
  finish_meeting(peer, status);
}

void ConnectionStates::finish_meeting(Peer& peer, const Status& result) {
  for (Engine::Done& waiting : std::exchange(peer.waiting, {})) waiting(result);
}

void ConnectionStates::opened(int client) {
  Peer& peer = peer_of(client);
  if (peer.state != State::kMeeting) return;
  peer.state = State::kConnected;
  finish_meeting(peer, absl::OkStatus());
}

void ConnectionStates::start(Operation::List& from) {
  const Peer& peer = peer_of(from.front().client);
  if (peer.state == State::kConnected) return library_->start(from);
  Operation::List ended;  // destroyed at the end: `done` first, then the keeper
  ended.splice(ended.begin(), from, from.begin());
  ended.front().done(end_.ok() ? peer.status : end_);
}

void ConnectionStates::cut(int client, const Status& reason) {
  Peer& peer = peer_of(client);
  if (peer.state == State::kMeeting || peer.state == State::kConnected) {
    close(client, peer, reason);
  } else if (absl::IsFailedPrecondition(peer.status)) {  // else the first reason counts
    peer.status = reason;
    ++peer.num_cuts;
  }
}

void ConnectionStates::broken(int client, const Status& reason) {
  Peer& peer = peer_of(client);
  if (peer.state == State::kNone) return;
  const bool was_connected = peer.state == State::kConnected;
  close(client, peer, reason);
  if (was_connected) lost_(client, reason);
}

void ConnectionStates::close(int client, Peer& peer, const Status& reason) {
  peer.status = reason;
  ++peer.num_cuts;
  ++peer.number;
  peer.state = State::kNone;
  library_->close(client, reason);
  finish_meeting(peer, reason);
}

void ConnectionStates::end(const Status& reason) {
  end_ = reason;
  for (auto& [client, peer] : peers_) {
    cut(client, reason);
    peer.state = State::kNone;
  }
  library_->end();
}

}  // namespace tessera::transport
