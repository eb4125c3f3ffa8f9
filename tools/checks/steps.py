#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the checks of the project, step by step, and counts what ran.

Each step prints its command and its time, and when it fails, the command that repeats it. The last
line is `N passed, N failed`: test cases as the test.xml files of this run list them, and one for
each step that is not a Bazel test.

The sanitizers and the programs outside the tree take most of the time of all steps. So a run takes
a sample of them, which the commit decides: one sanitizer on one of the SHARES of the tree, or the
programs. It also runs only a fourth of the tests that take more than 15 s and are not the main test
of a subject. `--sample all` takes all.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.parse
import xml.etree.ElementTree
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@dataclasses.dataclass
class Step:
    """One check: a shell command, run from `folder` of the tree."""

    name: str
    what: str
    command: str
    folder: str = "."
    # A sample runs the steps of one group, and those without a group.
    group: str = ""
    # Whether no sample runs the step.
    is_left_out: bool = False
    # Whether a sample runs the step on one share.
    has_shares: bool = False
    # Whether a sample leaves long tests out.
    has_long_tests: bool = False

    @property
    def is_bazel_test(self):
        return self.command.startswith("bazel test")


# Shares of the tree; a sample runs the tests of one. Most of its time is compilation, so the
# folders of a share depend on much the same. The last share is all other folders, also new ones.
SHARES = {
    "layers": "base mesh layout relayout visualize device compute",
    "transport": "shm transport job tests/mpi",
    "collectives": "collectives",
    "jobs": "tests/job tests/launching",
    "relayouts": "tests/collectives tests/relayout",
    "hosts": "tests/hosts tests/loopback",
    "gpu": "tests/gpu dtensor tests/dtensor",
    "ops": "nn ops tests/nn tests/ops",
    "inputs": "fuzz tests/bad_inputs input tests/input",
    "rest": "",
}

# Long tests of the step `test` have the tag long_1, ... in their BUILD files; a sample runs one.
NUM_LONG = 4

STEPS = [
    Step("tidy", "rules of docs/testing.md over all tracked files", "tools/tidy"),
    Step(
        "format",
        "clang-format of every C++ file",
        "git ls-files -zco --exclude-standard '*.h' '*.cc' | "
        "xargs -0 clang-format --dry-run -Werror",
    ),
    Step(
        "scripts",
        "shellcheck of every shell script",
        "git ls-files -zco --exclude-standard .ci tests tools | "
        "xargs -0 grep -lZ '^#!.*bash' | xargs -0 shellcheck",
    ),
    Step(
        "cmake",
        "cmake/sources.cmake has the sources and flags of Bazel",
        "tools/cmake_sources --check",
    ),
    Step(
        "names",
        "public headers and sources, compiled after all headers of the standard library",
        "tools/checks/name_clashes.py",
    ),
    Step("test", "every target and its tests, gcc", "bazel test //...", has_long_tests=True),
    Step(
        "asan",
        "clang with layering_check; tests and fuzzers under the address and undefined-behaviour "
        "sanitizers",
        "bazel test --config=asan -- //... -//benchmarks/... -//examples/... -//tools/...",
        group="asan",
        has_shares=True,
    ),
    Step(
        "tsan",
        "tests under the thread sanitizer, except the layers without threads and the programs",
        "bazel test --config=tsan -- //... -//base/... -//mesh/... -//layout/... -//relayout/... "
        "-//visualize/... -//fuzz/... -//benchmarks/... -//examples/... -//tools/...",
        group="tsan",
        has_shares=True,
    ),
    Step("examples", "the main job, as a user starts it", "tools/demo"),
    Step(
        "external",
        "a program in another workspace that uses Tessera",
        'bazel run //:two_clients | grep -Fx "[x, -] on {x=2}, sums 18 22 26"',
        folder="tests/install/bazel",
        group="outside",
    ),
    Step(
        "install",
        "programs that use an installed Tessera, by CMake, pkg-config and g++",
        "tests/install/run",
        group="outside",
    ),
    Step(
        "site",
        "the site of pages and reference: its links, and the names of the public headers",
        "tools/docs --check",
        is_left_out=True,
    ),
]


@dataclasses.dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failed_targets: list = dataclasses.field(default_factory=list)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def count_cases(xml_text):
    """Counts the test cases of one test.xml (GoogleTest's, or the one that Bazel writes)."""
    count = Count()
    for case in xml.etree.ElementTree.fromstring(xml_text).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            count.failed += 1
        elif case.get("status") == "notrun" or case.get("result") in ("skipped", "suppressed"):
            count.skipped += 1
        else:
            count.passed += 1
    return count


def count_events(lines, read):
    """Counts the test cases of a Bazel run from its build events.

    `read` maps the path of a test.xml to its text. A target that failed without a failed case (it
    crashed, timed out, or was not built) counts as one failure, and so does one that ran no case.
    """
    attempts = {}  # (label, run, shard) -> the last attempt
    failed_labels = []
    for line in lines:
        event = json.loads(line)
        event_id = event.get("id", {})
        if "testResult" in event:
            key = event_id["testResult"]
            attempts[key["label"], key.get("run", 1), key.get("shard", 1)] = event["testResult"]
        elif "testSummary" in event:
            if event["testSummary"].get("overallStatus") not in ("PASSED", "FLAKY"):
                failed_labels.append(event_id["testSummary"]["label"])

    total = Count()
    by_label = {}
    for (label, _, _), result in attempts.items():
        count = by_label.setdefault(label, Count())
        for output in result.get("testActionOutput", []):
            if output["name"] == "test.xml":
                try:
                    count.add(
                        count_cases(
                            read(urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path))
                        )
                    )
                except (OSError, xml.etree.ElementTree.ParseError):
                    pass  # No readable list of cases: counted as a failure of the target below.
        if result.get("status") not in ("PASSED", "FLAKY") and label not in failed_labels:
            failed_labels.append(label)
    for label in failed_labels:
        by_label.setdefault(label, Count())
    for label, count in by_label.items():
        ran = count.passed + count.failed + count.skipped
        if count.failed == 0 and (label in failed_labels or ran == 0):
            count.failed = 1
        if count.failed:
            total.failed_targets.append(label)
        total.add(count)
    return total


def head_commit():
    """The id of the commit, which decides the sample; "" where there is no repository."""
    git = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return git.stdout.strip()


def sample_of(step_list, sample):
    """(group, share): the group of steps that this sample runs, and the share for a sanitizer."""
    groups = list(dict.fromkeys(step.group for step in step_list if step.group))
    if not groups:
        return "", None
    rest, chosen = divmod(zlib.crc32(sample.encode()), len(groups))
    return groups[chosen], list(SHARES)[rest % len(SHARES)]


def skip_long_tests(step, sample):
    """The step with only the long tests of the sample, and their tag.

    All tests are built.
    """
    chosen = zlib.crc32(sample.encode()) % NUM_LONG
    tags = [f"long_{i + 1}" for i in range(NUM_LONG)]
    others = ",".join(f"-{tag}" for i, tag in enumerate(tags) if i != chosen)
    command = step.command.replace("bazel test ", f"bazel test --test_tag_filters={others} ")
    return dataclasses.replace(step, command=command), tags[chosen]


def missing_folders(root):
    """The folders of SHARES that the tree does not have: their tests would run in no share."""
    named = [folder for text in SHARES.values() for folder in text.split()]
    return [folder for folder in named if not (root / folder).is_dir()]


def take_share(step, share):
    """The step for the tests of one share. It builds only these and their dependencies."""
    verb, patterns = step.command.split(" -- ")
    patterns = patterns.split()
    folders = {name: [f"//{f}/..." for f in text.split()] for name, text in SHARES.items()}
    if folders[share]:
        patterns = [each for each in folders[share] if "-" + each not in patterns]
    else:
        others = [f"-{each}" for each in sum(folders.values(), [])]
        patterns += [each for each in others if each not in patterns]
    command = f"{verb} --build_tests_only -- {' '.join(patterns)}"
    return dataclasses.replace(step, command=command)


def run_step(step, bazel_options):
    """Runs one step and returns its Count."""
    command = step.command
    with tempfile.TemporaryDirectory(prefix="tessera_steps_") as folder:
        events = pathlib.Path(folder) / "events.json"
        if command.startswith("bazel "):
            verb = " ".join(command.split()[:2])
            extra = list(bazel_options)
            if step.is_bazel_test:
                extra += ["--keep_going", f"--build_event_json_file={events}"]
            command = command.replace(verb, " ".join([verb, *extra]), 1)
        code = subprocess.run(
            ["bash", "-c", "set -euo pipefail; " + command],
            cwd=ROOT / step.folder,
            stdin=subprocess.DEVNULL,
            check=False,
        ).returncode
        count = Count()
        if step.is_bazel_test and events.exists():
            count = count_events(events.read_text().splitlines(), lambda path: open(path).read())
        if code != 0 and count.failed == 0:
            count.failed = 1
        if not step.is_bazel_test and code == 0:
            count.passed = 1
    return count


def repeat_commands(step, count):
    """The command that repeats the failure, with only the failed targets where those are known."""
    if count.failed_targets:
        verb = re.split(r" (?:-- )?//", step.command)[0]
        return [f"{verb} {label}" for label in count.failed_targets]
    where = "" if step.folder == "." else f"cd {shlex.quote(step.folder)} && "
    return [where + step.command]


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="tools/test", description="Runs every check of the project."
    )
    parser.add_argument("--only", metavar="STEPS", help="run these steps, as in --only tidy,test")
    parser.add_argument("--list", action="store_true", help="list the steps and end")
    parser.add_argument(
        "--sample",
        metavar="TEXT",
        help="which sanitizer or programs outside the tree run, and which long tests: `all`, or a "
        "text that decides it (the id of the commit)",
    )
    parser.add_argument("--keep-going", action="store_true", help="continue after a failed step")
    parser.add_argument(
        "--bazel-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="pass an option to each Bazel command, as in --bazel-option=--jobs=1",
    )
    options = parser.parse_args(arguments)
    names = [step.name for step in STEPS]
    options.names = options.only.split(",") if options.only else names
    unknown = [name for name in options.names if name not in names]
    if unknown:
        parser.error(f'unknown step "{unknown[0]}"; the steps are {", ".join(names)}')
    return options


def main(arguments):
    options = parse_arguments(arguments)
    if options.list:
        for step in STEPS:
            print(f"{step.name:9} {step.what}: {step.command}")
        return 0
    missing = missing_folders(ROOT)
    if missing:
        print(f"SHARES of tools/checks/steps.py names folders that are gone: {' '.join(missing)}")
        return 1
    bazel_options = list(options.bazel_option)
    if os.environ.get("CI") or not sys.stdout.isatty():
        bazel_options += [
            "--noshow_progress",
            "--noshow_loading_progress",
            "--color=no",
            "--curses=no",
        ]

    started = time.monotonic()
    total = Count()
    failures = []
    notes = []
    # What is named is wanted, whatever the sample.
    sample = options.sample or ("all" if options.only else head_commit())
    for step in [step for step in STEPS if step.name in options.names]:
        group, share = sample_of(STEPS, sample)
        is_in_sample = not step.is_left_out and step.group in ("", group)
        if sample != "all" and not is_in_sample:
            print(f"==> {step.name}: not in the sample; tools/test --only {step.name} runs it")
            continue
        if failures and not options.keep_going:
            print(f"==> {step.name}: not run", flush=True)
            continue
        what = step.what
        if step.has_long_tests and sample != "all":
            step, tag = skip_long_tests(step, sample)
            notes.append(
                f"of the long tests those of the tag {tag} ran; "
                f"to run all: tools/test --only {step.name}"
            )
        if step.has_shares and sample != "all":
            step = take_share(step, share)
            what = f'share "{share}" of: {what}'
            notes.append(
                f'of the sanitizers {step.name} ran, on the share "{share}"; '
                f"to repeat it: tools/test --only {step.name} --sample {shlex.quote(sample)}"
            )
        print(f"==> {step.name}: {what}\n    {step.command}", flush=True)
        step_started = time.monotonic()
        count = run_step(step, bazel_options)
        seconds = time.monotonic() - step_started
        skipped = f", {count.skipped} skipped" if count.skipped else ""
        print(
            f"==> {step.name}: {count.passed} passed, {count.failed} failed{skipped}; "
            f"{seconds:.0f} s",
            flush=True,
        )
        total.add(count)
        if count.failed:
            failures.append((step, count))

    print(f"\n{time.monotonic() - started:.0f} s in all")
    for step, count in failures:
        print(f"{step.name} failed; to repeat it: tools/test --only {step.name}, or")
        for command in repeat_commands(step, count):
            print(f"    {command}")
    for note in notes:
        print(note)
    if total.passed + total.failed == 0:
        print("nothing ran")
    print(f"{total.passed} passed, {total.failed} failed", flush=True)
    return 0 if total.failed == 0 and total.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
