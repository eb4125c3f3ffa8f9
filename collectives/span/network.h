// SPDX-License-Identifier: Apache-2.0
//
// Network: the connection of a client with clients of other hosts, for all of its groups, which
// keep it: the engine, letters, the state of connections, clients that do not answer, and the
// reports of long waits.
//
// Thread-safe.
#ifndef TESSERA_COLLECTIVES_SPAN_NETWORK_H_
#define TESSERA_COLLECTIVES_SPAN_NETWORK_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/host/conflicts.h"
#include "collectives/host/group_records.h"
#include "collectives/host/rendezvous.h"
#include "collectives/span/letters.h"
#include "collectives/span/long_waits.h"
#include "collectives/span/reach.h"
#include "job/coordinator/coordinator.h"
#include "job/coordinator/device_wait.h"
#include "job/coordinator/id_ranges.h"
#include "shm/host_link.h"
#include "transport/engine.h"
#include "transport/links.h"

namespace tessera::span {

// The members for which a run of a group over several hosts waits.
struct GroupWait {
  std::vector<shm::GroupMember> members;
  std::vector<bool> awaited;  // by member
  bool all_arrived = false;   // the bytes of the awaited members are awaited
};

// A group over several hosts, as Links and LongWaits see it. Its functions are called under the
// lock under which it is removed; they must not block.
class WaitingGroup {
 public:
  // The run in which a device of this client waits for others to arrive. Nothing for a run that has
  // ended or misses no member, and while the device is arriving.
  virtual std::optional<LocalWait> wait_of(int device) = 0;
  // Whether a device of this client has arrived in the run, which may be over.
  virtual bool has_arrived(int device, uint32_t seq) = 0;
  // Whether `on_host` is the group of this group's members on this host.
  virtual bool has_part(const host::GroupRecords& on_host) const = 0;
  // Ends the run if the device waits in it. It then takes `next`, and calls it when the run has its
  // verdict. `is_held`: the device begins nothing else until release(), for five seconds at most.
  virtual void end(const DeviceWait& wait, const Status& error, bool is_held,
                   std::function<void()>& next) = 0;
  virtual void release(const DeviceWait& wait) = 0;
  // As the functions of Links::Site with these names.
  virtual void connection_broke(int client, uint64_t number) = 0;
  virtual void connection_is_up(int client) = 0;
  // For reports of long waits.
  virtual GroupWait awaited_in(uint32_t seq) = 0;

 protected:
  ~WaitingGroup() = default;
};

class Network final : private LongWaits::Site, private transport::Links::Site {
 public:
  // No run uses the coordinator after the client's end. `link`: of this client; null where no group
  // of the host's devices exists. `heartbeat_interval`: of the job. `word`: see Letters.
  Network(std::unique_ptr<transport::Engine> own_engine, Coordinator& job,
          shm::HostLink* link = nullptr, absl::Duration heartbeat_interval = absl::Seconds(1),
          uint64_t word = 0);
  // Calls stop(), because the engine still receives for the letters.
  ~Network() override;
  // Ends the engine and the work on threads of the network. Afterwards no letter is read and the
  // coordinator is not used. Idempotent.
  void stop();

  // The tag of the next block that this client asks for. The first tag is derived from the word: a
  // process that does not know the word cannot send a block in the place of another client.
  transport::Tag take_tag() {
    return transport::kFirstTagOfRuns +
           next_tag_++ % (transport::kNumTags - transport::kFirstTagOfRuns);
  }
  transport::Links& links() { return links_; }
  // Notes that a block has arrived from the client, or has been sent to it.
  void note_contact(int client);
  // Unavailable where one of these clients, from which a run awaits bytes or letters, does not
  // answer (Reach). Asks them; must be called repeatedly while the run waits.
  Status find_unreachable(absl::Span<const int> clients);

  // By the name of the group. After its removal it is not called any more.
  void add_group(uint64_t name, WaitingGroup& group);
  void remove_group(uint64_t name, const WaitingGroup& group);
  // Notes that a device of this client has waited for kLongWait. Must be called repeatedly while it
  // waits.
  void note_long_wait() { long_waits_.note(); }
  // The members for which an operation waits in which members on this host wait. Nothing where its
  // group is only on this host, or has no member of this client.
  std::optional<GroupWait> awaited(const host::OperationWait& wait);
  // Asks the clients of devices on other hosts for the devices' activities
  // (host::describe_doing()). Returns the answers that arrived by the limit, by device. Blocks.
  std::map<int, std::string> ask_doing(absl::Span<const int> devices, absl::Duration limit);
  // The error of devices that wait for each other.
  Status describe_circle(absl::Span<const DeviceWait> circle) const;

  const std::unique_ptr<transport::Engine> engine;
  Letters letters;
  Coordinator& coordinator;

 private:
  std::vector<LocalWait> waits() override;
  bool confirms(const std::vector<DeviceWait>& pairs) override;
  void await_verdict(const DeviceWait& ended) override;
  void end(const DeviceWait& wait, const std::vector<DeviceWait>& named, bool is_held,
           std::function<void()> next) override;
  void release(const DeviceWait& wait) override;
  bool is_lost(int client) override;
  void connection_broke(int client, uint64_t number) override;
  void reopen_letters(int client) override { letters.open(client); }
  void connection_is_up(int client) override;
  void read(const Letter& letter);
  void answer_doing(const Letter& question);
  void note_doing(const Letter& answer);
  std::optional<LocalWait> wait_of(const shm::GroupMember& device);
  // The known devices of a list.
  std::vector<shm::GroupMember> devices_in(absl::Span<const IdRanges::Range> list) const;
  bool is_own(const shm::GroupMember& device) const {
    return device.client_id == coordinator.client_id();
  }
  // `kind`: a letter from client to client. `device`: the device that it is about, if any.
  void send(int client, Letter::Kind kind, uint32_t seq = 0, int device = 0,
            std::vector<std::byte> body = {});
  // Null for an id that no device has.
  const shm::GroupMember* find_device(int device) const;

  shm::HostLink* const link_;
  bool listens_;                           // to the link, until stop()
  std::vector<shm::GroupMember> devices_;  // of the job, by id
  std::atomic<transport::Tag> next_tag_;
  std::mutex mutex_;  // guards reach_
  Reach reach_;
  std::mutex groups_mutex_;                   // guards groups_; before the locks of a group
  std::map<uint64_t, WaitingGroup*> groups_;  // by name
  std::mutex doing_mutex_;                    // guards the members below
  std::condition_variable answered_;
  uint32_t last_question_ = 0;
  // The answers to the questions of ask_doing(): by question, and by device.
  std::map<uint32_t, std::map<int, std::string>> doing_;
  LongWaits long_waits_;
  transport::Links links_;  // ends first
};

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_NETWORK_H_
