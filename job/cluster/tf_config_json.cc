// SPDX-License-Identifier: Apache-2.0
#include "job/cluster/tf_config_json.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/json_syntax.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using nlohmann::json;

constexpr char kExpected[] =
    "an object as {\"cluster\": {\"worker\": [\"host-a:4000\", \"host-b:4000\"]}, "
    "\"task\": {\"type\": \"worker\", \"index\": 0}}";

// "PATH is VALUE; it must be EXPECTED", or "PATH is not set; ...".
Status wrong(absl::string_view path, const json* value, absl::string_view expected) {
  std::string text = "not set";
  if (value != nullptr) text = value->dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = absl::StrCat(text.substr(0, 57), "...");
  return absl::InvalidArgumentError(absl::StrCat(path, " is ", text, "; it must be ", expected));
}

const json* field(const json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() ? nullptr : &*it;
}

// A task of a cluster: a whole number, or the digits of one.
StatusOr<int> read_index(const json* value, absl::string_view path) {
  int64_t index = -1;
  if (value != nullptr && value->is_string()) {
    if (!absl::SimpleAtoi(value->get_ref<const std::string&>(), &index)) index = -1;
  } else if (value != nullptr && value->is_number_integer()) {
    index = value->get<int64_t>();  // one beyond 2^63 - 1 becomes negative
  }
  if (index >= 0 && index <= INT32_MAX) return static_cast<int>(index);
  return wrong(path, value, "a whole number of at least 0");
}

// `value` is a list, or an object of numbered tasks.
Status read_job(const std::string& job, const json& value, TfConfig* read) {
  constexpr char kList[] = "a list of \"host:port\"";
  const std::string path = absl::StrCat("cluster.", job);
  if (!value.is_array() && !value.is_object()) return wrong(path, &value, kList);
  auto& tasks = read->jobs[job];
  int next = 0;
  for (const auto& item : value.items()) {
    int index = next++;
    if (value.is_object()) {
      const json key = item.key();
      TESSERA_ASSIGN_OR_RETURN(index, read_index(&key, absl::StrCat("a task of ", path)));
    }
    if (!item.value().is_string()) {
      return wrong(absl::StrCat(path, "[", index, "]"), &item.value(), "a text \"host:port\"");
    }
    if (!tasks.emplace(index, item.value().get<std::string>()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " has task ", index, " twice; give it once"));
    }
  }
  return absl::OkStatus();
}

Status read_task(const json& config, size_t num_tasks, TfConfig* read) {
  const json* const task = field(config, "task");
  if (task == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("task is not set: which of the ", num_tasks,
                     " tasks is this? set it, as in \"task\": {\"type\": \"worker\", "
                     "\"index\": 0}"));
  }
  if (!task->is_object()) return wrong("task", task, "an object with \"type\" and \"index\"");
  const json* const type = field(*task, "type");
  if (type == nullptr || !type->is_string()) return wrong("task.type", type, "the name of a job");
  read->task_type = type->get<std::string>();
  TESSERA_ASSIGN_OR_RETURN(read->task_index, read_index(field(*task, "index"), "task.index"));
  return absl::OkStatus();
}

}  // namespace

StatusOr<TfConfig> parse_tf_config(absl::string_view text) {
  const std::string problem = json_problem(text, kExpected);
  if (!problem.empty()) return absl::InvalidArgumentError(problem);
  const json config = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("is not an object; expected ", kExpected));
  }
  TfConfig read;
  const json* const jobs = field(config, "cluster");
  if (jobs == nullptr) return read;
  if (!jobs->is_object()) return wrong("cluster", jobs, "an object of jobs");
  size_t num_tasks = 0;
  for (const auto& job : jobs->items()) {
    TESSERA_RETURN_IF_ERROR(read_job(job.key(), job.value(), &read));
    num_tasks += job.value().size();
  }
  if (!jobs->empty()) TESSERA_RETURN_IF_ERROR(read_task(config, num_tasks, &read));
  return read;
}

}  // namespace tessera
