// SPDX-License-Identifier: Apache-2.0
//
// The table of bad inputs, part 2: tensors, views, local functions and handles that were moved
// from, in a job of one client. Each row is one input, the code and the whole message that it must
// give; none may end the process, and each leaves a client that works.
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tessera/eigen.h"
#include "tessera/tessera.h"
#include "tests/support/bad_inputs.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t k61 = int64_t{1} << 61;

// A client of four devices, and the values that most rows need.
struct Bench {
  Client client;
  Mesh mesh;               // {x=4}
  StatusOr<Layout> rows;   // [x, -]
  StatusOr<Layout> line;   // [x]
  StatusOr<Layout> whole;  // [-]
  std::vector<float> forty_eight = std::vector<float>(48, 1.0f);

  static StatusOr<Bench> create() {
    TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 4}));
    TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"x", 4}}));
    return Bench{client, mesh, Layout::parse(mesh, "[x, -]"), Layout::parse(mesh, "[x]"),
                 Layout::parse(mesh, "[-]")};
  }
  std::vector<HostTensor<float>> shards() const {
    return std::vector<HostTensor<float>>(4, {{2, 6}, std::vector<float>(12)});
  }
};
using Row = BadInput<Bench>;

void nothing(LocalContext&) {}

const Row kTensorRows[] = {
    {"negative_size", kInvalid, "shape [-1, 4] has size -1 in dim 0; a size is 0 or more",
     [](Bench& b) {
       return zeros<float>({-1, 4}, b.rows).await();
     }},
    {"negative_size_of_iota", kInvalid, "shape [4, -3] has size -3 in dim 1; a size is 0 or more",
     [](Bench& b) {
       return iota<float>({4, -3}, b.rows).await();
     }},
    {"negative_size_of_local_map", kInvalid, "shape [-1] has size -1 in dim 0; a size is 0 or more",
     [](Bench& b) { return local_map(b.line, {-1}, DType::kFloat32, {}, nothing).await(); }},
    {"smallest_size", kInvalid,
     "shape [-9223372036854775808, 1] has size -9223372036854775808 in dim 0; a size is 0 or more",
     [](Bench& b) {
       return zeros<float>({std::numeric_limits<int64_t>::min(), 1}, b.rows).await();
     }},
    {"elements_past_64_bits", kInvalid,
     "shape [1099511627776, 1099511627776] has more elements than a 64-bit integer counts; use "
     "smaller sizes",
     [](Bench& b) {
       return zeros<float>({int64_t{1} << 40, int64_t{1} << 40}, b.rows).await();
     }},
    {"bytes_past_64_bits", kInvalid,
     "shape [4611686018427387904] of f32 has more than 2^63 - 1 bytes; give it fewer elements",
     [](Bench& b) { return zeros<float>({int64_t{1} << 62}, b.whole).await(); }},
    {"bytes_past_64_bits_of_iota", kInvalid,
     "shape [4611686018427387904] of f32 has more than 2^63 - 1 bytes; give it fewer elements",
     [](Bench& b) { return iota<float>({int64_t{1} << 62}, b.whole).await(); }},
    {"bytes_that_wrap_to_64", kInvalid,
     "shape [2305843009213693960] of f64 has more than 2^63 - 1 bytes; give it fewer elements",
     [](Bench& b) { return full<double>({k61 + 8}, 1.0, b.whole).await(); }},
    {"bytes_past_64_bits_of_shards", kInvalid,
     "shape [9223372036854775807] of f64 has more than 2^63 - 1 bytes; give it fewer elements",
     [](Bench& b) { return zeros<double>({kMax}, b.line).await(); }},
    {"bytes_past_64_bits_of_from_function", kInvalid,
     "shape [2305843009213693960] of f64 has more than 2^63 - 1 bytes; give it fewer elements",
     [](Bench& b) {
       Status fill = absl::OkStatus();
       const DTensor x = from_function<double>(
           {k61 + 8}, b.whole,
           [&](const Box&, absl::Span<double>) { fill = absl::InternalError("fill was called"); });
       return fill.ok() ? x.await() : fill;
     }},
    {"bytes_past_64_bits_of_from_shards", kInvalid,
     "shape [4611686018427387904] of f32 has more than 2^63 - 1 bytes; give it fewer elements",
     [](Bench& b) { return from_shards<float>({int64_t{1} << 62}, b.whole, b.shards()).await(); }},
    {"bytes_past_64_bits_of_local_map", kInvalid,
     "shape [2305843009213693952] of f64 has more than 2^63 - 1 bytes; give it fewer elements",
     [](Bench& b) { return local_map(b.whole, {k61}, DType::kFloat64, {}, nothing).await(); }},
    {"more_memory_than_addresses", kExhausted,
     "a block of 4611686018427387904 bytes is beyond the address space",
     [](Bench& b) { return zeros<float>({int64_t{1} << 60}, b.whole).await(); }},
    {"dtype_out_of_range", kInvalid,
     "DType(17) is not an element type; use an enumerator of DType, kBool (0) to kFloat64 (8)",
     [](Bench& b) { return local_map(b.line, {8}, static_cast<DType>(17), {}, nothing).await(); }},
    {"shape_of_another_rank", kInvalid,
     "layout [x, -] has 2 dims, shape [8] has 1; give one entry per dim",
     [](Bench& b) { return zeros<float>({8}, b.rows).await(); }},
    {"layout_with_an_error", kInvalid,
     "layout \"[q]\" names axis \"q\" in dim 0; mesh {x=4} has \"x\"",
     [](Bench& b) { return zeros<float>({8}, Layout::parse(b.mesh, "[q]")).await(); }},
    {"abstract_mesh", kFailed,
     "mesh {x=4} is abstract: no devices stand behind it; make it with create_mesh(client, ...) to "
     "hold tensors",
     [](Bench&) { return zeros<float>({8}, Layout::parse(*Mesh::parse("{x=4}"), "[x]")).await(); }},
    {"average_of_integers", kInvalid,
     "layout [-] avg{x}: avg is not defined for integers, and the dtype is i32; use sum, or a "
     "floating-point dtype",
     [](Bench& b) { return ones<int32_t>({4}, Layout::parse(b.mesh, "[-] avg{x}")).await(); }},
    {"sum_of_bool", kInvalid,
     "layout [-] sum{x}: sum is not defined for bool; use min (and) or max (or), or another dtype",
     [](Bench& b) { return ones<bool>({4}, Layout::parse(b.mesh, "[-] sum{x}")).await(); }},
    {"from_host_of_47", kInvalid, "from_host of shape [8, 6] needs 48 elements, got 47",
     [](Bench& b) {
       return from_host<float>(absl::MakeConstSpan(b.forty_eight).first(47), {8, 6}, b.rows)
           .await();
     }},
    {"from_host_of_49", kInvalid, "from_host of shape [8, 6] needs 48 elements, got 49",
     [](Bench& b) {
       return from_host<float>(std::vector<float>(49), {8, 6}, b.rows).await();
     }},
    {"from_host_of_negative_sizes", kInvalid,
     "shape [-2, -2] has size -2 in dim 0; a size is 0 or more",
     [](Bench& b) {
       return from_host<float>(std::vector<float>(4), {-2, -2}, b.rows).await();
     }},
    {"from_host_of_elements_past_64_bits", kInvalid,
     "shape [1099511627776, 1099511627776] has more elements than a 64-bit integer counts; use "
     "smaller sizes",
     [](Bench& b) {
       return from_host<float>({}, {int64_t{1} << 40, int64_t{1} << 40}, b.rows).await();
     }},
    {"from_host_of_another_rank", kInvalid,
     "layout [x, -] has 2 dims, shape [48] has 1; give one entry per dim",
     [](Bench& b) { return from_host<float>(b.forty_eight, {48}, b.rows).await(); }},
    {"from_host_of_nothing", kInvalid, "from_host of shape [8, 6] needs 48 elements, got 0",
     [](Bench& b) {
       return from_host<float>(absl::Span<const float>(), {8, 6}, b.rows).await();
     }},
    {"from_host_of_null", kInvalid,
     "from_host of shape [8, 6]: values is null and its span has 48 elements; pass memory that "
     "holds them",
     [](Bench& b) {
       return from_host<float>(absl::Span<const float>(nullptr, 48), {8, 6}, b.rows).await();
     }},
    {"from_shards_of_three", kInvalid,
     "from_shards on client 0: expected 4 shards, one for each local device of {x=4}, got 3",
     [](Bench& b) {
       std::vector<HostTensor<float>> shards = b.shards();
       shards.pop_back();
       return from_shards<float>({8, 6}, b.rows, shards).await();
     }},
    {"from_shards_of_none", kInvalid,
     "from_shards on client 0: expected 4 shards, one for each local device of {x=4}, got 0",
     [](Bench& b) {
       return from_shards<float>({8, 6}, b.rows, {}).await();
     }},
    {"from_shards_without_data", kInvalid,
     "from_shards: the shard of device 2 under [x, -] has 0 elements; its shape [2, 6] needs 12",
     [](Bench& b) {
       std::vector<HostTensor<float>> shards = b.shards();
       shards[2].data.clear();
       return from_shards<float>({8, 6}, b.rows, shards).await();
     }},
    {"from_shards_too_short", kInvalid,
     "from_shards: the shard of device 2 under [x, -] has 11 elements; its shape [2, 6] needs 12",
     [](Bench& b) {
       std::vector<HostTensor<float>> shards = b.shards();
       shards[2].data.resize(11);
       return from_shards<float>({8, 6}, b.rows, shards).await();
     }},
    {"from_shards_of_another_rank", kInvalid,
     "from_shards: the shard of device 2 under [x, -] has rank 1, and the tensor has rank 2",
     [](Bench& b) {
       std::vector<HostTensor<float>> shards = b.shards();
       shards[2].shape = {12};
       return from_shards<float>({8, 6}, b.rows, shards).await();
     }},
    {"from_shards_of_negative_shape", kInvalid,
     "from_shards: the shard of device 2 under [x, -] has shape [-2, -6]; expected [2, 6]",
     [](Bench& b) {
       std::vector<HostTensor<float>> shards = b.shards();
       shards[2].shape = {-2, -6};
       return from_shards<float>({8, 6}, b.rows, shards).await();
     }},
    {"shard_of_another_dtype", kInvalid, "shard<f64> of a tensor of f32; read it as its own dtype",
     [](Bench& b) { return iota<float>({8}, b.line).shard<double>(0).status(); }},
    {"shard_of_floats_as_integers", kInvalid,
     "shard<i32> of a tensor of f32; read it as its own dtype",
     [](Bench& b) { return iota<float>({8}, b.line).shard<int32_t>(0).status(); }},
    {"shard_of_floats_as_bool", kInvalid,
     "shard<bool> of a tensor of f32; read it as its own dtype",
     [](Bench& b) { return iota<float>({8}, b.line).shard<bool>(0).status(); }},
    {"to_host_of_another_dtype", kInvalid,
     "to_host<i64> of a tensor of f32; read it as its own dtype",
     [](Bench& b) { return iota<float>({8}, b.line).to_host<int64_t>().status(); }},
    {"shard_minus_one", kInvalid, "shard(-1) is out of range; this client holds shards 0 to 3",
     [](Bench& b) { return iota<float>({8}, b.line).shard<float>(-1).status(); }},
    {"shard_4_of_4", kInvalid, "shard(4) is out of range; this client holds shards 0 to 3",
     [](Bench& b) { return iota<float>({8}, b.line).shard<float>(4).status(); }},
    {"shard_of_the_largest_int", kInvalid,
     "shard(2147483647) is out of range; this client holds shards 0 to 3",
     [](Bench& b) {
       return iota<float>({8}, b.line).shard<float>(std::numeric_limits<int>::max()).status();
     }},
    {"relayout_to_another_rank", kInvalid,
     "relayout to [x]: the layout has 1 dim, the tensor under [x, -] has 2; relayout keeps the "
     "rank",
     [](Bench& b) {
       return relayout(iota<float>({8, 6}, b.rows), b.line).await();
     }},
    {"relayout_of_bool_to_sum", kInvalid,
     "layout [-] sum{x}: sum is not defined for bool; use min (and) or max (or), or another dtype",
     [](Bench& b) {
       return relayout(ones<bool>({4}, b.line), Layout::parse(b.mesh, "[-] sum{x}")).await();
     }},
    {"relayout_to_the_mesh_of_another_client", kInvalid,
     "relayout to [x] on {x=4}, a mesh of another client than the tensor's; use meshes of one "
     "client",
     [](Bench& b) {
       TESSERA_ASSIGN_OR_RETURN(const Bench other, Bench::create());
       return relayout(iota<float>({8}, b.line), other.line).await();
     }},
    {"plan_with_a_bad_dtype", kInvalid,
     "DType(77) is not an element type; use an enumerator of DType, kBool (0) to kFloat64 (8)",
     [](Bench& b) {
       return plan_relayout(*b.line, b.whole, {8}, static_cast<DType>(77)).status();
     }},
    {"a_first_error_stays", kInvalid,
     "layout \"[q]\" names axis \"q\" in dim 0; mesh {x=4} has \"x\"",
     [](Bench& b) {
       const DTensor bad = zeros<float>({8}, Layout::parse(b.mesh, "[q]"));
       return relayout(relayout(bad, Layout::parse(b.mesh, "x]")), b.line)
           .to_host<float>()
           .status();
     }},
};

const Row kLocalMapRows[] = {
    {"input_3_of_1", kInvalid, "local_map on device 0: input 3 does not exist; 1 input was given",
     [](Bench& b) {
       return local_map(b.line, {8}, DType::kFloat32, {iota<float>({8}, b.line)},
                        [](LocalContext& local) { local.input<float>(3); })
           .await();
     }},
    {"input_minus_one", kInvalid,
     "local_map on device 0: input -1 does not exist; 1 input was given",
     [](Bench& b) {
       return local_map(b.line, {8}, DType::kFloat32, {iota<float>({8}, b.line)},
                        [](LocalContext& local) { local.input<float>(-1); })
           .await();
     }},
    {"input_box_5_of_none", kInvalid,
     "local_map on device 0: input 5 does not exist; 0 inputs were given",
     [](Bench& b) {
       return local_map(b.line, {8}, DType::kFloat32, {},
                        [](LocalContext& local) -> Status {
                          for (const int index : {5, -1}) {
                            const Box& box = local.input_box(index);
                            TESSERA_REQUIRE(box.sizes == Shape({2, 1, 1, 1, 1, 1, 1, 1}));
                            TESSERA_REQUIRE(box.offsets[7] == 0);
                          }
                          return absl::OkStatus();
                        })
           .await();
     }},
    {"input_on_half_the_mesh", kInvalid,
     "local_map: input 0 is on {x=2}, where device 2 of the output's mesh {x=4} holds no shard; "
     "relayout it first",
     [](Bench& b) {
       TESSERA_ASSIGN_OR_RETURN(const Mesh half, create_mesh(b.client, {{"x", 2}}, {0, 1}));
       return local_map(b.line, {8}, DType::kFloat32,
                        {iota<float>({8}, Layout::parse(half, "[x]"))}, nothing)
           .await();
     }},
    {"layout_with_an_error", kInvalid,
     "layout \"[zz]\" names axis \"zz\" in dim 0; mesh {x=4} has \"x\"",
     [](Bench& b) {
       return local_map(Layout::parse(b.mesh, "[zz]"), {8}, DType::kFloat32, {}, nothing).await();
     }},
    {"input_with_an_error", kInvalid,
     "layout \"[q]\" names axis \"q\" in dim 0; mesh {x=4} has \"x\"",
     [](Bench& b) {
       const DTensor bad = zeros<float>({8}, Layout::parse(b.mesh, "[q]"));
       return local_map(b.line, {8}, DType::kFloat32, {bad}, nothing).await();
     }},
    {"output_of_another_rank", kInvalid,
     "layout [x] has 1 dim, shape [8, 8] has 2; give one entry per dim",
     [](Bench& b) {
       return local_map(b.line, {8, 8}, DType::kFloat32, {}, nothing).await();
     }},
    {"an_error_without_text", absl::StatusCode::kNotFound, "local_map on device 2",
     [](Bench& b) {
       return local_map(b.line, {8}, DType::kFloat32, {},
                        [](LocalContext& local) -> Status {
                          return local.device_id() == 2 ? absl::NotFoundError("")
                                                        : absl::OkStatus();
                        })
           .await();
     }},
};

// A handle that was moved from, used again.
template <class T>
T moved_from(T handle) {
  const T taken = std::move(handle);
  return handle;  // NOLINT: the point of it
}

const Row kMovedFromRows[] = {
    {"await_of_a_tensor", kFailed,
     "the tensor was moved from; use the tensor that it was moved to, or pass a copy",
     [](Bench& b) { return moved_from(iota<float>({8}, b.line)).await(); }},
    {"status_of_a_tensor", kFailed,
     "the tensor was moved from; use the tensor that it was moved to, or pass a copy",
     [](Bench& b) { return moved_from(iota<float>({8}, b.line)).status(); }},
    {"shard_of_a_tensor", kFailed,
     "the tensor was moved from; use the tensor that it was moved to, or pass a copy",
     [](Bench& b) { return moved_from(iota<float>({8}, b.line)).shard<float>(0).status(); }},
    {"to_host_of_a_tensor", kFailed,
     "the tensor was moved from; use the tensor that it was moved to, or pass a copy",
     [](Bench& b) { return moved_from(iota<float>({8}, b.line)).to_host<float>().status(); }},
    {"relayout_of_a_tensor", kFailed,
     "the tensor was moved from; use the tensor that it was moved to, or pass a copy",
     [](Bench& b) { return relayout(moved_from(iota<float>({8}, b.line)), b.whole).await(); }},
    {"local_map_of_a_tensor", kFailed,
     "the tensor was moved from; use the tensor that it was moved to, or pass a copy",
     [](Bench& b) {
       return local_map(b.line, {8}, DType::kFloat32, {moved_from(iota<float>({8}, b.line))},
                        nothing)
           .await();
     }},
    {"a_tensor_given_to_relayout", kFailed,
     "the tensor was moved from; use the tensor that it was moved to, or pass a copy",
     [](Bench& b) {
       DTensor x = iota<float>({8}, b.line);
       TESSERA_RETURN_IF_ERROR(relayout(std::move(x), b.whole).await());
       return x.await();  // NOLINT: the point of it
     }},
    {"no_devices_of_create_mesh", kInvalid,
     "mesh {x=4} has 4 devices, 0 ids were given; give one id per device",
     [](Bench& b) {
       return create_mesh(b.client, {{"x", 4}}, {}).status();
     }},
    {"client_of_create_mesh", kFailed,
     "create_mesh() of an empty Client; assign a client of Client::connect() to it first",
     [](Bench& b) {
       return create_mesh(moved_from(b.client), {{"x", 4}}).status();
     }},
    {"client_of_a_group", kFailed,
     "Client::group() of an empty Client; assign a client of Client::connect() to it first",
     [](Bench& b) { return moved_from(b.client).group({0}, 0).status(); }},
    {"empty_client_of_all_devices", kFailed,
     "Client::group() of an empty Client; assign a client of Client::connect() to it first",
     [](Bench&) { return Client().group().status(); }},
    {"empty_client_of_groups", kFailed,
     "Client::groups() of an empty Client; assign a client of Client::connect() to it first",
     [](Bench&) { return Client().groups().status(); }},
    {"empty_client_of_allocate", kFailed,
     "Client::allocate() of an empty Client; assign a client of Client::connect() to it first",
     [](Bench&) { return Client().allocate<float>(0, 1).status(); }},
    {"empty_client_of_save", kFailed,
     "save() of an empty Client; assign a client of Client::connect() to it first",
     [](Bench&) { return checkpoint::save(Client(), "/nowhere", {}); }},
    {"client_of_sync_devices", kFailed,
     "Client::sync_devices() of an empty Client; assign a client of Client::connect() to it first",
     [](Bench& b) { return moved_from(b.client).sync_devices(); }},
    {"client_of_shutdown", kFailed,
     "Client::shutdown() of an empty Client; assign a client of Client::connect() to it first",
     [](Bench& b) { return moved_from(b.client).shutdown(); }},
    {"group_of_a_barrier", kFailed,
     "Group::barrier() of an empty Group; assign a group of Client::group() to it first",
     [](Bench& b) {
       TESSERA_ASSIGN_OR_RETURN(const Group group, b.client.group({0}, 0));
       return moved_from(group).barrier().await();
     }},
    {"group_of_a_send", kFailed,
     "Group::send() of an empty Group; assign a group of Client::group() to it first",
     [](Bench& b) {
       TESSERA_ASSIGN_OR_RETURN(const Group group, b.client.group({0, 1}, 0));
       return moved_from(group).send<float>(b.forty_eight, 1).await();
     }},
    {"group_of_an_all_to_all", kFailed,
     "Group::all_to_all() of an empty Group; assign a group of Client::group() to it first",
     [](Bench& b) {
       TESSERA_ASSIGN_OR_RETURN(const Group group, b.client.group({0}, 0));
       std::vector<float> out(48);
       return moved_from(group).all_to_all<float>(b.forty_eight, absl::MakeSpan(out)).await();
     }},
    {"work", kFailed, "the Work was moved from; wait on the Work that it was moved to",
     [](Bench& b) {
       TESSERA_ASSIGN_OR_RETURN(const Group group, b.client.group({0}, 0));
       const Work work = moved_from(group.barrier());
       TESSERA_REQUIRE(work.done());
       return work.wait(absl::Seconds(1));
     }},
};

// Empty handles. A row whose message begins with "..." is of a layer above, which may name its
// call.
const Row kEmptyRows[] = {
    {"await_of_an_empty_tensor", kFailed,
     "DTensor::await() of an empty DTensor; assign a value to the DTensor first",
     [](Bench&) { return DTensor().await(); }},
    {"status_of_an_empty_tensor", kFailed,
     "DTensor::status() of an empty DTensor; assign a value to the DTensor first",
     [](Bench&) { return DTensor().status(); }},
    {"shard_of_an_empty_tensor", kFailed,
     "DTensor::shard() of an empty DTensor; assign a value to the DTensor first",
     [](Bench&) { return DTensor().shard<float>(0).status(); }},
    {"to_host_of_an_empty_tensor", kFailed,
     "DTensor::to_host() of an empty DTensor; assign a value to the DTensor first",
     [](Bench&) { return DTensor().to_host<float>().status(); }},
    {"item_of_an_empty_tensor", kFailed,
     "DTensor::item() of an empty DTensor; assign a value to the DTensor first",
     [](Bench&) { return DTensor().item<float>().status(); }},
    {"gather_of_an_empty_tensor", kFailed,
     "DTensor::gather_to() of an empty DTensor; assign a value to the DTensor first",
     [](Bench&) { return DTensor().gather_to<float>(0).status(); }},
    {"text_of_an_empty_tensor", kFailed,
     "to_string() of an empty DTensor; assign a value to the DTensor first",
     [](Bench&) { return to_string(DTensor()).status(); }},
    {"relayout_of_an_empty_tensor", kFailed,
     "relayout() of an empty DTensor; assign a value to the DTensor first",
     [](Bench& b) { return relayout(DTensor(), b.whole).await(); }},
    {"relayout_of_an_empty_tensor_to_text", kFailed,
     "relayout() of an empty DTensor; assign a value to the DTensor first",
     [](Bench&) { return relayout(DTensor(), "[x]").await(); }},
    {"local_map_of_an_empty_tensor", kFailed,
     "local_map() of an empty DTensor; assign a value to the DTensor first",
     [](Bench& b) {
       return local_map(b.line, {8}, DType::kFloat32, {DTensor()}, nothing).await();
     }},
    {"operation_on_an_empty_tensor", kFailed, "...",
     [](Bench& b) { return ops::add(DTensor(), iota<float>({8}, b.line)).await(); }},
    {"dlpack_of_an_empty_tensor", kFailed,
     "the tensor is an empty DTensor; assign a value to the DTensor first",
     [](Bench&) { return to_dlpack(DTensor(), 0).status(); }},
    {"npy_of_an_empty_tensor", kFailed,
     "write_npy ...: the tensor is an empty DTensor; assign a value to the DTensor first",
     [](Bench& b) { return write_npy(b.client, "/nowhere/x.npy", DTensor()); }},
    {"checkpoint_of_an_empty_tensor", kFailed,
     "...the tensor is an empty DTensor; assign a value to the DTensor first",
     [](Bench& b) {
       return checkpoint::save(b.client, "/nowhere/x", {{"w", DTensor()}});
     }},
    {"zeros_under_an_empty_layout", kFailed,
     "the layout is an empty Layout; make one with Layout::parse(mesh, ...)",
     [](Bench&) { return zeros<float>({8}, Layout()).await(); }},
    {"from_host_under_an_empty_layout", kFailed,
     "the layout is an empty Layout; make one with Layout::parse(mesh, ...)",
     [](Bench& b) { return from_host<float>(b.forty_eight, {48}, Layout()).await(); }},
    {"from_function_under_an_empty_layout", kFailed,
     "the layout is an empty Layout; make one with Layout::parse(mesh, ...)",
     [](Bench&) {
       return from_function<float>({8}, Layout(), [](const Box&, absl::Span<float>) {}).await();
     }},
    {"from_shards_under_an_empty_layout", kFailed,
     "the layout is an empty Layout; make one with Layout::parse(mesh, ...)",
     [](Bench& b) {
       return from_shards<float>({8, 6}, Layout(), b.shards()).await();
     }},
    {"from_memory_under_an_empty_layout", kFailed,
     "the layout is an empty Layout; make one with Layout::parse(mesh, ...)",
     [](Bench& b) { return from_memory<float>({48}, Layout(), {b.forty_eight}, nullptr).await(); }},
    {"from_dlpack_under_an_empty_layout", kFailed,
     "the layout is an empty Layout; make one with Layout::parse(mesh, ...)",
     [](Bench&) { return from_dlpack({8}, Layout(), {}).await(); }},
    {"random_numbers_under_an_empty_layout", kFailed,
     "the layout is an empty Layout; make one with Layout::parse(mesh, ...)",
     [](Bench&) {
       return random::uniform<float>(random::Key::from_seed(1), {8}, Layout()).await();
     }},
    {"relayout_to_an_empty_layout", kFailed,
     "the layout is an empty Layout; make one with Layout::parse(mesh, ...)",
     [](Bench& b) { return relayout(iota<float>({8}, b.line), Layout()).await(); }},
    {"local_map_to_an_empty_layout", kFailed,
     "the layout is an empty Layout; make one with Layout::parse(mesh, ...)",
     [](Bench&) { return local_map(Layout(), {8}, DType::kFloat32, {}, nothing).await(); }},
    {"read_npy_under_an_empty_layout", kFailed,
     "the layout is an empty Layout; make one with Layout::parse(mesh, ...)",
     [](Bench& b) { return read_npy(b.client, "/nowhere/x.npy", Layout()).status(); }},
    {"restore_under_an_empty_layout", kFailed,
     "target \"w\": the layout is an empty Layout; make one with Layout::parse(mesh, ...)",
     [](Bench& b) {
       return checkpoint::restore(b.client, "/nowhere/x", {{"w", Layout()}}).status();
     }},
    {"loader_of_an_empty_layout", kFailed,
     "the layout is an empty Layout; make one with Layout::parse(mesh, ...)",
     [](Bench& b) {
       return input::distribute(b.client, input::Dataset::range(8).batch(4), {Layout()}).status();
     }},
    {"picture_of_an_empty_layout", kFailed,
     "the layout is an empty Layout; make one with Layout::parse(mesh, ...)",
     [](Bench&) { return visualize(Layout(), {8}).status(); }},
    {"plan_from_an_empty_layout", kFailed,
     "plan_relayout() of an empty Layout; assign a value to the Layout first",
     [](Bench& b) { return plan_relayout(Layout(), b.line, {8}, DType::kFloat32).status(); }},
    {"plan_to_an_empty_layout", kFailed,
     "the layout is an empty Layout; make one with Layout::parse(mesh, ...)",
     [](Bench& b) { return plan_relayout(*b.line, Layout(), {8}, DType::kFloat32).status(); }},
    {"group_of_an_empty_mesh", kFailed,
     "Client::group() of an empty Mesh; assign a value to the Mesh first",
     [](Bench& b) { return b.client.group(Mesh(), {"x"}, 0).status(); }},
    {"strategy_of_an_empty_mesh", kFailed,
     "Strategy::create() of an empty Mesh; assign a value to the Mesh first",
     [](Bench& b) { return distribute::Strategy::create(b.client, Mesh(), {"x"}).status(); }},
    {"barrier_of_an_empty_mesh", kFailed,
     "Mesh::barrier() of an empty Mesh; assign a value to the Mesh first",
     [](Bench&) { return Mesh().barrier(); }},
};

// Text where no argument has a mesh, and text that the mesh refuses.
const Row kLayoutTextRows[] = {
    {"zeros_under_text", kInvalid,
     "the layout \"[x]\" is text, and no argument names a mesh; use Layout::parse(mesh, \"[x]\")",
     [](Bench&) { return zeros<float>({8}, "[x]").await(); }},
    {"local_map_without_inputs_to_text", kInvalid,
     "the layout \"[x]\" is text, and no argument names a mesh; use Layout::parse(mesh, \"[x]\")",
     [](Bench&) { return local_map("[x]", {8}, DType::kFloat32, {}, nothing).await(); }},
    {"relayout_to_an_axis_of_no_mesh", kInvalid,
     "layout \"[y]\" names axis \"y\" in dim 0; mesh {x=4} has \"x\"",
     [](Bench& b) { return relayout(iota<float>({8}, b.line), "[y]").await(); }},
    {"item_of_48_elements", kInvalid,
     "item() of a tensor of shape [8, 6]: it has 48 elements, and item() is the value of one; use "
     "to_host()",
     [](Bench& b) {
       return iota<float>({8, 6}, b.rows).item<float>().status();
     }},
    {"gather_to_no_client", kInvalid, "gather_to(1): clients are 0 to 0",
     [](Bench& b) {
       return iota<float>({8, 6}, b.rows).gather_to<float>(1).status();
     }},
    {"from_memory_of_another_size", kInvalid,
     "from_memory: the shard of device 0 under [x] has 48 elements; its box [0:2] needs 2",
     [](Bench& b) {
       const absl::Span<const float> all = b.forty_eight;
       return from_memory<float>({8}, b.line, {all, all, all, all}, nullptr).await();
     }},
    {"from_memory_of_null", kInvalid,
     "from_memory: the shard of device 0 under [x] is null and has 2 elements; pass memory that "
     "holds them",
     [](Bench& b) {
       const absl::Span<const float> null(nullptr, 2);
       return from_memory<float>({8}, b.line, {null, null, null, null}, nullptr).await();
     }},
};

class BadInputTest : public ::testing::TestWithParam<Row> {};

TEST_P(BadInputTest, IsRefused) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Bench bench, Bench::create());
  EXPECT_THAT(expect_refused(GetParam(), GetParam().call(bench)), IsOk());
  // A row may have taken the client's handle: the mesh has another one.
  const DTensor rows = iota<float>({8, 6}, bench.rows);
  EXPECT_THAT(relayout(rows, Layout::parse(bench.mesh, "[-, x]")).await(), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const HostTensor<float> host, rows.to_host<float>());
  for (int i = 0; i < 48; ++i) ASSERT_EQ(host.data[i], i);
}
INSTANTIATE_TEST_SUITE_P(Tensors, BadInputTest, ::testing::ValuesIn(kTensorRows),
                         bad_input_name<Bench>);
INSTANTIATE_TEST_SUITE_P(LocalMap, BadInputTest, ::testing::ValuesIn(kLocalMapRows),
                         bad_input_name<Bench>);
INSTANTIATE_TEST_SUITE_P(MovedFrom, BadInputTest, ::testing::ValuesIn(kMovedFromRows),
                         bad_input_name<Bench>);
INSTANTIATE_TEST_SUITE_P(Empty, BadInputTest, ::testing::ValuesIn(kEmptyRows),
                         bad_input_name<Bench>);
INSTANTIATE_TEST_SUITE_P(LayoutText, BadInputTest, ::testing::ValuesIn(kLayoutTextRows),
                         bad_input_name<Bench>);

TEST(AccessorsTest, OfAnEmptyTensorAreTotal) {
  const DTensor empty;
  EXPECT_FALSE(empty.valid());
  EXPECT_EQ(empty.num_local_shards(), 0);
  EXPECT_EQ(empty.shape(), Shape());
  EXPECT_EQ(empty.layout().rank(), 0);
  EXPECT_EQ(empty.dtype(), DType::kFloat32);
  EXPECT_EQ(empty.explain(),
            "failed: the tensor is an empty DTensor; assign a value to the DTensor first\n");
  TESSERA_ASSERT_OK_AND_ASSIGN(Bench bench, Bench::create());
  DTensor x = empty;
  x = iota<float>({8}, bench.line);
  EXPECT_TRUE(x.valid());
  EXPECT_FALSE(moved_from(x).valid());
  EXPECT_THAT(x.await(), IsOk());
}

TEST(AccessorsTest, OfHandlesThatWereMovedFromAreTotal) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Bench bench, Bench::create());
  const DTensor tensor = moved_from(iota<float>({8}, bench.line));
  EXPECT_EQ(tensor.num_local_shards(), 0);
  EXPECT_EQ(tensor.shape(), Shape());
  EXPECT_EQ(tensor.layout().rank(), 0);
  tensor.dtype();
  EXPECT_TRUE(bench.client.valid());
  for (const Client& client : {moved_from(bench.client), Client()}) {
    EXPECT_FALSE(client.valid());
    EXPECT_EQ(client.client_id(), 0);
    EXPECT_EQ(client.num_clients(), 0);
    EXPECT_EQ(client.local_rank(), 0);
    EXPECT_TRUE(client.devices().empty());
    EXPECT_TRUE(client.local_devices().empty());
    EXPECT_EQ(client.topology(), Topology());
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(Group group, bench.client.group({0}, 0));
  EXPECT_EQ(moved_from(group).size(), 0);
  TESSERA_ASSERT_OK_AND_ASSIGN(RelayoutPlan plan,
                               plan_relayout(*bench.line, bench.whole, {8}, DType::kFloat32));
  EXPECT_EQ(moved_from(plan), plan);
  EXPECT_EQ(moved_from(plan.steps()[0]).to_string(), plan.steps()[0].to_string());
}

// There is no map of another rank, or of a shape that does not fit the data.
TEST(AccessorsTest, EigenMapsCoverTheDataOrThrow) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Bench bench, Bench::create());
  const DTensor tensor = iota<float>({8, 6}, bench.rows);
  TESSERA_ASSERT_OK_AND_ASSIGN(ShardView<float> view, tensor.shard<float>(1));
  const auto map = view.eigen<2>();
  ASSERT_EQ(map.size(), 12);
  EXPECT_EQ(map(1, 5), 23.0f);
  const auto message = [](auto call) -> std::string {
    try {
      call();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message([&] { view.eigen<1>(); }),
            "a view of shape [2, 6] mapped by eigen<1>(); ask for eigen<2>()");
  EXPECT_THROW(view.eigen<3>(), std::invalid_argument);
  EXPECT_THROW(view.eigen<0>(), std::invalid_argument);
  view.shape = {2, 7};
  EXPECT_EQ(message([&] { view.eigen<2>(); }),
            "a view of shape [2, 7] has 12 elements, which eigen() cannot map; set a shape of as "
            "many");
  HostTensor<float> host = {{2, 2}, {1, 2, 3, 4}};
  EXPECT_EQ(host.eigen<2>()(1, 1), 4.0f);
  EXPECT_THROW(host.eigen<1>(), std::invalid_argument);
  host.shape = {int64_t{1} << 62, 4};
  EXPECT_THROW(host.eigen<2>(), std::invalid_argument);
}

TEST(AccessorsTest, OfPlansAreTotal) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Bench bench, Bench::create());
  TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan plan,
                               plan_relayout(*bench.line, bench.whole, {8}, DType::kFloat32));
  EXPECT_EQ(plan.received_bytes(3), 24);
  EXPECT_EQ(plan.received_bytes(4), 0);
  EXPECT_EQ(plan.received_bytes(99), 0);
  EXPECT_EQ(plan.received_bytes(-1), 0);
  EXPECT_EQ(plan.step_peak_bytes(1), 0);
  EXPECT_EQ(plan.step_predicted_time(7), absl::ZeroDuration());
}

}  // namespace
}  // namespace tessera::testing
