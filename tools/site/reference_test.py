# SPDX-License-Identifier: Apache-2.0
"""Pages of the reference."""

import unittest

import reference

LISTING = """\
# Programs include these.
all.h
core.h
ops.h

# Programs use the names of these.
add.h
mesh.h
shape.h

# Templates need these.
walk.h
"""
TREE = {
    "all.h": '#include "core.h"\n#include "ops.h"\n',
    "core.h": '// The core. More.\n#ifndef A\n#include "mesh.h"\n#endif\n',
    "ops.h": '#include "add.h"\n#include "core.h"\n',
    "mesh.h": '#include "shape.h"\n',
    "shape.h": "",
    "walk.h": "",
    "add.h": """\
// SPDX-License-Identifier: Apache-2.0
//
// Adds numbers, as mesh.h does:
//
//   int sum = add(1, 2);
//
// - a sum that
//   is exact;
// - `x` alone
#ifndef B
#include "shape.h"

namespace tessera::ops {

// a * b
int add(int a, int b = {});
int add(int a, double b);

struct Both {
  int first = 1;  // of two
};

}  // namespace tessera::ops
""",
}


class ReferenceTest(unittest.TestCase):
    def setUp(self):
        self.texts, self.pages = reference.write(LISTING, TREE.get)

    def test_headers_are_grouped_by_the_front_header_that_includes_them(self):
        names = ["add", "all", "core", "index", "mesh", "ops", "shape"]
        self.assertEqual(sorted(self.texts), ["reference/" + name for name in names])
        for group, header in [("core", "mesh"), ("core", "shape"), ("ops", "add")]:
            self.assertIn(f"\n   /reference/{header}\n", self.texts["reference/" + group])
        self.assertNotIn("toctree", self.texts["reference/all"])

    def test_the_first_page_lists_front_headers_with_their_first_sentence(self):
        first = self.texts["reference/index"]
        self.assertIn(":doc:`core.h </reference/core>`\n   The core\n", first)

    def test_a_page_of_a_header(self):
        self.assertEqual(
            self.texts["reference/add"],
            """\
add.h
=====

.. code-block:: cpp

   #include "ops.h"

Adds numbers, as :doc:`mesh.h </reference/mesh>` does:

.. code-block:: cpp
   :force:

   int sum = add(1, 2);

- a sum that is exact;
- ``x`` alone

.. cpp:namespace:: tessera::ops

.. cpp:function:: int add(int a, int b = {})
                  int add(int a, double b)

   a \\* b

.. cpp:struct:: Both

   .. cpp:var:: int first = 1

      of two

""",
        )

    def test_text_has_no_marks_of_the_format(self):
        for text, expected in [
            ("a_b * |x| \\", "a\\_b \\* \\|x\\| \\\\"),
            ("the `rank`s", "the ``rank``\\ s"),
            ("dim `a` along `b`", "dim ``a`` along ``b``"),
            ("1. is no list", "\\1. is no list"),
            ("A mesh", "A mesh"),
            ("Info::files::", "Info\\::files\\::"),
        ]:
            self.assertEqual(reference.escaped(text), expected)

    def test_a_function_that_is_declared_twice_is_shown_once(self):
        header = (
            "namespace tessera {\nint add(int a, int b);\n\n"
            "// Adds.\nint add(int a, int b = f());\n}\n"
        )
        page = "\n".join(reference.header_page("add.h", "ops.h", header, {}))
        self.assertEqual(page.count("cpp:function"), 1)
        self.assertIn("int b = f())\n\n   Adds.", page)


if __name__ == "__main__":
    unittest.main()
