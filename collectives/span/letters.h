// SPDX-License-Identifier: Apache-2.0
//
// Letters: the small messages by which clients on different hosts run the collectives of a group:
// the arrival of a member, the requests of one member to another, and the verdict of a run.
//
//   letters.open(client)             from now on letters of this client are read
//   letters.set_reader(group, ...)   gets the letters of the group, also earlier ones
//   letters.send(client, letter)
//
// Letters from one client to another are read in the order in which they were sent. A letter is
// sent as a message of a fixed size with the start of the body, and a second message of the same
// tag with the rest of it unless that is empty.
//
// Every letter has the word of the job, which is derived from the job token. A letter without it is
// dropped.
// - A process that does not know the token, and cannot read the messages of the clients, cannot
//   forge a letter.
// - Letters of a former job are dropped.
// - The word is no signature: it does not protect from a process that reads or changes the bytes
//   between the hosts.
//
// The engine must be stopped before the letters end: it receives for them.
//
// Thread-safe. Readers are called by the engine's callbacks, one letter at a time; they may send.
#ifndef TESSERA_COLLECTIVES_SPAN_LETTERS_H_
#define TESSERA_COLLECTIVES_SPAN_LETTERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "shm/group_table.h"
#include "transport/engine.h"

namespace tessera::span {

struct Letter {
  enum class Kind : uint32_t {
    kEntry,    // of member `from`: its arrival, to each client
    kEntries,  // by member `from`: arrivals of members of its host, to the client of `to`
    kNotYet,   // of the client of member `from`: it has no such group yet, and showed no entries
    kRequest,  // of member `from` to member `to`: the boxes that it wants
    kVerdict,  // the run has failed with this
    kAsk,      // of member `from`: asks what member `to`'s device does. Its call is the body
    kAnswer,   // of member `from`
    kPing,     // of client `from`: is this client there (Network)?
    kPong,     // of client `from`: yes
    kDoing,    // of client `from`: asks what device `to` does. `seq`: number of the question
    kDoes,     // of client `from`: the answer, as a text
  };

  Kind kind = Kind::kEntry;
  uint32_t seq = 0;    // of the run in its group
  uint64_t group = 0;  // the name of the group
  int32_t from = 0;    // positions in the group
  int32_t to = 0;
  std::vector<std::byte> body;
};

// Groups of the same devices have a separate name for each purpose.
enum class LettersOf : uint64_t { kCollectives = 1, kMessages = 2, kNccl = 3 };
// A name for letters, which all members compute alike.
uint64_t name_of_group(absl::Span<const shm::GroupMember> members, LettersOf letters);

class Letters {
 public:
  using Reader = std::function<void(Letter letter)>;
  // Called for a letter to a group without a reader, which is kept for a later reader.
  using EarlyListener = std::function<void(int client, const Letter& letter)>;

  // The engine must outlive the letters' last use, and must be stopped before the letters are
  // destroyed. `word`: of the job, the same on all clients.
  Letters(transport::Engine& engine, uint64_t word) : engine_(engine), word_(word) {}

  // Idempotent. Requires that the engine is connected to the client.
  void open(int client);
  // Does not block. A letter to a lost client is dropped: the loss ends the waits for an answer.
  // `done`, if there is one, is called as Engine::send() calls its `done`.
  void send(int client, const Letter& letter, transport::Engine::Done done = nullptr);
  // Before open(). Called as a reader is.
  void set_early_listener(EarlyListener listener) { early_listener_ = std::move(listener); }
  // Sets the reader of a group. Null: letters of the group are kept from now on, for the next
  // reader. When this returns the previous reader is not running.
  void set_reader(uint64_t group, Reader reader);

 private:
  struct Envelope {
    Letter::Kind kind;
    uint32_t seq;
    uint64_t group;
    int32_t from;
    int32_t to;
    uint64_t body_bytes;
    uint64_t word;
  };
  // The first message. A letter of a small operation is only this message.
  struct Page {
    Envelope envelope;
    std::byte body[256 - sizeof(Envelope)];
  };
  // The letter that is being read from one client; used only in `done` of the engine.
  struct Incoming {
    Page page;
    Letter letter;
  };

  void read_page(int client, const std::shared_ptr<Incoming>& incoming);
  void read_rest(int client, const std::shared_ptr<Incoming>& incoming);
  void deliver(int client, Letter letter);

  transport::Engine& engine_;
  const uint64_t word_;
  EarlyListener early_listener_;
  std::mutex sending_;                             // so that a body follows its envelope
  std::mutex reading_;                             // held while a reader runs; before mutex_
  std::mutex mutex_;                               // guards the members below
  std::map<int, std::shared_ptr<Incoming>> open_;  // by client
  std::map<uint64_t, Reader> readers_;             // by group
  std::map<uint64_t, std::vector<Letter>> early_;  // of groups without a reader
};

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_LETTERS_H_
