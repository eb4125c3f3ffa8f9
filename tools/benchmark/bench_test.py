# SPDX-License-Identifier: Apache-2.0
"""Goals, tables and plots of tools/bench, its workers, and the commands for the peers."""

import pathlib
import re
import tempfile
import time
import unittest
import xml.etree.ElementTree

import bench
import bench_cells
import bench_report
from bench_cells import GIB, KIB, MIB, Cell, Entry


def cell(operation, size, clients, kind="collective", **seconds):
    """A cell with one round, in which each contestant took the given seconds."""
    entries = [Entry(column, column, "", rounds=[s]) for column, s in seconds.items()]
    return Cell(kind, operation, size, clients, entries)


def verdicts(*cells):
    results = bench_report.Results(cells)
    return [goal.verdict(results) for goal in bench_report.make_goals()]


ROOT = pathlib.Path(__file__).parent.parent.parent


class PagesTest(unittest.TestCase):
    def test_every_command_of_a_page_selects_cells(self):
        folders = [ROOT / "docs", ROOT / "benchmarks", ROOT / "benchmarks/results"]
        text = "".join(page.read_text() for folder in folders for page in folder.glob("*.md"))
        other = "(?!hosts|ops|checkpoint)"
        commands = re.findall(rf"tools/bench {other}([^\n`]*?)--only '([^']*)'", text)
        self.assertGreater(len(commands), 6)
        for options, pattern in commands:
            quick = "--quick" in options
            phases = bench_cells.make_phases(quick, pattern, list(bench_cells.COLUMNS))
            cells = bench_cells.kill_cells(quick, pattern)
            self.assertTrue(phases or cells, pattern)

    def test_relayout_is_a_part_of_the_name_of_a_relayout(self):
        phases = bench_cells.make_phases(False, "relayout.*(64|128) MiB", ["tessera"])
        names = [cell.name for phase in phases for cell in phase.cells]
        self.assertIn("rows_to_columns 64 MiB P=4", names)
        self.assertIn("rows_to_columns f64 128 MiB P=4", names)
        self.assertNotIn("all_reduce 64 MiB P=4", names)


class ComparisonTest(unittest.TestCase):
    def test_cells_that_are_slower_than_they_may_be_are_named(self):
        text = bench_report.format_comparison(
            [
                cell("all_reduce", 8, 2, tessera=1.14e-6, before=1e-6),
                cell("all_gather", 8, 2, tessera=1.16e-6, before=1e-6),
                cell("broadcast", 4 * KIB, 2, tessera=1.04e-6, before=1e-6),
                cell("all_to_all", 4 * KIB, 2, tessera=1.06e-6, before=1e-6),
                cell("reduce_scatter", 4 * KIB, 2, tessera=1e-6),
            ]
        )
        lines = text.splitlines()
        self.assertEqual(
            lines[-1], "slower than they may be: all_gather 8 B P=2, all_to_all 4 KiB P=2"
        )
        self.assertRegex(lines[1], r"^all_reduce 8 B P=2 +1.00 us +1.14 us +1.14$")
        self.assertRegex(lines[5], r"^reduce_scatter 4 KiB P=2 +- +- +-$")

    def test_the_other_build_is_a_contestant_of_every_cell(self):
        phases = bench_cells.make_phases(True, "", ["tessera"])
        bench_cells.add_before(phases)
        for phase in phases:
            for each in phase.cells:
                now, before = each.entries
                self.assertEqual([now.column, before.column], ["tessera", "before"])
                self.assertEqual(before.group, f"{now.group}_before")
                self.assertEqual(before.command, now.command)
                self.assertIsNot(before.rounds, now.rounds)


class GoalTest(unittest.TestCase):
    def check(self, wanted, *cells):
        lines = verdicts(*cells)
        self.assertIn(wanted, lines)
        self.assertEqual(len(lines), len(set(lines)))

    def test_without_numbers_nothing_is_reached(self):
        self.assertTrue(all(line.startswith("not measured ") for line in verdicts()))

    def test_they_are_the_goals_of_the_page(self):
        """Each operation, number of clients, bound and peer, in both directions."""
        page = (ROOT / "docs/performance.md").read_text().partition("\n## Goals\n")[2]
        rows = re.findall(r"^\| (.*?) \|", page.partition("\n## ")[0], re.M)
        wanted = set()
        head = ""
        for part in "; ".join(rows).split("; "):
            what, _, claims = part.partition(": ")
            head = head if what == "the same" else what
            for of in self.operations(head):
                wanted |= {(*of, *claim) for claim in self.claims(claims)}
        goals = set()
        for goal in bench_report.make_goals():
            what, _, peer = goal.text.partition(", times as fast as ")
            (of,) = self.operations(what)
            sense = "least" if goal.at_least else "most"
            goals.add((*of, sense, goal.limit, goal.unit.strip(), peer.partition(",")[0]))
        self.assertEqual(goals, wanted)

    def operations(self, text):
        """(operation, number of clients, None where it is not said) of all that a text names."""
        text = re.sub("[_-]", " ", text)
        names = ["all reduce", "reduce scatter", "all gather", "all to all", "rows to columns"]
        names += ["barrier", "identity", "purely local", "cached", "killed client", "start"]
        names += ["relayouts"]
        clients = re.search(r"((?:\d+ and )?\d+) clients", text)
        numbers = re.findall(r"\d+", clients.group(1)) if clients else [None]
        return {(name, number) for name in names if name in text for number in numbers}

    def claims(self, text):
        """(sense, limit, unit, peer) of each bound; a bound without a peer has that before it."""
        bound = r"at (most|least) (?:([\d.]+) (?:`?(mc2|us|ms|s)\b|times))?"
        peer = ""
        for sense, limit, unit, named in re.findall(bound + "(?: ?as fast as ([^,]*))?", text):
            peer = named.replace("`", "").removesuffix("'s best setting") or peer
            yield sense, float(limit or 1), unit, peer

    def test_a_ratio_to_memory_copy(self):
        copy = cell("copy", 64 * MIB, 4, "memory", mc1=0.010, mc2=0.004)
        text = "all_reduce, 64 MiB, 4 clients: at most 3.4 mc2; "
        self.check(
            f"reached      {text}1.7 mc2, 2.00 times better",
            copy,
            cell("all_reduce", 64 * MIB, 4, tessera=0.0068),
        )
        self.check(
            f"not reached  {text}6.8 mc2, 2.00 times off",
            copy,
            cell("all_reduce", 64 * MIB, 4, tessera=0.0272),
        )

    def test_the_fastest_open_mpi_counts(self):
        text = "all_gather, 64 MiB, 4 clients, times as fast as Open MPI: at least 1.5; "
        one = cell("all_gather", 64 * MIB, 4, tessera=1, ompi=9, ompi_tuned=3, gloo=0.1)
        self.check(f"reached      {text}3 (9 as installed), 2.00 times better", one)
        one = cell("all_gather", 64 * MIB, 4, tessera=1, ompi=1, ompi_tuned=3)
        self.check(f"not reached  {text}1 (1 as installed), 1.50 times off", one)

    def test_open_mpi_as_installed_has_goals_of_its_own(self):
        text = "all_reduce, 64 MiB, 2 clients, times as fast as Open MPI"
        one = cell("all_reduce", 64 * MIB, 2, tessera=1, ompi=12, ompi_tuned=7)
        self.check(f"reached      {text} as installed: at least 6; 12, 2.00 times better", one)
        wanted = f"{text}: at least 3.5; 7 (12 as installed), 2.00 times better"
        self.check(f"reached      {wanted}", one)

    def test_a_time(self):
        self.check(
            "not reached  barrier, 2 clients: at most 1 us; 2.5 us, 2.50 times off",
            cell("barrier", 0, 2, tessera=2.5e-6),
        )
        self.check(
            "reached      8 clients, start to first collective: at most 0.5 s; "
            "0.25 s, 2.00 times better",
            cell("start_to_first_collective", 0, 8, tessera=0.25),
        )

    def test_the_worst_of_the_kills(self):
        one = cell("killed_client", 2 * MIB, 4, "kill", tessera=2e-3)
        one.entries[0].rounds += [8e-3, 1e-3]
        text = "killed client with 2 MiB, until every survivor has its error: at most 5 ms; "
        found = "8 ms (the worst of 3 rounds, their median 2.00 ms), 1.60 times off"
        self.check(f"not reached  {text}{found}", one)

    def test_why_a_goal_is_not_measured(self):
        peers = "JAX, TF DTensor and PyTorch DTensor"
        text = f"relayouts of 64 MiB, times as fast as {peers}: at least 2"
        self.check(f"not measured {text} (tools/bench_relayouts measures them)")

    def test_a_contestant_that_failed_is_not_measured(self):
        one = cell("barrier", 0, 2)
        one.entries.append(Entry("tessera", "tessera", "barrier", note="it ended"))
        self.check("not measured barrier, 2 clients: at most 1 us", one)


class TableTest(unittest.TestCase):
    def test_the_median_of_the_rounds(self):
        self.assertEqual(Entry("ompi", "ompi", "", rounds=[5.0, 1.0, 2.0]).seconds, 2.0)

    def test_a_table(self):
        cells = [
            cell("all_reduce", KIB, 4, tessera=2e-6, ompi=1e-6),
            cell("all_reduce", 64 * MIB, 4, tessera=5e-3, ompi=15e-3),
            cell("copy", 64 * MIB, 4, "memory", mc1=2.5e-3, mc1_nt=1, mc2=2e-3, mc2_nt=1),
        ]
        text = bench_report.format_results(cells, bench_report.Results(cells))
        self.assertIn(
            "all_reduce, 4 clients\n"
            "size    tessera     ompi    peer/ours  ours/mc1  ours/mc2\n"
            "1 KiB   2.00 us  1.00 us  0.50 (ompi)\n"
            "64 MiB  5.00 ms  15.0 ms  3.00 (ompi)      2.00      2.50",
            text,
        )
        copies = "copy beside 4 clients\nsize        mc1  mc1_nt      mc2  mc2_nt\n64 MiB"
        self.assertIn(copies, text)

    def test_kills(self):
        cells = [cell("killed_client", s, 4, "kill", tessera=s * 1e-9) for s in (2 * MIB, GIB)]
        cells[0].entries[0].rounds += [4e-3, 5e-3]
        cells[1].entries[0].rounds.clear()
        self.assertEqual(
            bench_report.format_results(cells, bench_report.Results(cells)),
            "killed_client, 4 clients\n"
            "each holds   median    worst\n"
            "2 MiB       4.00 ms  5.00 ms\n"
            "1 GiB             -        -",
        )

    def test_the_share_of_the_rate_of_two_copies(self):
        relayout = cell("gather", MIB, 4, "relayout", tessera=4e-3)
        relayout.written_bytes = 4 * MIB
        cells = [relayout, cell("copy", MIB, 4, "memory", mc1=1e-3, mc2=0.8e-3)]
        text = bench_report.format_results(cells, bench_report.Results(cells))
        self.assertIn("4.00      5.00           80 %", text)

    def test_why_a_contestant_is_missing(self):
        one = cell("barrier", 0, 2, tessera=1e-6)
        one.entries.append(Entry("gloo", "gloo", "barrier", note="it ended"))
        text = bench_report.format_results([one], bench_report.Results([one]))
        self.assertIn("gloo: it ended", text)

    def test_the_plot_is_xml_with_a_line_for_each_contestant(self):
        cells = [cell("all_reduce", s, 4, tessera=s * 1e-9, ompi=s * 2e-9) for s in (KIB, MIB)]
        svg = bench_report.format_svg(bench_report.Results(cells))
        root = xml.etree.ElementTree.fromstring(svg)
        lines = [e for e in root.iter() if e.tag.endswith("polyline")]
        self.assertEqual(len(lines), 2)
        self.assertNotEqual(lines[0].get("points"), lines[1].get("points"))


class RelayoutTest(unittest.TestCase):
    def test_blocks_of_some_layouts(self):
        axes = {"x": 2, "y": 2}
        devices = [0, 1, 2, 3]
        for name, dims, order, shape, wanted in [
            ("rows", (("x", "y"), ()), devices, (4, 8), [(i, i + 1, 0, 8) for i in range(4)]),
            ("uneven", (("x", "y"), ()), devices, (6, 1), [(0, 2), (2, 3), (3, 5), (5, 6)]),
            ("swap", (("y",), ("x",)), devices, (2, 2), [(0, 1), (1, 2), (0, 1), (1, 2)]),
            ("reversed", (("x", "y"), ()), devices[::-1], (4, 1), [(3, 4), (2, 3), (1, 2), (0, 1)]),
        ]:
            with self.subTest(name):
                found = bench_cells.blocks(dims, axes, order, shape)
                self.assertEqual([block[: len(wanted[0])] for block in found], wanted)

    def test_every_relayout_covers_the_matrix_on_both_sides(self):
        for relayout in bench_cells.RELAYOUTS:
            for clients in (4, 8):
                axes = {"x": 2, "y": clients // 2}
                shape = (16 - relayout.trim[0], 16 - relayout.trim[1])
                order = bench_cells.device_order(relayout.target_order, axes)
                self.assertEqual(sorted(order), list(range(clients)))
                for dims, devices in [
                    (relayout.source, list(range(clients))),
                    (relayout.target, order),
                ]:
                    held = set()
                    for row, row_end, col, col_end in bench_cells.blocks(
                        dims, axes, devices, shape
                    ):
                        held |= {(r, c) for r in range(row, row_end) for c in range(col, col_end)}
                    self.assertEqual(len(held), shape[0] * shape[1], relayout.name)

    def test_the_commands_of_a_relayout(self):
        relayout = bench_cells.relayout_named("rows_to_columns")
        one = bench_cells.relayout_cell(relayout, 4, 8, 4, ["tessera", "ompi", "scalapack"])
        self.assertEqual(
            [entry.command for entry in one.entries],
            [
                "relayout rows=4 cols=4 element=8 mesh=x:2,y:2 devices=0,1,2,3 to_devices=0,1,2,3 "
                "from_layout=[(x,y),-] to_layout=[-,(x,y)]",
                "alltoallw element=8 from=0:1:0:4,1:2:0:4,2:3:0:4,3:4:0:4 "
                "to=0:4:0:1,0:4:1:2,0:4:2:3,0:4:3:4",
                "pdgemr2d element=8 from=0:1:0:4,1:2:0:4,2:3:0:4,3:4:0:4 "
                "to=0:4:0:1,0:4:1:2,0:4:2:3,0:4:3:4",
            ],
        )
        self.assertEqual((one.size_bytes, one.written_bytes), (128, 128))

    def test_what_a_peer_cannot_do_is_left_out(self):
        gather = bench_cells.relayout_named("gather")
        one = bench_cells.relayout_cell(gather, 4, 4, 4, ["tessera", "ompi", "scalapack"])
        self.assertEqual([entry.column for entry in one.entries], ["tessera", "ompi"])
        sharded = bench_cells.relayout_named("partial_to_sharded")
        one = bench_cells.relayout_cell(sharded, 4, 4, 4, ["tessera", "ompi", "gloo"])
        self.assertEqual([e.command for e in one.entries][1:], ["reduce_scatter bytes=64"])


class RunTest(unittest.TestCase):
    def test_buffers_rotate_until_they_are_three_caches(self):
        pace = bench.Pace(rounds=3, seconds=0.02, repetitions=3, l3_bytes=32 * MIB)
        for set_bytes, sets in [(0, 1), (KIB, 3), (32 * MIB, 3), (64 * MIB, 2), (512 * MIB, 1)]:
            self.assertEqual(pace.sets(Cell("collective", "x", 1, 2, [], set_bytes)), sets)

    def test_a_slow_call_is_repeated_less(self):
        pace = bench.Pace(rounds=3, seconds=0.03, repetitions=3, l3_bytes=MIB)
        self.assertEqual(pace.calls(1e-7), (3, bench.MAX_CALLS))
        self.assertEqual(pace.calls(1e-5), (3, 1000))
        self.assertEqual(pace.calls(0.01), (3, 1))
        self.assertEqual(pace.calls(1.0), (2, 1))

    def test_the_slowest_rank_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            workers = bench.Workers("a", folder, 2)
            workers.start([["sh", "-c", self.answers(folder, r)] for r in range(2)], lambda r: {})
            self.assertEqual(workers.run("all_reduce bytes=8"), [3.0, 4.0])
            workers.stop()

    def test_the_last_survivor_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            # Times in the future; rank 1 gets its error a thousand seconds after rank 0.
            workers = self.hearers(folder, [1e9, 1e9 + 1000, None], "client 2 (a) is lost")
            seconds = workers.run_and_kill("all_reduce", 0.01, victim=2)
            self.assertAlmostEqual(seconds, 1e9 + 1000 - time.monotonic(), delta=60)
            workers.stop()

    def test_an_error_that_is_not_of_the_kill_is_told(self):
        for name, at, error in [
            ("before it", 0, "client 1 (a) is lost"),
            ("of another", 1e9, "client 2 (a) is lost"),
        ]:
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                workers = self.hearers(folder, [at, None], error)
                text = "rank 0 did not fail by the death of client 1: client"
                with self.assertRaisesRegex(bench.ContestantFailed, text):
                    workers.run_and_kill("all_reduce", 0.01, victim=1)
                workers.stop()

    def test_an_error_of_every_rank_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            workers = bench.Workers("a", folder, 1)
            script = self.answers(folder, 0).replace('"error": "",', '"error": "no",', 1)
            workers.start([["sh", "-c", self.answers(folder, 0)]], lambda r: {})
            workers.stop()
            self.assertIn('"error": "no"', script)
            workers = bench.Workers("b", folder, 1)
            with self.assertRaisesRegex(bench.CommandFailed, "rank 0: no"):
                workers.start([["sh", "-c", script.replace("/a.", "/b.")]], lambda r: {})
            workers.stop()

    def test_a_process_that_ends_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            workers = bench.Workers("a", folder, 1)
            with self.assertRaisesRegex(bench.ContestantFailed, "has ended: no such library"):
                workers.start([["sh", "-c", "echo no such library"]], lambda r: {})
            workers.stop()

    def hearers(self, folder, times, error):
        """Workers that report ready and then the error at those times (None: never)."""
        workers = bench.Workers("a", folder, len(times))
        commands = []
        for rank, at in enumerate(times):
            reply = None if at is None else f'{{"at": {at}, "error": "{error}"}}'
            commands.append(["sh", "-c", self.worker(folder, rank, reply)])
        workers.start(commands, lambda r: {})
        return workers

    def answers(self, folder, rank):
        """A worker that reports ready, then 1 and 4 s as rank 0, 3 and 2 s as rank 1."""
        times = ["1, 4", "3, 2"][rank]
        return self.worker(folder, rank, f'{{"error": "", "seconds": [{times}]}}')

    def worker(self, folder, rank, reply):
        """A script that reports ready, then answers every command with `reply`, if any."""
        path = pathlib.Path(folder) / f"a.{rank}"
        return (
            f"exec 3<{path}.in 4>{path}.out; "
            """echo '{"error": "", "ready": 0}' >&4; """
            "while read -r line <&3; do case $line in quit) exit ;; esac; "
            + (f"echo '{reply}' >&4; " if reply else "")
            + "done"
        )


if __name__ == "__main__":
    unittest.main()
