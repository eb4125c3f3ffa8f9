# SPDX-License-Identifier: Apache-2.0
"""Cells, tables and goals of `tools/bench checkpoint`, and a run of everything in small."""

import contextlib
import io
import json
import pathlib
import re
import tempfile
import unittest

import bench_checkpoint
from bench_cells import MIB, Cell, Entry

ROOT = pathlib.Path(__file__).parent.parent.parent
WORKER = ROOT.absolute() / "benchmarks/checkpoint_worker"  # where Bazel puts it


def cell(kind, operation, size=64 * MIB, value=None, **seconds):
    """A cell with one round, in which each contestant took the given seconds."""
    entries = [Entry(c, c, "", rounds=[s], value=value) for c, s in seconds.items()]
    return Cell(kind, operation, size, 2, entries)


class SmallTest(unittest.TestCase):
    """`--small`: Tessera and the disk, since nothing that runs tests has the peers."""

    @classmethod
    def setUpClass(cls):
        text = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(text):
            build = pathlib.Path(folder)
            (build / "checkpoint_worker").symlink_to(WORKER)
            path = build / "all.json"
            arguments = ["--small", "--rounds", "1", "--columns", "disk,tessera", "--json"]
            arguments += [str(path), "--folder", folder, "--build-folder", folder]
            cls.status = bench_checkpoint.main(arguments)
            cls.cells = {c["cell"]: c for c in json.loads(path.read_text())["cells"]}
        cls.text = text.getvalue()

    def test_every_cell_has_a_number(self):
        self.assertEqual(self.status, 0, self.text)
        self.assertEqual(len(self.cells), 8)
        for name, each in self.cells.items():
            for rounds in each["rounds"].values():
                self.assertEqual(len(rounds), 1, name)
        for title in bench_checkpoint.KINDS.values():
            self.assertIn(f"\n{title}\n", self.text)

    def test_a_restore_by_rows_reads_what_it_needs(self):
        ratio = self.cells["restore_rows_warm 1 MiB P=2"]["read_over_needed"]
        self.assertAlmostEqual(ratio, 1, 3)
        self.assertGreaterEqual(
            self.cells["restore_columns_warm 1 MiB P=2"]["read_over_needed"], ratio
        )


class ReportTest(unittest.TestCase):
    def test_every_command_of_a_page_selects_cells(self):
        folders = [ROOT / "docs", ROOT / "benchmarks", ROOT / "benchmarks/results"]
        text = "".join(page.read_text() for folder in folders for page in folder.glob("*.md"))
        commands = re.findall(r"tools/bench checkpoint ([^\n`]*)", text)
        self.assertTrue(commands)
        for command in commands:
            only = re.search("--only '([^']*)'", command)
            pattern = only.group(1) if only else ""
            self.assertTrue(bench_checkpoint.make_phases(bench_checkpoint.SIZES, pattern))

    def test_a_row_has_the_share_of_the_disk_and_of_the_fastest_peer(self):
        one = cell("restore", "restore_rows_warm", value=1.0, disk=1.0, tessera=1.25, torch=2.5)
        table = bench_checkpoint.format_table("restore", [one])
        self.assertEqual(
            table.splitlines()[2],
            "| restore_rows_warm 64 MiB | 1.00 s | 1.25 s | 2.50 s | 0.80 | 2.00 | 1.00 |",
        )

    def test_steps_beside_saves_are_compared_with_steps_beside_a_plain_writer(self):
        one = cell("train", "train", alone=0.08, write=0.09, save=0.10)
        row = bench_checkpoint.format_table("train", [one]).splitlines()[2]
        self.assertTrue(row.endswith("| 0.80 | 0.90 |"), row)

    def test_goals_about_rates_count_large_cells(self):
        cells = [
            cell("save", "save", size=MIB, disk=1e-3, tessera=5e-3),
            cell("save", "save", disk=0.095, tessera=0.1),
            cell("async", "save_async", size=MIB, tessera=2e-3),
        ]
        asynchronous, steps, save, _, _ = (
            goal.verdict(None) for goal in bench_checkpoint.make_goals(cells)
        )
        self.assertTrue(asynchronous.startswith("not reached  save_async"), asynchronous)
        self.assertTrue(steps.startswith("not measured "), steps)
        self.assertTrue(save.startswith("reached      save"), save)
        self.assertIn("worst: save 64 MiB P=2", save)


if __name__ == "__main__":
    unittest.main()
