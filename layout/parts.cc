// SPDX-License-Identifier: Apache-2.0
#include "layout/parts.h"

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tessera::internal {
namespace {

template <class... Why>
Status refuse(absl::string_view layout, const Why&... why) {
  return absl::InvalidArgumentError(absl::StrCat("layout ", in_quotes(layout), " ", why...));
}

std::string place_to_string(int place) {
  return place == kPartialPlace ? "as partial" : absl::StrCat("in dim ", place);
}

bool is_whole(const Mesh& mesh, const SubAxis& part) {
  return part.size == mesh.axes()[part.axis].size;
}

bool lies_below(const SubAxis& lower, const SubAxis& upper) {
  return lower.pre % (upper.pre * upper.size) == 0;
}

Status refuse_repeated(const NamedPart& a, const NamedPart& b, absl::string_view layout) {
  const std::string names = absl::StrCat("names axis ", in_quotes(a.text));
  if (a.place == b.place) {
    return refuse(layout, names, " twice ", place_to_string(a.place), "; name it once");
  }
  if (b.place == kPartialPlace) {
    return refuse(layout, names, " both ", place_to_string(a.place),
                  " and as partial; an axis splits a dim or is partial, not both");
  }
  return refuse(layout, names, " in dims ", a.place, " and ", b.place,
                "; an axis splits one dim, once");
}

}  // namespace

StatusOr<NamedPart> resolve_part(const Mesh& mesh, const AxisText& axis, int place,
                                 absl::string_view layout) {
  const std::string where = place_to_string(place);
  const StatusOr<int> index = mesh.axis_index(axis.name);
  if (!index.ok()) {
    std::vector<std::string> names;
    for (const MeshAxis& mesh_axis : mesh.axes()) names.push_back(mesh_axis.name);
    return refuse(layout, "names axis ", in_quotes(axis.name), " ", where, "; mesh ",
                  axes_to_string(mesh.axes()), " has ", quoted_list(names),
                  did_you_mean(axis.name, names));
  }
  const int64_t n = mesh.axes()[*index].size;
  if (!axis.digit.has_value()) return NamedPart{{*index, 1, n}, axis.name, place};

  const auto [pre, size] = *axis.digit;
  const std::string text = axis.to_string();
  if (pre < 1 || size < 1) {
    return refuse(layout, "names sub-axis ", in_quotes(text), " ", where, " with a factor of ",
                  pre < 1 ? pre : size, "; factors are 1 or more");
  }
  // Compared by division: pre * size may pass 64 bits.
  if (pre > n / size || n % (pre * size) != 0) {
    return refuse(layout, "names sub-axis ", in_quotes(text), " ", where, "; axis ",
                  in_quotes(axis.name), " has size ", n, ", which ", pre, "*", size,
                  " does not divide; use factors whose product divides ", n);
  }
  return NamedPart{{*index, pre, size}, text, place};
}

Status check_parts(const Mesh& mesh, absl::Span<const NamedPart> parts, absl::string_view layout) {
  for (size_t j = 0; j < parts.size(); ++j) {
    for (size_t i = 0; i < j; ++i) {
      const NamedPart& a = parts[i];
      const NamedPart& b = parts[j];
      if (a.part.axis != b.part.axis) continue;
      // An axis of size 1 named twice is refused like any other: what is legal does not hang on
      // the size of the job.
      if (is_whole(mesh, a.part) && is_whole(mesh, b.part)) return refuse_repeated(a, b, layout);
      if (a.part.size == 1 || b.part.size == 1) continue;
      if (lies_below(a.part, b.part) || lies_below(b.part, a.part)) continue;
      return refuse(layout, "names ", in_quotes(a.text), " ", place_to_string(a.place), " and ",
                    in_quotes(b.text), " ", place_to_string(b.place),
                    ", which overlap or do not fit together on axis ",
                    in_quotes(mesh.axes()[a.part.axis].name), " of size ",
                    mesh.axes()[a.part.axis].size,
                    "; of two sub-axes, pre*size of the one must divide the pre of the other");
    }
  }
  return absl::OkStatus();
}

std::vector<SubAxis> normal_parts(absl::Span<const SubAxis> parts) {
  std::vector<SubAxis> normal;
  for (const SubAxis& part : parts) {
    if (part.size == 1) continue;
    if (!normal.empty() && normal.back().axis == part.axis &&
        normal.back().pre * normal.back().size == part.pre) {
      normal.back().size *= part.size;
    } else {
      normal.push_back(part);
    }
  }
  return normal;
}

std::string part_to_string(const Mesh& mesh, const SubAxis& part) {
  const std::string& name = mesh.axes()[part.axis].name;
  if (is_whole(mesh, part)) return name;
  return AxisText{name, AxisText::Digit{part.pre, part.size}}.to_string();
}

std::vector<PositionDigit> position_digits(const Mesh& mesh, absl::Span<const SubAxis> parts) {
  const absl::Span<const MeshAxis> axes = mesh.axes();
  std::vector<int64_t> strides(axes.size(), 1);
  for (size_t i = axes.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * axes[i].size;
  std::vector<PositionDigit> digits;
  for (const SubAxis& part : parts) {
    // The stride of the axis divides the position first; the two divisions are one, because what
    // the major digits add is a multiple of pre * size.
    const int64_t rest = axes[part.axis].size / (part.pre * part.size);
    const PositionDigit digit = {strides[part.axis] * rest, part.size};
    if (!digits.empty() && digits.back().divisor == digit.divisor * digit.size) {
      digits.back() = {digit.divisor, digits.back().size * digit.size};
    } else {
      digits.push_back(digit);
    }
  }
  return digits;
}

}  // namespace tessera::internal
