#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures jobs over several hosts beside their peers; `tools/bench hosts` starts it.

The hosts are namespaces of this machine (tests/hosts/make_hosts). Workers, rounds and checks are as
in tools/bench. Beside each operation a plain socket moves the bytes that have to cross the link.
benchmarks/README.md explains the output.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import bench
import bench_cells
import bench_report
from bench_cells import KIB, MIB, Cell, Entry, Phase, format_seconds, format_size

ROOT = pathlib.Path(__file__).parent.parent.parent
# Hosts have a /tmp of their own.
FOLDER_OF_ALL_HOSTS = "/var/tmp"
SOCKET_PORT = 20417
COLUMNS = {
    "socket": "plain socket",
    "tessera": "Tessera",
    "before": "before",
    "ompi": "Open MPI",
    "gloo": "Gloo",
    "torch": "PyTorch DTensor",
}
PEERS = ("ompi", "gloo", "torch")
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")


@dataclasses.dataclass(frozen=True)
class Form:
    """A number of hosts and of clients per host, and the sending rate of each host."""

    hosts: int
    clients: int  # of each host
    rate: str = ""  # as tc reads it; "": unlimited

    @property
    def name(self):
        return f"{self.hosts} x {self.clients} {self.rate or 'unlimited'}"

    @property
    def size(self):
        return self.hosts * self.clients

    def host_of(self, rank):
        return rank // self.clients

    def sizes(self, quick):
        if quick:
            return [64 * KIB, 64 * MIB]
        sizes = [8, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB]
        if self.clients > 8:
            return []  # barriers alone: each client of each contestant has buffers
        # The buffers of eight clients of each contestant would take more than 24 GiB.
        return sizes if self.rate or self.size > 4 else [*sizes, 256 * MIB]


SHAPES = [(2, 1), (2, 2), (2, 4), (4, 2)]
FORMS = [Form(*shape, rate) for rate in ("1gbit", "") for shape in SHAPES]
FORMS += [Form(2, 32, "")]
QUICK_FORMS = [Form(*shape, rate) for rate in ("1gbit", "") for shape in SHAPES[:2]]


def address(host):
    return f"10.77.0.{host + 1}"


# --- What has to cross ---------------------------------------------------------------------------


def collective_bytes(operation, size, form):
    """The most that a host has to send or to receive."""
    others = (form.hosts - 1) / form.hosts
    factors = {
        "all_reduce": 2 * others,
        "reduce_scatter": others,
        "all_gather": others,
        "all_to_all": others * form.clients,
        "broadcast": 1,
    }
    return round(factors[operation] * size)


def contains(block, row, col):
    return block[0] <= row < block[1] and block[2] <= col < block[3]


def moved_bytes(source, target, element_bytes, form):
    """The most bytes that a host lacks and has to receive, each counted once."""
    rows = sorted({edge for block in source + target for edge in block[:2]})
    cols = sorted({edge for block in source + target for edge in block[2:]})
    needed = [0] * form.hosts
    for row, row_end in zip(rows, rows[1:]):
        for col, col_end in zip(cols, cols[1:]):
            at = lambda of_blocks: {
                form.host_of(rank) for rank, b in enumerate(of_blocks) if contains(b, row, col)
            }
            for host in at(target) - at(source):
                needed[host] += (row_end - row) * (col_end - col) * element_bytes
    return max(needed)


def relayout_bytes(relayout, side, element_bytes, form):
    axes = {"x": 2, "y": form.size // 2}
    if relayout.partial:
        operation = "reduce_scatter" if any(relayout.target) else "all_reduce"
        return collective_bytes(operation, side * side * element_bytes, form)
    shape = (side - relayout.trim[0], side - relayout.trim[1])
    order = bench_cells.device_order(relayout.target_order, axes)
    source = bench_cells.blocks(relayout.source, axes, list(range(form.size)), shape)
    target = bench_cells.blocks(relayout.target, axes, order, shape)
    return moved_bytes(source, target, element_bytes, form)


# --- Cells ---------------------------------------------------------------------------------------


def torch_command(relayout, side, clients):
    """None where a dim has two axes beside others, which python_peer.py cannot."""
    dims = (*relayout.source, *relayout.target)
    if relayout.target_order or any(relayout.trim):
        return None
    if set(dims) <= {bench_cells.ALL, bench_cells.NONE}:
        mesh, names = f"x:{clients}", {bench_cells.ALL: "x", bench_cells.NONE: "-"}
    elif bench_cells.ALL not in dims and clients > 2:
        mesh = f"x:2,y:{clients // 2}"
        names = {bench_cells.X: "x", bench_cells.Y: "y", bench_cells.NONE: "-"}
    else:
        return None
    text = lambda dims: "[" + ",".join(names[dim] for dim in dims) + "]"
    source = text(relayout.source) + ("sum{x}" if relayout.partial else "")
    return (
        f"relayout rows={side} cols={side} mesh={mesh} from_layout={source} "
        f"to_layout={text(relayout.target)} way=redistribute"
    )


def add_socket(cell, num_bytes, operation="swap"):
    cell.link_bytes = num_bytes
    if num_bytes > 0:
        cell.entries.insert(0, Entry("socket", "socket", f"{operation} bytes={num_bytes}"))
        cell.region_bytes = max(cell.region_bytes, num_bytes)


def make_phase(form, quick, only, columns):
    """The cells of one form; `columns` are the contestants beside the socket."""
    side = 4096
    of_collectives = [c for c in columns if c != "torch"]
    cells = []
    for cell in bench_cells.collective_cells(form.size, form.sizes(quick), of_collectives):
        if cell.operation in COLLECTIVES:
            num_bytes = collective_bytes(cell.operation, cell.size_bytes, form)
            way = "stream" if cell.operation == "broadcast" else "swap"
            add_socket(cell, num_bytes, way)
        elif cell.operation == "barrier":
            cell.entries.insert(0, Entry("socket", "socket", "ping"))
        cells.append(cell)
    relayouts = bench_cells.RELAYOUTS[:1] if quick else bench_cells.RELAYOUTS
    for relayout in relayouts if form.sizes(quick) else []:
        cell = bench_cells.relayout_cell(relayout, side, 4, form.size, of_collectives)
        command = torch_command(relayout, side, form.size)
        if "torch" in columns and command:
            cell.entries.append(Entry("torch", "torch", command))
        add_socket(cell, relayout_bytes(relayout, side, 4, form))
        cells.append(cell)
    for cell in cells:
        cell.hosts = form.name
    return Phase(form.name, form.size, [cell for cell in cells if cell.is_selected(only)])


# --- Hosts and workers ---------------------------------------------------------------------------


class Hosts:
    """The hosts of a form, while the object is entered."""

    def __init__(self, form):
        self.form = form

    def __enter__(self):
        rate = ["--rate", self.form.rate] if self.form.rate else []
        command = [str(ROOT / "tests/hosts/make_hosts"), str(self.form.hosts), *rate, "--"]
        script = 'echo "$TESSERA_TEST_HOSTS"; exec sleep infinity'
        self.process = subprocess.Popen(
            [*command, "sh", "-c", script], stdout=subprocess.PIPE, text=True
        )
        self.environment = {"TESSERA_TEST_HOSTS": self.process.stdout.readline().strip()}
        if not self.environment["TESSERA_TEST_HOSTS"]:
            raise SystemExit(f"no hosts; make_hosts ended with {self.process.wait()}")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def in_host(host, command):
    return [str(ROOT / "tests/hosts/in_host"), str(host), *command]


AGENT = """#!/bin/bash
# Stands for ssh: the address of a host, and a command for a shell there.
host=$1; shift
exec %s $((${host##*.} - 1)) sh -c "$*"
"""


class Run(bench.Run):
    """tools/bench, with its workers on the hosts of `hosts`."""

    hosts = None

    def memory_cells(self, phase):
        return []

    def start_workers(self, group, clients, region_bytes):
        form, build = self.hosts.form, self.options.build_folder
        folder = tempfile.mkdtemp(dir=self.folder)
        os.chmod(folder, 0o755)
        prefix, region = f"{folder}/{group}", str(region_bytes)
        ranks = range(clients)
        extra = dict(self.hosts.environment)
        environment = lambda rank: extra
        if group in ("tessera", "before"):
            extra.update(
                TESSERA_COORDINATOR=f"{address(0)}:{20000 + secrets.randbelow(400)}",
                TESSERA_NUM_CLIENTS=str(clients),
                TESSERA_TOKEN=secrets.token_hex(16),
            )
            worker = f"{build}/host_worker" + ("_before" if group == "before" else "")
            commands = [[worker, prefix, region]] * clients
            environment = lambda rank: {**extra, "TESSERA_CLIENT_ID": str(rank)}
        elif group == "socket":
            ranks = range(0, clients, form.clients)  # the first of each host
            commands = [
                [
                    f"{build}/socket_peer",
                    *(str(host), str(form.hosts), prefix, region, address(host), str(SOCKET_PORT)),
                    address((host + 1) % form.hosts),
                ]
                for host in range(form.hosts)
            ]
        elif group == "gloo":
            meeting = tempfile.mkdtemp(dir=folder)
            place = lambda rank: [meeting, address(form.host_of(rank))]
            commands = [
                [f"{build}/gloo_peer", str(r), str(clients), prefix, region, *place(r)]
                for r in ranks
            ]
        elif group == "torch":
            threads = max(1, self.machine["cores"] // clients)
            extra.update(bench.TUNED_MALLOC)
            extra.update(OMP_NUM_THREADS=str(threads), GLOO_SOCKET_IFNAME="eth0")
            python = [self.options.python, "-B", f"{build}/python_peer.py", "torch"]
            commands = [[*python, str(rank), str(clients), prefix] for rank in ranks]
        else:
            return self.start_open_mpi(folder, prefix, clients, region)
        commands = [in_host(form.host_of(r), command) for r, command in zip(ranks, commands)]
        workers = bench.Workers(group, folder, len(commands))
        return bench.started(workers, commands, environment)

    def start_open_mpi(self, folder, prefix, clients, region):
        """Numbers the ranks of a host consecutively, as all contestants do."""
        form = self.hosts.form
        agent = pathlib.Path(folder) / "agent"
        agent.write_text(AGENT % (ROOT / "tests/hosts/in_host"))
        agent.chmod(0o755)
        places = ",".join(f"{address(host)}:{form.clients}" for host in range(form.hosts))
        settings = {
            "plm_rsh_agent": agent,
            "pml": "ob1",
            "btl": "self,vader,tcp",
            "btl_tcp_if_include": "10.77.0.0/24",
            "oob_tcp_if_include": "10.77.0.0/24",
            # More processes than cores wait by yielding.
            "mpi_yield_when_idle": 1,
        }
        command = ["mpirun", "-H", places, "--map-by", f"ppr:{form.clients}:node"]
        command += ["--bind-to", "none", "-np", str(clients)]
        for name, value in settings.items():
            command += ["--mca", name, str(value)]
        for name, value in bench.TUNED_MALLOC.items():
            command += ["-x", f"{name}={value}"]
        command += [f"{self.options.build_folder}/mpi_peer", prefix, region]
        extra = {**self.hosts.environment, "OMP_NUM_THREADS": "1"}
        if os.geteuid() == 0:
            extra.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        workers = bench.Workers("ompi", folder, clients)
        return bench.started(workers, [in_host("login", command)], lambda rank: extra)


# --- The report ----------------------------------------------------------------------------------


def share(cell):
    """Share of the rate of a plain socket that moves the same bytes; None if none have to cross."""
    return bench_report.ratio(cell.seconds("socket"), cell.seconds("tessera"))


def over_fastest_peer(cell):
    times = [seconds for column in PEERS if (seconds := cell.seconds(column)) is not None]
    return bench_report.ratio(min(times, default=None), cell.seconds("tessera"))


def cpu_per_gigabyte(cell, column):
    """CPU seconds of all processes for each GB that a host sends or receives."""
    entry = cell.entry(column)
    if not entry or not entry.cpu_rounds or cell.link_bytes < MIB:
        return None
    cpu_rounds = sorted(entry.cpu_rounds)
    return cpu_rounds[len(cpu_rounds) // 2] / (cell.link_bytes * 1e-9)


def format_number(number, digits=2):
    return "-" if number is None else f"{number:.{digits}f}"


def format_table(cells):
    columns = [c for c in COLUMNS if any(cell.entry(c) for cell in cells)]
    titles = [COLUMNS[column] for column in columns]
    titles += ["share of the socket", "fastest peer / Tessera"]
    titles += [f"{COLUMNS[column]}, CPU s/GB" for column in columns]
    lines = [f"| operation | {' | '.join(titles)} |", "| --- |" + " ---: |" * len(titles)]
    for cell in cells:
        size = f" {format_size(cell.size_bytes)}" if cell.kind == "collective" else ""
        row = [cell.operation + (size if cell.size_bytes else "")]
        row += [format_seconds(cell.seconds(column)) for column in columns]
        row += [format_number(share(cell)), format_number(over_fastest_peer(cell))]
        row += [format_number(cpu_per_gigabyte(cell, column)) for column in columns]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def least(cells, number):
    """(number, name) of the cell with the least, or (None, "")."""
    found = [(number(cell), cell.name) for cell in cells if number(cell) is not None]
    return min(found, default=(None, ""))


def make_goal(text, limit, cells, number):
    value, name = least(cells, number)
    return bench_report.Goal(
        text, limit, lambda _: value, at_least=True, beside=lambda _: name and f"least: {name}"
    )


def make_goals(cells):
    """The goals of docs/performance.md between hosts."""
    large = [c for c in cells if c.size_bytes >= 64 * MIB]
    limited = [c for c in large if c.hosts.endswith("1gbit")]
    sums = [c for c in limited if c.operation == "all_reduce" and c.hosts.startswith("2 ")]
    moves = [c for c in large if c.kind == "relayout" and c.hosts.endswith("unlimited")]
    goals = [
        make_goal("all_reduce at 1 Gbit/s, share of the socket", 0.95, sums, share),
        make_goal("relayouts at no limit, share of the socket", 0.9, moves, share),
    ]
    for column in PEERS:
        ahead = lambda cell, column=column: bench_report.ratio(
            cell.seconds(column), cell.seconds("tessera")
        )
        text = f"64 MiB and more, {COLUMNS[column]}'s time over Tessera's"
        goals.append(make_goal(text, 1, large, ahead))
    return goals


def write_json(path, machine, cells, verdicts):
    rows = [
        {
            "cell": cell.name,
            "link_bytes": cell.link_bytes,
            "rounds": {entry.column: entry.rounds for entry in cell.entries},
            "cpu_rounds": {entry.column: entry.cpu_rounds for entry in cell.entries},
        }
        for cell in cells
    ]
    document = {"machine": machine, "cells": rows, "goals": verdicts}
    pathlib.Path(path).write_text(json.dumps(document, indent=1) + "\n")


# --- The run -------------------------------------------------------------------------------------


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="tools/bench hosts", description="Measures jobs over several hosts beside peers."
    )
    parser.add_argument("--quick", action="store_true", help="2 x 2 clients and few cells")
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        default="",
        help='cells whose name matches, as in "all_reduce 64 MiB 2 x 4 1gbit"',
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write every number of every round")
    parser.add_argument("--python", metavar="FILE", help="a Python that has torch, not in /tmp")
    parser.add_argument(
        "--before", metavar="PROGRAM", help="the host_worker of another build, as a contestant"
    )
    parser.add_argument("--no-peers", action="store_true", help="Tessera and the socket alone")
    parser.add_argument("--build-folder", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def contestants(options):
    columns = ["tessera"]
    if options.before:
        columns.append("before")
    if options.no_peers:
        return columns
    for column, program in (("ompi", "mpi_peer"), ("gloo", "gloo_peer")):
        if (options.build_folder / program).exists():
            columns.append(column)
    return columns + ["torch"] * bool(options.python)


def copy_programs(options, folder):
    """To where all hosts see them."""
    build = pathlib.Path(folder) / "bin"
    build.mkdir()
    for name in ("host_worker", "socket_peer", "mpi_peer", "gloo_peer"):
        if (options.build_folder / name).exists():
            shutil.copy(options.build_folder / name, build)
    shutil.copy(ROOT / "benchmarks/peers/python_peer.py", build)
    if options.before:
        shutil.copy(options.before, build / "host_worker_before")
    options.build_folder = build


def main(arguments):
    options = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that workers and hosts are stopped
    machine = bench.read_machine()
    started, cells = time.monotonic(), []
    columns = contestants(options)
    with tempfile.TemporaryDirectory(prefix="tessera_bench_", dir=FOLDER_OF_ALL_HOSTS) as folder:
        os.chmod(folder, 0o755)
        copy_programs(options, folder)
        run = Run(options, folder, machine)
        try:
            for form in QUICK_FORMS if options.quick else FORMS:
                phase = make_phase(form, options.quick, options.only, columns)
                if not phase.cells:
                    continue
                with Hosts(form) as run.hosts:
                    measured = run.run_phase(phase)
                cells += measured
                print(f"\n{form.name}\n\n{format_table(measured)}", flush=True)
        finally:
            for workers in run.workers.values():
                workers.stop()
    notes = {f"{c.name}, {e.column}: {e.note}" for c in cells for e in c.entries if e.note}
    verdicts = [goal.verdict(None) for goal in make_goals(cells)]
    print("\n" + bench.describe(machine, run.pace, time.monotonic() - started))
    print("\n".join(sorted(notes) + verdicts))
    if options.json:
        write_json(options.json, machine, cells, verdicts)
    ours = [e for c in cells for e in c.entries if e.column in ("socket", "tessera")]
    return 1 if any(entry.failed for entry in ours) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
