#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the time to compile an empty program with the public headers, for `tools/bench headers`.

Each program includes one header and has an empty main(). A number is the lowest processor time of
the rounds, which interleave the programs. The first row is Abseil and the standard library alone:
what any program pays that returns an absl::StatusOr.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FLOOR = [
    "<memory>",
    "<optional>",
    "<string>",
    "<vector>",
    '"absl/functional/function_ref.h"',
    '"absl/status/statusor.h"',
    '"absl/time/time.h"',
    '"absl/types/span.h"',
]
PROGRAMS = {  # row: what it includes
    "Abseil and the standard library": FLOOR,
    "tessera/core.h": ['"tessera/core.h"'],
    "tessera/ops.h": ['"tessera/ops.h"'],
    "tessera/tessera.h": ['"tessera/tessera.h"'],
    "tessera/tessera.h and tessera/eigen.h": ['"tessera/tessera.h"', '"tessera/eigen.h"'],
}


def program_text(includes):
    return "".join(f"#include {name}\n" for name in includes) + "int main() {}\n"


def compile_command(compiler, tree, source):
    folders = ["-I", str(tree), "-isystem", "/usr/include/eigen3"]
    return [compiler, "-std=c++20", "-O2", *folders, "-c", str(source), "-o", os.devnull]


def processor_seconds(command):
    """User and system time of the command and its children; None if it fails."""
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime if process.returncode == 0 else None


def count_files(text):
    """The files in the output of g++ -M, without the source."""
    return len(re.findall(r"\S+", text.partition(":")[2].replace("\\\n", " "))) - 1


def table(rows, columns):
    """Markdown; a row is (name, files, seconds by column)."""
    head = ["an empty program with", "files", *columns]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for name, files, seconds in rows:
        cells = [f"{seconds[c]:.2f} s" if seconds.get(c) is not None else "-" for c in columns]
        lines.append("| " + " | ".join([name, str(files), *cells]) + " |")
    return "\n".join(lines)


def measure(trees, compiler, rounds):
    """Rows of the table; `trees` maps a column to a tree."""
    best = {}
    with tempfile.TemporaryDirectory() as folder:
        sources = {}
        for number, (name, includes) in enumerate(PROGRAMS.items()):
            sources[name] = pathlib.Path(folder) / f"{number}.cc"
            sources[name].write_text(program_text(includes))
        for _ in range(rounds):
            for name, source in sources.items():
                for column, tree in trees.items():
                    seconds = processor_seconds(compile_command(compiler, tree, source))
                    if seconds is not None:
                        best[name, column] = min(seconds, best.get((name, column), seconds))
        rows = []
        tree = next(iter(trees.values()))
        for name, source in sources.items():
            listing = compile_command(compiler, tree, source)[:-3] + ["-M", str(source)]
            output = subprocess.run(listing, capture_output=True, text=True, check=False).stdout
            times = {column: best.get((name, column)) for column in trees}
            rows.append((name, count_files(output), times))
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", metavar="TREE", help="another tree, in the same rounds")
    options = parser.parse_args()
    trees = {"now": ROOT}
    if options.before:
        trees["before"] = pathlib.Path(options.before).resolve()
    rows = measure(trees, options.compiler, options.rounds)
    print(table(rows, list(trees)))
    return 0 if all(times["now"] is not None for _, _, times in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
