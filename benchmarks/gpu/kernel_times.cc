// SPDX-License-Identifier: Apache-2.0
//
// Records the work of a GPU during part of a program, by CUPTI: a shared library for programs in
// C++ and Python.
//
//   kernel_times_begin();          both return 0, or the number of an error of CUPTI
//   ...                            work, until the GPU has done it
//   kernel_times_end("FILE");      writes JSON: what ran, how often, how long
//
// Tracing slows the host down, so a program is timed without it.
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kMostNames = 40;

struct Interval {
  uint64_t start, end;
};
struct Recorded {
  std::mutex mutex;
  std::map<std::string, std::vector<Interval>> by_name;
};

Recorded& recorded() {
  static auto* const kRecorded = new Recorded;
  return *kRecorded;
}

// CUPTI is loaded at run time, because a process may already have one.
void* cupti_function(const char* name) {
  static void* const kLibrary = dlopen("libcupti.so.13", RTLD_NOW | RTLD_GLOBAL);
  return kLibrary == nullptr ? nullptr : dlsym(kLibrary, name);
}
template <class... Args>
int call(const char* name, Args... args) {
  auto* const fn = reinterpret_cast<CUptiResult (*)(Args...)>(cupti_function(name));
  return fn == nullptr ? -1 : static_cast<int>(fn(args...));
}

std::string readable(const char* name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string result = text == nullptr ? name : text;
  std::free(text);
  return result;
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = kBufferBytes;
  *most_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_size) {
  const std::lock_guard lock(recorded().mutex);
  CUpti_Activity* record = nullptr;
  while (call("cuptiActivityGetNextRecord", buffer, valid_size, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* const kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      recorded().by_name[kernel->name].push_back({kernel->start, kernel->end});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* const copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      recorded().by_name["copy"].push_back({copy->start, copy->end});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto* const set = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      recorded().by_name["set"].push_back({set->start, set->end});
    }
  }
  std::free(buffer);
}

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};

// The time during which at least one interval ran.
uint64_t covered(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.start < b.start; });
  uint64_t total = 0, until = 0;
  for (const Interval& each : intervals) {
    const uint64_t from = std::max(each.start, until);
    if (each.end > from) total += each.end - from;
    until = std::max(until, each.end);
  }
  return total;
}

}  // namespace

extern "C" {

int kernel_times_begin() {
  int error = call("cuptiActivityRegisterCallbacks", &give_buffer, &take_buffer);
  for (const CUpti_ActivityKind kind : kKinds) {
    if (error == 0) error = call("cuptiActivityEnable", kind);
  }
  return error;
}

int kernel_times_end(const char* path) {
  const int error = call("cuptiActivityFlushAll", uint32_t{1});
  for (const CUpti_ActivityKind kind : kKinds) call("cuptiActivityDisable", kind);
  const std::lock_guard lock(recorded().mutex);
  std::vector<Interval> all;
  std::vector<std::pair<uint64_t, std::string>> totals;
  uint64_t first = UINT64_MAX, last = 0;
  for (const auto& [name, intervals] : recorded().by_name) {
    uint64_t total = 0;
    for (const Interval& each : intervals) {
      total += each.end - each.start;
      first = std::min(first, each.start);
      last = std::max(last, each.end);
    }
    totals.emplace_back(total, name);
    all.insert(all.end(), intervals.begin(), intervals.end());
  }
  std::sort(totals.rbegin(), totals.rend());
  FILE* const file = std::fopen(path, "w");
  if (file == nullptr) return -2;
  std::fprintf(file, "{\"calls\": %zu, \"busy_ms\": %.6f, \"span_ms\": %.6f, \"kernels\": [",
               all.size(), covered(all) * 1e-6, all.empty() ? 0.0 : (last - first) * 1e-6);
  for (size_t i = 0; i < std::min(kMostNames, totals.size()); ++i) {
    const auto& [total, name] = totals[i];
    std::string text;
    for (const char c : readable(name.c_str())) {
      if (c != '"' && c != '\\' && c >= ' ') text += c;
    }
    std::fprintf(file, "%s\n  [%.6f, %zu, \"%s\"]", i == 0 ? "" : ",", total * 1e-6,
                 recorded().by_name[name].size(), text.substr(0, 300).c_str());
  }
  std::fprintf(file, "]}\n");
  std::fclose(file);
  recorded().by_name.clear();
  return error;
}

}  // extern "C"
