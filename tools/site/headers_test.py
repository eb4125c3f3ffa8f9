# SPDX-License-Identifier: Apache-2.0
"""Headers as the reference reads them."""

import unittest

import headers

HEADER = """\
// SPDX-License-Identifier: Apache-2.0
//
// Box: a part of a tensor.
//
//   Box box;
#ifndef TESSERA_BASE_BOX_H_
#define TESSERA_BASE_BOX_H_

#include <vector>

namespace tessera TESSERA_PUBLIC {

class Buffer;  // Internal.
namespace internal {
int hidden();
}

// Every function has its formula.

// ---- Sums
// Of numbers.

// a + b
Box add(const Box& a, const Box& b = {});
Box add(const Box& a, double b);
TESSERA_MORE_(Box)
Box operator-(const Box& a);

// The kind of a box.
enum class Kind : int {
  kWhole,  // all of it
  // None of it.
  kEmpty = 3,
};

// One box.
class Box final : public Base {
 public:
  Box() = default;
  explicit Box(int rank) : rank_(rank), sizes_{1} {}
  // Its rank,
  // counted.
  int rank() const { return rank_; }
  operator absl::Span<const int>() const;
  template <class T>
  requires(sizeof(T) > 1 && is_number<T>) Box(T value);

 private:
  int secret() const;
  int rank_ = 0;
};

struct Options {
  std::function<void(int, int)> done = {};  // called at the end,
                                            // once
  void (*deleter)(Options* self);
  std::optional<int> first = {}, second = f(1, 2);
};

template <class T>
inline constexpr bool kIsBox = requires {
  T::box;
};

// Internal: for add().
struct Helper {};
void help();

template <class T>
int Box::size() const {
  return 1;
}
using absl::Status;
using Boxes = std::vector<Box>;
}  // namespace tessera

// Returns an error.
#define TESSERA_RETURN(expression) \\
  do {                             \\
  } while (false)
#define TESSERA_HELPER_(x) x

#endif  // TESSERA_BASE_BOX_H_
"""


class ReaderTest(unittest.TestCase):
    def setUp(self):
        self.banner, self.items, self.internal = headers.read(HEADER)

    def item(self, name, items=None):
        return [each for each in items or self.items if each.name == name][0]

    def test_the_comment_at_the_top_stands_alone(self):
        self.assertEqual(self.banner, ["Box: a part of a tensor.", "", "  Box box;"])

    def test_items_have_the_order_of_the_header(self):
        self.assertEqual(
            [(each.kind, each.name) for each in self.items],
            [
                ("prose", ""),
                ("heading", "Sums"),
                ("function", "add"),
                ("function", "add"),
                ("function", "operator-"),
                ("enum-class", "Kind"),
                ("class", "Box"),
                ("struct", "Options"),
                ("variable", "kIsBox"),
                ("type", "Status"),
                ("type", "Boxes"),
                ("macro", "TESSERA_RETURN"),
            ],
        )

    def test_overloads_after_a_comment(self):
        first, second = [each for each in self.items if each.name == "add"]
        self.assertEqual(first.text, "Box add(const Box& a, const Box& b = {})")
        self.assertEqual((first.comment, second.comment), (["a + b"], []))
        self.assertEqual(first.namespaces, ("tessera",))

    def test_a_macro_without_a_semicolon_is_no_part_of_the_next_declaration(self):
        self.assertEqual(self.item("operator-").text, "Box operator-(const Box& a)")

    def test_enumerators_with_a_comment_before_or_behind(self):
        whole, empty = self.item("Kind").items
        self.assertEqual((whole.text, whole.comment), ("kWhole", ["all of it"]))
        self.assertEqual((empty.text, empty.comment), ("kEmpty = 3", ["None of it."]))

    def test_public_members_of_a_class(self):
        box = self.item("Box")
        self.assertEqual(box.text, "Box final : public Base")
        self.assertEqual(
            [each.text for each in box.items],
            [
                "Box() = default",
                "explicit Box(int rank)",
                "int rank() const",
                "operator absl::Span<const int>() const",
                "template <class T> requires(sizeof(T) > 1 && is_number<T>) Box(T value)",
            ],
        )
        self.assertEqual(box.items[2].comment, ["Its rank,", "counted."])

    def test_variables(self):
        options = self.item("Options").items
        self.assertEqual(
            [each.text for each in options],
            [
                "std::function<void(int, int)> done",
                "void (*deleter)(Options* self)",
                "std::optional<int> first",
                "std::optional<int> second = f(1, 2)",
            ],
        )
        self.assertEqual(options[0].comment, ["called at the end,", "once"])

    def test_a_using_declaration_names_a_type(self):
        self.assertEqual(self.item("Status").text, "Status = absl::Status")

    def test_internal_names(self):
        self.assertIn((("tessera",), "Helper"), self.internal)
        self.assertIn((("tessera",), "help"), self.internal)
        self.assertNotIn((("tessera",), "add"), self.internal)


if __name__ == "__main__":
    unittest.main()
