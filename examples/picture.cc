// SPDX-License-Identifier: Apache-2.0
//
// Drawing the tiles of a layout.
#include "examples/picture.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::examples {
namespace {

constexpr size_t kMargin = 12;

// A layout cuts a matrix into a grid: the product of its row intervals and its column intervals.
struct Grid {
  std::vector<std::pair<int64_t, int64_t>> rows, cols;            // {first, end}
  std::map<std::pair<int64_t, int64_t>, std::vector<int>> tiles;  // first row and col -> devices
};

Grid make_grid(const Layout& layout, const Shape& shape) {
  Grid grid;
  for (int64_t position = 0; position < layout.mesh().size(); ++position) {
    const Box box = layout.box(shape, position);
    if (box.is_empty()) continue;
    grid.rows.emplace_back(box.offsets[0], box.offsets[0] + box.sizes[0]);
    grid.cols.emplace_back(box.offsets[1], box.offsets[1] + box.sizes[1]);
    grid.tiles[{box.offsets[0], box.offsets[1]}].push_back(layout.mesh().device_ids()[position]);
  }
  for (auto* intervals : {&grid.rows, &grid.cols}) {
    std::sort(intervals->begin(), intervals->end());
    intervals->erase(std::unique(intervals->begin(), intervals->end()), intervals->end());
  }
  return grid;
}

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string label(const std::vector<int>& devices) {
  return absl::StrCat(devices.size() == 1 ? " device " : " devices ", absl::StrJoin(devices, ","),
                      " ");
}

// Black on one of 12 pale backgrounds, then back to normal.
std::string painted(const std::string& text, size_t tile, Colour colour) {
  if (colour == Colour::kNever) return text;
  constexpr int kBackgrounds[] = {153, 223, 157, 225, 229, 159, 217, 193, 189, 222, 195, 180};
  return absl::StrCat("\x1b[30;48;5;", kBackgrounds[tile % std::size(kBackgrounds)], "m", text,
                      "\x1b[0m");
}

}  // namespace

Colour colour_of_stdout() { return isatty(STDOUT_FILENO) ? Colour::kAlways : Colour::kNever; }

std::string draw(const Layout& layout, const Shape& shape, Colour colour) {
  const Grid grid = make_grid(layout, shape);
  size_t width = 0;
  for (const auto& [corner, devices] : grid.tiles) width = std::max(width, label(devices).size());

  std::string rule(kMargin, ' ');
  std::string heading(kMargin, ' ');
  for (const auto& [first, end] : grid.cols) {
    rule += "+" + std::string(width, '-');
    heading += padded(absl::StrCat("  cols ", first, ":", end), width + 1);
  }
  rule += "+\n";

  std::string picture = absl::StrCat(layout.to_string(), " of ", shape_to_string(shape), " on ",
                                     layout.mesh().to_string(), "\n",
                                     absl::StripTrailingAsciiWhitespace(heading), "\n", rule);
  for (size_t r = 0; r < grid.rows.size(); ++r) {
    const auto [first, end] = grid.rows[r];
    for (int64_t row = first; row < end; ++row) {
      picture += padded(row == first ? absl::StrCat(" rows ", first, ":", end) : "", kMargin);
      for (size_t c = 0; c < grid.cols.size(); ++c) {
        const auto tile = grid.tiles.find({first, grid.cols[c].first});
        const bool is_labelled = row == first && tile != grid.tiles.end();
        const std::string text = padded(is_labelled ? label(tile->second) : "", width);
        picture += "|" + painted(text, r * grid.cols.size() + c, colour);
      }
      picture += "|\n";
    }
    picture += rule;
  }
  return picture;
}

}  // namespace tessera::examples
