// SPDX-License-Identifier: Apache-2.0
//
// Products of matrices by libraries of Debian, as contestants of `tools/bench ops`.
//
//   blas_peer PREFIX
//
//   matmul library=openblas|onednn rows= columns= summed= dtype=f32|f64|bf16
//       packed=1     oneDNN: b in the order that the library likes best, which is not measured
//
// Each library uses one thread: OpenBLAS of its serial flavour, oneDNN by OMP_NUM_THREADS=1.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/peers/worker.h"
#ifdef TESSERA_BENCH_OPENBLAS
#include <cblas.h>
#endif
#ifdef TESSERA_BENCH_ONEDNN
#include <dnnl.hpp>
#endif

namespace tessera::bench {
namespace {

struct Size {
  int64_t rows, columns, summed;
};

// Rounds to nearest, ties to even.
uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
float from_bf16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

template <class T>
struct Matrices {
  explicit Matrices(const Size& size)
      : a(size.rows * size.summed), b(size.summed * size.columns), c(size.rows * size.columns) {
    for (size_t i = 0; i < a.size(); ++i) a[i] = convert(noise(1, static_cast<int64_t>(i)));
    for (size_t i = 0; i < b.size(); ++i) b[i] = convert(noise(2, static_cast<int64_t>(i)));
  }
  static T convert(float x) {
    if constexpr (sizeof(T) == 2) return to_bf16(x);
    return static_cast<T>(x);
  }
  // Equals the value of ops_worker.
  double value() const {
    double sum = 0;
    for (size_t i = 0; i < c.size(); ++i) {
      double each = 0;
      if constexpr (sizeof(T) == 2) {
        each = from_bf16(c[i]);
      } else {
        each = static_cast<double>(c[i]);
      }
      sum += std::abs(each) * static_cast<double>(i % 7 + 1);
    }
    return sum / static_cast<double>(c.size());
  }

  std::vector<T> a, b, c;
};

#ifdef TESSERA_BENCH_OPENBLAS
void blas_gemm(const Size& s, const float* a, const float* b, float* c) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, s.rows, s.columns, s.summed, 1, a,
              s.summed, b, s.columns, 0, c, s.columns);
}
void blas_gemm(const Size& s, const double* a, const double* b, double* c) {
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, s.rows, s.columns, s.summed, 1, a,
              s.summed, b, s.columns, 0, c, s.columns);
}

template <class T>
void prepare_openblas(const Size& size, Operation* operation) {
  auto m = std::make_shared<Matrices<T>>(size);
  operation->call = [=](int) {
    blas_gemm(size, m->a.data(), m->b.data(), m->c.data());
    return std::string();
  };
  operation->value = [m] { return m->value(); };
}
#endif

#ifdef TESSERA_BENCH_ONEDNN
template <class T>
void prepare_onednn(const Size& size, bool packed, Operation* operation) {
  using dnnl::memory;
  struct State {
    explicit State(const Size& size) : m(size) {}
    Matrices<T> m;
    dnnl::engine engine{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream{engine};
    memory a, b, c;
    dnnl::matmul product;
  };
  auto s = std::make_shared<State>(size);
  const auto type = sizeof(T) == 2 ? memory::data_type::bf16 : memory::data_type::f32;
  const auto rows = memory::format_tag::ab;
  const memory::desc a({size.rows, size.summed}, type, rows);
  const memory::desc b({size.summed, size.columns}, type, rows);
  const memory::desc c({size.rows, size.columns}, type, rows);
  const memory::desc any({size.summed, size.columns}, type, memory::format_tag::any);
  const dnnl::matmul::primitive_desc desc({a, packed ? any : b, c}, s->engine);
  s->product = dnnl::matmul(desc);
  s->a = memory(a, s->engine, s->m.a.data());
  s->b = memory(b, s->engine, s->m.b.data());
  s->c = memory(c, s->engine, s->m.c.data());
  if (packed) {
    memory ordered(desc.weights_desc(), s->engine);
    dnnl::reorder(s->b, ordered).execute(s->stream, s->b, ordered);
    s->stream.wait();
    s->b = ordered;
  }
  operation->call = [s](int) {
    s->product.execute(s->stream,
                       {{DNNL_ARG_SRC, s->a}, {DNNL_ARG_WEIGHTS, s->b}, {DNNL_ARG_DST, s->c}});
    s->stream.wait();
    return std::string();
  };
  operation->value = [s] { return s->m.value(); };
}
#endif

class BlasPeer : public Contestant {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string barrier() override { return ""; }

  std::string prepare(const Command& command, Operation* operation) override {
    operation->poison = [](int, bool) {};
    operation->check = [](int, bool) { return std::string(); };
    const Size size = {command.number("rows", 1), command.number("columns", 1),
                       command.number("summed", 1)};
    const std::string dtype = command.text("dtype");
    const std::string library = command.text("library");
#ifdef TESSERA_BENCH_OPENBLAS
    if (library == "openblas" && dtype == "f32") prepare_openblas<float>(size, operation);
    if (library == "openblas" && dtype == "f64") prepare_openblas<double>(size, operation);
#endif
#ifdef TESSERA_BENCH_ONEDNN
    try {
      const bool packed = command.number("packed", 0) != 0;
      if (library == "onednn" && dtype == "f32") prepare_onednn<float>(size, packed, operation);
      if (library == "onednn" && dtype == "bf16") {
        prepare_onednn<uint16_t>(size, packed, operation);
      }
    } catch (const dnnl::error& error) {
      return std::string("oneDNN: ") + error.what();
    }
#endif
    return operation->call ? "" : library + " is not built, or has no products of " + dtype;
  }
};

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  tessera::bench::BlasPeer peer;
  return tessera::bench::serve(peer, argv[1]);
}
