#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of the tree that a program can check, run over the tracked files.

A rule is a function from a Tree to findings. tools/checks/tidy_test.py provokes every one of them.
Where a line has a good reason to break a rule it says so: `// NOTIDY(rule): why`.
"""

import argparse
import dataclasses
import fnmatch
import os
import pathlib
import re
import subprocess
import sys

from tidy_cpp import functions, strip_cpp
from tidy_environment import check_environment
from tidy_errors import PAGE as ERRORS_PAGE
from tidy_errors import check_errors_page
from tidy_headers import PRECOMPILED
from tidy_pages import anchors, check_citations, check_facts, check_labels, check_paragraphs
from tidy_pages import prose_lines
from tidy_prose import check_prose, check_ragged_items, check_subjects
from tidy_surface import (
    INCLUDED_BY_PROGRAMS,
    check_public_comments,
    check_public_headers,
    check_public_marks,
    check_public_surface,
)

RATCHET = "tools/checks/tidy_ratchet.txt"
MAX_LINE_LENGTH = 100
MAX_FUNCTION_LINES = 70
SPDX = "SPDX-License-Identifier: Apache-2.0"

# docs/architecture.md: what the sources of a folder may include. Tests beside a source may use
# tests/ too. Folders that are not listed may include anything.
LAYERS = {
    "base": [],
    "mesh": ["base"],
    "layout": ["base", "mesh"],
    "relayout": ["base", "mesh", "layout"],
    "visualize": ["base", "mesh", "layout", "relayout"],
    "device": ["base"],
    "compute": ["base", "device"],
    "job": ["base"],
    "shm": ["base", "device", "job"],
    "transport": ["base", "job"],
    "collectives": ["base", "device", "job", "shm", "transport"],
    "dtensor": ["base", "mesh", "layout", "relayout", "device", "job", "transport", "collectives"],
    "examples": [],
    "benchmarks": [
        "base",
        "mesh",
        "layout",
        "relayout",
        "device",
        "compute",
        "job",
        "transport",
        "collectives",
        "dtensor",
        "examples",
    ],
    "files": ["base", "mesh", "layout", "device", "job", "dtensor"],
    "checkpoint": [
        "base",
        "mesh",
        "layout",
        "relayout",
        "device",
        "job",
        "dtensor",
        "ops",
        "files",
    ],
    "input": ["base", "mesh", "layout", "device", "compute", "job", "dtensor", "files"],
    "nn": ["base", "mesh", "layout", "device", "compute", "dtensor", "ops"],
    "distribute": ["base", "mesh", "layout", "device", "job", "dtensor", "ops", "nn", "input"],
    "servers": ["base", "mesh", "layout", "device", "job", "dtensor", "ops", "nn", "input"],
    "ops": ["base", "mesh", "layout", "relayout", "device", "compute", "dtensor"],
}

# Layers without I/O, threads or clocks.
PURE = ("mesh", "layout", "relayout")
IMPURE_HEADERS = r"<(thread|condition_variable|future|chrono|iostream|fstream|unistd\.h)>"

# (what is banned, what to use, whether the rule is for libraries only)
BANNED = [
    (r"(?<![\w.>])assert\s*\(", "TESSERA_CHECK or TESSERA_DCHECK", False),
    (r"\bthrow\b", "absl::Status", False),
    (r"\bstd::(cout|cerr)\b|\bprintf\s*\(", "a Status, or an ostream parameter", True),
    (r"\bstd::j?thread\b(?!::)", "Thread and start_thread() of base/thread.h", True),
    (
        r"\babsl::(ReaderMutexLock|WriterMutexLock|MutexLock|Mutex|CondVar|Notification)\b"
        r'|"absl/synchronization/',
        "std::mutex and std::condition_variable (TSan does not see into Debian's Abseil)",
        False,
    ),
]

PRECOMPILED_BUILD = "third_party/BUILD"

# The wall clock, which may be set at any moment.
WALL_CLOCK = r"\babsl::(Now|GetCurrentTimeNanos)\s*\(|\bsystem_clock\b|\bCLOCK_REALTIME"
MAY_USE_WALL_CLOCK = ("examples", "benchmarks")

SLEEP = r"\b(SleepFor|sleep_for|sleep_until|usleep|nanosleep|sleep)\s*\("


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    path: str
    line: int
    rule: str
    message: str

    def __str__(self):
        return f"{self.path}:{self.line}: [{self.rule}] {self.message}"


class Tree:
    """The tracked files: path -> text. Binary files have the text "". Subjects are of the commits
    that are not on main yet; commits on main cannot be changed."""

    def __init__(self, files, subjects=()):
        self.files = files
        self.subjects = subjects

    def select(self, pattern):
        """Sorted (path, lines) of the files whose path matches the regular expression."""
        for path in sorted(self.files):
            if re.search(pattern, path):
                yield path, self.files[path].split("\n")

    def cpp(self):
        return self.select(r"\.(h|cc)$")

    def markdown(self):
        return self.select(r"\.md$")

    def has(self, path):
        """Whether the file, or a folder of that name, is in the tree."""
        return path in (".", "") or any(
            name == path or name.startswith(path + "/") for name in self.files
        )


def read_tree(root):
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout.decode()
    files = {}
    for name in filter(None, names.split("\0")):
        try:
            files[name] = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            files[name] = ""
        except (FileNotFoundError, IsADirectoryError):
            pass  # Deleted but not yet committed, or a submodule.
    log = subprocess.run(
        ["git", "log", "--format=%s", "refs/heads/main..HEAD", "--"], cwd=root, capture_output=True
    )
    return Tree(files, log.stdout.decode().splitlines())


def is_allowed(lines, index, rule):
    """Whether the line, or the one before it, says why it breaks `rule`."""
    pattern = rf"// NOTIDY\({re.escape(rule)}\): \S+"
    return any(re.search(pattern, lines[i]) for i in (index - 1, index) if 0 <= i)


def top_folder(path):
    return path.split("/")[0] if "/" in path else ""


def is_test_code(tree, path):
    """Whether the file is of a test, or of a target that is `testonly`."""
    if path.endswith("_test.cc"):
        return True
    folder, _, name = path.rpartition("/")
    # A folder without a BUILD file belongs to the package above it.
    while folder and folder + "/BUILD" not in tree.files:
        folder = folder.rpartition("/")[0]
        name = path[len(folder) + 1 :] if folder else path
    rules = re.split(r"^\)$", tree.files.get(folder + "/BUILD", ""), flags=re.M)
    owners = [rule for rule in rules if f'"{name}"' in rule]
    return bool(owners) and all("testonly = True" in rule for rule in owners)


# --- Files -------------------------------------------------------------------------------------


def rule_what_comment(tree):
    """A C++ file begins with the SPDX line, `//`, and what the file is. A source whose header says
    so does not repeat it."""
    for path, lines in tree.cpp():
        head = lines[:3] + [""] * 3
        has_header = path.endswith(".cc") and path[:-3] + ".h" in tree.files
        if head[0] != "// " + SPDX:
            yield Finding(path, 1, "what-comment", f'the first line must be "// {SPDX}"')
        elif has_header and head[1].startswith("#include"):
            pass
        elif head[1] != "//" or not re.match(r"// \S+( \S+){2,}", head[2]):
            yield Finding(path, 2, "what-comment", 'after "//" a comment must say what the file is')


def rule_script_head(tree):
    """Scripts have the SPDX line; a BUILD file begins with the purpose of its folder."""
    for path, lines in tree.select(r"."):
        is_script = lines[0].startswith("#!") or path.endswith(".py")
        if is_script and "# " + SPDX not in lines[:2]:
            yield Finding(path, 2, "script-head", f'the first or second line must be "# {SPDX}"')
        if os.path.basename(path) == "BUILD" and not re.match(r"# \S+( \S+){2,}", lines[0]):
            yield Finding(path, 1, "script-head", "a comment must say what the folder is for")


def rule_guard(tree):
    """A header's guard is its path."""
    for path, lines in tree.select(r"\.h$"):
        guard = re.sub(r"[^A-Z0-9]", "_", path.upper())
        guard = f"TESSERA_{guard}_"
        directives = [(i + 1, line) for i, line in enumerate(lines) if line.startswith("#")]
        wanted = [f"#ifndef {guard}", f"#define {guard}"]
        if [line for _, line in directives[:2]] != wanted:
            number = directives[0][0] if directives else 1
            yield Finding(path, number, "guard", f"the guard must be {guard}")


def rule_line_length(tree):
    """At most 100 columns, except in tables that clang-format is told to leave alone."""
    for path, lines in tree.select(r"\.(h|cc|proto|py|bzl)$"):
        is_table = False
        for i, line in enumerate(lines):
            if "// clang-format o" in line:
                is_table = "// clang-format off" in line
            if is_table or len(line) <= MAX_LINE_LENGTH:
                continue
            if not re.search(r"https?://|^#(include|ifndef)", line):
                message = f"{len(line)} columns; at most {MAX_LINE_LENGTH}"
                yield Finding(path, i + 1, "line-length", message)


def rule_target(tree):
    """Every C++ file belongs to a target: the nearest BUILD names it, or matches it with a glob."""
    for path, _ in tree.cpp():
        folder = os.path.dirname(path)
        while folder and folder + "/BUILD" not in tree.files:
            folder = os.path.dirname(folder)
        build_path = folder + "/BUILD" if folder else "BUILD"
        relative = os.path.relpath(path, folder or ".")
        build = re.sub(r"#.*", "", tree.files.get(build_path, ""))
        globs = re.findall(r'"([^"]*\*[^"]*)"', " ".join(re.findall(r"glob\((.*?)\)", build, re.S)))
        if f'"{relative}"' not in build and not any(fnmatch.fnmatch(relative, g) for g in globs):
            message = f'no target has it; add "{relative}" to {build_path}'
            yield Finding(path, 1, "target", message)


def rule_manual(tree):
    """A target that no step builds, made of other targets' sources, has all of their dependencies."""

    def listed(rule, attribute, folder=""):
        """The strings of a list; with a folder, as labels."""
        found = re.search(r"^ *" + attribute + r" = \[(.*?)\]", rule, re.S | re.M)
        names = re.findall(r'"([^"]+)"', found.group(1)) if found else []
        if folder:
            names = [f"//{folder}:{n.lstrip(':')}" if n[:1] not in "/@" else n for n in names]
        return set(names)

    added_by_macros = set()
    for path, _ in tree.select(r"\.bzl$"):
        added_by_macros |= listed(tree.files[path], r"_\w*DEPS")

    rules = []  # (path, line, tags, srcs, deps)
    for path, _ in tree.select(r"(^|/)BUILD$"):
        folder = os.path.dirname(path)
        line = 1
        for rule in re.split(r"(?<=^\)\n)", re.sub(r"#.*", "", tree.files[path]), flags=re.M):
            lists = (listed(rule, name, folder) for name in ("srcs", "deps"))
            number = line + rule[: rule.find("name = ")].count("\n")
            rules.append((path, number, listed(rule, "tags"), *lists))
            line += rule.count("\n")

    for manual in rules:
        path, line, tags, srcs, deps = manual
        if "manual" not in tags:
            continue
        others = [rule for rule in rules if rule is not manual and rule[3] & srcs]
        needed = set().union(*(rule[4] for rule in others))
        missing = sorted(needed - deps - added_by_macros)
        if missing:
            message = f"no step builds it, and its sources need {', '.join(missing)}"
            yield Finding(path, line, "manual", message)


def rule_file_options(tree):
    """Each pattern of --per_file_copt in a .bazelrc, and each alternative in it, selects a source."""
    sources = [re.sub(r"\.proto$", ".pb.cc", path) for path in tree.files]
    for path, lines in tree.select(r"(^|/)\.bazelrc$"):
        for i, line in enumerate(lines):
            match = re.search(r"--per_file_copt=([^@,]*)[^@]*@", line)
            group = match and re.search(r"\(([^()]*\|[^()]*)\)", match.group(1))
            patterns = [match.group(1)] if match else []
            if group:
                names = group.group(1).split("|")
                patterns = [match.group(1).replace(group.group(0), name) for name in names]
            for pattern in patterns:
                used = any(re.search(pattern, name) for name in sources if name.endswith(".cc"))
                if not used and not pattern.startswith("external/"):
                    message = f'"{pattern}" selects no source of the tree'
                    yield Finding(path, i + 1, "file-options", message)


def rule_machine_path(tree):
    """No path that exists on one machine only."""
    pattern = re.compile(r"(?<![\w.~}-])/(?:work|home|root|Users|tmp/wt)/[\w.]")
    for path, lines in tree.select(r"."):
        for i, line in enumerate(lines):
            if pattern.search(line) and not is_allowed(lines, i, "machine-path"):
                message = f'"{pattern.search(line).group(0)}..." exists on one machine only'
                yield Finding(path, i + 1, "machine-path", message)


# --- Layers ------------------------------------------------------------------------------------


def rule_layers(tree):
    """No include upwards or sideways in the table of layers."""
    for path, lines in tree.cpp():
        folder = top_folder(path)
        if folder not in LAYERS:
            continue
        allowed = [folder, *LAYERS[folder]]
        if is_test_code(tree, path):
            allowed.append("tests")
        for i, line in enumerate(lines):
            match = re.match(r'#include "([^"]+)"', line)
            included = top_folder(match.group(1)) if match else ""
            if included and (included in LAYERS or included == "tests"):
                if included not in allowed and not is_allowed(lines, i, "layers"):
                    message = f"{folder}/ may not use {included}/; it may use {', '.join(allowed)}"
                    yield Finding(path, i + 1, "layers", message)
            is_front = match and INCLUDED_BY_PROGRAMS.fullmatch(match.group(1))
            if is_front and folder not in ("examples", "benchmarks"):
                if match.group(1) != "tessera/version.h":  # macros alone
                    message = f"{match.group(1)} is for programs; {folder}/ includes what it uses"
                    yield Finding(path, i + 1, "layers", message)


def rule_pure(tree):
    """The pure layers have no I/O, no threads, no clocks."""
    for path, lines in tree.cpp():
        if top_folder(path) in PURE and not is_test_code(tree, path):
            for i, line in enumerate(lines):
                match = re.match(r"#include " + IMPURE_HEADERS, line)
                if match and not is_allowed(lines, i, "pure"):
                    message = f"{top_folder(path)}/ is pure: no I/O, threads or clocks"
                    yield Finding(path, i + 1, "pure", message)


def precompiled_headers(build):
    """Maps each header that is precompiled to its line of third_party/BUILD."""
    found = {}
    lists = re.finditer(r"^ *(?:\w+_HEADERS|headers) = (?:\w+ \+ )?\[(.*?)\]", build, re.M | re.S)
    for match in lists:
        for header in re.finditer(r'"([^"]+)"', match.group(1)):
            start = match.start(1) + header.start()
            found[header.group(1)] = build.count("\n", 0, start) + 1
    return found


def rule_include(tree):
    """A file, or the header of its own, includes what it uses of the headers that are precompiled:
    the compiler does not miss them. What those headers declare is known for each of them."""
    precompiled = precompiled_headers(tree.files.get(PRECOMPILED_BUILD, ""))
    for header in precompiled.keys() - PRECOMPILED.keys():
        message = f'"{header}" needs a row of PRECOMPILED in tidy_headers.py'
        yield Finding(PRECOMPILED_BUILD, precompiled[header], "include", message)
    for header in PRECOMPILED.keys() - precompiled.keys():
        message = f'"{header}" is not precompiled; drop its row of PRECOMPILED in tidy_headers.py'
        yield Finding(PRECOMPILED_BUILD, 1, "include", message)

    patterns = {
        header: re.compile(r"\b(?:" + "|".join(names) + r")\b")
        for header, names in PRECOMPILED.items()
    }
    included = {
        path: set(re.findall(r'^#include [<"]([^>"]+)[>"]', tree.files[path], re.M))
        for path, _ in tree.cpp()
    }
    for path, lines in tree.cpp():
        own = re.sub(r"(_test)?\.cc$", ".h", path)
        known = included[path] | (included.get(own, set()) if own in included[path] else set())
        text = strip_cpp(tree.files[path])
        for header, pattern in patterns.items():
            use = None if header in known else pattern.search(text)
            line = text.count("\n", 0, use.start()) if use else 0
            if use and not is_allowed(lines, line, "include"):
                written = f'"{header}"' if header.endswith(".h") else f"<{header}>"
                message = f"{use.group(0)} is used here; include {written}"
                yield Finding(path, line + 1, "include", message)


# --- Words -------------------------------------------------------------------------------------


def rule_todo(tree):
    """A TODO names an issue, never a person."""
    for path, lines in tree.select(r"(\.(h|cc|proto|py|bzl|cu)|BUILD)$|^tools/[^.]*$"):
        for i, line in enumerate(lines):
            if re.search(r"(//|#).*\bTODO\b(?!\(#\d+\): \S)", line):
                if not is_allowed(lines, i, "todo") and not path.startswith("tools/checks/tidy"):
                    yield Finding(path, i + 1, "todo", "write TODO(#123): what, with the issue")


def rule_wall_clock(tree):
    """Deadlines and ages use the monotonic clock."""
    for path, lines in tree.cpp():
        if top_folder(path) in MAY_USE_WALL_CLOCK or path.startswith("base/clock"):
            continue
        for i, line in enumerate(strip_cpp(tree.files[path]).split("\n")):
            if re.search(WALL_CLOCK, line) and not is_allowed(lines, i, "wall-clock"):
                yield Finding(path, i + 1, "wall-clock", "use steady_now() of base/clock.h")


def rule_banned(tree):
    for path, lines in tree.cpp():
        is_library = top_folder(path) in LAYERS and top_folder(path) not in (
            "examples",
            "benchmarks",
        )
        is_library = is_library and not is_test_code(tree, path)
        stripped = strip_cpp(tree.files[path]).split("\n")
        for i, line in enumerate(stripped):
            text = lines[i] if line.startswith("#include") else line
            for pattern, instead, only_libraries in BANNED:
                match = re.search(pattern, text)
                if match and (is_library or not only_libraries):
                    if not is_allowed(lines, i, "banned"):
                        message = f'"{match.group(0).strip()}" is banned; use {instead}'
                        yield Finding(path, i + 1, "banned", message)


def rule_sleep(tree):
    """A sleep states its reason; it never orders events."""
    for path, lines in tree.cpp():
        for i, line in enumerate(strip_cpp(tree.files[path]).split("\n")):
            near = "\n".join(lines[max(0, i - 1) : i + 1])
            if re.search(SLEEP, line) and not re.search(r"// sleep: \S+", near):
                message = 'wait for the event instead, or say why: "// sleep: reason"'
                yield Finding(path, i + 1, "sleep", message)


# --- Functions ---------------------------------------------------------------------------------


def parse_ratchet(text):
    """Maps "path name" to the number of lines allowed."""
    allowed = {}
    for line in text.split("\n"):
        line = line.split("#")[0].strip()
        if line:
            key, lines = line.rsplit(" ", 1)
            allowed[key] = int(lines)
    return allowed


def long_functions(tree):
    """Maps "path name" to (line, number of lines) of each function that is too long."""
    found = {}
    for path, _ in tree.cpp():
        for name, line, length in functions(tree.files[path]):
            if length > MAX_FUNCTION_LINES:
                key = f"{path} {name}"
                if key not in found or found[key][1] < length:
                    found[key] = (line, length)
    return found


def rule_function_length(tree):
    """A function has at most 70 lines; those listed in the ratchet may only shrink."""
    allowed = parse_ratchet(tree.files.get(RATCHET, ""))
    found = long_functions(tree)
    for key, (line, length) in found.items():
        path, name = key.split(" ", 1)
        limit = allowed.get(key, MAX_FUNCTION_LINES)
        if length > limit:
            message = f"{name} has {length} lines; at most {limit}"
            yield Finding(path, line, "function-length", message)
        elif length < limit:
            message = f"{name} has shrunk from {limit} to {length} lines; set that in {RATCHET}"
            yield Finding(path, line, "function-length", message)
    for key in allowed.keys() - found.keys():
        message = f'"{key}" is no longer too long; drop its line'
        yield Finding(RATCHET, 1, "function-length", message)


# --- Prose -------------------------------------------------------------------------------------


def rule_link(tree):
    """Every relative link of a page leads to a file, and to a heading where it names one."""
    for path, lines in tree.markdown():
        for number, line in prose_lines(lines):
            for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", line):
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, anchor = target.partition("#")
                full = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
                if not tree.has(full):
                    yield Finding(path, number, "link", f'"{target}" leads nowhere')
                elif anchor and full.endswith(".md"):
                    if anchor not in anchors(tree.files[full].split("\n")):
                        yield Finding(path, number, "link", f'{full} has no heading "#{anchor}"')


def rule_one_h1(tree):
    """A page has one title, and begins with it."""
    for path, lines in tree.markdown():
        titles = [number for number, line in prose_lines(lines) if re.match(r"# \S", line)]
        if len(titles) != 1:
            message = f'{len(titles)} titles ("# ..."); a page has exactly one'
            yield Finding(path, titles[1] if len(titles) > 1 else 1, "one-h1", message)


def rule_plain_english(tree):
    """Comments, messages, pages and commit subjects are in plain technical English."""
    for path, line, message in check_prose(tree.files):
        if not is_allowed(tree.files[path].split("\n"), line - 1, "plain-english"):
            yield Finding(path, line, "plain-english", message)
    for message in check_subjects(tree.subjects):
        yield Finding("(commit)", 1, "plain-english", message)


def checked_by(function_name, check):
    """A rule whose findings `check` yields as (path, line, message)."""

    def rule(tree):
        for path, line, message in check(tree):
            yield Finding(path, line, function_name[5:].replace("_", "-"), message)

    rule.__name__ = function_name
    return rule


rule_ragged_item = checked_by("rule_ragged_item", check_ragged_items)
rule_error_row = checked_by(
    "rule_error_row", lambda tree: ((ERRORS_PAGE, *found) for found in check_errors_page(tree))
)
rule_citation = checked_by("rule_citation", check_citations)
rule_label = checked_by("rule_label", check_labels)
rule_environment = checked_by("rule_environment", check_environment)
rule_paragraph = checked_by("rule_paragraph", check_paragraphs)
rule_fact_row = checked_by("rule_fact_row", check_facts)
rule_public_header = checked_by("rule_public_header", check_public_headers)
rule_public_mark = checked_by("rule_public_mark", check_public_marks)
rule_public_surface = checked_by("rule_public_surface", check_public_surface)
rule_public_comment = checked_by("rule_public_comment", check_public_comments)


def rule_notidy(tree):
    """A NOTIDY names a rule that would find something in its line or the next one."""
    rules = {rule.__name__[5:].replace("_", "-"): rule for rule in RULES}
    for path, lines in tree.cpp():
        for i, line in enumerate(lines):
            match = re.search(r"// NOTIDY\(([\w-]+)\): \S", line)
            if not match:
                continue
            name = match.group(1)
            files = {p: t for p, t in tree.files.items() if p.endswith("BUILD")}
            files[path] = tree.files[path].replace(f"NOTIDY({name})", "")
            found = rules[name](Tree(files)) if name in rules else []
            if not any(f.path == path and f.line in (i + 1, i + 2) for f in found):
                yield Finding(path, i + 1, "notidy", f'the rule "{name}" finds nothing here')


RULES = [value for name, value in list(globals().items()) if name.startswith("rule_")]


def check(tree):
    return sorted(finding for rule in RULES for finding in rule(tree))


def shrink_ratchet(root, tree):
    """Lowers the ratchet to today's lengths and drops what is no longer too long. Adds nothing."""
    found = long_functions(tree)
    kept = []
    for line in tree.files.get(RATCHET, "").split("\n"):
        entry = parse_ratchet(line)
        key = next(iter(entry), None)
        if key in found:
            line = f"{key} {min(entry[key], found[key][1])}"
        if key is None or key in found:
            kept.append(line)
    (root / RATCHET).write_text("\n".join(kept))


def main():
    parser = argparse.ArgumentParser(prog="tools/tidy", description="Checks the rules of the tree.")
    parser.add_argument(
        "--shrink-ratchet", action="store_true", help=f"lower {RATCHET} to today's lengths first"
    )
    options = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    tree = read_tree(root)
    if options.shrink_ratchet:
        shrink_ratchet(root, tree)
        tree = read_tree(root)
    findings = check(tree)
    for finding in findings:
        print(finding)
    print(f"tidy: {len(RULES)} rules, {len(tree.files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
