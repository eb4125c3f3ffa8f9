// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/letters.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/types/span.h"
#include "base/stable_hash.h"

namespace tessera::span {
namespace {

constexpr transport::Tag kLetters = 0;

// Far above the letters of a group of any size.
constexpr uint64_t kMostBodyBytes = uint64_t{1} << 30;

}  // namespace

uint64_t name_of_group(absl::Span<const shm::GroupMember> members, LettersOf letters) {
  std::vector<int32_t> ids;
  for (const shm::GroupMember& member : members) ids.push_back(member.device_id);
  return stable_hash(absl::MakeConstSpan(ids), static_cast<uint64_t>(letters));
}

void Letters::open(int client) {
  auto incoming = std::make_shared<Incoming>();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!open_.emplace(client, incoming).second) return;
  }
  read_page(client, incoming);
}

void Letters::read_page(int client, const std::shared_ptr<Incoming>& incoming) {
  const auto bytes =
      absl::MakeSpan(reinterpret_cast<std::byte*>(&incoming->page), sizeof(incoming->page));
  engine_.receive(client, kLetters, bytes, incoming,
                  [this, client, incoming](const Status& status) {
                    if (status.ok()) return read_rest(client, incoming);
                    // A message that is no page. It may be the rest of a letter whose page was lost
                    // with an older connection.
                    if (absl::IsInternal(status)) return read_page(client, incoming);
                    // The client is lost, or the engine has stopped.
                    std::lock_guard<std::mutex> lock(mutex_);
                    open_.erase(client);
                  });
}

void Letters::read_rest(int client, const std::shared_ptr<Incoming>& incoming) {
  const Envelope& envelope = incoming->page.envelope;
  // The rest of such a letter is no page either, or a page without the word.
  if (envelope.word != word_ || envelope.body_bytes > kMostBodyBytes) {
    return read_page(client, incoming);
  }
  Letter& letter = incoming->letter;
  letter = {envelope.kind, envelope.seq, envelope.group, envelope.from, envelope.to, {}};
  letter.body.resize(envelope.body_bytes);
  const size_t first = std::min(letter.body.size(), sizeof(incoming->page.body));
  if (first > 0) std::memcpy(letter.body.data(), incoming->page.body, first);
  const auto end = [this, client, incoming](const Status& status) {
    if (status.ok()) deliver(client, std::move(incoming->letter));
    // Also after an error: it ends with the error of the next page.
    read_page(client, incoming);
  };
  if (letter.body.size() == first) return end(absl::OkStatus());
  engine_.receive(client, kLetters, absl::MakeSpan(letter.body).subspan(first), incoming, end);
}

void Letters::send(int client, const Letter& letter, transport::Engine::Done done) {
  struct Outgoing {
    Page page;
    std::vector<std::byte> rest;
  };
  auto outgoing = std::make_shared<Outgoing>();
  outgoing->page.envelope = {letter.kind, letter.seq,         letter.group, letter.from,
                             letter.to,   letter.body.size(), word_};
  const size_t first = std::min(letter.body.size(), sizeof(outgoing->page.body));
  if (first > 0) std::memcpy(outgoing->page.body, letter.body.data(), first);
  outgoing->rest.assign(letter.body.begin() + static_cast<std::ptrdiff_t>(first),
                        letter.body.end());
  const auto page = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&outgoing->page),
                                        sizeof(outgoing->page));
  const auto ignore = [](const Status&) {};
  if (done == nullptr) done = ignore;
  std::lock_guard<std::mutex> lock(sending_);
  if (outgoing->rest.empty()) {
    engine_.send(client, kLetters, page, outgoing, std::move(done));
    return;
  }
  // The rest is sent last, or fails as the page did.
  engine_.send(client, kLetters, page, outgoing, ignore);
  engine_.send(client, kLetters, absl::MakeConstSpan(outgoing->rest), outgoing, std::move(done));
}

void Letters::deliver(int client, Letter letter) {
  std::lock_guard<std::mutex> reading(reading_);
  Reader reader;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = readers_.find(letter.group);
    if (it != readers_.end()) {
      reader = it->second;
    } else if (letter.kind != Letter::Kind::kNotYet) {  // an answer to a group that has ended
      early_[letter.group].push_back(letter);
    }
  }
  if (reader != nullptr) {
    reader(std::move(letter));
  } else if (early_listener_ != nullptr) {
    early_listener_(client, letter);
  }
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

}  // namespace tessera::span
