// SPDX-License-Identifier: Apache-2.0
//
// Any text read as a layout on a fixed mesh is either refused with a message or a layout in normal
// form: it reads back from both texts that it writes, and its boxes are in the shape.
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "fuzz/fuzz.h"
#include "layout/layout.h"
#include "visualize/visualize.h"

namespace tessera {
namespace {

using fuzz::require;

// The first byte chooses. Sizes with several factors, so that sub-axes have many forms.
constexpr const char* kMeshes[] = {"{x=4, y=6, z=5}", "{a=1, b=12}", "{x=2, y=2} on 3,1,0,2",
                                   "{batch=8, model=30}"};

void check_layout(const Layout& layout) {
  const std::string text = layout.to_string();
  const StatusOr<Layout> again = Layout::parse(layout.mesh(), text);
  require(again.ok() && *again == layout && again->to_string() == text, text);
  const StatusOr<Layout> with_mesh = Layout::parse(layout.mesh(), layout.to_string_with_mesh());
  require(with_mesh.ok() && *with_mesh == layout, layout.to_string_with_mesh());

  const Shape shape(layout.rank(), 7);             // Uneven over nearly all of these meshes.
  if (!layout.validate_shape(shape).ok()) return;  // 7 to a large rank exceeds int64.
  require(equivalent(layout, layout, shape), text);
  for (int64_t position = 0; position < layout.mesh().size(); ++position) {
    require(contains(whole_box(shape), layout.box(shape, position)), text);
    const int64_t term = layout.partial_index(position);
    require(0 <= term && term < layout.num_partial_terms(), text);
  }
  require(visualize(layout, shape).ok() == (layout.rank() <= kMaxPictureRank), text);
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t index = data[0] % (sizeof(tessera::kMeshes) / sizeof(tessera::kMeshes[0]));
  const tessera::Mesh mesh = *tessera::Mesh::parse(tessera::kMeshes[index]);
  const absl::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const tessera::StatusOr<tessera::Layout> layout = tessera::Layout::parse(mesh, text);
  if (layout.ok()) {
    tessera::check_layout(*layout);
  } else {
    tessera::fuzz::require(layout.status().code() == absl::StatusCode::kInvalidArgument &&
                               !layout.status().message().empty(),
                           layout.status().ToString());
  }
  return 0;
}
