#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the host backend beside its peers, interleaved in one run; tools/bench starts it.

A contestant is a group of worker processes that run during one phase; there is one phase per number
of clients. Each worker sleeps on its own pipe until it gets a command, so that one contestant runs
at a time. A cell is one operation of one size on one number of clients. A round measures every
contestant of every cell once, and the number of a cell is the median of its rounds.
benchmarks/README.md says how to read the output.
"""

import argparse
import dataclasses
import datetime
import json
import math
import os
import pathlib
import platform
import re
import secrets
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import bench_report
from bench_cells import COLUMNS, GIB, KIB, KILL_SETS, MEMORY, MIB, OPEN_MPI, Cell, Entry
from bench_cells import add_before, format_size, kill_cells, make_phases, memory_cell

READY_TIMEOUT_S = 120  # eight Pythons that import a library at once
REPLY_TIMEOUT_S = 180
# Peers free their buffers after a measurement that leaves less than this share of the memory. No
# measurement may need more than this share of the available memory: other programs may run here.
FREE_SHARE = 0.6
QUICK_S = 55
MAX_CALLS = 100_000
SLOW_REPETITIONS = 2  # of a call that takes longer than a measurement should
SECONDS_TO_KILL = 0.1  # after which collectives follow each other without a pause
TUNED_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "8589934592",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
}


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


# --- Worker processes --------------------------------------------------------------------------


class ContestantFailed(Exception):
    """The processes cannot go on."""


class CommandFailed(ContestantFailed):
    """Every rank has answered, some with an error; the processes can go on."""


class Workers:
    """The processes of one contestant, from start() to stop()."""

    def __init__(self, name, folder, size):
        self.name = name
        self.size = size
        self.prefix = str(pathlib.Path(folder) / name)
        self.processes = []
        self.ins, self.outs, self.buffers = [], [], []
        self.seconds_to_ready = None
        self.cpu_seconds = 0.0  # of all processes, for one call of the last command
        self.value = None  # of the last command, see worker.h

    def start(self, commands, environment):
        """Starts the processes, and waits until each says that it is ready."""
        for rank in range(self.size):
            for suffix in ("in", "out"):
                path = f"{self.prefix}.{rank}.{suffix}"
                os.mkfifo(path)
                # Both ends, so that opening does not block.
                (self.ins if suffix == "in" else self.outs).append(os.open(path, os.O_RDWR))
            self.buffers.append(b"")
        started = time.monotonic()
        for i, command in enumerate(commands):
            with open(f"{self.prefix}.{i}.log", "wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        command,
                        env={**os.environ, **environment(i)},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        replies = self.replies(READY_TIMEOUT_S)
        self.seconds_to_ready = max(reply["ready"] for reply in replies) - started

    def run(self, command):
        """The seconds of each repetition: those of the slowest rank."""
        for fd in self.ins:
            os.write(fd, (command + "\n").encode())
        replies = self.replies(REPLY_TIMEOUT_S)
        self.cpu_seconds = sum(reply.get("cpu", 0) for reply in replies)
        self.value = replies[0].get("value")
        return [max(times) for times in zip(*(reply["seconds"] for reply in replies))]

    def run_and_kill(self, command, seconds, victim):
        """The seconds from the kill to the error of the last survivor. The command goes on until it
        fails, and is killed after so many seconds."""
        for fd in self.ins:
            os.write(fd, (command + "\n").encode())
        time.sleep(seconds)
        survivors = [rank for rank in range(self.size) if rank != victim]
        lines = [None] * self.size
        killed = time.monotonic()  # the clock of the workers too
        self.processes[victim].kill()
        while any(lines[rank] is None for rank in survivors):
            self.read_lines(lines, survivors)
            if time.monotonic() > killed + REPLY_TIMEOUT_S:
                raise ContestantFailed(f"client {victim} was killed, and a survivor was not told")
        for rank in survivors:
            error = lines[rank]["error"]
            if lines[rank]["at"] < killed or f"client {victim} " not in error:
                text = f"rank {rank} did not fail by the death of client {victim}: {error}"
                raise ContestantFailed(text)
        return max(lines[rank]["at"] for rank in survivors) - killed

    def read_lines(self, lines, ranks):
        """Waits at most a second for lines of the ranks that have none."""
        waiting = [rank for rank in ranks if lines[rank] is None]
        ready, _, _ = select.select([self.outs[rank] for rank in waiting], [], [], 1)
        for rank in waiting:
            if self.outs[rank] in ready:
                self.buffers[rank] += os.read(self.outs[rank], 1 << 16)
            line, newline, rest = self.buffers[rank].partition(b"\n")
            if newline:
                lines[rank], self.buffers[rank] = json.loads(line), rest

    def replies(self, timeout_s):
        deadline = time.monotonic() + timeout_s
        lines = [None] * self.size
        while None in lines:
            self.read_lines(lines, range(self.size))
            # The other ranks may wait for the one that failed.
            errors = [f"rank {r}: {x['error']}" for r, x in enumerate(lines) if x and x["error"]]
            if errors and None not in lines:
                raise CommandFailed("; ".join(errors[:2]))
            if errors and time.monotonic() > deadline - timeout_s + 10:
                raise ContestantFailed("; ".join(errors[:2]))
            if None in lines:
                if any(process.poll() is not None for process in self.processes):
                    raise ContestantFailed("a process has ended: " + self.last_words())
                if time.monotonic() > deadline:
                    raise ContestantFailed(f"no answer in {timeout_s} s: {self.last_words()}")
        return lines

    def last_words(self):
        words = []
        for i in range(len(self.processes)):
            text = pathlib.Path(f"{self.prefix}.{i}.log").read_text(errors="replace").strip()
            words += text.splitlines()[-2:]
        return " / ".join(words[:4]) or "it said nothing"

    def stop(self):
        for fd in self.ins:
            os.write(fd, b"quit\n")
        deadline = time.monotonic() + 10
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its own session: mpirun and its ranks
                process.wait()
        for fd in self.ins + self.outs:
            os.close(fd)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_workers(group, clients, region_bytes, options, folder):
    """Starts the processes that `group` names, with that many clients."""
    build = options.build_folder
    worker = f"{build}/host_worker"
    if group.endswith("_before"):
        group, worker = group.removesuffix("_before"), options.before
    folder = tempfile.mkdtemp(dir=folder)
    prefix = str(pathlib.Path(folder) / group)
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    region = str(region_bytes)
    if group.startswith("tessera"):
        devices = {"tessera": 1, "tessera_pair": 2, "tessera_devices": clients}[group]
        size = clients if group == "tessera" else 1
        job = {
            "TESSERA_COORDINATOR": f"127.0.0.1:{free_port()}",
            "TESSERA_NUM_CLIENTS": str(size),
            "TESSERA_TOKEN": secrets.token_hex(16),
            "TESSERA_LOCAL_DEVICES": str(devices),
        }
        commands = [[worker, prefix, region]] * size
        environment = lambda rank: {**job, "TESSERA_CLIENT_ID": str(rank)}
    elif group == "memory":
        size = 2
        commands = [[f"{build}/memory_peer", str(r), prefix, region] for r in range(size)]
        environment = lambda rank: {}
    elif group == "gloo":
        size = clients
        meeting = tempfile.mkdtemp(dir=folder)
        commands = [
            [f"{build}/gloo_peer", str(r), str(size), prefix, region, meeting, "127.0.0.1"]
            for r in range(size)
        ]
        environment = lambda rank: one_thread
    else:
        size = clients
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(size)]
        if group == "ompi_no_cma":
            command += ["--mca", "btl_vader_single_copy_mechanism", "none"]
        commands = [[*command, f"{build}/mpi_peer", prefix, region]]
        extra = dict(one_thread)
        if group != "ompi":
            extra.update(TUNED_MALLOC)
        if os.geteuid() == 0:
            extra.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        environment = lambda rank: extra
    return started(Workers(group, folder, size), commands, environment)


def started(workers, commands, environment):
    try:
        workers.start(commands, environment)
    except ContestantFailed:
        workers.stop()
        raise
    return workers


# --- The run -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Pace:
    """How long to measure, and on how many sets of buffers."""

    rounds: int
    seconds: float  # of one measurement
    repetitions: int
    l3_bytes: int

    def sets(self, cell):
        """Three sets, or fewer if those have three times the size of the last-level cache."""
        if cell.set_bytes == 0:
            return 1
        return max(1, min(3, -(-3 * self.l3_bytes // cell.set_bytes)))

    def calls(self, seconds_a_call):
        """(repetitions, calls in each)."""
        repetitions = self.repetitions
        if seconds_a_call * repetitions > 4 * self.seconds:
            repetitions = max(SLOW_REPETITIONS, int(4 * self.seconds / seconds_a_call))
        calls = round(self.seconds / repetitions / max(seconds_a_call, 1e-8))
        return repetitions, min(max(calls, 1), MAX_CALLS)


class Run:
    def __init__(self, options, folder, machine):
        self.options = options
        self.folder = folder
        self.pace = Pace(
            options.rounds or (3 if options.quick else 5),
            0.02 if options.quick else 0.12,
            3 if options.quick else 5,
            machine["l3_bytes"],
        )
        self.machine = machine
        self.workers = {}
        self.out = {}  # group: why it is left out from now on

    def start(self, group, clients, region_bytes):
        if group in self.out or group in self.workers:
            return
        try:
            self.workers[group] = self.start_workers(group, clients, region_bytes)
        except (ContestantFailed, OSError) as error:
            self.give_up(group, error)

    def start_workers(self, group, clients, region_bytes):
        return start_workers(group, clients, region_bytes, self.options, self.folder)

    def checks_all(self, cell):
        """Whether the first check is of all elements."""
        return cell.size_bytes <= (4 if self.options.quick else 64) * MIB

    def give_up(self, group, error):
        self.out[group] = str(error)
        say(f"{group} is left out from now on: {error}")
        if group in self.workers:
            self.workers.pop(group).stop()

    def measure(self, cell, entry, is_first):
        """One round of one contestant."""
        workers = self.workers.get(entry.group)
        if workers is None:
            entry.note, entry.failed = self.out.get(entry.group, "not available"), True
            return
        # Buffers, and temporary memory for reductions. Our buffers of collectives exist already.
        needed_bytes = 1.5 * self.pace.sets(cell) * cell.set_bytes
        is_there = entry.column in ("tessera", "before") and cell.kind == "collective"
        if is_first and not is_there and needed_bytes > FREE_SHARE * available_bytes():
            entry.note = f"{cell.name} needs about {needed_bytes / GIB:.1f} GiB of free memory"
            return
        command = f"{entry.command} sets={self.pace.sets(cell)}"
        try:
            if is_first:
                # Checks every element, and measures how long a call takes.
                full = int(self.checks_all(cell))
                times = workers.run(f"{command} full={full} repetitions=2 calls=1")
                entry.value = workers.value
                if min(times) < 1e-3:
                    times = workers.run(f"{command} repetitions=2 calls=20")
                # If clients spin and other programs need their cores, a call takes 0.2 us or 8 ms.
                guess = max(times)
            else:
                guess = max(entry.rounds) / entry.factor
            repetitions, calls = self.pace.calls(guess)
            # A call that takes this long has been measured.
            if not is_first or repetitions > SLOW_REPETITIONS:
                times = workers.run(f"{command} repetitions={repetitions} calls={calls}")
            entry.rounds.append(statistics.median(times) * entry.factor)
            entry.cpu_rounds.append(workers.cpu_seconds)
            if entry.column != "tessera" and available_bytes() < FREE_SHARE * total_bytes():
                workers.run("release")
        except ContestantFailed as error:
            entry.note, entry.failed = str(error), True
            entry.rounds.clear()
            if isinstance(error, CommandFailed):
                say(f"{cell.name}, {entry.column}: {error}")
            else:
                self.give_up(entry.group, error)

    def run_phase(self, phase, budget_s=math.inf):
        """Runs all rounds, or those that fit into the time; returns all cells, also of copies."""
        groups = sorted({entry.group for cell in phase.cells for entry in cell.entries})
        region = max([self.pace.sets(c) * c.region_bytes for c in phase.cells], default=0)
        region = max(region + 64 * KIB, MIB)
        for group in groups:
            self.start(group, phase.clients, region)
        memory = self.memory_cells(phase)
        if memory:
            self.start("memory", 2, max(self.pace.sets(c) * c.region_bytes for c in memory))
        started = time.monotonic()
        for i in range(self.pace.rounds):
            if i > 0 and time.monotonic() - started > budget_s * (i / (i + 1)):
                say(f"{phase.name}: no time for round {i + 1}; is the machine busy?")
                break
            say(f"{phase.name}: round {i + 1} of {self.pace.rounds}")
            for cell in memory:
                for entry in cell.entries:
                    self.measure(cell, entry, not entry.rounds)
            for cell in phase.cells:
                # So that no contestant always runs after the same other one.
                shift = i % len(cell.entries)
                for entry in cell.entries[shift:] + cell.entries[:shift]:
                    if not entry.note:
                        self.measure(cell, entry, not entry.rounds)
        for group in list(self.workers):
            self.workers.pop(group).stop()
        self.out.clear()  # it may work with another number of clients
        return memory + phase.cells

    def memory_cells(self, phase):
        """Copies of the sizes of a phase."""
        if self.options.before:
            return []
        sizes = {c.size_bytes for c in phase.cells if c.size_bytes >= KIB and c.kind != "dispatch"}
        return [memory_cell(s, phase.clients, phase.cells[0].devices) for s in sorted(sizes)]

    def measure_start(self):
        """Seconds from the first process of 8 clients to their first collective."""
        entry = Entry("tessera", "tessera", "")
        for _ in range(1 if self.options.quick else 3):
            self.start("tessera", 8, MIB)
            if "tessera" not in self.workers:
                entry.note, entry.failed = self.out.pop("tessera"), True
                break
            entry.rounds.append(self.workers["tessera"].seconds_to_ready)
            self.workers.pop("tessera").stop()
        return Cell("dispatch", "start_to_first_collective", 0, 8, [entry])

    def measure_kill(self, cell):
        """Kills each client in turn, each in its own job, during collectives."""
        entry = cell.entries[0]
        if cell.set_bytes > FREE_SHARE * available_bytes():
            entry.note = f"{cell.name} needs about {cell.set_bytes / GIB:.1f} GiB of free memory"
            return
        for i in range(cell.clients * (self.pace.rounds if cell.size_bytes < GIB else 1)):
            self.start("tessera", cell.clients, cell.region_bytes)
            workers = self.workers.get("tessera")
            if workers is None:
                entry.note, entry.failed = self.out.pop("tessera"), True
                return
            try:
                # One pass over all the memory, so that every client has touched it.
                workers.run(f"{entry.command} calls={KILL_SETS}")
                forever = f"{entry.command} calls={1 << 40}"
                seconds = workers.run_and_kill(forever, SECONDS_TO_KILL, i % cell.clients)
                entry.rounds.append(seconds)
            except ContestantFailed as error:
                entry.note, entry.failed = str(error), True
            self.workers.pop("tessera").stop()


def memory_of(field):
    text = pathlib.Path("/proc/meminfo").read_text()
    return int(re.search(rf"^{field}:\s*(\d+) kB", text, re.M).group(1)) * KIB


def total_bytes():
    return memory_of("MemTotal")


def available_bytes():
    return memory_of("MemAvailable")


def read_machine():
    """Facts about the machine on which the numbers depend."""
    cpu = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.*)$", cpu, re.M)
    l3_path = pathlib.Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    l3_text = l3_path.read_text().strip() if l3_path.exists() else "32M"
    units = {"K": KIB, "M": MIB}
    return {
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "cpu": model.group(1) if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "l3_bytes": int(l3_text[:-1]) * units[l3_text[-1]],
        "memory_gib": round(total_bytes() / GIB, 1),
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
    }


def describe(machine, pace, seconds):
    """The first line of the output."""
    return (
        f"{machine['date']}; {machine['cpu']}, {machine['cores']} cores, "
        f"L3 {format_size(machine['l3_bytes'])}, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, load {machine['load']:.1f} at the start; "
        f"load {os.getloadavg()[0]:.1f} at the end; "
        f"medians of at most {pace.rounds} rounds; {seconds:.0f} s"
    )


def available_columns(build):
    """(columns whose programs exist, the other columns)."""
    there = ["tessera", "tessera_private"]
    if (build / "mpi_peer").exists():
        there += [*OPEN_MPI, "scalapack"]
    if (build / "gloo_peer").exists():
        there.append("gloo")
    return there, [column for column in COLUMNS if column not in there]


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="tools/bench", description="Measures the host backend and relayouts beside peers."
    )
    parser.add_argument("--quick", action="store_true", help="fewer cells, in about a minute")
    parser.add_argument("--json", metavar="FILE", help="write every number of every round")
    parser.add_argument("--svg", metavar="FILE", help="write plots of size against time")
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        default="",
        help='cells whose name matches, as in "all_reduce 64 MiB P=4" or "rows_to_columns"',
    )
    parser.add_argument("--rounds", type=int, help="instead of 5 (3 with --quick)")
    parser.add_argument(
        "--before",
        metavar="PROGRAM",
        help="the host_worker of another build, which is measured instead of the peers",
    )
    parser.add_argument("--build-folder", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments):
    options = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the workers are stopped
    # If memory runs out all the same, the kernel kills this run first.
    pathlib.Path("/proc/self/oom_score_adj").write_text("900")
    machine = read_machine()
    started = time.monotonic()
    columns, missing = available_columns(options.build_folder)
    if options.before:
        columns, missing = ["tessera"], []
    phases = make_phases(options.quick, options.only, columns)
    if options.before:
        add_before(phases)
    with tempfile.TemporaryDirectory(prefix="tessera_bench_") as folder:
        run = Run(options, folder, machine)
        cells = []
        try:
            if not options.before:
                if re.search(options.only, "start_to_first_collective P=8"):
                    cells.append(run.measure_start())
                for cell in kill_cells(options.quick, options.only):
                    run.measure_kill(cell)
                    cells.append(cell)
            for i, phase in enumerate(phases):
                left_s = QUICK_S - (time.monotonic() - started)
                share = phase.clients / sum(later.clients for later in phases[i:])
                cells += run.run_phase(phase, left_s * share if options.quick else math.inf)
        finally:
            for workers in run.workers.values():
                workers.stop()
    results = bench_report.Results(cells)
    print(describe(machine, run.pace, time.monotonic() - started))
    if options.before:
        print("\n" + bench_report.format_comparison(cells))
        if options.json:
            bench_report.write_json(options.json, machine, options, cells, results, [])
        return 1 if any(entry.failed for cell in cells for entry in cell.entries) else 0
    print("Tessera's buffers are in arenas that all clients map; those of the peers are private.\n")
    print(bench_report.format_results(cells, results))
    for column in missing:
        print(f"{COLUMNS[column]}: not available")
    verdicts = [goal.verdict(results) for goal in bench_report.make_goals()]
    print("\n" + "\n".join(verdicts))
    if options.json:
        bench_report.write_json(options.json, machine, options, cells, results, verdicts)
    if options.svg:
        pathlib.Path(options.svg).write_text(bench_report.format_svg(results))
    ours = [entry for cell in cells for entry in cell.entries if "tessera" in entry.column]
    return 1 if any(entry.failed for entry in ours) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
