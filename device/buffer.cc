// SPDX-License-Identifier: Apache-2.0
#include "device/buffer.h"

#include <utility>

namespace tessera {

StatusOr<std::shared_ptr<Buffer>> Buffer::allocate(ArenaPool& pool, int64_t size_bytes) {
  TESSERA_ASSIGN_OR_RETURN(ArenaPool::Block block,
                           pool.allocate(static_cast<uint64_t>(size_bytes)));
  std::shared_ptr<Buffer> buffer(new Buffer());
  buffer->block_ = std::move(block);
  buffer->size_bytes_ = size_bytes;
  return buffer;
}

std::shared_ptr<Buffer> Buffer::failed(Status error) {
  std::shared_ptr<Buffer> buffer(new Buffer());
  buffer->ready_.set(std::move(error));
  return buffer;
}

}  // namespace tessera
