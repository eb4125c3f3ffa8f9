// SPDX-License-Identifier: Apache-2.0
//
// SvgWriter: the elements of SVG 1.1 that our pictures use. Internal.
//
//   SvgWriter svg;
//   svg.rectangle({.x = 0, .y = 0, .width = 80, .height = 30}, svg_color(0));
//   svg.text(40, 15, "device 0");
//   svg.finish()  ->  "<svg xmlns=... width="80" ...>...</svg>\n"
//
// The result is well-formed XML for every text: texts are escaped, and control characters, which
// XML cannot hold, become "?". The document has the size of the drawing plus a margin.
#ifndef TESSERA_VISUALIZE_SVG_H_
#define TESSERA_VISUALIZE_SVG_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera::internal {

// In pixels, from the upper left corner.
struct SvgRectangle {
  double x;
  double y;
  double width;
  double height;
};

struct SvgArrow {
  double from_x;
  double from_y;
  double to_x;
  double to_y;
  double width;
};

enum class SvgAnchor : uint8_t { kStart, kMiddle, kEnd };

// A light fill, different for numbers that are near each other.
std::string svg_color(int64_t number);
// An estimate of the width of a text. It is generous, because fonts differ.
double svg_text_width(absl::string_view text);

class SvgWriter {
 public:
  void rectangle(const SvgRectangle& place, absl::string_view fill);
  // y is the middle of the line.
  void text(double x, double y, absl::string_view text, SvgAnchor anchor = SvgAnchor::kMiddle);
  // A line with a head at its end. A browser shows `title` when the mouse is over it.
  void arrow(const SvgArrow& arrow, absl::string_view title);
  // A text on a white background, readable where lines cross it.
  void label(double x, double y, absl::string_view text);

  std::string finish() const;

 private:
  void reach(double x, double y);

  std::string body_;
  double width_ = 0;
  double height_ = 0;
};

}  // namespace tessera::internal

#endif  // TESSERA_VISUALIZE_SVG_H_
