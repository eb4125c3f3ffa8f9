# SPDX-License-Identifier: Apache-2.0
"""The parts of tests/install/run that build nothing, and how it reports a program."""

import contextlib
import io
import pathlib
import re
import tempfile
import unittest

import consumers
from consumers import Consumer

TREE = pathlib.Path(__file__).absolute().parent.parent.parent


class PartsTest(unittest.TestCase):
    def test_each_tree_has_a_folder_of_its_own(self):
        first = consumers.default_folder("/a", {"XDG_CACHE_HOME": "/cache"})
        self.assertRegex(str(first), "^/cache/tessera/install-[0-9a-f]{8}$")
        self.assertNotEqual(first, consumers.default_folder("/b", {"XDG_CACHE_HOME": "/cache"}))
        in_home = consumers.default_folder("/a", {"HOME": "/h"})
        self.assertEqual(in_home, pathlib.Path("/h/.cache/tessera") / first.name)

    def test_only_the_needed_places_are_built(self):
        some = [Consumer(place, place, "") for place in ("project", "prefix", "prefix")]
        self.assertEqual(consumers.places_of(some), ["prefix", "project"])

    def test_every_consumer_has_a_known_place_and_a_name_of_its_own(self):
        names = [consumer.name for consumer in consumers.CONSUMERS]
        self.assertEqual(len(names), len(set(names)))
        self.assertLessEqual({c.place for c in consumers.CONSUMERS}, set(consumers.PLACES))

    def test_a_line_is_found_whole(self):
        for output in ["a\nsum 8\n", "[client 0] sum 8\n", "sum 8"]:
            self.assertTrue(consumers.has_line(output, "sum 8"), output)
        for output in ["", "sum 80\n", "no sum 8\n", "sum 8 "]:
            self.assertFalse(consumers.has_line(output, "sum 8"), output)

    def test_the_environment_puts_the_prefix_first(self):
        prefix = pathlib.Path("/p")
        environment = consumers.environment_of(prefix, prefix / "lib", {"PATH": "/bin"})
        self.assertEqual(environment["PATH"], "/p/bin:/bin")
        self.assertEqual(environment["LD_LIBRARY_PATH"], "/p/lib")
        self.assertEqual(environment["PKG_CONFIG_PATH"], "/p/lib/pkgconfig")
        self.assertEqual(environment["CMAKE_PREFIX_PATH"], "/p")

    def test_the_program_of_the_page_is_cut(self):
        blocks = {"cpp": "int x;", "cmake": "c()", "sh": "a\nb c", "text": "o 1"}
        fences = "".join(f"Text.\n```{name}\n{text}\n```\n" for name, text in blocks.items())
        other = "```cpp\nno\n```\n"
        page = f"# I\n{other}## A first program\n{fences}### D\n## E\n{other}"
        files = {"example.cc": "int x;\n", "CMakeLists.txt": "c()\n"}
        self.assertEqual(consumers.cut_page(page), (files, "a && b c", "o 1\n"))

    def test_dockerfile_definition_and_page_install_the_same_packages(self):
        """Each has one list of packages for a build, which begins with cmake."""

        def packages(path):
            text = (TREE / path).read_text().replace("\\\n", " ")
            return re.search(r"-recommends +(cmake [a-z0-9+ -]*[a-z])", text).group(1).split()

        expected = packages("docs/install.md")
        self.assertIn("g++", expected)
        self.assertEqual(packages("Dockerfile"), expected)
        self.assertEqual(packages("tessera.def"), expected)

    def test_an_unknown_program_is_named(self):
        with self.assertRaisesRegex(ValueError, 'unknown program "mak"; the programs are cmake_'):
            consumers.select(["mak"])
        self.assertEqual([c.name for c in consumers.select(["make"])], ["make"])
        left_out = [c.name for c in consumers.CONSUMERS if c not in consumers.select([])]
        self.assertEqual(left_out, ["fetch_content"])


class MainTest(unittest.TestCase):
    def run_main(self, consumer_list, *arguments):
        """Exit status and output of main() over other programs, with an empty prefix."""
        saved, consumers.CONSUMERS = consumers.CONSUMERS, consumer_list
        output = io.StringIO()
        try:
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(output):
                config = pathlib.Path(folder) / "prefix" / "lib" / "x86" / "pkgconfig"
                config.mkdir(parents=True)
                (config / "tessera.pc").touch()
                prefix = f"--prefix={folder}/prefix"
                return consumers.main([prefix, f"--folder={folder}", *arguments]), output.getvalue()
        finally:
            consumers.CONSUMERS = saved

    def test_the_line_decides(self):
        code, output = self.run_main([Consumer("a", "prefix", "echo one; echo two", "two")])
        self.assertEqual(code, 0)
        self.assertRegex(output, r"a +prefix +ok +\d+\.\d s\n1 passed, 0 failed\n$")
        code, output = self.run_main([Consumer("a", "prefix", "echo one", "two")])
        self.assertEqual(code, 1)
        self.assertIn("one\n\nno line is: two\n    echo one\n", output)
        self.assertTrue(output.endswith("repeat it: tests/install/run a\n0 passed, 1 failed\n"))

    def test_the_exit_status_decides_too(self):
        code, output = self.run_main([Consumer("a", "prefix", "echo two; exit 3", "two")])
        self.assertEqual(code, 1)
        self.assertIn("two\n\nexit status 3\n", output)

    def test_a_wrong_use_must_fail_with_its_message(self):
        for command, expected_code in [
            ("echo  no two here; exit 3", 0),
            ("echo two", 1),
            ("echo one; exit 3", 1),
        ]:
            code, output = self.run_main([Consumer("a", "prefix", command, "two", fails=True)])
            self.assertEqual(code, expected_code, output)

    def test_a_program_without_a_line_must_only_succeed(self):
        for command, expected_code in [("true", 0), ("false", 1)]:
            code, _ = self.run_main([Consumer("a", "prefix", command, "")])
            self.assertEqual(code, expected_code)

    def test_a_program_sees_its_prefix(self):
        command = 'basename "$CMAKE_PREFIX_PATH"; cd "$LD_LIBRARY_PATH" && pwd'
        code, output = self.run_main([Consumer("a", "prefix", command, "prefix")])
        self.assertEqual(code, 0, output)

    def test_what_needs_a_missing_program_is_skipped(self):
        needy = Consumer("a", "prefix", "false", needs="no_such_program")
        code, output = self.run_main([needy, Consumer("b", "prefix", "echo c", "c")])
        self.assertEqual(code, 0)
        self.assertIn("no_such_program is not installed", output)
        self.assertTrue(output.endswith("1 skipped\n1 passed, 0 failed\n"), output)

    def test_a_program_that_hangs_is_killed(self):
        # sleep: the command must not end before it is killed.
        code, output = consumers.run("echo before; sleep 100", "/", timeout=0.5)
        self.assertNotEqual(code, 0)
        self.assertIn("before\n\nkilled after 0.5 s\n", output)


if __name__ == "__main__":
    unittest.main()
