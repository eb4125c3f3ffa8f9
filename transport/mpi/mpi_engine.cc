// SPDX-License-Identifier: Apache-2.0
#include "transport/mpi/mpi_engine.h"

#include <deque>
#include <iterator>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/wait_policy.h"
#include "transport/carrier.h"
#include "transport/packet_connections.h"
#include "transport/threaded_engine.h"

namespace tessera::mpi {
namespace {

using transport::Packet;

// Packets to one client that MPI owns at a time.
constexpr size_t kMostUnderWay = 4;
// Packets that are taken from MPI before the engine looks for new submissions.
constexpr int kMostTaken = 16;
// The greatest tag that every MPI has. A tag tells the clients of one process apart, and more of
// them than this are in no process.
constexpr int kNumTags = 32768;
// Polls without a message after which the thread sleeps longer between them.
constexpr int kPollsOfShortSleep = 2000;

// Packets by MPI. In flight: sends of each client in their order, receives of each rank in theirs.
class MpiCarrier : public transport::Carrier {
 public:
  MpiCarrier(const Coordinator& coordinator, std::shared_ptr<Calls> calls)
      : coordinator_(coordinator), calls_(std::move(calls)) {}
  ~MpiCarrier() override { keep_all(); }

  StatusOr<std::string> offer(int /*client*/) override {
    return absl::StrCat(calls_->rank(), " rank ", calls_->rank(), " of MPI");
  }
  Status open(int client, const transport::Address& peer) override;
  bool has_room(int client) const override {
    const auto found = lines_.find(client);
    return found != lines_.end() && found->second.sends.size() < kMostUnderWay;
  }
  void send(int client, Packet packet) override;
  void close(int client) override;
  void end() override;
  void abandon() override { (void)new std::shared_ptr<Calls>(calls_); }
  bool progress(Sink& sink) override;
  absl::Duration longest_sleep() const override;

 private:
  struct Transfer {
    Packet packet;
    Calls::Request request = 0;
  };
  using Transfers = std::deque<Transfer>;
  struct Line {
    int rank = 0;
    Transfers sends;
    Status error;
  };

  static int tag_of(int client) { return client % kNumTags; }
  // Removes transfers from the front that have ended; appends the packets to `ended`. After an
  // error there are none left.
  Status take_ended(Transfers& transfers, std::vector<Packet>& ended);
  void take_sends();
  Status take_messages();
  void take_received();
  void keep(Transfers& transfers);
  void keep_all();

  const Coordinator& coordinator_;
  const std::shared_ptr<Calls> calls_;
  std::map<int, Line> lines_;          // open ones, by client
  std::list<Transfer> closed_sends_;   // of lines that were closed
  std::map<int, Transfers> receives_;  // by rank
  std::vector<Packet> arrived_;
  int num_empty_polls_ = 0;
};

Status MpiCarrier::open(int client, const transport::Address& peer) {
  int rank = 0;
  if (!absl::SimpleAtoi(peer.word, &rank) || rank < 0 || rank >= calls_->num_ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("client ", client, " is ", peer.place, ", and the communicator of client ",
                     coordinator_.client_id(), " has ", calls_->num_ranks(),
                     " ranks; let all clients of a job adopt one communicator"));
  }
  lines_[client].rank = rank;
  num_empty_polls_ = 0;
  return absl::OkStatus();
}

void MpiCarrier::send(int client, Packet packet) {
  Line& line = lines_.at(client);
  Transfer transfer = {.packet = std::move(packet)};
  const StatusOr<Calls::Request> request = calls_->send(
      line.rank, tag_of(client), {transfer.packet.bytes.get(), transfer.packet.num_bytes});
  if (!request.ok()) return line.error.Update(request.status());
  transfer.request = *request;
  line.sends.push_back(std::move(transfer));
  num_empty_polls_ = 0;
}

void MpiCarrier::close(int client) {
  const auto found = lines_.find(client);
  if (found == lines_.end()) return;
  for (Transfer& transfer : found->second.sends) closed_sends_.push_back(std::move(transfer));
  lines_.erase(found);
}

Status MpiCarrier::take_ended(Transfers& transfers, std::vector<Packet>& ended) {
  while (!transfers.empty()) {
    const StatusOr<bool> is_done = calls_->is_done(transfers.front().request);
    if (!is_done.ok()) {
      keep(transfers);
      return is_done.status();
    }
    if (!*is_done) break;
    ended.push_back(std::move(transfers.front().packet));
    transfers.pop_front();
  }
  return absl::OkStatus();
}

void MpiCarrier::take_sends() {
  std::vector<Packet> sent;
  for (auto& [client, line] : lines_) line.error.Update(take_ended(line.sends, sent));
  // Closed sends go to several peers: a stopped peer does not hold up the others.
  for (auto it = closed_sends_.begin(); it != closed_sends_.end();) {
    const StatusOr<bool> is_done = calls_->is_done(it->request);
    if (!is_done.ok()) calls_->keep(std::move(it->packet.bytes));
    it = is_done.value_or(true) ? closed_sends_.erase(it) : std::next(it);
  }
  if (!sent.empty()) num_empty_polls_ = 0;
}

// Starts to receive the messages that MPI has matched.
Status MpiCarrier::take_messages() {
  for (int i = 0; i < kMostTaken; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<Calls::Arrived> next,
                             calls_->probe(tag_of(coordinator_.client_id())));
    if (!next.has_value()) break;
    Transfer transfer = {.packet = Packet::of_size(next->num_bytes)};
    TESSERA_ASSIGN_OR_RETURN(
        transfer.request,
        calls_->receive(next->message, {transfer.packet.bytes.get(), next->num_bytes}));
    receives_[next->rank].push_back(std::move(transfer));
  }
  return absl::OkStatus();
}

// Moves the received packets to `arrived_`. An error of a rank becomes the error of its clients.
void MpiCarrier::take_received() {
  for (auto it = receives_.begin(); it != receives_.end();) {
    const Status error = take_ended(it->second, arrived_);
    for (auto& [client, line] : lines_) {
      if (line.rank == it->first) line.error.Update(error);
    }
    it = it->second.empty() ? receives_.erase(it) : std::next(it);
  }
}

bool MpiCarrier::progress(Sink& sink) {
  if (lines_.empty() && closed_sends_.empty() && receives_.empty()) return false;
  ++num_empty_polls_;
  take_sends();
  const Status error = take_messages();
  take_received();
  for (const Packet& packet : std::exchange(arrived_, {})) {
    num_empty_polls_ = 0;
    sink.arrived(packet);
  }
  std::vector<std::pair<int, Status>> failed;
  for (auto& [client, line] : lines_) {
    const Status& reason = error.ok() ? line.error : error;
    if (!reason.ok()) failed.emplace_back(client, reason);
  }
  for (const auto& [client, reason] : failed) sink.broken(client, reason);
  return num_empty_polls_ == 0;
}

absl::Duration MpiCarrier::longest_sleep() const {
  if (lines_.empty() && closed_sends_.empty() && receives_.empty()) return absl::InfiniteDuration();
  return absl::Microseconds(num_empty_polls_ < kPollsOfShortSleep ? 20 : 500);
}

void MpiCarrier::end() {
  while (!lines_.empty()) close(lines_.begin()->first);
  // The last packets say that this client goes. Packets that a peer does not receive stay in MPI.
  constexpr int kRounds = 64;
  for (int i = 0; i < kRounds && !closed_sends_.empty(); ++i) {
    take_sends();
  }
  keep_all();
}

void MpiCarrier::keep(Transfers& transfers) {
  for (Transfer& transfer : transfers) calls_->keep(std::move(transfer.packet.bytes));
  transfers.clear();
}

void MpiCarrier::keep_all() {
  for (auto& [client, line] : lines_) keep(line.sends);
  for (auto& [rank, receives] : receives_) keep(receives);
  for (Transfer& transfer : closed_sends_) calls_->keep(std::move(transfer.packet.bytes));
  closed_sends_.clear();
}

}  // namespace

StatusOr<std::unique_ptr<transport::Engine>> make_mpi_engine(Coordinator& coordinator,
                                                             std::shared_ptr<Calls> calls) {
  return transport::make_threaded_engine(
      coordinator, {.name = "mpi", .wait_policy = kNextTask},
      [&](const Coordinator& job, transport::Connections::Site& site) {
        return std::make_unique<transport::PacketConnections>(
            job, std::make_unique<MpiCarrier>(job, std::move(calls)), site);
      });
}

}  // namespace tessera::mpi
