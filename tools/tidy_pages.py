# SPDX-License-Identifier: Apache-2.0
"""Pages for the rules of tools/tidy: prose, headings, citations, and the rows of tests/facts."""

import os
import re

FACTS = "tests/facts/"
# Files that programs write; they are not in the tree.
OUTPUTS = ("benchmark.md", "out/benchmark.md")


def prose_lines(lines):
    """(line number, line) outside code fences, code spans blanked."""
    fenced = False
    for i, line in enumerate(lines):
        if re.match(r"\s*(```|~~~)", line):
            fenced = not fenced
        elif not fenced:
            yield i + 1, re.sub(r"`[^`]*`", "``", line)


def anchors(lines):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    fenced = False
    for line in lines:
        if re.match(r"\s*(```|~~~)", line):
            fenced = not fenced
        match = None if fenced else re.match(r"#{1,6} (.*)", line)
        if match:
            title = re.sub(r"[^\w\- ]", "", match.group(1).strip().lower())
            found.add(title.replace(" ", "-"))
    return found


def cited_pages(tree):
    """Yields (path, line, page) for each page that a file names."""
    for path, lines in tree.select(r"\.(h|cc|cu|proto|py|bzl|md)$|BUILD$|^tools/[^.]*$"):
        if path == "tools/tidy_test.py":
            continue
        for i, line in enumerate(lines):
            if path.endswith(".md"):
                line = re.sub(r"\[[^\]]*\]\([^)]*\)", "", line)  # links are those of rule_link
            for page in re.findall(r"(?<![\w/.:])((?:\.\./)*(?:[\w.-]+/)*[\w-]+\.md)\b", line):
                yield path, i + 1, page


def check_citations(tree):
    """Yields (path, line, message) for each page that is named and not in the tree."""
    for path, line, page in cited_pages(tree):
        beside = os.path.normpath(os.path.join(os.path.dirname(path), page))
        if page not in OUTPUTS and not any(p in tree.files for p in (page, beside, "docs/" + page)):
            yield path, line, f'"{page}" is not in the tree; cite a page that is'


def check_labels(tree):
    """Yields (path, line, message) for each Bazel target that a page names and no BUILD makes."""
    for path, lines in tree.markdown():
        if path.startswith("benchmarks/results/"):
            continue
        for i, line in enumerate(lines):
            for folder, name in re.findall(r"(?<![\w@:])//([\w/]+):(\w+)\b", line):
                build = tree.files.get(folder + "/BUILD", "")
                # BUILD files compose some names, from a source or from the target under test.
                names = (name, name + ".cc", re.sub("_test$", "", name))
                if not any(f'"{known}"' in build for known in names):
                    yield path, i + 1, f'"//{folder}:{name}" is no target of {folder}/BUILD'


def check_facts(tree):
    """Yields (path, line, message) for each row of tests/facts that no test names."""
    tests = "\n".join(
        text
        for path, text in tree.files.items()
        if path.startswith(("tests/", "collectives/")) and path.endswith((".cc", ".h"))
        or path.endswith(("_test.cc", ".tsv"))
    )
    joined = tests.lower().replace("_", "")
    for path, lines in tree.select("^" + FACTS + r".*\.md$"):
        for i, line in enumerate(lines):
            row = re.match(r"\| `?([a-z0-9_]+)`? \|", line)
            if not row or row.group(1) == "name":
                continue
            if row.group(1).replace("_", "") not in joined:
                yield path, i + 1, f'no test has the row "{row.group(1)}"; test it, or drop it'
