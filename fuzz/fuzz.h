// SPDX-License-Identifier: Apache-2.0
//
// Helpers of all fuzzers: how a target reads its bytes, and how it fails.
//
// Each target is one LLVMFuzzerTestOneInput. fuzz/BUILD builds it in two ways:
//
// - With --config=asan: libFuzzer, ASan and UBSan try a bounded number of new inputs, starting from
//   the corpus.
// - Otherwise: replay_main.cc, with any compiler, runs each input of the corpus once, so that a bug
//   found once stays found.
#ifndef TESSERA_FUZZ_FUZZ_H_
#define TESSERA_FUZZ_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace tessera::fuzz {

// Fails the target unless `holds`, so that libFuzzer keeps the input. `subject` is printed.
inline void require(bool holds, const std::string& subject) {
  TESSERA_CHECK(holds, subject.c_str());
}

// Reads small numbers from the front of the input. After its end all numbers are zero.
class ByteReader {
 public:
  ByteReader(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  // In [0, count). Requires 1 <= count <= 256.
  int below(int count) {
    if (size_ == 0) return 0;
    --size_;
    return *data_++ % count;
  }
  bool coin() { return below(2) == 1; }

 private:
  const uint8_t* data_;
  size_t size_;
};

}  // namespace tessera::fuzz

#endif  // TESSERA_FUZZ_FUZZ_H_
