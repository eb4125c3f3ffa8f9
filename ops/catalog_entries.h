// SPDX-License-Identifier: Apache-2.0
//
// The parts of the catalog, by the file that has the operations. Internal to ops/.
#ifndef TESSERA_OPS_CATALOG_ENTRIES_H_
#define TESSERA_OPS_CATALOG_ENTRIES_H_

#include <vector>

#include "absl/types/span.h"
#include "ops/catalog.h"

namespace tessera::ops {

using Operands = absl::Span<const OperandType>;

std::vector<CatalogEntry> contract_entries();   // matmul, einsum
std::vector<CatalogEntry> pointwise_entries();  // add, exp, select, ...
std::vector<CatalogEntry> reduction_entries();  // sum, max, norm, ...
std::vector<CatalogEntry> line_entries();       // argmax, cumsum, sort, top_k
std::vector<CatalogEntry> shape_entries();      // transpose, reshape, slice, ...
std::vector<CatalogEntry> joining_entries();    // concat, pad, ...
std::vector<CatalogEntry> indexing_entries();   // take, scatter_add, one_hot
std::vector<CatalogEntry> window_entries();     // conv2d, pools
std::vector<CatalogEntry> network_entries();    // softmax, layer_norm, ...

// An operation that is made of others.
inline CatalogEntry composition(const char* name, const char* made_of) {
  return {name, 0, 0, {}, {}, {}, nullptr, made_of};
}

}  // namespace tessera::ops

#endif  // TESSERA_OPS_CATALOG_ENTRIES_H_
