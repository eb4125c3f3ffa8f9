# SPDX-License-Identifier: Apache-2.0
"""Cells, bytes, table and goals of `tools/bench hosts`."""

import pathlib
import re
import unittest

import bench_cells
import bench_hosts
from bench_cells import KIB, MIB, Cell, Entry
from bench_hosts import Form


def cell(operation, form, size=64 * MIB, kind="collective", **seconds):
    """A cell with one round, in which each contestant took the given seconds."""
    entries = [Entry(c, c, "", rounds=[s], cpu_rounds=[2 * s]) for c, s in seconds.items()]
    one = Cell(kind, operation, size, form.size, entries)
    one.hosts, one.link_bytes = form.name, size
    return one


class BytesTest(unittest.TestCase):
    def test_what_a_host_has_to_send_or_receive(self):
        rows = [  # operation, form, bytes of 64 KiB
            ("all_reduce", Form(2, 1), 64 * KIB),
            ("all_reduce", Form(2, 4), 64 * KIB),
            ("all_reduce", Form(4, 2), 96 * KIB),
            ("reduce_scatter", Form(2, 2), 32 * KIB),
            ("all_gather", Form(4, 2), 48 * KIB),
            ("all_to_all", Form(2, 4), 128 * KIB),
            ("broadcast", Form(4, 2), 64 * KIB),
        ]
        for operation, form, expected in rows:
            self.assertEqual(bench_hosts.collective_bytes(operation, 64 * KIB, form), expected)

    def test_what_a_relayout_has_to_move_between_hosts(self):
        size = 64 * 64 * 4
        rows = {  # 2 hosts of 2 clients
            "rows_to_columns": size // 4,
            "columns_to_rows": size // 4,
            "gather": size // 2,
            "slice": 0,
            "swap_axes": size // 4,
            "reversed_devices": size // 2,
            "nested_to_one_axis": 0,
            "partial_to_sharded": size // 2,
            "partial_to_replicated": size,
        }
        for name, expected in rows.items():
            relayout = bench_cells.relayout_named(name)
            self.assertEqual(bench_hosts.relayout_bytes(relayout, 64, 4, Form(2, 2)), expected)

    def test_a_block_that_several_clients_of_a_host_need_counts_once(self):
        rows = [(0, 4, 0, 8), (4, 8, 0, 8), (8, 12, 0, 8), (12, 16, 0, 8)]
        whole = [(0, 16, 0, 8)] * 4
        self.assertEqual(bench_hosts.moved_bytes(rows, whole, 4, Form(2, 2)), 8 * 8 * 4)


class CellsTest(unittest.TestCase):
    def test_the_socket_moves_what_has_to_cross(self):
        form = Form(2, 2, "1gbit")
        phase = bench_hosts.make_phase(form, True, "broadcast 64 MiB|gather 64 MiB 2", ["tessera"])
        commands = {c.operation: [e.command for e in c.entries] for c in phase.cells}
        self.assertEqual(commands["broadcast"][0], f"stream bytes={64 * MIB}")
        self.assertEqual(commands["all_gather"][0], f"swap bytes={32 * MIB}")
        self.assertEqual({c.name.split("MiB ")[1] for c in phase.cells}, {"2 x 2 1gbit"})

    def test_torch_gets_the_relayouts_that_it_has(self):
        side, clients = 64, 4
        commands = {
            r.name: bench_hosts.torch_command(r, side, clients) for r in bench_cells.RELAYOUTS
        }
        self.assertEqual(
            commands["partial_to_sharded"],
            "relayout rows=64 cols=64 mesh=x:4 from_layout=[-,-]sum{x} to_layout=[x,-] "
            "way=redistribute",
        )
        self.assertIn("mesh=x:2,y:2 from_layout=[x,y] to_layout=[y,x]", commands["swap_axes"])
        for name in ("block_to_rows", "nested_to_one_axis", "reversed_devices", "transposed_mesh"):
            self.assertIsNone(commands[name])


class PagesTest(unittest.TestCase):
    def test_every_command_of_a_page_selects_cells(self):
        root = pathlib.Path(__file__).parent.parent.parent
        folders = [root / "docs", root / "benchmarks", root / "benchmarks/results"]
        text = "".join(page.read_text() for folder in folders for page in folder.glob("*.md"))
        patterns = re.findall(r"tools/bench hosts [^\n`]*?--only '([^']*)'", text)
        self.assertTrue(patterns)
        for pattern in patterns:
            phases = [
                bench_hosts.make_phase(form, False, pattern, ["tessera"])
                for form in bench_hosts.FORMS
            ]
            self.assertTrue(any(phase.cells for phase in phases), pattern)


class ReportTest(unittest.TestCase):
    def test_table(self):
        one = cell("all_reduce", Form(2, 1), socket=0.5, tessera=0.625, ompi=1.25, gloo=1.0)
        columns = "socket tessera ompi gloo share peer cpu cpu cpu cpu".split()
        row = bench_hosts.format_table([one]).splitlines()[-1]
        numbers = [field.strip() for field in row.strip("|").split("|")]
        self.assertEqual(len(numbers), 1 + len(columns))
        self.assertEqual(
            numbers[:7],
            ["all_reduce 64 MiB", "500 ms", "625 ms", "1.25 s", "1.00 s", "0.80", "1.60"],
        )
        self.assertEqual(numbers[7], f"{1.0 / (64 * MIB * 1e-9):.2f}")

    def test_goals_take_the_worst_cell(self):
        limited, free = Form(2, 4, "1gbit"), Form(2, 2)
        cells = [
            cell("all_reduce", limited, socket=0.56, tessera=0.58, ompi=0.9),
            cell("all_reduce", Form(4, 2, "1gbit"), socket=0.5, tessera=1.0),
            cell("gather", free, kind="relayout", socket=0.01, tessera=0.02, gloo=0.03),
            cell("barrier", free, size=0, socket=1e-5, tessera=1e-3, ompi=1e-5),
        ]
        verdicts = [goal.verdict(None) for goal in bench_hosts.make_goals(cells)]
        self.assertTrue(verdicts[0].startswith("reached      all_reduce at 1 Gbit/s"), verdicts[0])
        self.assertIn("0.966 (least: all_reduce 64 MiB 2 x 4 1gbit)", verdicts[0])
        self.assertIn("not reached  relayouts at no limit", verdicts[1])
        self.assertIn("reached      64 MiB and more, Open MPI's time", verdicts[2])
        self.assertTrue(verdicts[4].startswith("not measured"), verdicts[4])


if __name__ == "__main__":
    unittest.main()
