#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures saving and restoring beside the bare disk and other libraries, interleaved in one run;
`tools/bench checkpoint` starts it.

Workers and rounds are as in tools/bench. The bare disk is measured by Tessera's worker processes.
Peers are in checkpoint_peer.py, under the Python that --python names. benchmarks/README.md explains
the output.
"""

import argparse
import json
import pathlib
import re
import secrets
import shutil
import signal
import statistics
import sys
import tempfile
import time

import bench
import bench_report
from bench_cells import GIB, MIB, Cell, Entry, Phase, format_seconds, format_size

PEER = pathlib.Path(__file__).parent.parent.parent / "benchmarks/peers/checkpoint_peer.py"
COLUMNS = {
    "disk": "bare disk",
    "tessera": "Tessera",
    "before": "before",  # another build of Tessera
    "torch": "torch DCP",
    "safetensors": "safetensors",
    "orbax": "Orbax",
}
PEERS = ("torch", "safetensors", "orbax")
MODES = {"alone": "alone", "write": "beside a plain writer", "save": "while it saves"}
KINDS = {  # kind of cell: title of its table
    "save": "Saving, call to complete",
    "async": "Saving in the background, until the call returns",
    "restore": "Restoring what was saved by rows",
    "train": "Steps of AdamW, each",
}
SIZES, QUICK_SIZES, SMALL_SIZES = (MIB, 64 * MIB, GIB), (MIB, 64 * MIB), (MIB,)
CLIENTS = 2
TRAIN_STEPS = {MIB: 200, 64 * MIB: 20, GIB: 4}
DISK_SHARE = 4  # a cell needs so many times its size of the disk
LARGE = 64 * MIB  # goals about rates count cells of at least this size

# --- Cells ---------------------------------------------------------------------------------------


def make_cell(kind, name, size, command, disk, peers):
    entries = [Entry("disk", "tessera", disk)] if disk else []
    entries += [Entry(column, column, command) for column in ("tessera", "before", *peers)]
    return Cell(kind, name, size, CLIENTS, entries)


def cells_of_size(size):
    synced, unsynced = f"bytes={size} sync=1", f"bytes={size} sync=0"
    cells = [
        make_cell("save", "save", size, f"save {synced}", f"write {synced}", ("torch", "orbax")),
        make_cell(
            "save", "save_unsynced", size, f"save {unsynced}", f"write {unsynced}", ("safetensors",)
        ),
        make_cell("async", "save_async", size, f"save_async {synced}", "", ("torch", "orbax")),
    ]
    for cold in (0, 1):
        for to in ("rows", "columns"):
            name = f"restore_{to}_{'cold' if cold else 'warm'}"
            command, disk = (f"{c} bytes={size} to={to} cold={cold}" for c in ("restore", "read"))
            cells.append(make_cell("restore", name, size, command, disk, PEERS))
    return cells


def train_cell(size):
    steps = TRAIN_STEPS[size]
    command = f"train bytes={size} steps={steps}"
    entries = [Entry(m, "tessera_devices", f"{command} mode={m}", 1 / steps) for m in MODES]
    return Cell("train", "train", size, CLIENTS, entries, devices="threads")


def make_phases(sizes, only="", columns=tuple(COLUMNS)):
    of_jobs = [cell for size in sizes for cell in cells_of_size(size)]
    phases = [
        Phase("saving and restoring", CLIENTS, of_jobs),
        Phase("training", CLIENTS, [train_cell(size) for size in sizes]),
    ]
    for phase in phases:
        phase.cells = [cell for cell in phase.cells if re.search(only, cell.name)]
        for cell in phase.cells:
            if cell.kind != "train":
                cell.entries = [e for e in cell.entries if e.column in columns]
        phase.cells = [cell for cell in phase.cells if cell.entries]
    return [phase for phase in phases if phase.cells]


# --- Workers -------------------------------------------------------------------------------------


class Run(bench.Run):
    def memory_cells(self, phase):
        return []

    def start_workers(self, group, clients, region_bytes):
        folder = tempfile.mkdtemp(dir=self.folder)
        prefix = f"{folder}/{group}"
        if group in PEERS:
            size = 1 if group == "orbax" else clients
            python = [self.options.python, "-B", str(PEER), group]
            commands = [[*python, str(rank), str(clients), prefix] for rank in range(size)]
            environment = lambda rank: {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        else:
            size = 1 if group == "tessera_devices" else clients
            job = {
                "TESSERA_COORDINATOR": f"127.0.0.1:{bench.free_port()}",
                "TESSERA_NUM_CLIENTS": str(size),
                "TESSERA_TOKEN": secrets.token_hex(16),
                "TESSERA_LOCAL_DEVICES": str(clients // size),
            }
            worker = f"{self.options.build_folder}/checkpoint_worker"
            commands = [[self.options.before if group == "before" else worker, prefix]] * size
            environment = lambda rank: {**job, "TESSERA_CLIENT_ID": str(rank)}
        return bench.started(bench.Workers(group, folder, size), commands, environment)

    def measure(self, cell, entry, is_first):
        """One round of one contestant: a call to warm up, then the counted calls."""
        workers = self.workers.get(entry.group)
        place = pathlib.Path(self.options.folder) / entry.group
        place.mkdir(exist_ok=True)
        if workers is None:
            entry.note, entry.failed = self.out.get(entry.group, "not available"), True
            return
        if DISK_SHARE * cell.size_bytes > shutil.disk_usage(place).free:
            entry.note = f"{cell.name} needs {format_size(DISK_SHARE * cell.size_bytes)} of disk"
            return
        try:
            repetitions = 1 if cell.size_bytes >= LARGE else 3
            command = f"{entry.command} folder={place} full={int(is_first)}"
            times = workers.run(f"{command} repetitions={repetitions}")
            entry.rounds.append(statistics.median(times) * entry.factor)
            entry.cpu_rounds.append(workers.cpu_seconds)
            entry.value = workers.value if is_first else entry.value
        except bench.ContestantFailed as error:
            entry.note, entry.failed = str(error), True
            entry.rounds.clear()
            if isinstance(error, bench.CommandFailed):
                bench.say(f"{cell.name}, {entry.column}: {error}")
            else:
                self.give_up(entry.group, error)


# --- The report ----------------------------------------------------------------------------------


def format_ratio(number):
    return "-" if number is None else f"{number:.2f}"


def share_of_disk(cell):
    """The rate of Tessera as a share of the bare disk's."""
    return bench_report.ratio(cell.seconds("disk"), cell.seconds("tessera"))


def times_fastest_peer(cell):
    peers = [cell.seconds(column) for column in PEERS if cell.seconds(column) is not None]
    return bench_report.ratio(min(peers, default=None), cell.seconds("tessera"))


def read_over_needed(cell):
    entry = cell.entry("tessera")
    return entry.value if entry and cell.kind == "restore" else None


def share_of_steps(cell, beside):
    """Steps per second while the loop saves, as a share of those `beside` something else."""
    return bench_report.ratio(cell.seconds(beside), cell.seconds("save"))


def ratios_of(kind):
    """Title and function of the ratios of a table."""
    if kind == "train":
        return {
            "of the rate alone": lambda cell: share_of_steps(cell, "alone"),
            "of the rate beside the writer": lambda cell: share_of_steps(cell, "write"),
        }
    ratios = {"fastest peer / Tessera": times_fastest_peer}
    if kind != "async":
        ratios = {"disk / Tessera": share_of_disk, **ratios}
    if kind == "restore":
        ratios["bytes read / needed"] = read_over_needed
    return ratios


def format_table(kind, cells):
    titles = MODES if kind == "train" else COLUMNS
    found = {entry.column for cell in cells for entry in cell.entries}
    columns = [column for column in titles if column in found]
    ratios = ratios_of(kind)
    head = [titles[column] for column in columns] + list(ratios)
    lines = [f"| | {' | '.join(head)} |", "| --- |" + " ---: |" * len(head)]
    for cell in cells:
        row = [f"{cell.operation} {format_size(cell.size_bytes)}"]
        row += [format_seconds(cell.seconds(column)) for column in columns]
        row += [format_ratio(ratio(cell)) for ratio in ratios.values()]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def make_goal(text, limit, cells, number, at_least=True, unit=""):
    """A goal whose number is the worst cell's."""
    found = [(number(cell), cell.name) for cell in cells if number(cell) is not None]
    worst = (min if at_least else max)(found, default=(None, ""))
    return bench_report.Goal(
        text, limit, lambda _: worst[0], at_least, unit, beside=lambda _: f"worst: {worst[1]}"
    )


def make_goals(cells):
    """The goals of docs/performance.md on checkpoints."""
    large = [cell for cell in cells if cell.size_bytes >= LARGE]
    milliseconds = lambda cell: cell.seconds("tessera") and 1e3 * cell.seconds("tessera")
    of_kind = lambda kind, some: [cell for cell in some if cell.kind == kind]
    synced = [cell for cell in of_kind("save", large) if cell.operation == "save"]
    return [
        make_goal(
            "save_async, until it returns", 1, of_kind("async", cells), milliseconds, False, " ms"
        ),
        make_goal(
            "steps per second while the loop saves, share of those beside a plain writer",
            0.97,
            of_kind("train", large),
            lambda cell: share_of_steps(cell, "write"),
        ),
        make_goal("save, share of the rate of write and fsync", 0.9, synced, share_of_disk),
        make_goal(
            "restore, share of the rate of a plain read",
            0.9,
            of_kind("restore", large),
            share_of_disk,
        ),
        make_goal(
            "restore, bytes read / bytes needed, where every second 2 KiB are a joined gap",
            2,
            of_kind("restore", cells),
            read_over_needed,
            False,
        ),
    ]


def format_notes(cells):
    """The cells without a number, and the reasons."""
    notes = {(entry.column, entry.note) for cell in cells for entry in cell.entries if entry.note}
    titles = {**COLUMNS, **MODES}
    return "".join(f"not measured: {titles[column]}: {note}\n" for column, note in sorted(notes))


def write_json(path, machine, cells, verdicts):
    rows = [
        {
            "cell": cell.name,
            "rounds": {e.column: e.rounds for e in cell.entries},
            "cpu_rounds": {e.column: e.cpu_rounds for e in cell.entries},
            "read_over_needed": read_over_needed(cell),
        }
        for cell in cells
    ]
    document = {"machine": machine, "cells": rows, "goals": verdicts}
    pathlib.Path(path).write_text(json.dumps(document, indent=1) + "\n")


def contestants(options):
    if options.columns:
        return options.columns.split(",")
    if options.before:
        return ["disk", "tessera", "before"]
    return [column for column in COLUMNS if column != "before"]


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="tools/bench checkpoint",
        description="Measures saving and restoring beside the bare disk and other libraries.",
    )
    parser.add_argument(
        "--python", default=sys.executable, help="a Python that has torch, safetensors and orbax"
    )
    parser.add_argument(
        "--folder", default="/var/tmp", help="on the disk to measure; by default /var/tmp"
    )
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="nothing of 1 GiB")
    extent.add_argument("--small", action="store_true", help="only 1 MiB: does it run?")
    parser.add_argument("--only", metavar="PATTERN", default="", help='as in "restore .*64 MiB"')
    parser.add_argument(
        "--before", metavar="PROGRAM", help="the checkpoint_worker of another build, not the peers"
    )
    parser.add_argument("--columns", help=f"of {','.join(COLUMNS)}; all by default")
    parser.add_argument("--rounds", type=int, help="instead of 5 (3 with --quick)")
    parser.add_argument("--json", metavar="FILE", help="write every number of every round")
    parser.add_argument("--build-folder", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments):
    options = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the workers are stopped
    machine = bench.read_machine()
    sizes = SMALL_SIZES if options.small else QUICK_SIZES if options.quick else SIZES
    started, cells = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="tessera_bench_", dir=options.folder) as folder:
        options.folder = folder
        run = Run(options, folder, machine)
        try:
            for phase in make_phases(sizes, options.only, contestants(options)):
                cells += run.run_phase(phase)
        finally:
            for workers in run.workers.values():
                workers.stop()
    print(bench.describe(machine, run.pace, time.monotonic() - started))
    for kind, title in KINDS.items():
        some = [cell for cell in cells if cell.kind == kind]
        if some:
            print(f"\n{title}\n\n{format_table(kind, some)}")
    verdicts = [goal.verdict(None) for goal in make_goals(cells)]
    print("\n" + format_notes(cells) + "\n".join(verdicts))
    if options.json:
        write_json(options.json, machine, cells, verdicts)
    ours = ("disk", "tessera", *MODES)
    return 1 if any(e.failed for c in cells for e in c.entries if e.column in ours) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
