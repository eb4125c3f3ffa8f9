// SPDX-License-Identifier: Apache-2.0
#include "transport/gloo/gloo_engine.h"

#include <dlfcn.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/system_call.h"
#include "base/text.h"
#include "base/thread.h"
#include "job/environment/file_descriptor.h"
#include "transport/carrier.h"
#include "transport/packet_connections.h"
#include "transport/threaded_engine.h"

namespace tessera::gloo {
namespace {

using transport::kMostPacketBytes;
using transport::Packet;
namespace lib = ::gloo::transport;

// Packets of each direction that are under way with one client at a time.
constexpr size_t kMostUnderWay = 4;
// Gloo's time limit of a wait; the coordinator's losses and our deadlines end waits earlier.
constexpr auto kNoLimit = std::chrono::hours(24);

// Gloo writes to its sockets without MSG_NOSIGNAL. This object blocks SIGPIPE in its thread, and in
// threads that it starts, and discards a pending SIGPIPE at its end.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  ~WithoutSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec now = {};
    while (sigtimedwait(&sigpipe_, nullptr, &now) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t sigpipe_;
  sigset_t before_;
};

// Calls Gloo, and returns its exceptions as Unavailable.
template <class Call>
Status guarded(Call call) {
  try {
    call();
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("Gloo: ", e.what()));
  }
  return absl::OkStatus();
}

// The one function that is called by its name; all others are virtual.
using CreateDevice = decltype(&lib::tcp::CreateDevice);

StatusOr<CreateDevice> load(const std::string& name) {
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* const error = library == nullptr ? dlerror() : nullptr;
  void* const function = library == nullptr
                             ? nullptr
                             : dlsym(library, "_ZN4gloo9transport3tcp12CreateDeviceERKNS1_4attrE");
  if (function != nullptr) return reinterpret_cast<CreateDevice>(function);
  return absl::UnimplementedError(absl::StrCat(
      "no Gloo: ", error != nullptr ? error : absl::StrCat(name, " has no CreateDevice()"),
      "; backend \"gloo\" between hosts needs the Gloo of the build: install libgloo0, or set "
      "LD_LIBRARY_PATH to where it is"));
}

struct Transfer {
  Packet packet;
  std::unique_ptr<lib::UnboundBuffer> buffer = {};  // ends before its memory
};

// A pair of Gloo, from its offer on. Only a thread that waits for a buffer learns of the end of its
// transfer, and a wait that times out ends the pair: so one thread waits for receives, and one for
// sends.
class Line {
 public:
  // Listens for the peer, which has rank `peer_rank` of two. `event`, which must outlive it, is
  // written to when there is something to take, or room again.
  static StatusOr<std::unique_ptr<Line>> create(lib::Device& device, int peer_rank,
                                                const FileDescriptor& event);
  Line(const Line&) = delete;
  // Without regard to the peer. Afterwards nothing of Gloo uses the packets.
  ~Line();

  const lib::Address& address() const { return pair_->address(); }
  // Starts to connect. At most once.
  Status open(std::vector<char> peer_address);
  bool has_room() const;
  // Drops the packet where the peer is not reached.
  void send(Packet packet);
  // Adds the packets that have arrived. Returns the error that has ended the connection.
  Status take(std::vector<Packet>& arrived);

 private:
  explicit Line(const FileDescriptor& event) : event_(event) {}
  void tell() const { eventfd_write(event_.get(), 1); }
  Status start(const char* what, Thread& thread, Status (Line::*body)());
  // The bodies of the two threads. An error of one ends both.
  Status receive_all();
  Status send_all();
  StatusOr<Transfer> post_receive(uint64_t number);
  // Waits for what Gloo does with the buffer.
  Status wait(lib::UnboundBuffer& buffer, lib::UnboundBuffer*& waiting,
              bool (lib::UnboundBuffer::*wait)());

  const FileDescriptor& event_;
  std::shared_ptr<lib::Context> context_;
  lib::Pair* pair_ = nullptr;  // the context's
  int peer_rank_ = 0;
  std::vector<char> peer_address_;
  Thread receiver_;
  Thread sender_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  int num_running_ = 0;  // threads
  bool is_connected_ = false;
  Status error_;
  std::deque<Packet> to_send_;
  std::vector<Packet> arrived_;
  lib::UnboundBuffer* in_receive_ = nullptr;  // what the threads wait for
  lib::UnboundBuffer* in_send_ = nullptr;
};

StatusOr<std::unique_ptr<Line>> Line::create(lib::Device& device, int peer_rank,
                                             const FileDescriptor& event) {
  std::unique_ptr<Line> line(new Line(event));
  line->peer_rank_ = peer_rank;
  TESSERA_RETURN_IF_ERROR(guarded([&] {
    line->context_ = device.createContext(1 - peer_rank, 2);
    line->context_->setTimeout(kNoLimit);
    line->pair_ = line->context_->createPair(peer_rank).get();
  }));
  return line;
}

Line::~Line() {
  std::unique_lock<std::mutex> lock(mutex_);
  error_.Update(absl::CancelledError("closed"));
  // Again, because a thread may have been about to wait.
  while (num_running_ > 0) {
    changed_.notify_all();
    if (in_receive_ != nullptr) in_receive_->abortWaitRecv();
    if (in_send_ != nullptr) in_send_->abortWaitSend();
    lock.unlock();
    (void)guarded([&] { pair_->close(); });
    std::this_thread::yield();
    lock.lock();
  }
  lock.unlock();
  if (receiver_.joinable()) receiver_.join();
  if (sender_.joinable()) sender_.join();
  if (pair_ != nullptr) (void)guarded([&] { pair_->close(); });
}

Status Line::start(const char* what, Thread& thread, Status (Line::*body)()) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(thread, start_thread(what, [this, body] {
                             const WithoutSigpipe guard;
                             const Status ended = (this->*body)();
                             std::lock_guard<std::mutex> at_end(mutex_);
                             error_.Update(ended);
                             --num_running_;
                             changed_.notify_all();
                             tell();
                           }));
  ++num_running_;
  return absl::OkStatus();
}

Status Line::open(std::vector<char> peer_address) {
  peer_address_ = std::move(peer_address);
  TESSERA_RETURN_IF_ERROR(start("what another host sends", receiver_, &Line::receive_all));
  return start("what goes to another host", sender_, &Line::send_all);
}

Status Line::wait(lib::UnboundBuffer& buffer, lib::UnboundBuffer*& waiting,
                  bool (lib::UnboundBuffer::*wait)()) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    TESSERA_RETURN_IF_ERROR(error_);
    waiting = &buffer;
  }
  bool is_done = false;
  const Status status = guarded([&] { is_done = (buffer.*wait)(); });
  std::lock_guard<std::mutex> lock(mutex_);
  waiting = nullptr;
  return is_done ? status : status.ok() ? error_ : status;
}

// Posts a packet of the largest size, which Gloo fills with the peer's next packet.
StatusOr<Transfer> Line::post_receive(uint64_t number) {
  Transfer transfer = {.packet = Packet::of_size(kMostPacketBytes)};
  TESSERA_RETURN_IF_ERROR(guarded([&] {
    transfer.buffer =
        context_->createUnboundBuffer(transfer.packet.bytes.get(), transfer.packet.num_bytes);
    transfer.buffer->recv(peer_rank_, number);
  }));
  return transfer;
}

Status Line::receive_all() {
  TESSERA_RETURN_IF_ERROR(guarded([&] { pair_->connect(peer_address_); }));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_connected_ = true;
    changed_.notify_all();
    tell();
  }
  std::deque<Transfer> posted;
  for (uint64_t number = 0;; ++number) {
    TESSERA_ASSIGN_OR_RETURN(Transfer transfer, post_receive(number));
    posted.push_back(std::move(transfer));
    if (posted.size() < kMostUnderWay) continue;
    TESSERA_RETURN_IF_ERROR(
        wait(*posted.front().buffer, in_receive_, &lib::UnboundBuffer::waitRecv));
    posted.front().buffer.reset();
    std::lock_guard<std::mutex> lock(mutex_);
    arrived_.push_back(std::move(posted.front().packet));
    posted.pop_front();
    tell();
  }
}

Status Line::send_all() {
  for (uint64_t number = 0;; ++number) {
    Transfer transfer;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return !error_.ok() || (is_connected_ && !to_send_.empty()); });
      TESSERA_RETURN_IF_ERROR(error_);
      transfer.packet = std::move(to_send_.front());
      if (to_send_.size() == kMostUnderWay) tell();
      to_send_.pop_front();
    }
    TESSERA_RETURN_IF_ERROR(guarded([&] {
      transfer.buffer =
          context_->createUnboundBuffer(transfer.packet.bytes.get(), transfer.packet.num_bytes);
      transfer.buffer->send(peer_rank_, number);
    }));
    TESSERA_RETURN_IF_ERROR(wait(*transfer.buffer, in_send_, &lib::UnboundBuffer::waitSend));
  }
}

bool Line::has_room() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return error_.ok() && is_connected_ && to_send_.size() < kMostUnderWay;
}

void Line::send(Packet packet) {
  std::lock_guard<std::mutex> lock(mutex_);
  to_send_.push_back(std::move(packet));
  changed_.notify_all();
}

Status Line::take(std::vector<Packet>& arrived) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Packet& packet : std::exchange(arrived_, {})) arrived.push_back(std::move(packet));
  return error_;
}

// Packets by lines. A pair has two ranks: the client with the lower id is 0.
class GlooCarrier : public transport::Carrier {
 public:
  GlooCarrier(const Coordinator& coordinator, GlooOptions options)
      : coordinator_(coordinator), options_(std::move(options)) {}

  StatusOr<std::string> offer(int client) override;
  Status open(int client, const transport::Address& peer) override;
  bool has_room(int client) const override {
    const auto found = lines_.find(client);
    return found != lines_.end() && found->second->has_room();
  }
  void send(int client, Packet packet) override { lines_.at(client)->send(std::move(packet)); }
  void close(int client) override { lines_.erase(client); }
  void end() override {
    lines_.clear();
    device_.reset();
  }
  void abandon() override {
    (void)new auto(std::move(lines_));
    (void)new auto(std::move(device_));
  }
  bool progress(Sink& sink) override;
  void append_descriptors(std::vector<pollfd>& descriptors) const override {
    if (event_.is_open())
      descriptors.push_back({.fd = event_.get(), .events = POLLIN, .revents = 0});
  }

 private:
  Status open_device();

  const Coordinator& coordinator_;
  const GlooOptions options_;
  std::shared_ptr<lib::Device> device_;         // null before the first offer
  FileDescriptor event_;                        // of the lines; open as long as the device is
  std::map<int, std::unique_ptr<Line>> lines_;  // by client
};

Status GlooCarrier::open_device() {
  if (device_ != nullptr) return absl::OkStatus();
  event_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_.is_open()) return no_resource("an event for Gloo");
  TESSERA_ASSIGN_OR_RETURN(const CreateDevice create_device, load(options_.library));
  lib::tcp::attr attributes;
  attributes.iface = options_.interface;
  const WithoutSigpipe guard;  // of Gloo's thread too
  const Status opened = guarded([&] { device_ = create_device(attributes); });
  if (opened.ok()) return opened;
  return absl::InvalidArgumentError(absl::StrCat(
      options_.interface.empty()
          ? "no interface is chosen, and the host's own name has no address that Gloo "
            "can use; set TESSERA_INTERFACE"
          : absl::StrCat("Gloo cannot use the interface ", in_quotes(options_.interface)),
      " (", opened.message(), ")"));
}

StatusOr<std::string> GlooCarrier::offer(int client) {
  TESSERA_RETURN_IF_ERROR(open_device());
  auto found = lines_.find(client);
  if (found == lines_.end()) {
    TESSERA_ASSIGN_OR_RETURN(
        std::unique_ptr<Line> line,
        Line::create(*device_, client > coordinator_.client_id() ? 1 : 0, event_));
    found = lines_.emplace(client, std::move(line)).first;
  }
  const lib::Address& address = found->second->address();
  const std::vector<char> bytes = address.bytes();
  return absl::StrCat(absl::BytesToHexString({bytes.data(), bytes.size()}), " ", address.str());
}

Status GlooCarrier::open(int client, const transport::Address& peer) {
  const std::string address = bytes_of_hex(peer.word).value_or("");
  const Status opened = lines_.at(client)->open({address.begin(), address.end()});
  if (!opened.ok()) close(client);
  return opened;
}

bool GlooCarrier::progress(Sink& sink) {
  eventfd_t count;
  // Before the lines are looked at: what comes later is told again.
  if (!event_.is_open() || eventfd_read(event_.get(), &count) != 0) return false;
  std::vector<Packet> arrived;
  std::vector<std::pair<int, Status>> failed;
  for (auto& [client, line] : lines_) {
    const Status error = line->take(arrived);
    if (!error.ok()) failed.emplace_back(client, error);
  }
  for (const Packet& packet : arrived) sink.arrived(packet);
  for (const auto& [client, reason] : failed) {
    // Unless its last packet has said that it is closed.
    if (lines_.contains(client)) sink.broken(client, reason);
  }
  return true;
}

}  // namespace

StatusOr<std::unique_ptr<transport::Engine>> make_gloo_engine(Coordinator& coordinator,
                                                              GlooOptions options) {
  return transport::make_threaded_engine(
      coordinator, {.name = "gloo"},
      [&](const Coordinator& job, transport::Connections::Site& site) {
        return std::make_unique<transport::PacketConnections>(
            job, std::make_unique<GlooCarrier>(job, std::move(options)), site);
      });
}

}  // namespace tessera::gloo
