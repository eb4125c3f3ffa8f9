// SPDX-License-Identifier: Apache-2.0
//
// TakenStreams: idle streams whose work a caller does itself, which is faster than waking another
// thread. Internal to dtensor/.
#ifndef TESSERA_DTENSOR_TAKEN_STREAMS_H_
#define TESSERA_DTENSOR_TAKEN_STREAMS_H_

#include "absl/container/inlined_vector.h"
#include "device/stream.h"

namespace tessera {

// Streams that no other thread uses for as long as this object lives.
class TakenStreams {
 public:
  TakenStreams() = default;
  TakenStreams(const TakenStreams&) = delete;
  TakenStreams& operator=(const TakenStreams&) = delete;
  ~TakenStreams() {
    for (Stream* stream : taken_) stream->release();
  }
  // Whether the stream was idle.
  bool take(Stream& stream) {
    if (!stream.try_take()) return false;
    taken_.push_back(&stream);
    return true;
  }

 private:
  absl::InlinedVector<Stream*, 8> taken_;
};

}  // namespace tessera

#endif  // TESSERA_DTENSOR_TAKEN_STREAMS_H_
