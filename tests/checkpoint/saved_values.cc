// SPDX-License-Identifier: Apache-2.0
#include "tests/checkpoint/saved_values.h"

#include "absl/strings/str_format.h"
#include "base/shape.h"
#include "layout/layout.h"
#include "tests/support/forked.h"

namespace tessera::testing {
namespace {

// More than 1 MiB, so that one client writes it by several calls.
constexpr int64_t kRows = 530;
constexpr int64_t kColumns = 530;

struct Saved {
  const char* name;
  const char* layout;
  Shape shape;
};
const std::vector<Saved>& saved() {
  static const auto& tensors = *new std::vector<Saved>{
      {"w", "[x, -]", {kRows, kColumns}}, {"b", "[-]", {7}}, {"n", "[]", {}}};
  return tensors;
}

// A split of dim 0 alone has consecutive elements in each box.
int64_t first_index(const Box& box, const Shape& shape) {
  return shape.size() < 2 ? 0 : box.offsets[0] * shape[1];
}

}  // namespace

StatusOr<Mesh> mesh_of_all(const Client& client) {
  return create_mesh(client, {{"x", static_cast<int64_t>(client.devices().size())}});
}

std::string step_path(const std::string& root, int64_t step) {
  return absl::StrFormat("%s/step-%010d", root, step);
}

std::vector<NamedTensor> tensors_of(const Mesh& mesh, int64_t base) {
  std::vector<NamedTensor> tensors;
  for (const Saved& tensor : saved()) {
    tensors.push_back({tensor.name, from_function<int32_t>(
                                        tensor.shape, Layout::parse(mesh, tensor.layout),
                                        [&](const Box& box, absl::Span<int32_t> out) {
                                          int64_t value = base + first_index(box, tensor.shape);
                                          for (int32_t& element : out) {
                                            element = static_cast<int32_t>(value++);
                                          }
                                        })});
  }
  return tensors;
}

std::vector<checkpoint::Target> targets_on(const Mesh& mesh) {
  std::vector<checkpoint::Target> targets;
  for (const Saved& tensor : saved()) {
    targets.push_back({tensor.name, Layout::parse(mesh, tensor.layout)});
  }
  return targets;
}

StatusOr<int64_t> base_of(const DTensor& tensor) { return base_of(absl::MakeSpan(&tensor, 1)); }

StatusOr<int64_t> base_of(absl::Span<const DTensor> tensors) {
  TESSERA_REQUIRE(!tensors.empty() && tensors.size() <= saved().size());
  TESSERA_ASSIGN_OR_RETURN(const ShardView<int32_t> first, tensors[0].shard<int32_t>(0));
  TESSERA_REQUIRE(!first.data.empty());
  const int64_t base = first.data[0] - first_index(first.box, tensors[0].shape());
  for (size_t t = 0; t < tensors.size(); ++t) {
    TESSERA_REQUIRE(tensors[t].shape() == saved()[t].shape);
    for (int s = 0; s < tensors[t].num_local_shards(); ++s) {
      TESSERA_ASSIGN_OR_RETURN(const ShardView<int32_t> shard, tensors[t].shard<int32_t>(s));
      int64_t value = base + first_index(shard.box, tensors[t].shape());
      for (const int32_t element : shard.data) {
        TESSERA_REQUIRE(element == value, saved()[t].name, " has ", element, " where base ", base,
                        " has ", value);
        ++value;
      }
    }
  }
  return base;
}

}  // namespace tessera::testing
