// SPDX-License-Identifier: Apache-2.0
#include "visualize/svg.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera::internal {
namespace {

constexpr double kMargin = 12;
constexpr double kCharacterWidth = 7.8;  // In a monospace font of 13 pixels.

constexpr char kHead[] =
    "<defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" "
    "markerHeight=\"8\" markerUnits=\"userSpaceOnUse\" orient=\"auto\">"
    "<path d=\"M0,0 L8,4 L0,8 Z\" fill=\"#446\"/></marker></defs>\n";

std::string escaped(absl::string_view text) {
  std::string result;
  for (char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '"') {
      result += "&quot;";
    } else {
      // Names are ASCII; other bytes could be broken UTF-8.
      result += c >= ' ' && c <= '~' ? c : '?';
    }
  }
  return result;
}

const char* anchor_name(SvgAnchor anchor) {
  switch (anchor) {
    case SvgAnchor::kStart:
      return "start";
    case SvgAnchor::kMiddle:
      return "middle";
    case SvgAnchor::kEnd:
      break;
  }
  return "end";
}

}  // namespace

std::string svg_color(int64_t number) {
  // Steps of the golden angle keep neighbours apart however many there are.
  return absl::StrFormat("hsl(%d,60%%,85%%)", static_cast<int>((number % 360) * 137.508) % 360);
}

double svg_text_width(absl::string_view text) {
  return static_cast<double>(text.size()) * kCharacterWidth;
}

void SvgWriter::rectangle(const SvgRectangle& place, absl::string_view fill) {
  absl::StrAppendFormat(&body_,
                        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\" "
                        "stroke=\"#446\"/>\n",
                        place.x, place.y, place.width, place.height, escaped(fill));
  reach(place.x + place.width, place.y + place.height);
}

void SvgWriter::text(double x, double y, absl::string_view text, SvgAnchor anchor) {
  // dy instead of dominant-baseline, which some viewers ignore.
  absl::StrAppendFormat(&body_,
                        "<text x=\"%.1f\" y=\"%.1f\" dy=\"4.5\" text-anchor=\"%s\">%s</text>\n", x,
                        y, anchor_name(anchor), escaped(text));
  const double width = svg_text_width(text);
  reach(x + (anchor == SvgAnchor::kStart    ? width
             : anchor == SvgAnchor::kMiddle ? width / 2
                                            : 0),
        y + 9);
}

void SvgWriter::arrow(const SvgArrow& arrow, absl::string_view title) {
  absl::StrAppendFormat(&body_,
                        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#446\" "
                        "stroke-width=\"%.1f\" stroke-opacity=\"0.6\" marker-end=\"url(#head)\">"
                        "<title>%s</title></line>\n",
                        arrow.from_x, arrow.from_y, arrow.to_x, arrow.to_y, arrow.width,
                        escaped(title));
  reach(std::max(arrow.from_x, arrow.to_x), std::max(arrow.from_y, arrow.to_y));
}

void SvgWriter::label(double x, double y, absl::string_view text) {
  const double width = svg_text_width(text) + 4;
  absl::StrAppendFormat(&body_,
                        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"16\" fill=\"white\" "
                        "fill-opacity=\"0.85\"/>\n",
                        x - width / 2, y - 8, width);
  this->text(x, y, text);
}

std::string SvgWriter::finish() const {
  const int width = static_cast<int>(std::ceil(width_ + 2 * kMargin));
  const int height = static_cast<int>(std::ceil(height_ + 2 * kMargin));
  return absl::StrCat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height,
      "\" viewBox=\"0 0 ", width, " ", height, "\" font-family=\"monospace\" font-size=\"13\">\n",
      kHead, "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<g transform=\"translate(",
      kMargin, ",", kMargin, ")\">\n", body_, "</g>\n</svg>\n");
}

void SvgWriter::reach(double x, double y) {
  width_ = std::max(width_, x);
  height_ = std::max(height_, y);
}

}  // namespace tessera::internal
