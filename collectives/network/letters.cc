// SPDX-License-Identifier: Apache-2.0
#include "collectives/network/letters.h"

#include <utility>

#include "absl/types/span.h"

namespace tessera::network {
namespace {

constexpr Tag kLetters = 0;

// Far above what a group of any size sends.
constexpr uint64_t kMostBodyBytes = uint64_t{1} << 30;

}  // namespace

void Letters::open(int client) {
  auto incoming = std::make_shared<Incoming>();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!open_.emplace(client, incoming).second) return;
  }
  read_envelope(client, incoming);
}

void Letters::read_envelope(int client, const std::shared_ptr<Incoming>& incoming) {
  const auto bytes =
      absl::MakeSpan(reinterpret_cast<std::byte*>(&incoming->envelope), sizeof(incoming->envelope));
  engine_.receive(client, kLetters, bytes, incoming,
                  [this, client, incoming](const Status& status) {
                    if (status.ok()) return read_body(client, incoming);
                    // The client is lost, or the engine has stopped.
                    std::lock_guard<std::mutex> lock(mutex_);
                    open_.erase(client);
                  });
}

void Letters::read_body(int client, const std::shared_ptr<Incoming>& incoming) {
  const Envelope& envelope = incoming->envelope;
  incoming->letter = {envelope.kind, envelope.seq, envelope.group, envelope.from, envelope.to, {}};
  if (envelope.body_bytes > kMostBodyBytes) {
    return engine_.cut(client, absl::InternalError("a letter of another protocol"));
  }
  const auto end = [this, client, incoming](const Status& status) {
    if (status.ok()) deliver(std::move(incoming->letter));
    // Also after an error: it ends with the error of the next envelope.
    read_envelope(client, incoming);
  };
  if (envelope.body_bytes == 0) return end(absl::OkStatus());
  incoming->letter.body.resize(envelope.body_bytes);
  engine_.receive(client, kLetters, absl::MakeSpan(incoming->letter.body), incoming, end);
}

void Letters::send(int client, const Letter& letter, Engine::Done done) {
  struct Outgoing {
    Envelope envelope;
    std::vector<std::byte> body;
  };
  auto outgoing = std::make_shared<Outgoing>(
      Outgoing{{letter.kind, letter.seq, letter.group, letter.from, letter.to, letter.body.size()},
               letter.body});
  const auto envelope = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&outgoing->envelope),
                                            sizeof(outgoing->envelope));
  const auto ignore = [](const Status&) {};
  if (done == nullptr) done = ignore;
  std::lock_guard<std::mutex> lock(sending_);
  if (outgoing->body.empty()) {
    engine_.send(client, kLetters, envelope, outgoing, std::move(done));
    return;
  }
  // The body is sent last, or fails as the envelope did.
  engine_.send(client, kLetters, envelope, outgoing, ignore);
  engine_.send(client, kLetters, absl::MakeConstSpan(outgoing->body), outgoing, std::move(done));
}

void Letters::deliver(Letter letter) {
  std::lock_guard<std::mutex> reading(reading_);
  Reader reader;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = readers_.find(letter.group);
    if (it == readers_.end()) {
      early_[letter.group].push_back(std::move(letter));
      return;
    }
    reader = it->second;
  }
  reader(std::move(letter));
}

void Letters::set_reader(uint64_t group, Reader reader) {
  std::lock_guard<std::mutex> reading(reading_);
  std::vector<Letter> early;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    readers_.erase(group);
    if (reader == nullptr) return;
    readers_.emplace(group, reader);
    if (const auto it = early_.find(group); it != early_.end()) {
      early = std::move(it->second);
      early_.erase(it);
    }
  }
  for (Letter& letter : early) reader(std::move(letter));
}

}  // namespace tessera::network
