// SPDX-License-Identifier: Apache-2.0
#include "visualize/visualize.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/reduce_op.h"
#include "visualize/svg.h"

namespace tessera {
namespace {

using internal::SvgAnchor;
using internal::SvgWriter;

constexpr size_t kMaxNames = 12;  // The most devices, or runs of devices, that a cell lists.

// {first, end} of a dim.
using Interval = std::pair<int64_t, int64_t>;
// The index of a cell in the three dims drawn: planes, rows, columns.
using CellIndex = std::array<size_t, 3>;

// A layout as a grid of cells. Dims that the tensor does not have are {0, 1}.
struct Picture {
  std::string title;
  int rank;
  std::array<std::vector<Interval>, 3> dims;  // Not empty, ascending, adjacent.
  std::map<CellIndex, std::string> names;
  std::string idle;  // The devices that hold nothing.
};

std::string interval_text(const Interval& interval) {
  return absl::StrCat(interval.first, ":", interval.second);
}

// "0,2-5" of device ids.
std::string list_devices(std::vector<int> ids) {
  std::sort(ids.begin(), ids.end());
  std::vector<std::string> runs;
  for (size_t begin = 0, end; begin < ids.size(); begin = end) {
    end = begin + 1;
    while (end < ids.size() && ids[end] == ids[end - 1] + 1) ++end;
    runs.push_back(absl::StrCat(ids[begin]));
    if (end - begin == 2) runs.push_back(absl::StrCat(ids[end - 1]));
    if (end - begin > 2) absl::StrAppend(&runs.back(), "-", ids[end - 1]);
  }
  if (runs.size() > kMaxNames) {
    runs.resize(kMaxNames - 1);
    runs.push_back(absl::StrCat("... (", ids.size(), " devices)"));
  }
  return absl::StrJoin(runs, ",");
}

// The devices of one cell by the term that they hold.
using Terms = std::map<int64_t, std::vector<int>>;

std::string list_terms(const Layout& layout, const Terms& terms) {
  if (!layout.is_partial()) return list_devices(terms.begin()->second);
  std::vector<std::string> lists;
  for (const auto& [term, ids] : terms) lists.push_back(list_devices(ids));
  if (lists.size() > kMaxNames) {
    lists.resize(kMaxNames - 1);
    lists.push_back(absl::StrCat("... (", terms.size(), " terms)"));
  }
  return absl::StrCat(reduce_op_name(*layout.partial_op()), "(", absl::StrJoin(lists, "; "), ")");
}

Status check_drawable(const Layout& layout, const Shape& shape) {
  TESSERA_RETURN_IF_ERROR(layout.validate_shape(shape));
  if (layout.rank() > kMaxPictureRank) {
    return absl::UnimplementedError(absl::StrCat("layout ", layout.to_string(), " has ",
                                                 layout.rank(), " dims; a picture has at most ",
                                                 kMaxPictureRank, " of them"));
  }
  if (layout.mesh().size() > kMaxPictureDevices) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mesh ", axes_to_string(layout.mesh().axes()), " has ", layout.mesh().size(),
        " devices; a picture has at most ", kMaxPictureDevices, ", draw a smaller mesh"));
  }
  return absl::OkStatus();
}

StatusOr<Picture> picture_of(const LayoutArg& layout_arg, const Shape& shape) {
  TESSERA_ASSIGN_OR_RETURN(const Layout layout, layout_arg.layout());
  TESSERA_RETURN_IF_ERROR(check_drawable(layout, shape));
  const int rank = layout.rank();
  Picture picture = {
      .title = absl::StrCat(layout.to_string_with_mesh(), ", shape ", shape_to_string(shape)),
      .rank = rank,
      .dims = {},
      .names = {},
      .idle = ""};
  const int first_drawn = kMaxPictureRank - rank;  // Rank 1 is a row, rank 2 a plane.
  for (int drawn = 0; drawn < first_drawn; ++drawn) picture.dims[drawn].push_back({0, 1});

  std::map<std::array<int64_t, 3>, Terms> held;  // By the offsets of the box.
  std::vector<int> idle;
  for (int64_t position = 0; position < layout.mesh().size(); ++position) {
    const int device = layout.mesh().device_ids()[position];
    const Box box = layout.box(shape, position);
    if (box.is_empty()) {
      idle.push_back(device);
      continue;
    }
    std::array<int64_t, 3> offsets = {0, 0, 0};
    for (int dim = 0; dim < rank; ++dim) {
      const int64_t begin = box.offsets[dim];
      offsets[first_drawn + dim] = begin;
      picture.dims[first_drawn + dim].push_back({begin, begin + box.sizes[dim]});
    }
    held[offsets][layout.partial_index(position)].push_back(device);
  }
  for (std::vector<Interval>& intervals : picture.dims) {
    std::sort(intervals.begin(), intervals.end());
    intervals.erase(std::unique(intervals.begin(), intervals.end()), intervals.end());
  }
  for (const auto& [offsets, terms] : held) {
    CellIndex index;
    for (int drawn = 0; drawn < 3; ++drawn) {
      const std::vector<Interval>& intervals = picture.dims[drawn];
      index[drawn] =
          std::lower_bound(intervals.begin(), intervals.end(), Interval(offsets[drawn], 0)) -
          intervals.begin();
    }
    picture.names[index] = list_terms(layout, terms);
  }
  if (!idle.empty()) picture.idle = absl::StrCat("hold nothing: ", list_devices(std::move(idle)));
  return picture;
}

// `text` in the middle of `width`.
std::string centered(absl::string_view text, size_t width) {
  const size_t blanks = width - text.size();
  return absl::StrCat(std::string(blanks / 2, ' '), text, std::string(blanks - blanks / 2, ' '));
}

std::string right(absl::string_view text, size_t width) {
  return absl::StrCat(std::string(width - text.size(), ' '), text);
}

void strip_right(std::string* line) { line->erase(line->find_last_not_of(' ') + 1); }

// Widths of the columns of all planes, so that planes can be compared.
struct TextWidths {
  size_t margin = 0;
  std::vector<size_t> columns;
};

TextWidths text_widths(const Picture& picture) {
  TextWidths widths;
  if (picture.rank >= 2) {
    for (const Interval& row : picture.dims[1]) {
      widths.margin = std::max(widths.margin, interval_text(row).size());
    }
  }
  for (const Interval& column : picture.dims[2]) {
    widths.columns.push_back(picture.rank >= 1 ? interval_text(column).size() + 2 : 3);
  }
  for (const auto& [index, name] : picture.names) {
    widths.columns[index[2]] = std::max(widths.columns[index[2]], name.size() + 2);
  }
  return widths;
}

void append_plane(const Picture& picture, size_t plane, const TextWidths& widths,
                  std::string* text) {
  const std::string margin(picture.rank >= 2 ? widths.margin + 1 : 0, ' ');
  std::string rule = absl::StrCat("    ", margin, "+");
  std::string heads = absl::StrCat("    ", margin, " ");
  for (size_t column = 0; column < widths.columns.size(); ++column) {
    absl::StrAppend(&rule, std::string(widths.columns[column], '-'), "+");
    absl::StrAppend(&heads,
                    centered(interval_text(picture.dims[2][column]), widths.columns[column]), " ");
  }
  strip_right(&heads);
  if (picture.rank >= 1) absl::StrAppend(text, heads, "\n");
  absl::StrAppend(text, rule, "\n");
  for (size_t row = 0; row < picture.dims[1].size(); ++row) {
    const std::string name = picture.rank >= 2 ? interval_text(picture.dims[1][row]) : "";
    absl::StrAppend(text, "    ", right(name, margin.empty() ? 0 : margin.size() - 1),
                    margin.empty() ? "|" : " |");
    for (size_t column = 0; column < widths.columns.size(); ++column) {
      absl::StrAppend(
          text, centered(picture.names.at({plane, row, column}), widths.columns[column]), "|");
    }
    absl::StrAppend(text, "\n", rule, "\n");
  }
}

// The places of cells along one side, in pixels.
struct Side {
  std::vector<double> begins;
  std::vector<double> sizes;
  double total = 0;
};

// Shares out `length` by the sizes of the intervals, with at least `least` for each.
Side side_of(const std::vector<Interval>& intervals, double length, double least) {
  Side side;
  const double elements = static_cast<double>(intervals.back().second - intervals.front().first);
  for (const auto& [begin, end] : intervals) {
    const double size = std::max(least, length * static_cast<double>(end - begin) / elements);
    side.begins.push_back(side.total);
    side.sizes.push_back(size);
    side.total += size;
  }
  return side;
}

// Sides of at most 320 pixels for the longer of rows and columns, in proportion for the other.
std::pair<Side, Side> sides_of(const Picture& picture) {
  constexpr double kLongest = 320;
  double least_width = 40;
  for (const auto& [index, name] : picture.names) {
    least_width = std::max(least_width, internal::svg_text_width(name) + 10);
  }
  for (const Interval& column : picture.dims[2]) {
    least_width = std::max(least_width, internal::svg_text_width(interval_text(column)) + 6);
  }
  const auto elements = [&](int dim) {
    return static_cast<double>(picture.dims[dim].back().second);
  };
  const double longest = std::max(elements(1), elements(2));
  return {side_of(picture.dims[1], kLongest * elements(1) / longest, 30),
          side_of(picture.dims[2], kLongest * elements(2) / longest, least_width)};
}

void draw_plane(const Picture& picture, size_t plane, double left, double top, SvgWriter* svg) {
  const auto [rows, columns] = sides_of(picture);
  for (size_t column = 0; column < columns.sizes.size() && picture.rank >= 1; ++column) {
    svg->text(left + columns.begins[column] + columns.sizes[column] / 2, top - 10,
              interval_text(picture.dims[2][column]));
  }
  for (size_t row = 0; row < rows.sizes.size(); ++row) {
    const double y = top + rows.begins[row];
    if (picture.rank >= 2) {
      svg->text(left - 6, y + rows.sizes[row] / 2, interval_text(picture.dims[1][row]),
                SvgAnchor::kEnd);
    }
    for (size_t column = 0; column < columns.sizes.size(); ++column) {
      const double x = left + columns.begins[column];
      const size_t cell = (plane * rows.sizes.size() + row) * columns.sizes.size() + column;
      svg->rectangle({x, y, columns.sizes[column], rows.sizes[row]},
                     internal::svg_color(static_cast<int64_t>(cell)));
      svg->text(x + columns.sizes[column] / 2, y + rows.sizes[row] / 2,
                picture.names.at({plane, row, column}));
    }
  }
}

}  // namespace

StatusOr<std::string> visualize(const LayoutArg& layout, const Shape& shape) {
  TESSERA_ASSIGN_OR_RETURN(const Picture picture, picture_of(layout, shape));
  std::string text = absl::StrCat(picture.title, "\n");
  if (!picture.names.empty()) {
    const TextWidths widths = text_widths(picture);
    for (size_t plane = 0; plane < picture.dims[0].size(); ++plane) {
      if (picture.rank == 3) {
        absl::StrAppend(&text, "  dim 0 at ", interval_text(picture.dims[0][plane]), "\n");
      }
      append_plane(picture, plane, widths, &text);
    }
  }
  if (!picture.idle.empty()) absl::StrAppend(&text, "  ", picture.idle, "\n");
  return text;
}

StatusOr<std::string> visualize_svg(const LayoutArg& layout, const Shape& shape) {
  constexpr double kTop = 60;
  TESSERA_ASSIGN_OR_RETURN(const Picture picture, picture_of(layout, shape));
  SvgWriter svg;
  svg.text(0, 8, picture.title, SvgAnchor::kStart);
  double bottom = kTop - 30;
  if (!picture.names.empty()) {
    const auto [rows, columns] = sides_of(picture);
    double margin = 0;
    for (const Interval& row : picture.dims[1]) {
      margin = std::max(margin, internal::svg_text_width(interval_text(row)) + 12);
    }
    double left = picture.rank >= 2 ? margin : 0;
    for (size_t plane = 0; plane < picture.dims[0].size(); ++plane) {
      if (picture.rank == 3) {
        svg.text(left, kTop - 28, absl::StrCat("dim 0 at ", interval_text(picture.dims[0][plane])),
                 SvgAnchor::kStart);
      }
      draw_plane(picture, plane, left, kTop, &svg);
      left += std::max(columns.total, 160.0) + margin + 20;
    }
    bottom = kTop + rows.total;
  }
  if (!picture.idle.empty()) svg.text(0, bottom + 20, picture.idle, SvgAnchor::kStart);
  return svg.finish();
}

}  // namespace tessera
