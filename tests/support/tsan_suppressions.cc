// SPDX-License-Identifier: Apache-2.0
//
// Suppressions of ThreadSanitizer, for every test that links :matchers.
//
// Debian's Abseil is not instrumented: the sanitizer sees the delete of a Status's text, but not
// the reference count that puts it after the reads of other threads.
//
// Neither are gRPC and protobuf, whose headers are half of their code.
extern "C" const char* __tsan_default_suppressions() {
  return "race:absl::*::Status::Unref\n"
         "race:grpc\n"
         "race:libgpr\n"
         "race:tessera::rpc\n";
}

extern "C" const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }
