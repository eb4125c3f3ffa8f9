#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints where the time of Bazel commands went, from their profiles: bazel_times.py PROFILE...

A profile is what `bazel --profile=FILE` writes. The seconds are those of actions on their cores, so
with two jobs at once they add up to twice the time of the command.
"""

import collections
import gzip
import json
import pathlib
import sys

NUM_SLOWEST = 40


def actions(path):
    """(kind, name, seconds) of each action, as in ("Testing", "//mesh:mesh_test", 1.5)."""
    data = pathlib.Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    for event in json.loads(data)["traceEvents"]:
        if event.get("cat") == "action processing":
            kind, _, name = event["name"].partition(" ")
            yield kind, name, event["dur"] / 1e6


def folder(kind, name):
    """What the time of an action is added up by: its kind, and for tests and sources the folder."""
    if kind == "Testing":
        return f"test {name.split(':')[0]}"
    if kind == "Compiling" and "/" in name and not name.startswith("kernels "):
        what = "compile tests of" if name.endswith("_test.cc") else "compile"
        return f"{what} {name.rpartition('/')[0]}"
    return kind.lower()


def print_table(title, rows):
    print(f"{title}\n{'seconds':>9} {'actions':>7}")
    for name, times in sorted(rows.items(), key=lambda row: -sum(row[1])):
        print(f"{sum(times):9.1f} {len(times):7}  {name}")
    print()


def main(paths):
    found = [action for path in paths for action in actions(path)]
    for title, key in [("By kind", lambda kind, _: kind), ("By folder", folder)]:
        rows = collections.defaultdict(list)
        for kind, name, seconds in found:
            rows[key(kind, name)].append(seconds)
        print_table(title, rows)
    print(f"The {NUM_SLOWEST} slowest")
    for kind, name, seconds in sorted(found, key=lambda each: -each[2])[:NUM_SLOWEST]:
        print(f"{seconds:9.1f}  {kind} {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
