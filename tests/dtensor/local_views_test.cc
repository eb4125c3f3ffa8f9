// SPDX-License-Identifier: Apache-2.0
//
// Functions of local_map() that use a view that does not exist: of another dtype, of an input that
// was not given, mapped by eigen() of another rank. Whatever they do, the op fails with the error
// of the view, and no other memory changes. ASan sees every access out of bounds.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/eigen.h"
#include "dtensor/local_map.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

// A client of two devices, and tensors that must keep their values.
struct Bench {
  Mesh mesh;
  StatusOr<Layout> rows;
  std::vector<DTensor> neighbours;

  static StatusOr<Bench> create() {
    TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 2}));
    TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"x", 2}}));
    Bench bench = {mesh, Layout::parse(mesh, "[x, -]"), {}};
    for (int k = 0; k < 8; ++k) bench.neighbours.push_back(iota<double>({8, 6}, bench.rows));
    return bench;
  }
  // The error of a function of one input.
  Status run(DType dtype, LocalFn fn) const {
    const DTensor input =
        dtype == DType::kFloat64 ? ones<double>({8, 6}, rows) : ones<float>({8, 6}, rows);
    return local_map(rows, {8, 6}, dtype, {input}, std::move(fn)).await();
  }
  Status check_neighbours() const {
    for (const DTensor& each : neighbours) {
      TESSERA_ASSIGN_OR_RETURN(const HostTensor<double> host, each.to_host<double>());
      for (int i = 0; i < 48; ++i) {
        if (host.data[i] != i) return absl::InternalError("another tensor has changed");
      }
    }
    return absl::OkStatus();
  }
};

// Each device has 4 rows of 6 elements.
constexpr size_t kElements = 24;

// ---- Views of another dtype, and of inputs that were not given

template <class View>
struct Use {
  const char* name;
  std::function<void(const View&)> use;
};
struct Seen {
  double sum = 0;
};

// Reads, of any view.
template <class View>
std::vector<Use<View>> reads() {
  using T = std::remove_cv_t<typename decltype(View::data)::value_type>;
  return {
      {"index", [](const View& v) { ASSERT_EQ(v.data[0] + v.data[kElements - 1], T(0)); }},
      {"first_and_last", [](const View& v) { ASSERT_EQ(v.data.front() + v.data.back(), T(0)); }},
      {"size", [](const View& v) { ASSERT_EQ(v.data.size(), kElements); }},
      {"shape",
       [](const View& v) {
         ASSERT_EQ(v.shape[0] * v.shape[1], 24);
         ASSERT_EQ(v.data[(v.shape[0] - 1) * v.shape[1] + v.shape[1] - 1], T(0));
       }},
      {"box", [](const View& v) { ASSERT_EQ(v.box.offsets[1] + v.box.sizes[0], 4); }},
      {"copy_out",
       [](const View& v) {
         std::vector<T> out(v.data.size());
         std::memcpy(out.data(), v.data.data(), out.size() * sizeof(T));
       }},
      {"copy_of_the_right_dtype",
       [](const View& v) {
         std::vector<double> out(v.data.size());
         std::memcpy(out.data(), v.data.data(), out.size() * sizeof(double));
       }},
      {"loop",
       [](const View& v) { ASSERT_EQ(std::accumulate(v.data.begin(), v.data.end(), T(0)), T(0)); }},
      {"eigen_read", [](const View& v) {
         const auto map = v.template eigen<2>();
         const Eigen::Tensor<T, 0, Eigen::RowMajor> sum = map.sum();
         ASSERT_EQ(sum(), T(0));
         ASSERT_EQ(map(0, 0), T(0));
       }}};
}

template <class View>
std::vector<Use<View>> writes() {
  using T = typename decltype(View::data)::value_type;
  return {{"write_index", [](const View& v) { v.data[kElements - 1] = T(7); }},
          {"fill", [](const View& v) { std::fill(v.data.begin(), v.data.end(), T(7)); }},
          {"copy_in",
           [](const View& v) {
             const std::vector<double> from(v.data.size(), 7);
             std::memcpy(v.data.data(), from.data(), from.size() * sizeof(double));
           }},
          {"eigen_write",
           [](const View& v) {
             Eigen::Tensor<T, 2, Eigen::RowMajor> values(4, 6);
             values.setConstant(T(7));
             v.template eigen<2>() = values;
           }},
          {"eigen_write_of_another_shape", [](const View& v) {
             Eigen::Tensor<T, 2, Eigen::RowMajor> values(4000, 60);
             values.setConstant(T(7));
             v.template eigen<2>() = values;
             v.template eigen<2>() += values;
           }}};
}

// Each use of the view that `view` gives, in a function of a tensor of the dtype.
template <class View>
void expect_error_after(const std::vector<Use<View>>& uses, DType dtype, const std::string& error,
                        const std::function<View(LocalContext&)>& view) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Bench bench, Bench::create());
  for (const Use<View>& each : uses) {
    const Status status = bench.run(dtype, [&](LocalContext& local) { each.use(view(local)); });
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(error)))
        << each.name;
    EXPECT_THAT(bench.check_neighbours(), IsOk()) << each.name;
  }
}

TEST(LocalViewsTest, OutputsOfAnotherDType) {
  expect_error_after<MutableShardView<float>>(
      writes<MutableShardView<float>>(), DType::kFloat64, "output written as f32, and it is f64",
      [](LocalContext& local) { return local.output<float>(); });
  expect_error_after<MutableShardView<int64_t>>(
      writes<MutableShardView<int64_t>>(), DType::kFloat32, "output written as i64, and it is f32",
      [](LocalContext& local) { return local.output<int64_t>(); });
  expect_error_after<MutableShardView<float>>(
      reads<MutableShardView<float>>(), DType::kFloat64, "output written as f32, and it is f64",
      [](LocalContext& local) { return local.output<float>(); });
}

TEST(LocalViewsTest, InputsOfAnotherDType) {
  expect_error_after<ShardView<float>>(reads<ShardView<float>>(), DType::kFloat64,
                                       "input 0 read as f32, and it is f64",
                                       [](LocalContext& local) { return local.input<float>(0); });
  expect_error_after<ShardView<double>>(reads<ShardView<double>>(), DType::kFloat32,
                                        "input 0 read as f64, and it is f32",
                                        [](LocalContext& local) { return local.input<double>(0); });
}

TEST(LocalViewsTest, InputsThatWereNotGiven) {
  for (const int index : {1, 1000, -1}) {
    expect_error_after<ShardView<double>>(
        reads<ShardView<double>>(), DType::kFloat64,
        absl::StrCat("input ", index, " does not exist; 1 input was given"),
        [index](LocalContext& local) { return local.input<double>(index); });
  }
}

TEST(LocalViewsTest, ViewsThatDoNotExistTakeMemoryOnce) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Bench bench, Bench::create());
  EXPECT_THAT(bench.run(DType::kFloat64,
                        [](LocalContext& local) {
                          const float* const first = local.output<float>().data.data();
                          const float* const missing = local.input<float>(7).data.data();
                          for (int k = 0; k < 1000; ++k) {
                            EXPECT_EQ(local.output<float>().data.data(), first);
                            EXPECT_EQ(local.input<float>(7 + k).data.data(), missing);
                          }
                        }),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// The result is the error of the view, and not the value that the function returns because of it.
TEST(LocalViewsTest, TheErrorOfTheViewComesFirst) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Bench bench, Bench::create());
  EXPECT_THAT(bench.run(DType::kFloat64,
                        [](LocalContext& local) -> Status {
                          if (local.input<float>(0).data[0] == 1.0f) return absl::OkStatus();
                          return absl::NotFoundError("no ones");
                        }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("local_map on device 0: input 0 read as f32, and it is f64")));
}

// ---- Maps of another rank

// Shapes of one device's shard, by rank.
const Shape kShapes[] = {{}, {8192}, {64, 128}, {4, 16, 128}};

template <int Rank>
void read_map(const ShardView<float>& view) {
  const auto map = view.eigen<Rank>();
  const Eigen::Tensor<float, 0, Eigen::RowMajor> sum = map.sum();
  static_cast<void>(sum());
}
template <int Rank>
void write_map(const MutableShardView<float>& view) {
  auto map = view.eigen<Rank>();
  map.setConstant(7);
  Eigen::array<Eigen::Index, Rank> sizes;
  std::fill(sizes.begin(), sizes.end(), 20);
  Eigen::Tensor<float, Rank, Eigen::RowMajor> large(sizes);
  large.setConstant(7);
  map = large;
  map += large;
}

template <int Rank>
void expect_other_ranks_refused() {
  TESSERA_ASSERT_OK_AND_ASSIGN(Client client, Client::connect({.num_local_devices = 1}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, create_mesh(client, {{"x", 1}}));
  for (const Shape& shape : kShapes) {
    const int rank = static_cast<int>(shape.size());
    if (rank == Rank) continue;
    SCOPED_TRACE(absl::StrCat("eigen<", Rank, "> of ", shape_to_string(shape)));
    const StatusOr<Layout> layout = Layout::replicated(mesh, rank);
    const std::vector<DTensor> before = {ones<float>(shape, layout), ones<float>(shape, layout)};
    const std::string mapped =
        absl::StrCat(" of shape ", shape_to_string(shape), " mapped by eigen<", Rank,
                     ">(); ask for eigen<", rank, ">()");
    const DTensor read = local_map(layout, shape, DType::kFloat32, {before[0]},
                                   [](LocalContext& c) { read_map<Rank>(c.input<float>(0)); });
    EXPECT_THAT(read.await(), StatusIs(absl::StatusCode::kInvalidArgument,
                                       absl::StrCat("local_map on device 0: input 0", mapped)));
    const DTensor written = local_map(layout, shape, DType::kFloat32, {},
                                      [](LocalContext& c) { write_map<Rank>(c.output<float>()); });
    EXPECT_THAT(written.await(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          absl::StrCat("local_map on device 0: output", mapped)));
    for (const DTensor& each : before) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const HostTensor<float> host, each.to_host<float>());
      EXPECT_EQ(std::count(host.data.begin(), host.data.end(), 1.0f),
                static_cast<int64_t>(host.data.size()));
    }
  }
}

TEST(LocalViewsTest, MapsOfAnotherRank) {
  expect_other_ranks_refused<0>();
  expect_other_ranks_refused<1>();
  expect_other_ranks_refused<2>();
  expect_other_ranks_refused<3>();
  expect_other_ranks_refused<4>();
}

// Eigen itself writes as many elements as the right-hand side has.
TEST(LocalViewsTest, AssignmentsOfAnotherShape) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Bench bench, Bench::create());
  EXPECT_THAT(bench.run(DType::kFloat32,
                        [](LocalContext& local) {
                          Eigen::Tensor<float, 2, Eigen::RowMajor> values(4, 7);
                          values.setConstant(7);
                          local.output<float>().eigen<2>() = values;
                        }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("output of shape [4, 6] was assigned [4, 7]; assign what has its "
                                 "shape")));
  EXPECT_THAT(bench.check_neighbours(), IsOk());
}

// Maps are operands of expressions, and every assignment of their shape works.
TEST(LocalViewsTest, MapsOfTheRightRank) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Bench bench, Bench::create());
  const DTensor x = iota<float>({8, 6}, bench.rows);
  const DTensor y = local_map(bench.rows, {8, 6}, DType::kFloat32, {x}, [](LocalContext& local) {
    const auto in = local.input<float>(0).eigen<2>();
    auto out = local.output<float>().eigen<2>();
    out = in;
    out += in;
    out *= out;
    out -= in + out;
    out = in * 2.0f - out;
    out /= out.constant(1.0f);
    out(0, 0) = out(0, 0);
    Eigen::Tensor<float, 0, Eigen::RowMajor> sum = (in + out).sum();
    if (sum() < 0) out.setZero();
    auto copy = out;
    copy = out;
  });
  TESSERA_ASSERT_OK_AND_ASSIGN(const HostTensor<float> host, y.to_host<float>());
  for (int i = 0; i < 48; ++i) EXPECT_EQ(host.data[i], 3.0f * static_cast<float>(i));
}

}  // namespace
}  // namespace tessera::testing
