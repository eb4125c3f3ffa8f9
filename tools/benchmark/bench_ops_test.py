# SPDX-License-Identifier: Apache-2.0
"""Cells, table and goals of `tools/bench ops`, and a run of everything in small."""

import contextlib
import io
import json
import math
import pathlib
import re
import tempfile
import unittest

import bench_ops
from bench_cells import KIB, Cell, Entry

ROOT = pathlib.Path(__file__).parent.parent.parent
WORKER = ROOT.absolute() / "benchmarks/ops_worker"  # where Bazel puts it


def noise(seed, i):
    """As noise() of worker.h."""
    h = (i * 2654435761 + seed * 2246822519) & 0xFFFFFFFF
    h = ((h ^ h >> 15) * 2246822519) & 0xFFFFFFFF
    return ((h ^ h >> 13) >> 8) / (1 << 24) - 0.5


def value_of(elements):
    return sum(abs(x) * (i % 7 + 1) for i, x in enumerate(elements)) / len(elements)


def cell(kind, operation, **seconds):
    """A cell with one round, in which each contestant took the given seconds, and value 1."""
    columns = {c.replace("_as_", ":"): s for c, s in seconds.items()}
    entries = [Entry(c, c, "", rounds=[s], value=1) for c, s in columns.items()]
    return Cell(kind, operation, KIB, 8, entries, devices="threads")


class SmallTest(unittest.TestCase):
    """`--small`: Tessera alone, since nothing that runs tests has the peers."""

    @classmethod
    def setUpClass(cls):
        text = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(text):
            build = pathlib.Path(folder)
            (build / "ops_worker").symlink_to(WORKER)
            path = build / "all.json"
            arguments = ["--small", "--rounds", "1", "--columns", "tessera", "--json", str(path)]
            cls.status = bench_ops.main([*arguments, "--build-folder", folder])
            cls.cells = {c["cell"]: c for c in json.loads(path.read_text())["cells"]}
        cls.text = text.getvalue()

    def value(self, name):
        (value,) = [c["values"]["tessera"] for n, c in self.cells.items() if n.startswith(name)]
        return value

    def test_every_cell_has_a_number(self):
        self.assertEqual(self.status, 0)
        self.assertGreater(len(self.cells), 20)
        for name, each in self.cells.items():
            for rounds in each["rounds"].values():
                self.assertEqual(len(rounds), 1, name)
        for title in bench_ops.KINDS.values():
            self.assertIn(f"\n{title}\n", self.text)

    def test_values_are_those_of_the_functions(self):
        x, y = ([4 * noise(seed, i) for i in range(64 * 16)] for seed in (1, 2))
        functions = {
            "relu": lambda a, _: max(a, 0),
            "exp": lambda a, _: math.exp(a),
            "gelu": lambda a, _: a / 2 * (1 + math.erf(a / math.sqrt(2))),
            "chain": lambda a, b: max((a + b) / 2 - b, 0),
        }
        for name, fn in functions.items():
            expected = value_of([fn(a, b) for a, b in zip(x, y)])
            self.assertAlmostEqual(self.value(name) / expected, 1, 5, name)

    def test_values_are_those_of_the_products(self):
        for name, side in (("matmul f64 8 x 8 x 8", 8), ("contracted 1 KiB", 16)):
            a, b = ([noise(seed, i) for i in range(side * side)] for seed in (1, 2))
            product = [
                sum(a[i * side + k] * b[k * side + j] for k in range(side))
                for i in range(side)
                for j in range(side)
            ]
            self.assertAlmostEqual(self.value(name) / value_of(product), 1, 5, name)

    def test_a_training_step_is_the_same_however_it_is_split(self):
        for network in ("digits", "transformer"):
            losses = [self.value(f"{network} {p}") for p in bench_ops.ALL_PARALLEL]
            for loss in losses:
                self.assertAlmostEqual(loss / losses[0], 1, 4)


class ReportTest(unittest.TestCase):
    def test_every_command_of_a_page_selects_cells(self):
        folders = [ROOT / "docs", ROOT / "benchmarks", ROOT / "benchmarks/results"]
        text = "".join(page.read_text() for folder in folders for page in folder.glob("*.md"))
        commands = re.findall(r"tools/bench ops ([^\n`]*)", text)
        self.assertTrue(commands)
        for command in commands:
            only = re.search("--only '([^']*)'", command)
            self.assertTrue(bench_ops.make_phases(bench_ops.FULL, only.group(1) if only else ""))

    def test_the_fastest_way_of_each_library_counts(self):
        one = cell("eager", "add", tessera=2e-6, jax_as_eager=9e-6, jax_as_jit=8e-6, torch=1e-5)
        table = bench_ops.format_table("eager", [one], None)
        self.assertEqual(
            table.splitlines()[2], "| add | 2.00 us | 10.0 us | 8.00 us jit | 4.00 |"
        )

    def test_products_are_compared_with_libraries_of_debian(self):
        one = cell("matmul", "matmul f32 1000 x 1000 x 1000", tessera=0.02, openblas=0.01, jax=0.04)
        one.entries[1].rounds = [0.016]
        row = bench_ops.format_table("matmul", [one], None).splitlines()[2]
        self.assertTrue(row.endswith("| 0.80 | 0.80 | 100 |"), row)

    def test_what_computes_something_else_has_no_number(self):
        one = cell("step", "digits both", tessera=1e-3, jax=2e-3, torch=3e-3)
        one.entries[1].value = 1.002
        bench_ops.check_values([one])
        self.assertEqual([len(e.rounds) for e in one.entries], [1, 0, 1])
        note = bench_ops.format_notes([one])
        start = "not measured: JAX, digits both 1 KiB devices=8: computes something else than "
        self.assertTrue(note.startswith(start), note)

    def test_draws_may_differ_by_chance_alone(self):
        one = cell("function", "normal", tessera=1e-3, jax=2e-3)
        one.size_bytes = 4 << 20
        for value, rounds in ((1.005, 1), (1.01, 0)):
            one.entries[1].value = value
            bench_ops.check_values([one])
            self.assertEqual(len(one.entries[1].rounds), rounds)

    def test_a_goal_names_its_worst_cell(self):
        cells = [
            cell("eager", "add", tessera=8e-6),
            cell("eager", "matmul", tessera=12e-6),
            cell("step", "digits data", tessera=1e-3, jax=2e-3, torch=3e-3),
        ]
        eager, product, step = (goal.verdict(None) for goal in bench_ops.make_goals(cells))
        self.assertTrue(eager.startswith("not reached  eager operation"), eager)
        self.assertIn("12 us (missed by 1 of 2; worst: matmul 1 KiB devices=8)", eager)
        self.assertTrue(product.startswith("not measured "), product)
        self.assertTrue(step.startswith("reached "), step)


if __name__ == "__main__":
    unittest.main()
