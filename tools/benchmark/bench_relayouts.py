#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures relayouts beside JAX, TF DTensor and PyTorch DTensor; tools/bench_relayouts starts it.

The workers, rounds and checks are as in tools/bench. A peer is benchmarks/peers/python_peer.py
under the Python that --python names. A library is measured in each of its ways, as installed and,
where memory matters, with tuned malloc. benchmarks/README.md explains the output.
"""

import argparse
import dataclasses
import json
import pathlib
import re
import signal
import sys
import tempfile
import time

import bench
import bench_report
from bench_cells import KIB, MIB, Cell, Entry, Phase, format_seconds, format_size

PEER = pathlib.Path(__file__).parent.parent.parent / "benchmarks/peers/python_peer.py"


@dataclasses.dataclass(frozen=True)
class Library:
    title: str
    ways: tuple
    partial_ways: tuple  # of partial values
    is_one_process: bool = True  # else one process for each device


LIBRARIES = {
    "jax": Library("JAX", ("device_put", "jit"), ("jit", "shard_map")),
    "tensorflow": Library("TF DTensor", ("eager", "function"), ()),
    "torch": Library("PyTorch DTensor", ("redistribute",), ("redistribute",), False),
}
TUNED = "_tuned"  # ends the group of a library that keeps its freed memory
OURS = {"tessera_devices": "Tessera, one client", "tessera": "Tessera, P clients"}
RELAYOUTS = [  # name, from, to; on a mesh {x=P}, or {x=2, y=2} if there is a y
    ("rows_to_columns", "[x,-]", "[-,x]"),
    ("rows_to_replicated", "[x,-]", "[-,-]"),
    ("rows_to_shared_replicas", "[x,-]", "[-,-]"),  # one copy, if the contestant can
    ("replicated_to_rows", "[-,-]", "[x,-]"),
    ("partial_to_replicated", "[-,-]sum{x}", "[-,-]"),
    ("partial_to_rows", "[-,-]sum{x}", "[x,-]"),
    ("identity", "[x,-]", "[x,-]"),
    ("swap_axes", "[x,y]", "[y,x]"),
]
GOALS = [(64 * MIB, 2), (KIB, 50)]  # bytes of the tensor, times as fast as the fastest peer
SIDES = {64 * MIB: 4096, KIB: 16}


def make_cell(operation, source, target, size, clients):
    mesh = "x:2,y:2" if "y" in source else f"x:{clients}"
    devices = ",".join(map(str, range(clients)))
    command = (
        f"relayout rows={SIDES[size]} cols={SIDES[size]} element=4 mesh={mesh} devices={devices} "
        f"to_devices={devices} from_layout={source} to_layout={target}"
        + (" replicas=shared" if "shared" in operation else "")
    )
    entries = [Entry(group, group, command) for group in OURS]
    for tuning in ("", TUNED) if size >= MIB else ("",):
        for name, library in LIBRARIES.items():
            for way in library.partial_ways if "sum" in source else library.ways:
                group = name + tuning
                entries.append(Entry(f"{group}:{way}", group, f"{command} way={way}"))
    cell = Cell("relayout", operation, size, clients, entries)
    copies = [1 if "x" in layout.split("sum")[0] else clients for layout in (source, target)]
    cell.set_bytes, cell.region_bytes = size * sum(copies), size
    return cell


def make_phases(only):
    phases = []
    for clients in (2, 4):
        cells = [
            make_cell(*relayout, size, clients)
            for size, _ in GOALS
            for relayout in RELAYOUTS
            if clients == 4 or "y" not in relayout[1]
        ]
        cells = [cell for cell in cells if re.search(only, cell.name)]
        if cells:
            phases.append(Phase(f"{clients} devices", clients, cells))
    return phases


def library_of(group):
    return LIBRARIES.get(group.removesuffix(TUNED))


def title_of(group):
    tuned = ", tuned malloc" if group.endswith(TUNED) else ""
    return OURS.get(group) or library_of(group).title + tuned


class Run(bench.Run):
    def start_workers(self, group, clients, region_bytes):
        library = library_of(group)
        if library is None:
            return super().start_workers(group, clients, region_bytes)
        folder = tempfile.mkdtemp(dir=self.folder)
        processes = 1 if library.is_one_process else clients
        python = [self.options.python, "-B", str(PEER), group.removesuffix(TUNED)]
        commands = [
            [*python, str(rank), str(clients), f"{folder}/{group}"] for rank in range(processes)
        ]
        extra = dict(bench.TUNED_MALLOC) if group.endswith(TUNED) else {}
        if processes > 1:
            threads = max(1, self.machine["cores"] // processes)
            extra.update(OMP_NUM_THREADS=str(threads), GLOO_SOCKET_IFNAME="lo")
        workers = bench.Workers(group, folder, processes)
        return bench.started(workers, commands, lambda rank: extra)


def fastest(cell, is_in):
    """(seconds, column) of the fastest entry of some groups, or (None, "")."""
    entries = [entry for entry in cell.entries if is_in(entry.group) and entry.rounds]
    return min(((entry.seconds, entry.column) for entry in entries), default=(None, ""))


def times_as_fast(cell, ours, with_tuned=True):
    """The time of the fastest peer divided by ours."""
    is_peer = lambda group: group not in OURS and (with_tuned or not group.endswith(TUNED))
    return bench_report.ratio(fastest(cell, is_peer)[0], cell.seconds(ours))


def format_ratio(ratio):
    return "-" if ratio is None else f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def format_table(cells):
    groups = [*OURS, *LIBRARIES, *(library + TUNED for library in LIBRARIES)]
    groups = [group for group in groups if any(e.group == group for c in cells for e in c.entries)]
    has_tuned = any(group.endswith(TUNED) for group in groups)
    titles = [title_of(group) for group in groups]
    titles += ["fastest / one client", "fastest / P clients"]
    titles += ["fastest as installed / one client"] * has_tuned
    lines = [f"| relayout | P | {' | '.join(titles)} |", "| --- |" + " ---: |" * (len(titles) + 1)]
    for cell in cells:
        row = [cell.operation, str(cell.clients)]
        for group in groups:
            seconds, column = fastest(cell, lambda each: each == group)
            library = library_of(group)
            has_ways = seconds and library and len(library.ways) > 1
            row.append(format_seconds(seconds) + (f" {column.split(':')[1]}" if has_ways else ""))
        row += [format_ratio(times_as_fast(cell, ours)) for ours in OURS]
        row += [format_ratio(times_as_fast(cell, "tessera_devices", False))] * has_tuned
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def make_goal(cells, size, limit, ours):
    """The goal of one size, whose number is the worst relayout's."""

    def ratios(with_tuned):
        pairs = [(c, times_as_fast(c, ours, with_tuned)) for c in cells if c.size_bytes == size]
        return {f"{c.operation} P={c.clients}": ratio for c, ratio in pairs if ratio is not None}

    def below(_):
        texts = []
        for setting, found in (("", ratios(True)), ("as installed ", ratios(False))):
            names = [f"{name} {ratio:.3g}" for name, ratio in found.items() if ratio < limit]
            texts.append(f"{setting}below in {len(names)} of {len(found)}: {', '.join(names)}")
            if size < MIB:
                break  # tuned malloc is not measured
        return "; ".join(text.removesuffix(": ") for text in texts)

    return bench_report.Goal(
        f"relayouts of {format_size(size)}, {OURS[ours]}, times as fast as the fastest peer",
        limit,
        lambda _: min(ratios(True).values(), default=None),
        at_least=True,
        beside=below,
    )


def format_notes(cells):
    """The libraries without a number, and why."""
    entries = [entry for cell in cells for entry in cell.entries if entry.note]
    notes = {f"not measured: {title_of(entry.group)}: {entry.note}\n" for entry in entries}
    return "".join(sorted(notes))


def write_json(path, machine, cells, verdicts):
    rows = [
        {"relayout": c.name, "rounds": {e.column: e.rounds for e in c.entries}} for c in cells
    ]
    document = {"machine": machine, "cells": rows, "goals": verdicts}
    pathlib.Path(path).write_text(json.dumps(document, indent=1) + "\n")


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="tools/bench_relayouts",
        description="Measures relayouts beside JAX, TF DTensor and PyTorch DTensor.",
    )
    parser.add_argument(
        "--python", default=sys.executable, help="a Python that has jax, tensorflow and torch"
    )
    parser.add_argument(
        "--only", metavar="PATTERN", default="", help='as in "swap_axes 64 MiB P=4"'
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="write every number of every round")
    parser.add_argument("--build-folder", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.set_defaults(quick=False, before=None)  # of bench.Run
    return parser.parse_args(arguments)


def main(arguments):
    options = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the workers are stopped
    machine = bench.read_machine()
    started, cells = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="tessera_bench_") as folder:
        run = Run(options, folder, machine)
        try:
            for phase in make_phases(options.only):
                cells += run.run_phase(phase)
        finally:
            for workers in run.workers.values():
                workers.stop()
    copies = [cell for cell in cells if cell.kind == "memory"]
    cells = [cell for cell in cells if cell.kind == "relayout"]
    print(bench.describe(machine, run.pace, time.monotonic() - started))
    for size, _ in GOALS:
        some = [cell for cell in cells if cell.size_bytes == size]
        if some:
            print(f"\n{format_size(size)}\n\n{format_table(some)}")
    print()
    for copy in copies:
        times = (f"{column} {format_seconds(copy.seconds(column))}" for column in ("mc1", "mc2"))
        print(f"copies of {format_size(copy.size_bytes)}, P={copy.clients}: {', '.join(times)}")
    goals = [make_goal(cells, size, limit, ours) for size, limit in GOALS for ours in OURS]
    verdicts = [goal.verdict(None) for goal in goals]
    print("\n" + format_notes(cells) + "\n".join(verdicts))
    if options.json:
        write_json(options.json, machine, cells, verdicts)
    return 1 if any(e.failed for c in cells for e in c.entries if e.group in OURS) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
