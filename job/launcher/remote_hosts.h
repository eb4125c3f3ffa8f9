// SPDX-License-Identifier: Apache-2.0
//
// How tessera_run --hosts starts the tessera_run of another host, over ssh.
//
//   here     ssh HOST 'cd FOLDER && exec tessera_run --nodes N --node-id I --from-launcher ...'
//   there    reads the environment of the job from its standard input, and the end of that input,
//            or a byte of it, is the request to stop
//
// The token is in that input, so it is in no command line. When the launcher is killed the input
// ends, and then the job on every host ends.
#ifndef TESSERA_JOB_LAUNCHER_REMOTE_HOSTS_H_
#define TESSERA_JOB_LAUNCHER_REMOTE_HOSTS_H_

#include <string>
#include <vector>

#include "base/status.h"
#include "job/environment/file_descriptor.h"
#include "job/launcher/launch_options.h"

namespace tessera {

// The facts that the nodes of one attempt share.
struct RemoteJob {
  std::string coordinator;  // "host:port"
  std::string input;        // for take_environment()
  FileDescriptor held_port;

  // Makes a job with a new token, unless TESSERA_TOKEN is set, and a new port of the first host,
  // unless `options` has an address. No other RemoteJob of this host has the port: the first host
  // is another host, where no port can be held before the coordinator listens. ResourceExhausted:
  // the environment does not fit into a pipe, or all ports are held.
  static StatusOr<RemoteJob> create(const LauncherOptions& options);

  // The command that starts the node: the words of --ssh, the host, and one text for its shell.
  std::vector<std::string> command(const LauncherOptions& options, int node) const;
};

// Reads the environment that the launcher writes, and sets it. InvalidArgument where it ends early.
Status take_environment(int fd);

}  // namespace tessera

#endif  // TESSERA_JOB_LAUNCHER_REMOTE_HOSTS_H_
