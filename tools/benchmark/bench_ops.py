#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures operations beside other libraries, interleaved in one run; `tools/bench ops` starts it.

Workers and rounds are as in tools/bench. Peers are benchmarks/peers/blas_peer.cc, for the libraries
of Debian, and ops_peer.py under the Python that --python names. Each contestant of a cell reports a
value of its result, which has to equal Tessera's value. benchmarks/README.md explains the output.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import re
import signal
import sys
import tempfile
import time

import bench
import bench_report
from bench_cells import KIB, MIB, Cell, Entry, Phase, format_seconds, memory_cell

PEER = pathlib.Path(__file__).parent.parent.parent / "benchmarks/peers/ops_peer.py"
COLUMNS = {
    "tessera": "Tessera",
    "openblas": "OpenBLAS",
    "onednn": "oneDNN",
    "onednn_packed": "oneDNN, packed",
    "torch": "PyTorch",
    "jax": "JAX",
    "tensorflow": "TensorFlow",  # DTensor, MirroredStrategy
    "before": "before",  # another build of Tessera
}
OF_DEBIAN = ("openblas", "onednn")  # a program multiplies by matrices that are not packed
PYTHON = ("torch", "jax", "tensorflow")
KINDS = {  # kind of cell: title of its table
    "eager": "Eager operations of matrices of 1 KiB, call to result",
    "matmul": "Local products",
    "function": "Functions of 16 MiB of f32",
    "step": "Training steps",
    "replicas": "Training steps of replicas: mirrored strategy, DistributedDataParallel",
}


@dataclasses.dataclass(frozen=True)
class Extent:
    """How much to measure."""

    products: tuple  # (dtype, rows, summed, columns)
    functions: tuple
    shape: tuple  # of the operands of functions
    parallel: tuple  # of training steps
    networks: dict  # name: (network, sizes)
    replicas: dict  # networks that replicas train
    devices: tuple = (4, 8)


# Of the rounds, by number of devices; processes take another minute to start.
BUDGETS_S = {1: 150, 4: 100, 8: 150}
CUBES = (256, 1024, 2048)
ALL_FUNCTIONS = (
    *("add", "relu", "exp", "tanh", "gelu", "softmax", "layer_norm", "chain"),
    *("normal", "uniform", "adamw"),
)
DIGITS = {"digits": ("digits", "")}
TRANSFORMER = {"transformer": ("transformer", "")}
# Most of the time of a step is arithmetic.
LARGE = {
    "large_digits": ("digits", " images=1024 inputs=784 hidden=2048"),
    "large_transformer": ("transformer", " context=64 width=256"),
}
ALL_PARALLEL = ("data", "tensor", "both")
PRODUCTS = tuple(
    (dtype, *size)
    for dtype in ("f32", "f64", "bf16")
    for size in (*((side,) * 3 for side in CUBES), (64, 4096, 4096))
)
USUAL = Extent(
    PRODUCTS,
    ALL_FUNCTIONS,
    (4096, 1024),
    ALL_PARALLEL,
    {**DIGITS, **TRANSFORMER},
    {**DIGITS, "large_digits": LARGE["large_digits"]},
)
FULL = dataclasses.replace(USUAL, networks={**DIGITS, **TRANSFORMER, **LARGE})
QUICK = Extent(
    PRODUCTS[:2], ("add", "tanh", "softmax"), (4096, 1024), ("both",), USUAL.networks, DIGITS, (4,)
)
# Every operation and nothing large: whether all of it still runs.
SMALL = Extent(
    tuple((dtype, 8, 8, 8) for dtype in ("f32", "f64", "bf16")),
    ALL_FUNCTIONS,
    (64, 16),
    ALL_PARALLEL,
    {"digits": ("digits", " images=8"), "transformer": ("transformer", " pieces=8 context=4")},
    {"digits": ("digits", " images=8")},
    (4,),
)

# --- Cells ---------------------------------------------------------------------------------------


def make_cell(kind, name, size, devices, command, ways):
    """`ways` are columns and what each adds to the command: ("jax:jit", " way=jit")."""
    entries = [Entry(column, column.split(":")[0], command + extra) for column, extra in ways]
    for entry in entries:
        if entry.group.startswith(("openblas", "onednn")):
            entry.group = "blas"
    return Cell(kind, name, size, devices, entries, devices="threads")


def plain(*columns):
    return [(column, "") for column in columns]


def product_cell(dtype, rows, summed, columns):
    ways = plain("tessera", "torch", "jax")
    if dtype == "bf16" and not has_avx512():
        ways.remove(("torch", ""))  # plain loops, 1 GFLOP/s: it would take most of the time
    if dtype != "bf16":
        ways.append(("openblas", " library=openblas"))
    if dtype != "f64":
        ways.append(("onednn", " library=onednn"))
        ways.append(("onednn_packed", " library=onednn packed=1"))
    name = f"matmul {dtype} {rows} x {summed} x {columns}"
    command = f"matmul rows={rows} summed={summed} columns={columns} dtype={dtype}"
    return make_cell("matmul", name, 0, 1, command, ways)


def function_cell(op, shape):
    kind = {"normal": "random", "uniform": "random", "adamw": "adamw"}.get(op, "function")
    command = f"{kind} rows={shape[0]} columns={shape[1]} op={op}"
    size = 4 * shape[0] * shape[1]
    cell = make_cell("function", op, size, 1, command, plain("tessera", "torch", "jax"))
    if op == "chain":  # operations one by one, and a function of elements in one pass
        in_one = command.replace("op=chain", "op=chain_in_one")
        cell.entries.insert(1, Entry("tessera:in one", "tessera", in_one))
    cell.set_bytes = {"add": 3, "chain": 3, "normal": 1, "uniform": 1}.get(op, 2) * size
    return cell


def step_cell(name, network, sizes, parallel, devices):
    model = {"data": 1, "tensor": devices, "both": 2}[parallel]
    command = f"step network={network}{sizes} batch={devices // model} model={model}"
    ways = plain("tessera", "torch", "jax")
    return make_cell("step", f"{name} {parallel}", 0, devices, command, ways)


def replicas_cell(name, sizes, devices):
    command = f"replicas network=digits{sizes}"
    return make_cell("replicas", name, 0, devices, command, plain("tessera", "torch", "tensorflow"))


def eager_cell(op):
    ways = plain("tessera", "torch")
    ways += [("jax:eager", " way=eager"), ("jax:jit", " way=jit")]
    ways += [("tensorflow:eager", " way=eager"), ("tensorflow:function", " way=function")]
    return make_cell("eager", op, KIB, 8, f"eager op={op} side=16", ways)


def make_phases(extent, only="", columns=tuple(COLUMNS)):
    local = [product_cell(*product) for product in extent.products]
    local += [function_cell(op, extent.shape) for op in extent.functions]
    steps = {
        devices: [
            step_cell(name, *network, parallel, devices)
            for name, network in extent.networks.items()
            for parallel in extent.parallel
        ]
        for devices in extent.devices
    }
    for devices, cells in steps.items():
        cells += [
            replicas_cell(name, sizes, devices)
            for name, (network, sizes) in extent.replicas.items()
            if network == "digits"
        ]
    eager = [eager_cell(op) for op in ("add", "matmul", "contracted")]
    steps[8] = eager + steps.get(8, [])
    phases = [Phase("1 device", 1, local)]
    phases += [Phase(f"{devices} devices", devices, steps[devices]) for devices in sorted(steps)]
    for phase in phases:
        phase.cells = [cell for cell in phase.cells if re.search(only, cell.name)]
        for cell in phase.cells:
            cell.entries.append(Entry("before", "before", cell.entries[0].command))
            cell.entries = [e for e in cell.entries if e.column.split(":")[0] in columns]
    return [phase for phase in phases if phase.cells]


# --- Workers -------------------------------------------------------------------------------------


class Run(bench.Run):
    def memory_cells(self, phase):
        """Copies of as many bytes as functions read."""
        if not (self.options.build_folder / "memory_peer").exists():
            return []
        sizes = {cell.size_bytes for cell in phase.cells if cell.kind == "function"}
        cells = [memory_cell(size, phase.clients, "threads") for size in sizes]
        for cell in cells:
            cell.entries = [entry for entry in cell.entries if entry.column == "mc1"]
        return cells

    def checks_all(self, cell):
        return True

    def start_workers(self, group, clients, region_bytes):
        """A device has one thread and at most one core: all processes of a contestant have as many
        cores as there are devices, or all that there are."""
        build = self.options.build_folder
        cores = sorted(os.sched_getaffinity(0))[:clients]
        pinned = ["taskset", "--cpu-list", ",".join(map(str, cores))]
        folder = tempfile.mkdtemp(dir=self.folder)
        prefix, ranks = f"{folder}/{group}", range(clients if group == "torch" else 1)
        extra = {"OMP_NUM_THREADS": "1"}
        if group in ("tessera", "before"):
            extra["TESSERA_LOCAL_DEVICES"] = str(clients)
            worker = self.options.before if group == "before" else f"{build}/ops_worker"
            commands = [[worker, prefix]]
        elif group == "memory":
            ranks = range(2)  # of which one copies
            commands = [
                [f"{build}/memory_peer", str(r), prefix, str(region_bytes)] for r in ranks
            ]
        elif group == "blas":
            extra["OPENBLAS_CORETYPE"] = "SkylakeX" if has_avx512() else "Haswell"
            commands = [[f"{build}/blas_peer", prefix]]
        else:
            extra.update(bench.TUNED_MALLOC, GLOO_SOCKET_IFNAME="lo")
            python = [self.options.python, "-B", str(PEER), group]
            commands = [[*python, str(rank), str(clients), prefix] for rank in ranks]
        workers = bench.Workers(group, folder, len(ranks))
        return bench.started(workers, [pinned + each for each in commands], lambda rank: extra)


def has_avx512():
    return "avx512f" in pathlib.Path("/proc/cpuinfo").read_text()


def tolerance(cell):
    """By how much, relatively, values may differ: each is a mean over elements, or a loss."""
    if cell.operation in ("normal", "uniform"):  # other draws: some standard deviations of the mean
        return 7 / (cell.size_bytes / 4) ** 0.5
    return 0.02 if "bf16" in cell.operation else 1e-3


def check_values(cells):
    """Leaves out the contestants that compute something else than Tessera."""
    for cell in cells:
        expected = cell.entries[0].value
        for entry in cell.entries:
            if not entry.rounds:
                continue
            value = entry.value
            if None in (value, expected) or abs(value - expected) > tolerance(cell) * expected:
                entry.note = f"computes something else than Tessera: {value}, not {expected}"
                entry.failed = True
                entry.rounds.clear()


# --- The report ----------------------------------------------------------------------------------


def fastest(cell, groups):
    """(seconds, column) of the fastest entry of some columns without their ways."""
    entries = [e for e in cell.entries if e.column.split(":")[0] in groups and e.rounds]
    return min(((entry.seconds, entry.column) for entry in entries), default=(None, ""))


def ratio_to(cell, groups):
    """The time of the fastest of some columns divided by Tessera's."""
    return bench_report.ratio(fastest(cell, groups)[0], fastest(cell, ("tessera",))[0])


PEERS = tuple(column for column in COLUMNS if column != "tessera")


def format_number(number, digits=2):
    return "-" if number is None else f"{number:,.0f}" if number >= 100 else f"{number:.{digits}f}"


def gigaflops(cell):
    rows, summed, columns = map(int, re.findall(r"(\d+) x (\d+) x (\d+)", cell.operation)[0])
    seconds = cell.seconds("tessera")
    return None if seconds is None else 2e-9 * rows * summed * columns / seconds


def format_table(kind, cells, copy_seconds):
    found = {entry.column.split(":")[0] for cell in cells for entry in cell.entries}
    columns = [column for column in COLUMNS if column in found]
    titles = [COLUMNS[column] for column in columns] + ["fastest peer / Tessera"]
    if kind == "matmul":
        titles += ["fastest of Debian / Tessera", "Tessera, GFLOP/s"]
    if kind == "function":
        titles += ["Tessera / mc1"]
    has_devices = kind in ("step", "replicas")
    head = "| | devices |" if has_devices else "| |"
    lines = [f"{head} {' | '.join(titles)} |", "| --- |" + " ---: |" * (len(titles) + has_devices)]
    for cell in cells:
        row = [cell.operation] + [str(cell.clients)] * has_devices
        for column in columns:
            seconds, way = fastest(cell, (column,))
            is_one_of_many = sum(e.column.split(":")[0] == column for e in cell.entries) > 1
            way = f" {way.partition(':')[2]}".rstrip() if is_one_of_many else ""
            row.append(format_seconds(seconds) + way)
        row.append(format_number(ratio_to(cell, PEERS)))
        if kind == "matmul":
            row += [format_number(ratio_to(cell, OF_DEBIAN)), format_number(gigaflops(cell), 1)]
        if kind == "function":
            ours = fastest(cell, ("tessera",))[0]
            row.append(format_number(bench_report.ratio(ours, copy_seconds)))
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def make_goal(text, limit, cells, number, at_least=True, unit=""):
    """Whose number is that of the worst cell."""
    found = [(number(cell), cell.name) for cell in cells if number(cell) is not None]
    worst = (min if at_least else max)(found, default=(None, ""))
    missed = [name for value, name in found if (value < limit if at_least else value > limit)]
    said = f"missed by {len(missed)} of {len(found)}; worst: {worst[1]}"
    return bench_report.Goal(
        text, limit, lambda _: worst[0], at_least, unit, beside=lambda _: said
    )


def make_goals(cells):
    """Those of docs/performance.md on operations."""
    eager = [c for c in cells if c.kind == "eager"]
    large = [c for c in cells if re.match(r"matmul f32 (1024|2048) x", c.operation)]
    steps = [c for c in cells if c.kind == "step"]
    microseconds = lambda cell: cell.seconds("tessera") and cell.seconds("tessera") * 1e6
    return [
        make_goal("eager operation, 1 KiB, 8 devices", 10, eager, microseconds, False, " us"),
        make_goal(
            "matmul, f32, 1024 cubed and larger, share of Debian's fastest library's rate",
            0.95,
            large,
            lambda cell: ratio_to(cell, OF_DEBIAN),
        ),
        make_goal(
            "training steps, times as fast as JAX and PyTorch DTensor",
            1,
            steps,
            lambda cell: ratio_to(cell, PYTHON),
        ),
    ]


def format_notes(cells):
    """The cells without a number, and the reasons."""
    causes = {}
    for cell in cells:
        for entry in cell.entries:
            if entry.note:
                title = COLUMNS[entry.column.split(":")[0]]
                causes.setdefault((title, entry.note), []).append(cell)
    return "".join(
        f"not measured: {title}, {found[0].name}"
        + (f" and {len(found) - 1} more" if len(found) > 1 else "")
        + f": {note}\n"
        for (title, note), found in sorted(causes.items(), key=lambda cause: cause[0])
    )


def write_json(path, machine, cells, verdicts):
    rows = [
        {
            "cell": c.name,
            "rounds": {e.column: e.rounds for e in c.entries},
            "cpu_rounds": {e.column: e.cpu_rounds for e in c.entries},
            "values": {e.column: e.value for e in c.entries},
        }
        for c in cells
    ]
    document = {"machine": machine, "cells": rows, "goals": verdicts}
    pathlib.Path(path).write_text(json.dumps(document, indent=1) + "\n")


def contestants(options):
    if options.columns:
        return options.columns.split(",")
    if options.before:
        return ["tessera", "before"]
    missing = ("before",)
    if not (options.build_folder / "blas_peer").exists():
        missing += ("openblas", "onednn", "onednn_packed")
    return [column for column in COLUMNS if column not in missing]


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="tools/bench ops", description="Measures operations beside other libraries."
    )
    parser.add_argument(
        "--python", default=sys.executable, help="a Python that has jax, torch and tensorflow"
    )
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="fewer cells, in two minutes")
    extent.add_argument("--full", action="store_true", help="larger networks too, all rounds")
    extent.add_argument("--small", action="store_true", help="everything in small: does it run?")
    parser.add_argument("--only", metavar="PATTERN", default="", help='as in "matmul f32"')
    parser.add_argument(
        "--before", metavar="PROGRAM", help="the ops_worker of another build, instead of the peers"
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
    extent = USUAL
    for chosen, wanted in ((options.quick, QUICK), (options.full, FULL), (options.small, SMALL)):
        extent = wanted if chosen else extent
    started, cells = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="tessera_bench_") as folder:
        run = Run(options, folder, machine)
        try:
            for phase in make_phases(extent, options.only, contestants(options)):
                budget_s = math.inf if options.full or options.rounds else BUDGETS_S[phase.clients]
                cells += run.run_phase(phase, budget_s)
        finally:
            for workers in run.workers.values():
                workers.stop()
    copies = [cell for cell in cells if cell.kind == "memory"]
    cells = [cell for cell in cells if cell.kind != "memory"]
    check_values(cells)
    copy_seconds = copies[0].seconds("mc1") if copies else None
    print(bench.describe(machine, run.pace, time.monotonic() - started))
    for kind, title in KINDS.items():
        some = [cell for cell in cells if cell.kind == kind]
        if some:
            print(f"\n{title}\n\n{format_table(kind, some, copy_seconds)}")
    if copy_seconds:
        print(f"\nmc1, memcpy of {copies[0].size_bytes // MIB} MiB: {format_seconds(copy_seconds)}")
    verdicts = [goal.verdict(None) for goal in make_goals(cells)]
    print("\n" + format_notes(cells) + "\n".join(verdicts))
    if options.json:
        write_json(options.json, machine, cells, verdicts)
    return 1 if any(e.failed for c in cells for e in c.entries if e.group == "tessera") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
