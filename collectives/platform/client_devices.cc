// SPDX-License-Identifier: Apache-2.0
#include "collectives/platform/client_devices.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "collectives/host/device_mover.h"
#include "collectives/host/host_backend.h"
#include "collectives/host/last_seen.h"
#include "collectives/platform/device_waits.h"
#include "collectives/span/network.h"
#include "collectives/span/span_runs.h"
#include "device/completion.h"
#include "device/cpu/arena.h"
#include "device/stream.h"
#include "job/coordinator/coordinator.h"
#include "job/environment/host.h"
#include "job/environment/interface.h"
#include "shm/activity.h"
#include "shm/control.h"
#include "shm/host_link.h"
#include "transport/gloo/gloo_engine.h"
#include "transport/mpi/mpi_engine.h"
#include "transport/ucx/ucx_engine.h"

namespace tessera {
namespace {

// Whether the user has chosen UCX's transports.
bool ucx_is_told() {
  return std::getenv("UCX_NET_DEVICES") != nullptr || std::getenv("UCX_TLS") != nullptr;
}

// The name of the interface that leads to clients of other hosts; empty: the engine chooses,
// because it `is_told`, or because no interface is known to lead there.
StatusOr<std::string> interface_of(const Coordinator& coordinator, const std::vector<int>& others,
                                   bool is_told) {
  const std::string asked = asked_interface();
  const std::string route = coordinator.local_address();
  if (asked.empty() && (is_told || route.empty())) return "";
  TESSERA_ASSIGN_OR_RETURN(const std::vector<NetworkInterface> interfaces, list_interfaces());
  TESSERA_ASSIGN_OR_RETURN(const NetworkInterface chosen,
                           choose_interface(asked, route, interfaces));
  if (!chosen.is_loopback) return chosen.name;
  const MemberInfo& self = coordinator.members()[coordinator.client_id()];
  for (const int other : others) {
    const MemberInfo& member = coordinator.members()[other];
    if (may_share_loopback(self, member)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        self.to_string(), " would use the loopback interface ", chosen.to_string(),
        ", which does not reach ", member.to_string(), "; ",
        asked.empty() ? absl::StrCat("the address of the coordinator leads to ", route,
                                     " here: see /etc/hosts, and give the coordinator a name or an "
                                     "address that other hosts reach")
                      : absl::StrCat("TESSERA_INTERFACE is ", in_quotes(asked)),
        "; this host has ", describe_interfaces(interfaces)));
  }
  return chosen.name;
}

StatusOr<std::unique_ptr<transport::Engine>> make_engine(Coordinator& coordinator,
                                                         const ClientDevicesOptions& options,
                                                         const std::vector<int>& others) {
  if (options.mpi != nullptr) return mpi::make_mpi_engine(coordinator, options.mpi);
  TESSERA_ASSIGN_OR_RETURN(std::string interface,
                           interface_of(coordinator, others, !options.uses_gloo && ucx_is_told()));
  if (options.uses_gloo) {
    return gloo::make_gloo_engine(coordinator, {.interface = std::move(interface)});
  }
  return ucx::make_ucx_engine(coordinator, {.interface = std::move(interface), .wait_policy = {}});
}

}  // namespace

// Half of a control region.
const uint64_t ClientDevices::kGroupBytes = shm::kControlBytes / 2;

ClientDevices::ClientDevices(std::unique_ptr<Platform> platform, std::vector<Device> local)
    : local_(std::move(local)), pool_(ArenaPool::create()), platform_(std::move(platform)) {}

ClientDevices::~ClientDevices() = default;

Status ClientDevices::open_network(Coordinator& coordinator, const ClientDevicesOptions& options,
                                   absl::Time deadline) {
  std::vector<int> others;
  for (const MemberInfo& member : coordinator.members()) {
    if (!link_->members().is_on_host(member.client_id)) others.push_back(member.client_id);
  }
  if (others.empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<transport::Engine> engine,
                           make_engine(coordinator, options, others));
  if (options.wrap_engine != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(engine, options.wrap_engine(std::move(engine)));
  }
  network_ = std::make_shared<span::Network>(std::move(engine), coordinator, link_.get(),
                                             options.heartbeat_interval, options.job_word);
  // All at once, as every client does: what one group needs would wait for another client, which
  // waits in a group of its own.
  TESSERA_RETURN_IF_ERROR(network_->engine->connect_all(others, deadline));
  for (const int client : others) network_->letters.open(client);
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<ClientDevices>> ClientDevices::start(std::unique_ptr<Platform> platform,
                                                              Coordinator& coordinator,
                                                              std::vector<Device> devices,
                                                              const ClientDevicesOptions& options,
                                                              absl::Time deadline) {
  std::vector<Device> local;
  for (const Device& device : devices) {
    if (device.client_id == coordinator.client_id()) local.push_back(device);
  }
  std::unique_ptr<ClientDevices> self(new ClientDevices(std::move(platform), std::move(local)));
  TESSERA_ASSIGN_OR_RETURN(self->link_, shm::HostLink::create(coordinator, self->pool_, deadline));
  TESSERA_ASSIGN_OR_RETURN(
      self->by_ordinal_, self->platform_->start_devices({self->local_, *self->link_, self->pool_}));
  std::vector<Stream*> streams;
  for (const auto& device : self->by_ordinal_) streams.push_back(&device->stream());
  TESSERA_RETURN_IF_ERROR(self->open_network(coordinator, options, deadline));
  const host::MakeDeviceMover make_mover = self->platform_->make_mover(self->network_);
  host::MakeSpan make_span;
  if (self->network_ != nullptr) {
    make_span = [network = self->network_, make_mover](
                    host::HostResources& resources, std::vector<shm::GroupMember> members,
                    bool is_for_messages) -> StatusOr<std::shared_ptr<host::HostGroup>> {
      std::unique_ptr<host::DeviceMover> mover;
      if (make_mover != nullptr) {
        TESSERA_ASSIGN_OR_RETURN(mover, make_mover(members));
      }
      return span::SpanRuns::create(resources, network, std::move(members), is_for_messages,
                                    std::move(mover));
    };
  }
  self->backend_ = std::make_unique<host::HostBackend>(
      *self->link_, self->pool_, std::move(devices), std::move(streams), options.collective_timeout,
      make_mover, std::move(make_span));
  self->waits_ = std::make_unique<DeviceWaits>(*self->link_, self->network_.get());
  return self;
}

StatusOr<transport::NetworkCost> ClientDevices::measure_network(Coordinator& coordinator,
                                                                absl::Time deadline) {
  TESSERA_ASSIGN_OR_RETURN(const transport::NetworkCost measured,
                           transport::measure_network(*network_->engine, coordinator, deadline));
  return transport::network_class(measured);
}

StatusOr<std::shared_ptr<Buffer>> ClientDevices::allocate_on_host(int64_t size_bytes) {
  return Buffer::allocate(pool_, size_bytes);
}

Status ClientDevices::check_process() const { return backend_->check_process(); }

Status ClientDevices::check_may_wait(absl::string_view call) const {
  return backend_->check_may_wait(call);
}

StatusOr<std::shared_ptr<GroupBackend>> ClientDevices::group(absl::Span<const int> device_ids) {
  return backend_->group(device_ids);
}

uint64_t ClientDevices::num_group_bytes() const { return backend_->num_group_bytes(); }

void ClientDevices::forget_unused_groups() { backend_->forget_unused_groups(); }

Status ClientDevices::sync() {
  Status first;
  for (const auto& device : by_ordinal_) first.Update(device->stream().sync());
  backend_->wait_until_read();
  return first;
}

void ClientDevices::report_lost(int client, const Status& reason) {
  link_->liveness().report_lost(client, reason);
}

void ClientDevices::report_waits(WaitReports& reports) {
  reports.set_source([this] { return waits_->list(); });
  reports.set_listener([this](absl::string_view operation, bool is_waiting) {
    link_->own_control().publish_call(operation, is_waiting);
  });
  backend_->set_wait_reports(&reports,
                             [this](int client) { return waits_->describe_clients({client}, {}); });
}

WaitReports::Missing ClientDevices::describe_clients(absl::Span<const int> clients,
                                                     absl::Span<const int> silent) const {
  return waits_->describe_clients(clients, silent);
}

bool ClientDevices::drain(absl::Time deadline) {
  std::vector<std::shared_ptr<Completion>> idle;
  for (const auto& device : by_ordinal_) {
    Stream& stream = device->stream();
    // An idle stream can be taken; its thread need not be woken.
    if (stream.try_take()) {
      stream.release();
      continue;
    }
    auto done = std::make_shared<Completion>();
    stream.enqueue("shutdown", [&stream, done] {
      stream.when_done([done](const Status& status) { done->set(status); });
      return absl::OkStatus();
    });
    idle.push_back(std::move(done));
  }
  return std::all_of(idle.begin(), idle.end(),
                     [&](const auto& done) { return done->wait_until(deadline); });
}

// No task writes what its device is doing: the streams are drained. Devices with memory of their
// own show "shutdown" already: it is the label of drain()'s task.
void ClientDevices::show_shutdown() {
  if (!uses_host_memory()) return;
  for (size_t i = 0; i < by_ordinal_.size(); ++i) {
    Stream& stream = by_ordinal_[i]->stream();
    // The thread that ran the last task may still be about to write that the task has ended.
    stream.sync().IgnoreError();
    if (!stream.try_take()) continue;
    link_->own_control().observer(static_cast<int>(i))->task_started("shutdown");
    stream.release();
  }
}

void ClientDevices::cancel() {
  const int self = link_->members().client_id();
  report_lost(self, absl::CancelledError(absl::StrCat("client ", self, " is shutting down")));
}

void ClientDevices::leave() {
  // Connections that break from now on are connections to clients that leave too.
  if (network_ != nullptr) network_->links().begin_stop();
  link_->leave();
}

std::string ClientDevices::stop(absl::Time deadline) {
  // All are asked before the first one is waited for: thousands of threads then end side by side.
  for (const auto& device : by_ordinal_) device->stream().begin_stop();
  std::string still_run;
  for (size_t i = 0; i < by_ordinal_.size(); ++i) {
    if (by_ordinal_[i]->stream().stop_by(deadline).ok()) continue;
    absl::StrAppend(&still_run, "; device ", local_[i].id, " is ",
                    host::describe_last_seen(
                        shm::read_activity(link_->own_control().activity(static_cast<int>(i)))));
  }
  return still_run;
}

void ClientDevices::end_threads() {
  for (const auto& device : by_ordinal_) device->stream().stop();
  backend_->stop();
  if (network_ != nullptr) network_->stop();
  platform_->end();
  link_->close();
}

}  // namespace tessera
