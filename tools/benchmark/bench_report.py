# SPDX-License-Identifier: Apache-2.0
"""The output of tools/bench: tables, the goals and whether they are reached, plots, JSON."""

import dataclasses
import json
import math
import pathlib
import statistics

from bench_cells import (
    COLLECTIVES,
    COLUMNS,
    KIB,
    KILL_SIZES,
    MEMORY,
    MIB,
    OPEN_MPI,
    PEERS,
    format_seconds,
    format_size,
)


class Results:
    """The cells that were measured, by what they are."""

    def __init__(self, cells):
        self.cells = {(c.operation, c.size_bytes, c.clients, c.devices): c for c in cells}

    def seconds(self, operation, size, clients, column="tessera", devices="processes"):
        """None where it was not measured."""
        if column in MEMORY:
            operation = "copy"
        cell = self.cells.get((operation, size, clients, devices))
        return cell.seconds(column) if cell else None

    def rounds(self, operation, size, clients):
        """Ours, in seconds; empty where it was not measured."""
        cell = self.cells.get((operation, size, clients, "processes"))
        return cell.entry("tessera").rounds if cell else []

    def best(self, operation, size, clients, columns, devices="processes"):
        """(seconds, column) of the fastest of some."""
        times = [
            (seconds, column)
            for column in columns
            if (seconds := self.seconds(operation, size, clients, column, devices)) is not None
        ]
        return min(times, default=(None, ""))


def ratio(over, under):
    return None if over is None or not under else over / under


@dataclasses.dataclass
class Goal:
    """One goal of docs/performance.md, and how to find its number in the results."""

    text: str
    limit: float
    number: object  # Results -> float or None
    at_least: bool = False  # else at most
    unit: str = ""
    beside: object = None  # Results -> what else to say of the number, or ""
    why_not: str = ""  # it is not measured

    def verdict(self, results):
        """"reached" or "not reached", the number, the goal, by how much."""
        sense = "at least" if self.at_least else "at most"
        goal = f"{self.text}: {sense} {self.limit:g}{self.unit}"
        value = self.number(results)
        if value is None:
            return f"not measured {goal}" + (f" ({self.why_not})" if self.why_not else "")
        reached = value >= self.limit if self.at_least else value <= self.limit
        margin = value / self.limit if self.at_least else self.limit / value
        how = f"{margin:.2f} times better" if reached else f"{1 / margin:.2f} times off"
        word = "reached     " if reached else "not reached "
        text = self.beside(results) if self.beside else ""
        beside = f" ({text})" if text else ""
        return f"{word} {goal}; {value:.3g}{self.unit}{beside}, {how}"


def over_memory(operation, size, clients, column):
    return lambda r: ratio(
        r.seconds(operation, size, clients), r.seconds(operation, size, clients, column)
    )


def peer_over_ours(operation, size, clients, columns):
    """How many times faster than the fastest of the columns."""
    return lambda r: ratio(
        r.best(operation, size, clients, columns)[0], r.seconds(operation, size, clients)
    )


def installed_over_ours(operation, size, clients):
    """How many times faster than Open MPI as installed, in words."""
    installed = peer_over_ours(operation, size, clients, ("ompi",))

    def text(results):
        value = installed(results)
        return "" if value is None else f"{value:.3g} as installed"

    return text


def worst_milliseconds(operation, size, clients):
    def number(results):
        rounds = results.rounds(operation, size, clients)
        return max(rounds) * 1e3 if rounds else None

    return number


def median_of_rounds(operation, size, clients):
    """The number of rounds and their median, in words."""

    def text(results):
        rounds = results.rounds(operation, size, clients)
        median = format_seconds(statistics.median(rounds)) if rounds else ""
        return rounds and f"the worst of {len(rounds)} rounds, their median {median}"

    return text


def in_microseconds(operation, size, clients, devices="processes"):
    def number(results):
        seconds = results.seconds(operation, size, clients, devices=devices)
        return None if seconds is None else seconds * 1e6

    return number


def make_goals():
    """The goals of docs/performance.md that tools/bench measures."""
    big, matrix = 64 * MIB, 4096 * 4096 * 8
    goals = []
    memory_rows = [  # operation, size, clients, limit in mc2
        ("all_reduce", big, 2, 1.7),
        ("all_reduce", big, 4, 3.4),
        ("reduce_scatter", big, 4, 2.3),
        ("all_gather", big, 4, 3.6),
        ("all_to_all", big, 4, 3.6),
        ("rows_to_columns f64", matrix, 4, 1.25),
    ]
    for operation, size, clients, limit in memory_rows:
        text = f"{operation}, {format_size(size)}, {clients} clients"
        goals.append(Goal(text, limit, over_memory(operation, size, clients, "mc2"), unit=" mc2"))
    peer_rows = [  # operation, size, clients, peer, columns, limit
        ("all_reduce", big, 2, "Open MPI", OPEN_MPI, 3.5),
        ("all_reduce", big, 4, "Open MPI", OPEN_MPI, 3.5),
        ("all_reduce", big, 2, "Open MPI as installed", ("ompi",), 6),
        ("all_reduce", big, 4, "Open MPI as installed", ("ompi",), 6),
        ("reduce_scatter", big, 4, "Open MPI", OPEN_MPI, 5),
        ("all_gather", big, 4, "Open MPI", OPEN_MPI, 1.5),
        ("all_gather", big, 4, "Gloo", ("gloo",), 2),
        ("all_to_all", big, 4, "Open MPI", OPEN_MPI, 1.5),
        ("all_to_all", big, 4, "Gloo", ("gloo",), 2),
        ("rows_to_columns f64", matrix, 4, "MPI_Alltoallw", OPEN_MPI, 1.7),
        ("rows_to_columns f64", matrix, 4, "pdgemr2d, tuned malloc", ("scalapack",), 4),
        ("barrier", 0, 4, "Open MPI", OPEN_MPI, 1),
        ("barrier", 0, 8, "Open MPI", OPEN_MPI, 1),
    ]
    for operation, size, clients, peer, columns, limit in peer_rows:
        size_text = f" {format_size(size)}," if size else ""
        text = f"{operation},{size_text} {clients} clients, times as fast as {peer}"
        number = peer_over_ours(operation, size, clients, columns)
        beside = installed_over_ours(operation, size, clients) if columns == OPEN_MPI else None
        goals.append(Goal(text, limit, number, at_least=True, beside=beside))
    small_matrix, large_matrix = 16 * 16 * 4, 4096 * 4096 * 4
    goals.append(Goal("barrier, 2 clients", 1, in_microseconds("barrier", 0, 2), unit=" us"))
    for name, kind, size, limit in [
        ("identity relayout", "identity", small_matrix, 1),
        ("purely local relayout", "local", small_matrix, 1),
        ("identity relayout of 64 MiB", "identity", large_matrix, 1),
        ("purely local relayout of 64 MiB", "local", large_matrix, 1),
        ("cached relayout", "cached", small_matrix, 2),
    ]:
        number = in_microseconds(f"dispatch_{kind}", size, 2, "threads")
        goals.append(Goal(f"{name}, call to result", limit, number, unit=" us"))
    goals.append(
        Goal(
            "8 clients, start to first collective",
            0.5,
            lambda r: r.seconds("start_to_first_collective", 0, 8),
            unit=" s",
        )
    )
    for memory, limit, why_not in zip(KILL_SIZES, (5, 10), ("", "not with --quick")):
        text = f"killed client with {format_size(memory)}, until every survivor has its error"
        what = ("killed_client", memory, 4)
        number, beside = worst_milliseconds(*what), median_of_rounds(*what)
        goals.append(Goal(text, limit, number, unit=" ms", beside=beside, why_not=why_not))
    for size, limit in [("64 MiB", 2), ("1 KiB", 50)]:
        text = f"relayouts of {size}, times as fast as JAX, TF DTensor and PyTorch DTensor"
        why_not = "tools/bench_relayouts measures them"
        goals.append(Goal(text, limit, lambda r: None, at_least=True, why_not=why_not))
    return goals


def table_row(cell, results, columns):
    """The texts of one row: size, times, ratios."""
    ours = cell.seconds("tessera")
    best, column = results.best(cell.operation, cell.size_bytes, cell.clients, PEERS, cell.devices)
    against = ratio(best, ours)
    row = [format_size(cell.size_bytes) if cell.size_bytes else ""]
    row += [format_seconds(cell.seconds(c)) for c in columns]
    row.append(f"{against:.2f} ({column})" if against else "-")
    # Below this a call has more to do than to copy.
    if cell.size_bytes < 16 * KIB:
        return [*row, "", ""]
    for memory in ("mc1", "mc2"):
        copy = results.seconds("copy", cell.size_bytes, cell.clients, memory, cell.devices)
        value = ratio(ours, copy)
        row.append(f"{value:.2f}" if value else "-")
    if cell.kind == "relayout":  # `copy` is mc2
        share = ratio(copy * cell.written_bytes / cell.size_bytes, ours) if copy else None
        row.append(f"{share * 100:.0f} %" if share else "-")
    return row


def format_table(header, rows):
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(row[1:], widths[1:])]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


# How many times as long a cell may take as before. A small operation on more clients than cores
# takes as long as the scheduler lets it.
MOST_OF_BEFORE = 1.05
MOST_OF_BEFORE_BELOW_4_KIB = 1.15


def most_of_before(cell):
    return MOST_OF_BEFORE if cell.size_bytes >= 4096 else MOST_OF_BEFORE_BELOW_4_KIB


def format_comparison(cells):
    """A table of two builds: medians, the ratio, and which cells are slower than they may be."""
    rows, slower = [], []
    for cell in cells:
        now, before = cell.seconds("tessera"), cell.seconds("before")
        if now is None or before is None:
            notes = {entry.note for entry in cell.entries if entry.note}
            rows.append([cell.name, "-", "-", "-", "; ".join(sorted(notes))])
            continue
        is_slower = now / before > most_of_before(cell)
        if is_slower:
            slower.append(cell.name)
        rows.append(
            [
                cell.name,
                format_seconds(before),
                format_seconds(now),
                f"{now / before:.2f}",
                "slower" if is_slower else "",
            ]
        )
    verdict = f"slower than they may be: {', '.join(slower) or 'none'}"
    return format_table(["cell", "before", "now", "now/before", ""], rows) + "\n" + verdict


def format_results(cells, results):
    """All tables as text: one for each operation and number of clients, one for relayouts."""
    texts = []
    groups = {}
    for cell in cells:
        title = cell.kind if cell.kind in ("relayout", "dispatch") else cell.operation
        where = "clients" if cell.devices == "processes" else "devices of one client"
        joint = " beside " if cell.kind == "memory" else ", "
        groups.setdefault(f"{title}{joint}{cell.clients} {where}", []).append(cell)
    for title, group in groups.items():
        if group[0].kind == "memory":
            times = [[format_seconds(cell.seconds(c)) for c in MEMORY] for cell in group]
            rows = [[format_size(cell.size_bytes), *row] for cell, row in zip(group, times)]
            texts.append(title + "\n" + format_table(["size", *MEMORY], rows))
            continue
        if group[0].kind == "kill":
            rounds = [cell.entry("tessera").rounds for cell in group]
            times = [(statistics.median(r), max(r)) if r else (None, None) for r in rounds]
            texts_of_times = [list(map(format_seconds, pair)) for pair in times]
            rows = [[format_size(c.size_bytes), *t] for c, t in zip(group, texts_of_times)]
            texts.append(title + "\n" + format_table(["each holds", "median", "worst"], rows))
            continue
        columns = [c for c in COLUMNS if any(cell.entry(c) for cell in group)]
        rows = [table_row(cell, results, columns) for cell in group]
        if group[0].kind != "collective":
            rows = [[f"{c.operation} {row[0]}", *row[1:]] for c, row in zip(group, rows)]
        header = ["size", *columns, "peer/ours", "ours/mc1", "ours/mc2"]
        if title.startswith("relayout"):
            header.append("of mc2's rate")
        texts.append(title + "\n" + format_table(header, rows))
    notes = {
        f"{entry.column}: {entry.note}" for cell in cells for entry in cell.entries if entry.note
    }
    return "\n\n".join(texts + sorted(notes))


COLORS = {
    "tessera": "#d62728",
    "ompi": "#1f77b4",
    "ompi_tuned": "#17becf",
    "ompi_no_cma": "#9467bd",
    "gloo": "#2ca02c",
    "mc1": "#999999",
}

SECONDS = {1: "ks", 0: "s", -1: "ms", -2: "us", -3: "ns", -4: "ps"}  # by power of 1000


def svg_panel(title, series, left, top):
    """One plot, size against time, both logarithmic; series: column -> [(size, seconds)]."""
    width, height = 300, 220
    points = [point for line in series.values() for point in line]
    low_x, high_x = (f(math.log2(size) for size, _ in points) for f in (min, max))
    low_y = math.floor(min(math.log10(seconds) for _, seconds in points))
    high_y = math.ceil(max(math.log10(seconds) for _, seconds in points))

    def place(size, seconds):
        x = left + width * (math.log2(size) - low_x) / max(high_x - low_x, 1e-9)
        y = top + height * (high_y - math.log10(seconds)) / max(high_y - low_y, 1)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#888"/>',
        f'<text x="{left}" y="{top - 8}" font-weight="bold">{title}</text>',
    ]
    for power in range(low_y, high_y + 1):
        y = top + height * (high_y - power) / max(high_y - low_y, 1)
        parts.append(f'<path d="M{left} {y:.1f}h{width}" stroke="#ddd"/>')
        label = f"{10 ** (power % 3)} {SECONDS[power // 3]}"
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for size in sorted({size for size, _ in points}):
        x = place(size, 10.0**low_y).split(",")[0]
        parts.append(
            f'<text x="{x}" y="{top + height + 14}" text-anchor="middle">'
            f"{format_size(size).replace(' ', '').replace('iB', '')}</text>"
        )
    for column, line in series.items():
        path = " ".join(place(*point) for point in sorted(line))
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{COLORS[column]}" stroke-width="2"/>'
        )
        parts += [
            '<circle cx="{}" cy="{}" r="2.5" fill="{}"/>'.format(
                *place(*point).split(","), COLORS[column]
            )
            for point in line
        ]
    return "\n".join(parts)


def format_svg(results):
    """A panel for each collective and number of clients that has two sizes or more."""
    panels = []
    for clients in (2, 4, 8):
        for operation in COLLECTIVES:
            series = {}
            sizes = {s for o, s, p, _ in results.cells if o == operation and p == clients}
            for column in COLORS:
                line = [(s, results.seconds(operation, s, clients, column)) for s in sizes]
                line = [point for point in line if point[1]]
                if len(line) > 1:
                    series[column] = line
            if "tessera" in series:
                panels.append((f"{operation}, {clients} clients", series))
    columns = min(len(panels), len(COLLECTIVES)) or 1
    width, height = 80 + 390 * columns, 60 + 280 * (-(-len(panels) // columns))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    left = 80
    for column, color in COLORS.items():
        if any(column in series for _, series in panels):
            name = COLUMNS.get(column) or MEMORY[column][2]
            parts.append(f'<path d="M{left} 20h24" stroke="{color}" stroke-width="2"/>')
            parts.append(f'<text x="{left + 30}" y="24">{name}</text>')
            left += 60 + 6 * len(name)
    for i, (title, series) in enumerate(panels):
        parts.append(svg_panel(title, series, 80 + 390 * (i % columns), 60 + 280 * (i // columns)))
    return "\n".join([*parts, "</svg>", ""])


def write_json(path, machine, options, cells, results, verdicts):
    document = {
        "machine": machine,
        "options": {"quick": options.quick, "only": options.only, "rounds": options.rounds},
        "cells": [
            {
                "kind": cell.kind,
                "operation": cell.operation,
                "bytes": cell.size_bytes,
                "clients": cell.clients,
                "devices": cell.devices,
                "written_bytes": cell.written_bytes,
                "seconds": {entry.column: entry.seconds for entry in cell.entries},
                "rounds": {entry.column: entry.rounds for entry in cell.entries},
                "notes": {entry.column: entry.note for entry in cell.entries if entry.note},
            }
            for cell in cells
        ],
        "goals": verdicts,
    }
    pathlib.Path(path).write_text(json.dumps(document, indent=1) + "\n")
