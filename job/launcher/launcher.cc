// SPDX-License-Identifier: Apache-2.0
//
// The loop that holds the clients of one host: their starts and ends, signals and deadlines.
#include "job/launcher/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/system_call.h"
#include "base/text.h"
#include "job/environment/file_descriptor.h"
#include "job/environment/host.h"
#include "job/environment/interface.h"
#include "job/environment/port.h"
#include "job/launcher/child_process.h"
#include "job/launcher/coordinator_process.h"
#include "job/launcher/descendants.h"
#include "job/launcher/launch_report.h"
#include "job/launcher/own_output.h"
#include "job/launcher/remote_hosts.h"
#include "job/launcher/running_client.h"

namespace tessera {
namespace {

constexpr int kTimeoutExitCode = 124;
// How long the output of an ended client may stay open: a process that left the client's group
// may hold it for ever.
constexpr absl::Duration kDrainTime = absl::Seconds(1);
constexpr absl::Duration kCoordinatorTimeout = absl::Seconds(60);  // until it listens
constexpr absl::Duration kHostTime = absl::Seconds(5);  // from the end of a job to its ssh's end
constexpr size_t kReadBytes = size_t{64} << 10;

// Wall-clock times that never step back: two failures keep their order.
class Clock {
 public:
  absl::Time now() const {
    return start_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_start_);
  }
  absl::Time start() const { return start_; }

 private:
  absl::Time start_ = absl::Now();  // NOTIDY(wall-clock): the report prints it
  std::chrono::steady_clock::time_point steady_start_ = std::chrono::steady_clock::now();
};

std::string local_address(const ReservedPort& port) {
  return absl::StrCat("127.0.0.1:", port.port());
}

// The processes of a job that this launcher starts: clients, or hosts.
int num_processes(const LauncherOptions& options) {
  return options.hosts.empty() ? options.num_clients : static_cast<int>(options.hosts.size());
}

// A host stops its clients within the grace period of the user, and then has to say so.
absl::Duration grace(const LauncherOptions& options) {
  return options.grace + (options.hosts.empty() ? absl::ZeroDuration() : kHostTime);
}

// Takes the signals that end a job, and SIGCHLD, out of their usual ways: they can be read here.
StatusOr<FileDescriptor> open_signals(const LauncherOptions& options) {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGHUP}) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    // nohup. A shell also ignores SIGINT for a background job, and still may send it on purpose.
    if (signal == SIGHUP && action.sa_handler == SIG_IGN) continue;
    sigaddset(&taken, signal);
  }
  // Processes that clients leave behind become children of this process, and end with the job. ssh
  // may leave a connection that other commands of the user share.
  if (options.hosts.empty()) {
    adopt_descendants();
    sigaddset(&taken, SIGCHLD);
  }
  sigprocmask(SIG_BLOCK, &taken, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // An ignored SIGCHLD is inherited through exec, and the kernel then forgets how clients ended.
  signal(SIGCHLD, SIG_DFL);
  FileDescriptor signals(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.is_open()) return no_resource("a signalfd");
  return signals;
}

// The phases of one attempt:
//
//   kRunning --> kSettling             a client has failed; failures that follow are recorded too
//   either   --> kStopping             later, at the timeout or by a signal: clients get a signal
//                kStopping --> kKilled  after the grace period or by a second signal: SIGKILL
//
// An attempt is done when all clients are reaped and their output is read, in any phase. Only an
// attempt that failed by itself is restarted.
class Job {
 public:
  explicit Job(const LauncherOptions& options) : options_(options) {}

  StatusOr<int> run();

 private:
  enum class Phase { kRunning, kSettling, kStopping, kKilled };

  Status set_up();
  Status start_clients(int attempt);
  Status start_coordinator(ClientEnvironment& environment);
  Status start_client(const ClientEnvironment& environment);
  Status start_hosts();
  Status add_process(ChildProcess process, ClientEnd end);

  void poll_once();
  absl::Time next_deadline() const;
  void take_exits();
  void take_exit(RunningClient& client);
  void take_signal();
  void take_request();
  void interrupt(int signal);
  void act_on_time();
  bool is_told_to_stop() const;
  // The processes of this launcher that have owners here.
  std::vector<pid_t> own_processes() const;
  void take_output_error();
  void say_output_error();
  void end_group(RunningClient& client);
  void note_ending(absl::Time now);

  void stop(int signal);
  void kill_all();
  void note_unfinished();
  void report_attempt();
  void flush();
  bool is_done() const;
  int exit_code() const;

  const LauncherOptions& options_;
  const Clock clock_;
  const std::string host_ = describe_this_process().host;
  std::optional<OwnOutput> output_;
  std::optional<ReservedPort> coordinator_port_;
  std::optional<ReservedPort> master_port_;
  std::optional<CoordinatorProcess> coordinator_;  // of the attempt, or the relay; or none
  std::optional<RemoteJob> remote_job_;            // of the attempt, with --hosts
  FileDescriptor signals_;
  FileDescriptor exits_;  // epoll over the pidfds: its ready list keeps the order of the ends
  absl::Time job_deadline_;

  std::vector<std::unique_ptr<RunningClient>> clients_;
  std::vector<ClientEnd*> failures_;   // of this attempt, in order
  std::vector<ClientEnd> unfinished_;  // at the timeout
  Phase phase_ = Phase::kRunning;
  absl::Time deadline_ = absl::InfiniteFuture();  // of the phase
  int interrupted_by_ = 0;                        // the signal that told this process to stop
  bool is_input_over_ = false;                    // of a launcher that started this one
  bool timed_out_ = false;
  std::string output_error_;  // why output cannot be written, where that stopped the job
  int failure_code_ = 0;      // of the last attempt
};

StatusOr<int> Job::run() {
  TESSERA_RETURN_IF_ERROR(set_up());
  Status started;
  for (int attempt = 0;; ++attempt) {
    started = start_clients(attempt);
    if (!started.ok()) break;
    while (!is_done()) poll_once();
    if (options_.hosts.empty()) kill_orphans(own_processes());
    report_attempt();
    const bool restarts = failure_code_ != 0 && attempt < options_.max_restarts &&
                          !is_told_to_stop() && clock_.now() < job_deadline_;
    if (!restarts) break;
    output_->say(
        absl::StrCat("tessera_run: restart ", attempt + 1, " of ", options_.max_restarts, "\n"));
  }
  clients_.clear();
  if (options_.hosts.empty()) kill_orphans(own_processes());
  flush();
  TESSERA_RETURN_IF_ERROR(started);
  return exit_code();
}

Status Job::set_up() {
  // Otherwise a pipe could get the number 1 or 2, and be taken for our output.
  int fd = 0;
  while (fd <= STDERR_FILENO) {
    fd = open("/dev/null", O_RDWR);
    if (fd < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot open /dev/null: ", std::strerror(errno)));
    }
  }
  close(fd);

  output_.emplace();
  TESSERA_ASSIGN_OR_RETURN(coordinator_port_, ReservedPort::create());
  TESSERA_ASSIGN_OR_RETURN(master_port_, ReservedPort::create());
  job_deadline_ = clock_.start() + options_.timeout;
  exits_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!exits_.is_open()) return no_resource("an epoll set");
  std::error_code error;
  if (!options_.log_dir.empty() &&
      (std::filesystem::create_directories(options_.log_dir, error), error)) {
    return absl::InvalidArgumentError(absl::StrCat("--log-dir is ",
                                                   tessera::in_quotes(options_.log_dir),
                                                   ", which cannot be made: ", error.message()));
  }
  TESSERA_ASSIGN_OR_RETURN(signals_, open_signals(options_));
  return absl::OkStatus();
}

Status Job::start_clients(int attempt) {
  failures_.clear();
  clients_.clear();
  failure_code_ = 0;
  phase_ = Phase::kRunning;
  deadline_ = absl::InfiniteFuture();
  if (!options_.hosts.empty()) return start_hosts();
  TESSERA_RETURN_IF_ERROR(check_coordinator_name(options_, route_to(options_.coordinator)));

  ClientEnvironment environment;
  const bool has_address = !options_.coordinator.empty();
  environment.coordinator = has_address ? options_.coordinator : local_address(*coordinator_port_);
  environment.master_address = has_address ? options_.coordinator : local_address(*master_port_);
  environment.attempt = attempt;
  const char* token = std::getenv("TESSERA_TOKEN");
  if (token != nullptr && *token != '\0') {
    environment.token = token;
  } else if (options_.num_nodes > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("TESSERA_TOKEN is not set; with --nodes ", options_.num_nodes,
                     " it should hold one random text, the same on every host"));
  } else {
    environment.token = random_token();
  }
  if (options_.num_nodes == 1) environment.job = random_token();
  TESSERA_RETURN_IF_ERROR(start_coordinator(environment));
  for (int i = 0; i < options_.num_clients; ++i) {
    environment.local_index = i;
    const Status started = start_client(environment);
    if (!started.ok()) {
      return with_context(started, absl::StrCat("client ", i, " of ", options_.num_clients));
    }
  }
  // After the last fork, so that the clients start side by side.
  for (auto& client : clients_) {
    TESSERA_RETURN_IF_ERROR(client->process.await_exec(options_.command[0]));
  }
  return absl::OkStatus();
}

// Before the clients: what they would find at an address that is taken is another job.
Status Job::start_coordinator(ClientEnvironment& environment) {
  coordinator_.reset();
  const int num_clients = options_.num_nodes * options_.num_clients;
  CoordinatorServerOptions server = {.address = environment.coordinator,
                                     .token = environment.token,
                                     .num_clients = num_clients,
                                     .job = environment.job};
  if (options_.node_id != 0) {
    if (num_clients <= options_.relay_above) return absl::OkStatus();
    server.upstream = std::exchange(server.address, local_address(*coordinator_port_));
    environment.relay = server.address;
  }
  if (num_clients == 1) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      CoordinatorProcess coordinator,
      CoordinatorProcess::start(server, ProcessGroup::kOwn,
                                std::min(job_deadline_ - clock_.now(), kCoordinatorTimeout)));
  coordinator_.emplace(std::move(coordinator));
  return absl::OkStatus();
}

Status Job::start_client(const ClientEnvironment& environment) {
  TESSERA_ASSIGN_OR_RETURN(ChildProcess process,
                           ChildProcess::start(options_.command, environment.variables(options_)));
  ClientEnd end;
  end.client_id = options_.node_id * options_.num_clients + environment.local_index;
  end.host = host_;
  TESSERA_RETURN_IF_ERROR(add_process(std::move(process), std::move(end)));
  if (options_.log_dir.empty()) return absl::OkStatus();
  return clients_.back()->open_log(options_.log_dir, environment.attempt);
}

// Starts one ssh for each host. Hosts that start first wait for the others as clients do.
Status Job::start_hosts() {
  remote_job_.reset();
  TESSERA_ASSIGN_OR_RETURN(RemoteJob job, RemoteJob::create(options_));
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  for (int node = 0; node < num_processes(options_); ++node) {
    TESSERA_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::start(job.command(options_, node),
                                                                       environment, job.input));
    ClientEnd end;
    end.client_id = node;
    end.host = options_.hosts[node];
    end.is_host = true;
    TESSERA_RETURN_IF_ERROR(add_process(std::move(process), std::move(end)));
  }
  remote_job_.emplace(std::move(job));
  for (auto& client : clients_) TESSERA_RETURN_IF_ERROR(client->process.await_exec(options_.ssh));
  return absl::OkStatus();
}

Status Job::add_process(ChildProcess process, ClientEnd end) {
  clients_.push_back(std::make_unique<RunningClient>(std::move(process), std::move(end),
                                                     output_->out(), output_->err()));
  RunningClient& client = *clients_.back();
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = &client;
  if (epoll_ctl(exits_.get(), EPOLL_CTL_ADD, client.process.pidfd(), &event) != 0) {
    return no_resource("a watch of the client");
  }
  return absl::OkStatus();
}

// One round of the loop: waits for output, status messages, ends of clients, signals or the next
// deadline; handles descriptors that are ready; then changes the phase if its time is over. Output
// is read before exits, so that a client's last lines precede its end.
void Job::poll_once() {
  const int request_fd = options_.is_from_launcher && !is_input_over_ ? STDIN_FILENO : -1;
  std::vector<pollfd> fds = {
      {signals_.get(), POLLIN, 0}, {exits_.get(), POLLIN, 0}, {request_fd, POLLIN, 0}};
  for (const auto& sink : output_->sinks()) {
    if (sink->has_pending()) fds.push_back({sink->fd(), POLLOUT, 0});
  }
  struct Source {
    RunningClient* client;
    RunningClient::Stream* stream;  // null: the status channel
  };
  std::vector<Source> sources;
  const size_t first_source = fds.size();
  for (auto& client : clients_) {
    for (RunningClient::Stream& stream : client->streams) {
      // A client whose output is not read blocks in write(), as it would without a launcher.
      if (!stream.fd->is_open() || stream.sink->is_full()) continue;
      fds.push_back({stream.fd->get(), POLLIN, 0});
      sources.push_back({client.get(), &stream});
    }
    if (!client->process.status_channel().is_open()) continue;
    fds.push_back({client->process.status_channel().get(), POLLIN, 0});
    sources.push_back({client.get(), nullptr});
  }

  const int wait_ms = poll_timeout_ms(next_deadline() - clock_.now());
  if (poll(fds.data(), fds.size(), wait_ms) > 0) {
    for (size_t i = 0; i < sources.size(); ++i) {
      if (fds[first_source + i].revents == 0) continue;
      if (sources[i].stream == nullptr) {
        sources[i].client->take_status();
      } else {
        sources[i].client->read(*sources[i].stream, kReadBytes);
      }
    }
    take_exits();
    if (fds[0].revents != 0) take_signal();
    if (fds[2].revents != 0) take_request();
  }
  output_->drain();
  act_on_time();
}

absl::Time Job::next_deadline() const {
  absl::Time next = deadline_;
  if (phase_ == Phase::kRunning || phase_ == Phase::kSettling) next = std::min(next, job_deadline_);
  for (const auto& client : clients_) {
    if (client->has_open_stream()) next = std::min(next, client->drain_deadline);
  }
  return next;
}

void Job::take_exits() {
  epoll_event events[64];
  int count;
  while ((count = epoll_wait(exits_.get(), events, 64, 0)) > 0) {
    for (int i = 0; i < count; ++i) take_exit(*static_cast<RunningClient*>(events[i].data.ptr));
  }
}

// Records how the client ended. An end that the launcher did not cause is a failure, and the first
// one begins kSettling. The client stays a zombie until end_group(), so that its process group
// cannot be reused meanwhile.
void Job::take_exit(RunningClient& client) {
  const std::optional<ExitStatus> exit = client.process.poll_exit();
  epoll_ctl(exits_.get(), EPOLL_CTL_DEL, client.process.pidfd(), nullptr);
  client.has_exited = true;
  client.end.exit = exit.value_or(ExitStatus::unknown());
  client.end.time = clock_.now();
  if (client.process.status_channel().is_open()) client.take_status();
  client.process.status_channel().close();
  if (client.end.exit.signal == 0) note_ending(client.end.time);

  // A SIGKILL of another sender, the kernel's for memory say, struck as it was asked to end.
  if (client.end.exit.signal == SIGKILL && !client.was_killed && !is_told_to_stop()) {
    client.was_stopped = false;
  }
  if (!client.end.exit.ok() && !client.was_stopped) {
    failures_.push_back(&client.end);
    if (phase_ == Phase::kRunning) {
      phase_ = Phase::kSettling;
      deadline_ = client.end.time + options_.settle;
    }
  }
  // While the job is being stopped, processes that the client started have the grace period too.
  if (phase_ != Phase::kStopping) end_group(client);
}

// A client that is being ended while another one's exit is seen began to end before that exit, or
// at the same moment: the kernel tells its peers of its death before it has freed its memory. So
// did a client whose SIGKILL is known by now, but came later in the list of exits.
void Job::note_ending(absl::Time now) {
  for (auto& client : clients_) {
    if (client->has_exited || client->was_stopped || client->end.ending_since.has_value()) continue;
    // Before poll_exit(): a client that exits with a code between the two calls is not ending here.
    const bool is_ending = client->process.is_ending();
    const std::optional<ExitStatus> exit = client->process.poll_exit();
    const bool was_ending = exit.has_value() ? exit->signal == SIGKILL : is_ending;
    if (was_ending) client->end.ending_since = now;
  }
}

void Job::end_group(RunningClient& client) {
  client.process.kill_and_reap();
  client.drain_deadline = clock_.now() + kDrainTime;
}

void Job::take_signal() {
  signalfd_siginfo info = {};
  if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
  if (info.ssi_signo != SIGCHLD) return interrupt(static_cast<int>(info.ssi_signo));
  const std::vector<pid_t> own = own_processes();
  const auto ended = static_cast<pid_t>(info.ssi_pid);
  if (std::find(own.begin(), own.end(), ended) == own.end()) reap_orphans(own);
}

std::vector<pid_t> Job::own_processes() const {
  std::vector<pid_t> own;
  if (coordinator_.has_value()) own.push_back(coordinator_->pid());
  for (const auto& client : clients_) {
    if (!client->process.is_reaped()) own.push_back(client->process.pid());
  }
  return own;
}

bool Job::is_told_to_stop() const {
  return interrupted_by_ != 0 || timed_out_ || !output_error_.empty();
}

// From the launcher that started this one: a signal that it got, or its own end.
void Job::take_request() {
  char signal = 0;
  is_input_over_ = read(STDIN_FILENO, &signal, 1) != 1;
  interrupt(is_input_over_ ? SIGTERM : signal);
}

void Job::interrupt(int signal) {
  if (interrupted_by_ == 0) interrupted_by_ = signal;
  if (clients_.empty()) {
    deadline_ = clock_.now();  // flush() gives up
  } else if (phase_ == Phase::kRunning || phase_ == Phase::kSettling) {
    stop(signal);
  } else {
    kill_all();
  }
}

// Changes the phase at its deadline, and closes output that stays open after a client's end.
void Job::act_on_time() {
  const absl::Time now = clock_.now();
  const bool is_going = phase_ == Phase::kRunning || phase_ == Phase::kSettling;
  if (phase_ == Phase::kStopping && now >= deadline_) {
    kill_all();
  } else if (is_going && output_->error() != 0) {
    take_output_error();
    stop(SIGTERM);
  } else if (phase_ == Phase::kSettling && now >= std::min(deadline_, job_deadline_)) {
    stop(SIGTERM);
  } else if (phase_ == Phase::kRunning && now >= job_deadline_) {
    timed_out_ = true;
    note_unfinished();
    stop(SIGTERM);
  }

  for (auto& client : clients_) {
    if (client->has_exited && !client->process.is_reaped() && !client->has_open_stream()) {
      end_group(*client);
    }
    if (now >= client->drain_deadline) client->close_output();
  }
}

// Ends the job as SIGPIPE would where the reader of the output has gone; else the report says why.
void Job::take_output_error() {
  if (is_told_to_stop()) return;
  if (output_->error() == EPIPE) {
    interrupted_by_ = SIGPIPE;
  } else {
    output_error_ = output_->describe_error();
  }
}

void Job::say_output_error() {
  if (output_error_.empty()) return;
  output_->say(absl::StrCat("tessera_run: stopped: ", output_error_, "\n"));
}

void Job::stop(int signal) {
  take_exits();  // A client that ended before the signal ended by itself.
  for (auto& client : clients_) {
    if (client->has_exited) continue;
    client->was_stopped = !client->process.is_ending();
    if (client->end.is_host) {
      // ssh continues, for the last output of the host.
      const char byte = static_cast<char>(signal);
      (void)!write(client->process.standard_input().get(), &byte, 1);
      continue;
    }
    client->process.signal_group(signal);
    client->process.signal_group(SIGCONT);  // A stopped process acts on the signal only then.
  }
  phase_ = Phase::kStopping;
  deadline_ = clock_.now() + grace(options_);
}

void Job::kill_all() {
  phase_ = Phase::kKilled;
  deadline_ = absl::InfiniteFuture();
  for (auto& client : clients_) {
    if (client->process.is_reaped()) continue;
    if (client->has_exited) {
      end_group(*client);
      continue;
    }
    const bool is_ending = client->process.is_ending();
    // Also where the client ends by itself: processes that it has started may not.
    client->process.signal_group(SIGKILL);
    if (is_ending) continue;
    client->was_stopped = client->was_killed = true;
    output_->say(absl::StrCat("tessera_run: ", client->end.name(),
                              " had not ended after the request to stop, and was killed\n"));
  }
}

void Job::note_unfinished() {
  for (const auto& client : clients_) {
    if (client->has_exited) continue;
    unfinished_.push_back(client->end);
    for (const RunningClient::Stream& stream : client->streams) {
      const absl::string_view begun = stream.splitter.pending();
      if (!begun.empty()) unfinished_.back().tail.add(begun);
    }
  }
}

void Job::report_attempt() {
  if (!failures_.empty()) {
    std::vector<ClientEnd> ends;
    for (const ClientEnd* failure : failures_) ends.push_back(*failure);
    std::stable_sort(ends.begin(), ends.end(), is_likelier_cause);
    output_->say(failure_report(ends, num_processes(options_), clock_.start()));
    failure_code_ = ends[0].exit.shell_code();
    std::vector<int> stopped;
    for (const auto& client : clients_) {
      if (client->was_stopped) stopped.push_back(client->end.client_id);
    }
    if (options_.hosts.empty()) output_->say(stopped_report(stopped));
  }
  const pid_t service = coordinator_.has_value() ? coordinator_->pid() : 0;
  const auto service_end =
      coordinator_.has_value() ? coordinator_->poll_exit() : std::optional<ExitStatus>();
  if (service_end.has_value()) {
    output_->say(absl::StrCat(
        "tessera_run: the ", options_.node_id == 0 ? "coordinator" : "relay to the coordinator",
        " (pid ", service, ") ", service_end->to_string(), " before the job was over\n"));
  }
  if (timed_out_) {
    output_->say(timeout_report(unfinished_, num_processes(options_), options_.timeout));
  }
  say_output_error();
  if (interrupted_by_ != 0) {
    output_->say(absl::StrCat("tessera_run: stopped by SIG", sigabbrev_np(interrupted_by_), "\n"));
  }
}

// The last lines may wait for a slow reader, but not longer than the job itself might.
void Job::flush() {
  const bool is_stopped = is_told_to_stop();
  phase_ = Phase::kKilled;
  deadline_ = (is_stopped ? clock_.now() : job_deadline_) + options_.grace;
  const auto drain = [this] {
    while (output_->has_pending() && clock_.now() < deadline_) {
      poll_once();
    }
  };
  drain();
  const int error = output_->out()->error();
  if (is_stopped || error == 0 || error == EPIPE) return;
  // The last lines of a job that ended by itself.
  take_output_error();
  say_output_error();
  drain();
}

bool Job::is_done() const {
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const auto& client) { return client->is_done(); });
}

int Job::exit_code() const {
  if (failure_code_ != 0) return failure_code_;
  if (interrupted_by_ != 0) return 128 + interrupted_by_;
  if (!output_error_.empty()) return 1;
  return timed_out_ ? kTimeoutExitCode : 0;
}

}  // namespace

StatusOr<int> launch(const LauncherOptions& options) {
  TESSERA_RETURN_IF_ERROR(options.validate());
  TESSERA_RETURN_IF_ERROR(check_limits(options));
  return Job(options).run();
}

}  // namespace tessera
