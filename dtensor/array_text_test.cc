// SPDX-License-Identifier: Apache-2.0
//
// The text of arrays against numpy's, by the rows of dtensor/testdata/array_text_cases.tsv; and the
// shown elements, gathered from boxes.
#include "dtensor/array_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "gtest/gtest.h"

namespace tessera::internal {
namespace {

struct Case {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::string elements;
  std::string text;

  friend std::ostream& operator<<(std::ostream& out, const Case& row) { return out << row.name; }
};

std::vector<Case> read_cases() {
  std::ifstream file("dtensor/testdata/array_text_cases.tsv");
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    Case& row = cases.emplace_back();
    row.name = fields[0];
    for (int i = 0; i < kNumDTypes; ++i) {
      if (dtype_name(static_cast<DType>(i)) == fields[1]) row.dtype = static_cast<DType>(i);
    }
    const absl::string_view sizes = absl::string_view(fields[2]).substr(1, fields[2].size() - 2);
    for (const absl::string_view size : absl::StrSplit(sizes, ", ", absl::SkipEmpty())) {
      row.shape.push_back(std::atoll(std::string(size).c_str()));
    }
    row.elements = fields[3];
    row.text = absl::StrReplaceAll(fields[4], {{"\\n", "\n"}});
  }
  return cases;
}

// Element i of "1,2.5,nan" or of "0.5i-10". Integers are read as such.
std::vector<std::byte> elements_of(const Case& row) {
  const int64_t count = num_elements(row.shape);
  const size_t factor_end = row.elements.find('i');
  const bool is_formula =
      factor_end != std::string::npos && factor_end > 0 &&
      absl::string_view("0123456789").find(row.elements[factor_end - 1]) != absl::string_view::npos;
  const std::vector<std::string> list = absl::StrSplit(row.elements, ',', absl::SkipEmpty());
  return visit_dtype(row.dtype, [&]<class T>() {
    std::vector<std::byte> bytes(count * sizeof(T));
    for (int64_t i = 0; i < count; ++i) {
      T element;
      if (is_formula) {
        const double number = std::atof(row.elements.c_str()) * static_cast<double>(i) +
                              std::atof(row.elements.c_str() + factor_end + 1);
        element = static_cast<T>(number);
      } else if constexpr (std::is_integral_v<T>) {
        element = static_cast<T>(std::atoll(list[i].c_str()));
      } else {
        element = static_cast<T>(std::atof(list[i].c_str()));
      }
      std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
    return bytes;
  });
}

TEST(ArrayTextTest, IsAsOfNumpy) {
  const std::vector<Case> cases = read_cases();
  EXPECT_GT(cases.size(), 50u);
  for (const Case& row : cases) {
    EXPECT_EQ(whole_array_text(row.dtype, row.shape, elements_of(row).data()), row.text) << row;
  }
}

// A bf16 has fewer digits than the f32 of the same bits.
TEST(ArrayTextTest, BFloat16HasItsShortestDigits) {
  const std::vector<Eigen::bfloat16> values = {Eigen::bfloat16(0.1f), Eigen::bfloat16(3.14159f),
                                               Eigen::bfloat16(1.0f / 3)};
  EXPECT_EQ(
      whole_array_text(DType::kBFloat16, {3}, reinterpret_cast<const std::byte*>(values.data())),
      "[0.1   3.14  0.334]");
}

// Every element of both halves of an array, dealt in boxes of rows and of columns.
TEST(ArrayTextTest, ShownElementsAreGatheredFromBoxes) {
  const Shape shape = {40, 30};
  ASSERT_TRUE(is_elided(shape));
  ASSERT_EQ(shown_shape(shape), Shape({6, 6}));
  for (const int64_t cut : {1, 2, 3, 5, 17, 36, 37, 38}) {
    for (const bool by_rows : {true, false}) {
      std::vector<int32_t> shown(36, -1);
      for (const bool second : {false, true}) {
        Box box = whole_box(shape);
        const int dim = by_rows ? 0 : 1;
        const int64_t at = std::min(cut, shape[dim]);
        box.offsets[dim] = second ? at : 0;
        box.sizes[dim] = second ? shape[dim] - at : at;
        std::vector<int32_t> held;
        for (int64_t r = 0; r < box.sizes[0]; ++r) {
          for (int64_t c = 0; c < box.sizes[1]; ++c) {
            held.push_back(static_cast<int32_t>((box.offsets[0] + r) * 30 + box.offsets[1] + c));
          }
        }
        copy_shown(shape, box, 4, reinterpret_cast<const std::byte*>(held.data()),
                   reinterpret_cast<std::byte*>(shown.data()));
      }
      for (int i = 0; i < 36; ++i) {
        const int row = i / 6 < 3 ? i / 6 : i / 6 + 34;
        const int column = i % 6 < 3 ? i % 6 : i % 6 + 24;
        EXPECT_EQ(shown[i], row * 30 + column) << "cut " << cut << ", element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::internal
