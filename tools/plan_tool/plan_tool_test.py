#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the program behind tools/plan: output, exit codes, files, and pictures that are XML."""

import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

PLAN, SVG_SAMPLES, TOPOLOGIES, PAGE, OPS_PAGE = (pathlib.Path(each) for each in sys.argv[1:6])
GATHER = ["--mesh={node=2, gpu=4}", "--from=[(node,gpu)]", "--to=[-]", "--shape=1048576"]
SVG = "{http://www.w3.org/2000/svg}"


def plan(*flags):
    return subprocess.run([PLAN, *flags], capture_output=True, text=True, check=False)


class PlanToolTest(unittest.TestCase):
    def test_the_shipped_topologies_are_read(self):
        files = sorted(TOPOLOGIES.parent.glob("*.json"))
        self.assertEqual([file.name for file in files], ["h100.json", "one_host.json"])
        for file in files:
            result = plan(*GATHER, f"--topology={file}")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn(f"topology {file}: ", result.stdout)
            self.assertIn("chosen", result.stdout)
            self.assertIn("lower bound is 3.5 MiB", result.stdout)

    def test_the_pages_show_what_is_printed(self):
        block = re.compile(r"```\n\$ tools/plan ((?:[^\n]*\\\n)*[^\n]*)\n(.*?)```", re.S)
        blocks = block.findall(PAGE.read_text())
        self.assertGreaterEqual(len(blocks), 2)
        of_operations = block.findall(OPS_PAGE.read_text())
        self.assertGreaterEqual(len(of_operations), 1)
        for command, output in blocks + of_operations:
            flags = shlex.split(command.replace("\\\n", " "))
            self.assertEqual(plan(*flags).stdout, output, command)

    def test_the_page_of_operations_has_the_table_of_rules(self):
        table = plan("--ops").stdout
        self.assertGreater(len(table.splitlines()), 40)
        self.assertIn(table, OPS_PAGE.read_text(), "docs/internals/ops.md: tools/plan --ops")

    def test_version_and_help_are_printed(self):
        result = plan("--version")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout, r"^tessera_plan \(Tessera\) \d+\.\d+\.\d+, protocol \d+\n$")
        self.assertIn("--memory_cap", plan("--help").stdout)

    def test_refusals_name_the_flag_and_exit_with_2(self):
        rows = [
            (GATHER[1:], "plan: --mesh is missing"),
            (GATHER[:1] + GATHER[2:], "plan: --from is missing"),
            ([*GATHER, "[-]"], 'plan: "[-]" is not a flag'),
            ([*GATHER, "--dtype=f31"], "plan: --dtype: "),
            ([*GATHER, "--out=[-]"], "plan: --out is given without --op; leave it out"),
            (["--op=neg [-]"], "plan: --mesh is missing"),
            ([*GATHER, "--op=neg [-]"], "plan: --from is given with --op; leave it out"),
            (["--mesh={x=2}", "--op=neg [x]"], "plan: --op: layout [x] has 1 dim, shape [] has 0"),
            ([*GATHER, "--topology=" + tempfile.gettempdir()], "cannot be read; give a file"),
        ]
        for flags, message in rows:
            result = plan(*flags)
            self.assertEqual((result.returncode, result.stdout), (2, ""), flags)
            self.assertIn(message, result.stderr)

    def test_a_file_that_is_missing_and_a_cap_that_is_too_low_exit_with_1(self):
        for flag, message in [
            ("--topology=/nowhere.json", "plan: topology /nowhere.json cannot be opened"),
            ("--memory_cap=1000", "1000"),
            ("--svg=/nowhere/plan.svg", "plan: --svg: /nowhere/plan.svg cannot be written"),
        ]:
            result = plan(*GATHER, flag)
            self.assertEqual((result.returncode, result.stdout), (1, ""), flag)
            self.assertIn(message, result.stderr)

    def test_the_picture_of_a_plan_has_an_arrow_for_each_flow(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "plan.svg"
            result = plan(*GATHER, f"--svg={file}")
            self.assertEqual(result.returncode, 0, result.stderr)
            root = xml.etree.ElementTree.parse(file).getroot()
        self.assertEqual(root.tag, SVG + "svg")
        self.assertEqual(len(root.findall(f".//{SVG}line")), 8 * 7)
        texts = [text.text for text in root.iter(SVG + "text")]
        self.assertEqual(texts.count("receives 7 x 512 KiB"), 8)

    def test_pictures_of_layouts_are_xml(self):
        result = subprocess.run([SVG_SAMPLES], capture_output=True, text=True, check=True)
        pictures = result.stdout.split("\0")[:-1]
        self.assertGreater(len(pictures), 5)
        for picture in pictures:
            self.assertEqual(xml.etree.ElementTree.fromstring(picture).tag, SVG + "svg")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
