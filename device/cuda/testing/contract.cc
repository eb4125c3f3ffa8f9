// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/testing/contract.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <type_traits>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "device/cuda/kernel_plan.h"
#include "device/cuda/testing/bench.h"
#include "tests/support/scalars.h"

namespace tessera::cuda {
namespace {

using testing::for_each_index;
using testing::is_nan;
using testing::place_in;
using testing::reduce_scalars;
using testing::same;

std::vector<std::byte> pattern(uint64_t size_bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size_bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// ---- Streams, events, memory

Status copies_there_and_back(Api& api) {
  TESSERA_ASSIGN_OR_RETURN(const auto bench, Bench::create(api));
  for (const uint64_t size : {1, 255, 4096, 1 << 20}) {
    const std::vector<std::byte> bytes = pattern(size, 1);
    TESSERA_ASSIGN_OR_RETURN(const std::byte* first, bench->upload(bytes));
    TESSERA_ASSIGN_OR_RETURN(std::byte * second, bench->memory(size));
    TESSERA_RETURN_IF_ERROR(api.copy(second, first, size, bench->stream()));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::byte> back, bench->download(second, size));
    TESSERA_RETURN_IF_ERROR(expect(back == bytes, absl::StrCat(size, " bytes come back")));
  }
  return absl::OkStatus();
}

Status memory_is_aligned(Api& api) {
  TESSERA_ASSIGN_OR_RETURN(const auto bench, Bench::create(api));
  for (int i = 0; i < 10; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const std::byte* memory, bench->memory(100));
    TESSERA_RETURN_IF_ERROR(
        expect(reinterpret_cast<uintptr_t>(memory) % 256 == 0, "aligned to 256 bytes"));
  }
  return absl::OkStatus();
}

Status too_much_memory(Api& api) {
  TESSERA_RETURN_IF_ERROR(api.set_device(0));
  const StatusOr<std::byte*> memory = api.allocate(uint64_t{1} << 50);
  TESSERA_RETURN_IF_ERROR(expect(absl::IsResourceExhausted(memory.status()),
                                 absl::StrCat("got ", memory.status().ToString())));
  // The error is of that call alone.
  TESSERA_ASSIGN_OR_RETURN(const auto bench, Bench::create(api));
  return bench->memory(1000).status();
}

// A chain of copies over two streams is in order because of events alone.
Status event_orders_streams(Api& api) {
  constexpr uint64_t kBytes = 1 << 20;
  TESSERA_ASSIGN_OR_RETURN(const auto bench, Bench::create(api));
  TESSERA_ASSIGN_OR_RETURN(const StreamHandle other, api.create_stream());
  TESSERA_ASSIGN_OR_RETURN(const EventHandle event, api.create_event());
  const std::vector<std::byte> bytes = pattern(kBytes, 2);
  TESSERA_ASSIGN_OR_RETURN(std::byte * a, bench->upload(bytes));
  TESSERA_ASSIGN_OR_RETURN(std::byte * b, bench->memory(kBytes));
  for (int round = 0; round < 8; ++round) {
    const bool is_forth = round % 2 == 0;
    const StreamHandle from = is_forth ? bench->stream() : other;
    const StreamHandle to = is_forth ? other : bench->stream();
    TESSERA_RETURN_IF_ERROR(api.record_event(event, from));
    TESSERA_RETURN_IF_ERROR(api.wait_event(to, event));
    TESSERA_RETURN_IF_ERROR(api.copy(is_forth ? b : a, is_forth ? a : b, kBytes, to));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::byte> back, bench->download(b, kBytes));
  TESSERA_RETURN_IF_ERROR(api.destroy_event(event));
  TESSERA_RETURN_IF_ERROR(api.destroy_stream(other));
  return expect(back == bytes, "the bytes went through all copies");
}

// A wait is for the record that was the last one when it was called.
Status event_is_recorded_again(Api& api) {
  TESSERA_ASSIGN_OR_RETURN(const auto bench, Bench::create(api));
  TESSERA_ASSIGN_OR_RETURN(const EventHandle event, api.create_event());
  for (int round = 0; round < 3; ++round) {
    TESSERA_ASSIGN_OR_RETURN(const std::byte* memory, bench->upload(pattern(1 << 16, 3)));
    TESSERA_RETURN_IF_ERROR(api.record_event(event, bench->stream()));
    TESSERA_RETURN_IF_ERROR(bench->wait(event));
    TESSERA_RETURN_IF_ERROR(bench->download(memory, 1 << 16));
  }
  return api.destroy_event(event);
}

// A stream that is destroyed still does the work that it has received.
Status destroyed_stream_finishes(Api& api) {
  TESSERA_ASSIGN_OR_RETURN(const auto bench, Bench::create(api));
  TESSERA_ASSIGN_OR_RETURN(const StreamHandle other, api.create_stream());
  TESSERA_ASSIGN_OR_RETURN(const EventHandle event, api.create_event());
  const std::vector<std::byte> bytes = pattern(1 << 18, 4);
  TESSERA_ASSIGN_OR_RETURN(const std::byte* from, bench->upload(bytes));
  TESSERA_ASSIGN_OR_RETURN(std::byte * to, bench->memory(bytes.size()));
  TESSERA_RETURN_IF_ERROR(bench->finish());
  TESSERA_RETURN_IF_ERROR(api.copy(to, from, bytes.size(), other));
  TESSERA_RETURN_IF_ERROR(api.record_event(event, other));
  TESSERA_RETURN_IF_ERROR(api.destroy_stream(other));
  TESSERA_RETURN_IF_ERROR(bench->wait(event));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::byte> back, bench->download(to, bytes.size()));
  TESSERA_RETURN_IF_ERROR(api.destroy_event(event));
  return expect(back == bytes, "the copy was made");
}

// ---- Kernels, against loops over scalars

// A value of the dtype: of floats now and then a special one.
template <class T>
T value_of(std::mt19937_64& random) {
  const uint64_t bits = random();
  if constexpr (std::is_same_v<T, bool>) {
    return (bits & 1) != 0;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double special[] = {0.0, -0.0, kInfinity, -kInfinity,
                              std::numeric_limits<double>::quiet_NaN()};
    if (bits % 64 < 5) return static_cast<T>(special[bits % 64]);
    const double mantissa = static_cast<double>(bits >> 40) / (1 << 24) * 2 - 1;
    return static_cast<T>(std::ldexp(mantissa, static_cast<int>(bits >> 8 & 31) - 20));
  }
}

template <class T>
std::vector<std::byte> values_of(uint64_t seed, int64_t count) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * sizeof(T));
  for (int64_t i = 0; i < count; ++i) {
    const T value = value_of<T>(random);
    std::memcpy(bytes.data() + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }
  return bytes;
}

template <class T>
Status check_reduce(Api& api, ReduceOp op, int num_terms, int64_t count, int64_t skew) {
  TESSERA_ASSIGN_OR_RETURN(const auto bench, Bench::create(api));
  const auto size = static_cast<int64_t>(sizeof(T));
  std::vector<std::vector<std::byte>> inputs;
  std::vector<const std::byte*> terms;
  for (int k = 0; k < num_terms; ++k) {
    inputs.push_back(values_of<T>(static_cast<uint64_t>(1000 * count + k), count + skew));
    TESSERA_ASSIGN_OR_RETURN(const std::byte* term, bench->upload(inputs.back()));
    terms.push_back(term + skew * size);
  }
  TESSERA_ASSIGN_OR_RETURN(std::byte * out, bench->memory((count + skew) * size));
  // The first term is also an out: in place.
  const std::vector<std::byte*> outs = {out + skew * size, const_cast<std::byte*>(terms[0])};
  for (const Reduce& reduce : plan_reduce(dtype_of<T>(), op, terms, outs, count)) {
    TESSERA_RETURN_IF_ERROR(api.launch(reduce, bench->stream()));
  }
  for (const std::byte* result : outs) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::byte> got,
                             bench->download(result, count * size));
    for (int64_t i = 0; i < count; ++i) {
      std::vector<T> scalars;
      for (const auto& input : inputs) scalars.push_back(at<T>(input, i + skew));
      if (same(at<T>(got, i), reduce_scalars(op, scalars))) continue;
      return absl::InternalError(absl::StrCat(reduce_op_name(op), " of ", num_terms, " terms of ",
                                              dtype_name(dtype_of<T>()), ": element ", i, " of ",
                                              count, " is ", static_cast<double>(at<T>(got, i))));
    }
  }
  return absl::OkStatus();
}

Status reduces_every_dtype(Api& api) {
  for (int d = 0; d < kNumDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (int o = 0; o < kNumReduceOps; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      if (!validate_reduction(op, dtype).ok()) continue;
      TESSERA_RETURN_IF_ERROR(visit_dtype(dtype, [&]<class T>() -> Status {
        for (const int num_terms : {1, 2, 3, 8}) {
          TESSERA_RETURN_IF_ERROR(check_reduce<T>(api, op, num_terms, 1037, 0));
        }
        // An odd start: element by element.
        TESSERA_RETURN_IF_ERROR(check_reduce<T>(api, op, 3, 70, 1));
        return check_reduce<T>(api, op, 2, 1, 0);
      }));
    }
  }
  return check_reduce<float>(api, ReduceOp::kSum, kMaxTerms, 33, 0);
}

// A random box within `outer`, at least one element per dim.
Box box_within(const Box& outer, std::mt19937_64& random) {
  Box box = outer;
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    const auto size = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(outer.sizes[d]));
    box.offsets[d] +=
        static_cast<int64_t>(random() % static_cast<uint64_t>(outer.sizes[d] - size + 1));
    box.sizes[d] = size;
  }
  return box;
}

Status check_box_copy(Api& api, const Box& box, const Box& from_box, const Box& to_box,
                      int64_t size) {
  TESSERA_ASSIGN_OR_RETURN(const auto bench, Bench::create(api));
  const std::vector<std::byte> from = pattern(from_box.num_elements() * size, 5);
  std::vector<std::byte> want = pattern(to_box.num_elements() * size, 6);
  TESSERA_ASSIGN_OR_RETURN(const std::byte* source, bench->upload(from));
  TESSERA_ASSIGN_OR_RETURN(std::byte * target, bench->upload(want));
  CopyPlan plan;
  add_copy(box, source, from_box, target, to_box, size, &plan);
  for (const DenseCopy& copy : plan.dense) {
    TESSERA_RETURN_IF_ERROR(api.copy(copy.to, copy.from, copy.num_bytes, bench->stream()));
  }
  for (const CopyBatch& batch : plan.batches) {
    TESSERA_RETURN_IF_ERROR(api.launch(batch, bench->stream()));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::byte> got, bench->download(target, want.size()));
  for_each_index(box, [&](const std::vector<int64_t>& index) {
    std::memcpy(want.data() + place_in(to_box, index) * size,
                from.data() + place_in(from_box, index) * size, static_cast<size_t>(size));
  });
  return expect(got == want,
                absl::StrCat("copy of ", box.to_string(), " from ", from_box.to_string(), " to ",
                             to_box.to_string(), ", ", size, " bytes per element"));
}

Status copies_boxes(Api& api) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 60; ++round) {
    const size_t rank = random() % 6;
    Shape shape(rank);
    for (int64_t& size : shape) size = 1 + static_cast<int64_t>(random() % 9);
    const Box from_box = box_within(whole_box(shape), random);
    const Box box = box_within(from_box, random);
    // The target holds the box and some more around it.
    Box to_box = box;
    for (size_t d = 0; d < rank; ++d) to_box.sizes[d] += static_cast<int64_t>(random() % 3);
    const int64_t sizes[] = {1, 2, 4, 8};
    TESSERA_RETURN_IF_ERROR(check_box_copy(api, box, from_box, to_box, sizes[random() % 4]));
  }
  // More loops than a kernel has.
  const Box twelve = whole_box(Shape(12, 3));
  Box corner = twelve;
  for (size_t d = 0; d < 12; ++d) corner.sizes[d] = d == 3 ? 1 : 2;
  Box target = corner;
  return check_box_copy(api, corner, twelve, target, 1);
}

Status reduces_boxes(Api& api) {
  std::mt19937_64 random(8);
  for (int round = 0; round < 20; ++round) {
    TESSERA_ASSIGN_OR_RETURN(const auto bench, Bench::create(api));
    Shape shape(1 + random() % 4);
    for (int64_t& size : shape) size = 1 + static_cast<int64_t>(random() % 12);
    const Box from_box = whole_box(shape);
    const Box box = box_within(from_box, random);
    std::vector<std::vector<std::byte>> inputs;
    std::vector<const std::byte*> terms;
    for (uint64_t k = 0; k < 3; ++k) {
      inputs.push_back(values_of<float>(k, from_box.num_elements()));
      TESSERA_ASSIGN_OR_RETURN(const std::byte* term, bench->upload(inputs.back()));
      terms.push_back(term);
    }
    TESSERA_ASSIGN_OR_RETURN(std::byte * out, bench->memory(box.num_elements() * 4));
    for (const Reduce& reduce :
         plan_reduce_box(DType::kFloat32, ReduceOp::kSum, box, terms, from_box, out, box)) {
      TESSERA_RETURN_IF_ERROR(api.launch(reduce, bench->stream()));
    }
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::byte> got,
                             bench->download(out, box.num_elements() * 4));
    bool right = true;
    for_each_index(box, [&](const std::vector<int64_t>& index) {
      std::vector<float> scalars;
      for (const auto& input : inputs)
        scalars.push_back(at<float>(input, place_in(from_box, index)));
      right &= same(at<float>(got, place_in(box, index)), reduce_scalars(ReduceOp::kSum, scalars));
    });
    TESSERA_RETURN_IF_ERROR(
        expect(right, absl::StrCat("sum over ", box.to_string(), " of ", from_box.to_string())));
  }
  return absl::OkStatus();
}

Status fills(Api& api) {
  for (int d = 0; d < kNumDTypes; ++d) {
    TESSERA_RETURN_IF_ERROR(visit_dtype(static_cast<DType>(d), [&]<class T>() -> Status {
      for (const int64_t count : {1, 3, 16, 1037}) {
        TESSERA_ASSIGN_OR_RETURN(const auto bench, Bench::create(api));
        const auto size = static_cast<int64_t>(sizeof(T));
        // One element beyond the end, which must stay.
        const std::vector<std::byte> before = values_of<T>(9, count + 1);
        TESSERA_ASSIGN_OR_RETURN(std::byte * out, bench->upload(before));
        const T value = T(3);
        TESSERA_RETURN_IF_ERROR(
            api.launch(plan_fill(dtype_of<T>(), &value, out, count), bench->stream()));
        TESSERA_ASSIGN_OR_RETURN(const auto got, bench->download(out, (count + 1) * size));
        bool right = same(at<T>(got, count), at<T>(before, count));
        for (int64_t i = 0; i < count; ++i) right &= same(at<T>(got, i), value);
        TESSERA_RETURN_IF_ERROR(
            expect(right, absl::StrCat("fill of ", count, " ", dtype_name(dtype_of<T>()))));
      }
      return absl::OkStatus();
    }));
  }
  return absl::OkStatus();
}

Status iotas(Api& api) {
  const Shape shape = {5, 7, 11};
  const Box boxes[] = {whole_box(shape),
                       {{1, 2, 3}, {2, 4, 5}},
                       {{4, 0, 0}, {1, 7, 11}},
                       {{0, 0, 1}, {3, 5, 8}}};  // runs of whole packs
  for (int d = 0; d < kNumDTypes; ++d) {
    for (const Box& box : boxes) {
      TESSERA_RETURN_IF_ERROR(visit_dtype(static_cast<DType>(d), [&]<class T>() -> Status {
        TESSERA_ASSIGN_OR_RETURN(const auto bench, Bench::create(api));
        TESSERA_ASSIGN_OR_RETURN(std::byte * out, bench->memory(box.num_elements() * sizeof(T)));
        for (const Iota& iota : plan_iota(dtype_of<T>(), shape, box, out)) {
          TESSERA_RETURN_IF_ERROR(api.launch(iota, bench->stream()));
        }
        TESSERA_ASSIGN_OR_RETURN(const auto got,
                                 bench->download(out, box.num_elements() * sizeof(T)));
        bool right = true;
        for_each_index(box, [&](const std::vector<int64_t>& index) {
          right &= same(at<T>(got, place_in(box, index)), T(place_in(whole_box(shape), index)));
        });
        return expect(right,
                      absl::StrCat("iota of ", dtype_name(dtype_of<T>()), " ", box.to_string()));
      }));
    }
  }
  return absl::OkStatus();
}

// As static_cast, but saturating; NaN becomes 0.
template <class From, class To>
To cast_scalar(From value) {
  if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (std::is_integral_v<To>) {
    if (is_nan(value)) return 0;
    // In long double every value of every dtype is exact.
    const long double exact = static_cast<long double>(
        static_cast<std::conditional_t<std::is_integral_v<From>, int64_t, double>>(value));
    const long double lowest = std::numeric_limits<To>::lowest();
    const long double highest = std::numeric_limits<To>::max();
    return static_cast<To>(std::clamp(std::trunc(exact), lowest, highest));
  } else if constexpr (std::is_integral_v<From>) {
    return static_cast<To>(static_cast<int64_t>(value));
  } else if constexpr (sizeof(To) == 2) {
    return static_cast<To>(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

// With `skew` neither side is aligned to more than one element.
template <class From, class To>
Status check_cast(Api& api, int64_t skew) {
  constexpr int64_t kCount = 703;
  TESSERA_ASSIGN_OR_RETURN(const auto bench, Bench::create(api));
  const std::vector<std::byte> from = values_of<From>(10, skew + kCount);
  TESSERA_ASSIGN_OR_RETURN(const std::byte* in, bench->upload(from));
  // One element beyond each end, which must stay.
  const std::vector<std::byte> before = values_of<To>(11, skew + kCount + 1);
  TESSERA_ASSIGN_OR_RETURN(std::byte * out, bench->upload(before));
  const auto from_skew = skew * static_cast<int64_t>(sizeof(From));
  const auto to_skew = skew * static_cast<int64_t>(sizeof(To));
  TESSERA_RETURN_IF_ERROR(
      api.launch(plan_cast(dtype_of<From>(), dtype_of<To>(), in + from_skew, out + to_skew, kCount),
                 bench->stream()));
  TESSERA_ASSIGN_OR_RETURN(const auto got, bench->download(out, before.size()));
  TESSERA_RETURN_IF_ERROR(
      expect(same(at<To>(got, 0), at<To>(before, 0)) || skew == 0, "the element before stays"));
  TESSERA_RETURN_IF_ERROR(expect(same(at<To>(got, skew + kCount), at<To>(before, skew + kCount)),
                                 "the element after stays"));
  for (int64_t i = skew; i < skew + kCount; ++i) {
    const From value = at<From>(from, i);
    if (same(at<To>(got, i), cast_scalar<From, To>(value))) continue;
    return absl::InternalError(absl::StrCat(
        "cast of ", static_cast<double>(value), " from ", dtype_name(dtype_of<From>()), " to ",
        dtype_name(dtype_of<To>()), " is ", static_cast<double>(at<To>(got, i))));
  }
  return absl::OkStatus();
}

Status casts(Api& api) {
  for (int f = 0; f < kNumDTypes; ++f) {
    for (int t = 0; t < kNumDTypes; ++t) {
      TESSERA_RETURN_IF_ERROR(visit_dtype(static_cast<DType>(f), [&]<class From>() {
        return visit_dtype(static_cast<DType>(t), [&]<class To>() -> Status {
          TESSERA_RETURN_IF_ERROR((check_cast<From, To>(api, 0)));
          return check_cast<From, To>(api, 1);
        });
      }));
    }
  }
  return absl::OkStatus();
}

Status bus_ids_name_gpus(Api& api) {
  TESSERA_ASSIGN_OR_RETURN(const int num_gpus, api.device_count());
  std::set<std::string> ids;
  for (int gpu = 0; gpu < num_gpus; ++gpu) {
    TESSERA_ASSIGN_OR_RETURN(const std::string id, api.bus_id(gpu));
    TESSERA_ASSIGN_OR_RETURN(const std::string again, api.bus_id(gpu));
    TESSERA_RETURN_IF_ERROR(expect(id == again, "a GPU keeps its bus id"));
    // "0000:19:00.0".
    TESSERA_RETURN_IF_ERROR(
        expect(id.size() == 12 && id[4] == ':' && id[7] == ':' && id[10] == '.', id));
    TESSERA_RETURN_IF_ERROR(expect(ids.insert(id).second, "two GPUs have two bus ids"));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<ContractCase> contract_cases() {
  return {
      {"bus_ids_name_gpus", bus_ids_name_gpus},
      {"copies_there_and_back", copies_there_and_back},
      {"memory_is_aligned", memory_is_aligned},
      {"too_much_memory", too_much_memory},
      {"event_orders_streams", event_orders_streams},
      {"event_is_recorded_again", event_is_recorded_again},
      {"destroyed_stream_finishes", destroyed_stream_finishes},
      {"copies_boxes", copies_boxes},
      {"reduces_every_dtype", reduces_every_dtype},
      {"reduces_boxes", reduces_boxes},
      {"fills", fills},
      {"iotas", iotas},
      {"casts", casts},
  };
}

}  // namespace tessera::cuda
