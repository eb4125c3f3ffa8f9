// SPDX-License-Identifier: Apache-2.0
//
// Writes pictures of layouts to standard output, each ended by a zero byte.
// //tools/plan_tool:plan_tool_test reads them with an XML parser. The last picture has texts that
// are not XML unless escaped.
#include <cstdio>
#include <string>

#include "visualize/svg.h"
#include "visualize/visualize.h"

namespace {

struct Sample {
  const char* mesh;
  const char* layout;
  tessera::Shape shape;
};

const Sample kSamples[] = {
    {"{x=4}", "[]", {}},
    {"{x=3}", "[x]", {7}},
    {"{x=4}", "[x]", {2}},
    {"{x=2}", "[x, -]", {0, 3}},
    {"{batch=2, model=2}", "[batch, -] sum{model}", {5, 4}},
    {"{x=2, y=2, z=2}", "[x, (z,y), -]", {2, 6, 3}},
};

void write(const std::string& picture) {
  std::fwrite(picture.c_str(), 1, picture.size() + 1, stdout);
}

}  // namespace

int main() {
  for (const Sample& sample : kSamples) {
    const tessera::StatusOr<tessera::Layout> layout =
        tessera::Layout::parse(*tessera::Mesh::parse(sample.mesh), sample.layout);
    const tessera::StatusOr<std::string> picture = tessera::visualize_svg(layout, sample.shape);
    if (!picture.ok()) {
      std::fprintf(stderr, "%s\n", picture.status().ToString().c_str());
      return 1;
    }
    write(*picture);
  }
  tessera::internal::SvgWriter svg;
  svg.text(0, 0, "<a & \"b\">\n\x01\xff");
  svg.arrow({0, 0, 1, 1, 1}, "</title>");
  write(svg.finish());
}
