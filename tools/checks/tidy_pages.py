# SPDX-License-Identifier: Apache-2.0
"""Pages for the rules of tools/tidy: prose, headings, citations, and the rows of tests/facts."""

import ast
import builtins
import os
import re

FACTS = "tests/facts/"
# Files that programs write; they are not in the tree.
OUTPUTS = ("benchmark.md", "out/benchmark.md")


# Pages for work on Tessera itself; the others are for users.
PAGES_OF_MAINTAINERS = (
    r"^docs/(internals/|architecture|decisions|gotchas|status|testing)|^benchmarks/|^tests/|^fuzz/"
)
MAX_PARAGRAPH = 400


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
        if path == "tools/checks/tidy_test.py":
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


def check_paragraphs(tree):
    """Yields (path, line, message) for each line of prose that is too long in a page for users."""
    for path, lines in tree.markdown():
        if re.search(PAGES_OF_MAINTAINERS, path):
            continue
        for i, line in prose_lines(lines):
            if len(lines[i - 1]) > MAX_PARAGRAPH and not line.startswith("|"):
                message = f"{len(lines[i - 1])} characters; break the paragraph, or make it a list"
                yield path, i, message


def targets(build):
    """The names of all targets that a BUILD file makes. It is run as Python, with stand-ins for the
    rules, because some names are composed."""
    names = set()

    def rule(*args, name=None, **attributes):
        if isinstance(name, str):
            names.add(name)
        return []

    parsed = ast.parse(build)
    loaded = {
        node.id
        for node in ast.walk(parsed)
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id)
    }
    exec(compile(parsed, "BUILD", "exec"), {name: rule for name in loaded})
    return names


def check_labels(tree):
    """Yields (path, line, message) for each Bazel target that a page names and no BUILD makes."""
    known = {}
    for path, lines in tree.markdown():
        if path.startswith("benchmarks/results/"):
            continue
        for i, line in enumerate(lines):
            for folder, name in re.findall(r"(?<![\w@:])//([\w/]*):(\w+)\b", line):
                build = f"{folder}/BUILD" if folder else "BUILD"
                if build not in known:
                    known[build] = targets(tree.files.get(build, ""))
                if name not in known[build]:
                    yield path, i + 1, f'"//{folder}:{name}" is not a target of {build}'


def words_of(identifier):
    """The words of a snake_case or CamelCase name, numbers apart, between spaces."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", identifier)
    return " " + " ".join(words).lower() + " "


def check_facts(tree):
    """Yields (path, line, message) for each row of tests/facts that no test names. The words of the
    row's name must follow each other in one name of a test or of a row of a test's table."""
    names = {
        name
        for path, text in tree.files.items()
        if path.startswith(("tests/", "collectives/")) and path.endswith((".cc", ".h"))
        or path.endswith(("_test.cc", ".tsv"))
        for name in re.findall(r"\w+", text)
    }
    tested = "\n".join(map(words_of, names))
    for path, lines in tree.select("^" + FACTS + r".*\.md$"):
        for i, line in enumerate(lines):
            row = re.match(r"\| `?([a-z0-9_]+)`? \|", line)
            if row and row.group(1) != "name" and words_of(row.group(1)) not in tested:
                yield path, i + 1, f'no test has the row "{row.group(1)}"; test it, or drop it'
