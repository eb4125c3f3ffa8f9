# SPDX-License-Identifier: Apache-2.0
"""Commands and table of tools/bench headers, and a compiler that fails."""

import pathlib
import unittest

import bench_headers


class HeadersTest(unittest.TestCase):
    def test_a_program_is_its_includes_and_an_empty_main(self):
        text = bench_headers.program_text(["<string>", '"tessera/core.h"'])
        self.assertEqual(text, '#include <string>\n#include "tessera/core.h"\nint main() {}\n')

    def test_a_tree_comes_before_the_system(self):
        command = bench_headers.compile_command("g++", pathlib.Path("/t"), "a.cc")
        self.assertLess(command.index("/t"), command.index("/usr/include/eigen3"))

    def test_files_are_those_of_the_rule_without_the_source(self):
        self.assertEqual(bench_headers.count_files("a.o: a.cc b.h \\\n c.h\n"), 2)

    def test_a_failure_has_no_time(self):
        self.assertIsNone(bench_headers.processor_seconds(["false"]))
        self.assertGreaterEqual(bench_headers.processor_seconds(["true"]), 0)

    def test_table(self):
        rows = [("core", 7, {"now": 1.234, "before": 2}), ("old", 8, {"now": 1, "before": None})]
        self.assertEqual(
            bench_headers.table(rows, ["now", "before"]).split("\n")[2:],
            ["| core | 7 | 1.23 s | 2.00 s |", "| old | 8 | 1.00 s | - |"],
        )


if __name__ == "__main__":
    unittest.main()
