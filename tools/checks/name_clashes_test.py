# SPDX-License-Identifier: Apache-2.0
"""Which sources name_clashes.py compiles, and that it finds a call that meets a name of std."""

import pathlib
import tempfile
import unittest
from unittest import mock

import name_clashes

# Of two calls with one text, only the first finds std::quoted(), which returns no std::string.
HEADER = """
namespace tessera {
struct View { View(const std::string&) {} };
std::string quoted(View text);
std::string in_quotes(View text);
"""
CLASH = HEADER + "inline std::string f(std::string text) { return quoted(text); }\n}\n"
NO_CLASH = HEADER + "inline std::string f(std::string text) { return in_quotes(text); }\n}\n"


class NameClashesTest(unittest.TestCase):
    def test_checks_sources_of_the_library_that_write_messages(self):
        self.assertTrue(name_clashes.is_checked("mesh/mesh.cc", "in_quotes(name)"))
        self.assertFalse(name_clashes.is_checked("mesh/mesh.cc", "quoted_list(names)"))
        for path in ["mesh/mesh.h", "mesh/mesh_test.cc", "tests/ops/a.cc", "device/cuda/a.cc"]:
            self.assertFalse(name_clashes.is_checked(path, "in_quotes(name)"), path)

    def test_finds_a_call_that_meets_a_name_of_std(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "clash.cc").write_text(CLASH)
            (folder / "no_clash.cc").write_text(NO_CLASH)
            with mock.patch.object(name_clashes, "FIRST", ["string", "iomanip"]):
                errors = name_clashes.compile_all(folder, ["clash.cc", "no_clash.cc"], folder)
                self.assertEqual(len(errors), 1)
                self.assertIn("clash.cc:6", errors[0])
            with mock.patch.object(name_clashes, "FIRST", ["string"]):
                self.assertEqual(name_clashes.compile_all(folder, ["clash.cc"], folder), [])


if __name__ == "__main__":
    unittest.main()
