// SPDX-License-Identifier: Apache-2.0
//
// The Fourier transform of a matrix by the transposition of its rows: each device transforms the
// rows that it has, and one all-to-all brings the columns. Complex numbers have a dim of size 2.
//
//   bazel run //examples/programs:fft
//
// Output:
//   [[ 0.  0.  0.  0.  0.  0.  0.  0.]
//    [32.  0.  0.  0.  0.  0.  0.  0.]
//    [ 0.  0.  0.  0.  0.  0.  0.  0.]
//    [ 0.  0.  0.  0.  0.  0.  0.  0.]
//    [ 0.  0.  0.  0.  0.  0.  0.  0.]
//    [ 0.  0.  0.  0.  0.  0.  0.  0.]
//    [ 0.  0.  0.  0.  0.  0.  0.  0.]
//    [32.  0.  0.  0.  0.  0.  0.  0.]]
#include <cmath>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tessera/tessera.h"

using namespace tessera;

constexpr int64_t kSize = 8;
constexpr double kTau = 6.283185307179586;

// The transform of each row of the device, by its definition. A program would call its own library.
void transform_rows(LocalContext& local) {
  const absl::Span<const float> in = local.input<float>(0).data;
  const absl::Span<float> out = local.output<float>().data;
  for (size_t row = 0; row < in.size(); row += 2 * kSize) {
    for (int64_t k = 0; k < kSize; ++k) {
      double re = 0, im = 0;
      for (int64_t j = 0; j < kSize; ++j) {
        const double angle = -kTau * static_cast<double>(j * k) / kSize;
        const double a = in[row + 2 * j], b = in[row + 2 * j + 1];
        re += a * std::cos(angle) - b * std::sin(angle);
        im += a * std::sin(angle) + b * std::cos(angle);
      }
      out[row + 2 * k] = static_cast<float>(re);
      out[row + 2 * k + 1] = static_cast<float>(im);
    }
  }
}

Status transform(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
  const Shape shape = {kSize, kSize, 2};

  // A wave that runs along the rows, in memory of the program, which the tensor uses as it is.
  std::vector<float> wave(kSize * kSize * 2);
  for (int64_t i = 0; i < kSize * kSize; ++i) {
    wave[2 * i] = static_cast<float>(std::cos(kTau * static_cast<double>(i % kSize) / kSize));
  }
  const absl::Span<const float> all = wave;
  const DTensor a = from_memory<float>(shape, Layout::parse(mesh, "[x, -, -]"),
                                       {all.first(kSize * kSize), all.last(kSize * kSize)},
                                       /*keep_alive=*/nullptr);

  // The core.
  const DTensor rows = local_map("[x, -, -]", shape, DType::kFloat32, {a}, transform_rows);
  const DTensor columns = ops::transpose(rows, {1, 0, 2}, "[x, -, -]");
  const DTensor spectrum =
      local_map("[x, -, -]", shape, DType::kFloat32, {columns}, transform_rows);
  // The end of the core.

  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           to_string(ops::abs(ops::round(spectrum[{kAll, kAll, 0}]))));
  std::cout << text << "\n";
  return absl::OkStatus();
}

int main() {
  const Status status = run_client(transform, {.num_local_devices = 2});
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
