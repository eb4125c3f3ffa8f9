// SPDX-License-Identifier: Apache-2.0
//
// cluster::kubernetes: pods that a label selector selects, as tasks.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "job/cluster/cluster.h"
#include "job/cluster/cluster_tasks.h"
#include "job/environment/address.h"

namespace tessera::cluster {
namespace {

constexpr char kSource[] = "Kubernetes";

// The digits at the front of `text`, without leading zeros.
absl::string_view take_number(absl::string_view* text) {
  size_t end = 0;
  while (end < text->size() && absl::ascii_isdigit((*text)[end])) ++end;
  absl::string_view number = text->substr(0, end);
  text->remove_prefix(end);
  while (number.size() > 1 && number.front() == '0') number.remove_prefix(1);
  return number;
}

// Runs of digits count as numbers: w-9 is before w-10. Names that differ only in zeros before a
// number are in the order of their texts.
bool is_before(absl::string_view a, absl::string_view b) {
  const std::pair<absl::string_view, absl::string_view> texts = {a, b};
  while (!a.empty() && !b.empty()) {
    if (absl::ascii_isdigit(a.front()) && absl::ascii_isdigit(b.front())) {
      const absl::string_view x = take_number(&a);
      const absl::string_view y = take_number(&b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      continue;
    }
    if (a.front() != b.front()) return a.front() < b.front();
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() != b.empty()) return a.empty();
  return texts.first < texts.second;
}

// The addresses of the pods of one selector, in the order of their names.
StatusOr<std::vector<std::string>> addresses_of(absl::string_view selector, const PodLister& list,
                                                int port) {
  const std::string context = absl::StrCat("pods of selector ", in_quotes(selector));
  StatusOr<std::vector<KubernetesPod>> pods = list(selector);
  if (!pods.ok()) return with_context(pods.status(), context);
  if (pods->empty()) {
    return absl::NotFoundError(absl::StrCat(
        context, ": there are no pods; see whether the selector and the namespace are meant"));
  }
  std::sort(pods->begin(), pods->end(), [](const KubernetesPod& a, const KubernetesPod& b) {
    return is_before(a.name, b.name);
  });
  std::vector<std::string> addresses;
  for (const KubernetesPod& pod : *pods) {
    if (pod.phase != "Running") {
      return absl::UnavailableError(absl::StrCat(context, ": pod ", in_quotes(pod.name), " is ",
                                                 pod.phase, ", not Running; try again later"));
    }
    if (pod.pod_ip.empty()) {
      return absl::UnavailableError(absl::StrCat(context, ": pod ", in_quotes(pod.name),
                                                 " has no address yet; try again later"));
    }
    addresses.push_back(join_address(pod.pod_ip, port));
  }
  return addresses;
}

}  // namespace

StatusOr<Cluster> kubernetes(std::map<std::string, std::vector<std::string>> job_to_selectors,
                             const PodLister& list, int port, std::string task_type, int task_id) {
  const auto resolve = [&]() -> StatusOr<Cluster> {
    if (list == nullptr) {
      return absl::InvalidArgumentError("the lister of pods is empty; give a function");
    }
    if (port < 1 || port > 65535) {
      return absl::InvalidArgumentError(
          absl::StrCat("port is ", port, "; it must be from 1 to 65535"));
    }
    std::map<std::string, std::vector<std::string>> jobs;
    for (const auto& [job, selectors] : job_to_selectors) {
      std::vector<std::string>& tasks = jobs[job];
      for (const std::string& selector : selectors) {
        TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                                 addresses_of(selector, list, port));
        tasks.insert(tasks.end(), addresses.begin(), addresses.end());
      }
    }
    TESSERA_ASSIGN_OR_RETURN(ClusterSpec spec, ClusterSpec::create(std::move(jobs)));
    return cluster_of(std::move(spec), std::move(task_type), task_id, kSource);
  };
  StatusOr<Cluster> cluster = resolve();
  if (!cluster.ok()) return with_context(cluster.status(), kSource);
  return cluster;
}

}  // namespace tessera::cluster
