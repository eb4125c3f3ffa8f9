# SPDX-License-Identifier: Apache-2.0
"""The headers that programs get, for the rules of tools/tidy."""

import re

LIST = "tools/checks/public_headers.txt"
# The headers that programs include themselves.
INCLUDED_BY_PROGRAMS = re.compile(r"tessera\.h|tessera/\w+\.h")
# The public headers that may include one header of a library other than the standard one and
# Abseil. tessera/tessera.h reaches none of these.
OTHER_LIBRARIES = {"dtensor/eigen.h": "unsupported/Eigen/CXX11/Tensor", "tessera/mpi.h": "mpi.h"}


def closure(tree, roots=INCLUDED_BY_PROGRAMS):
    """Maps each header of the tree that programs get to (path, line) of the first include of it."""
    found = {path: (path, 1) for path in sorted(tree.files) if roots.fullmatch(path)}
    waiting = list(found)
    for path in waiting:  # grows meanwhile
        for i, line in enumerate(tree.files[path].split("\n")):
            match = re.match(r'#include "([^"]+)"', line)
            if match and match.group(1) in tree.files and match.group(1) not in found:
                found[match.group(1)] = (path, i + 1)
                waiting.append(match.group(1))
    return found


def check_public_headers(tree):
    """Yields (path, line, message) where the public headers are not those of LIST."""
    found = closure(tree)
    lines = tree.files.get(LIST, "").split("\n")
    entries = {line.split("#")[0].strip(): i + 1 for i, line in enumerate(lines)}
    entries.pop("", None)
    for header, (path, line) in found.items():
        if header not in entries:
            yield path, line, (
                f"programs would get {header}. Declare the names that {path} needs of it, or move "
                f"what needs it to a source; add it to {LIST} if programs use its names"
            )
    for header, line in entries.items():
        if header not in found:
            yield LIST, line, f"programs do not get {header}; drop its line"


def private_names(tree, public, path):
    """Yields (line, name) for each file in a header's comments that is not a public header."""
    for i, line in enumerate(tree.files[path].split("\n")):
        comment = line.partition("//")[2]
        for name in re.findall(r"(?<![\w/.-])((?:[\w-]+/)*[\w-]+\.(?:h|cc|cu))\b", comment):
            files = {file for file in tree.files if file == name or file.endswith("/" + name)}
            if files and not files & public.keys():
                yield i + 1, name


def check_public_comments(tree):
    """Yields (path, line, message) where a comment of a public header names a private file."""
    public = closure(tree)
    for path in public:
        for line, name in private_names(tree, public, path):
            yield path, line, f"programs do not get {name}; say here what the reader needs of it"


def check_public_surface(tree):
    """Yields (path, line, message) where a public header defines a macro without the prefix, or
    includes another library."""
    for path in closure(tree):
        for i, line in enumerate(tree.files[path].split("\n")):
            macro = re.match(r"\s*#\s*define (\w+)", line)
            if macro and not macro.group(1).startswith("TESSERA_"):
                message = f"programs get the macro {macro.group(1)}; begin it with TESSERA_"
                yield path, i + 1, message
            name = re.match(r'#include [<"]([^>"]+)[>"]', line)
            if not name or name.group(1) in tree.files:
                continue
            is_standard = re.fullmatch(r"[a-z_]+", name.group(1))
            is_known = name.group(1) == OTHER_LIBRARIES.get(path)
            if not is_standard and not is_known and not name.group(1).startswith("absl/"):
                yield path, i + 1, f"programs would need {name.group(1)}; include it in a source"
    for path, (includer, line) in closure(tree, re.compile("tessera/tessera.h")).items():
        if path in OTHER_LIBRARIES:
            yield includer, line, f"tessera/tessera.h reaches {path}, which needs another library"


MARK = "TESSERA_PUBLIC"
NAMESPACE = re.compile(rf"(?:inline )?namespace ({MARK} )?([\w:]*) ?\{{")
CLASS = re.compile(r" *(?:class|struct|enum class) (\w+)(?: final)?(?: : .*)?([;{])")
FRIEND = re.compile(r"^ +friend [^;{]*?(\w+|operator\W+)\([^;{]*;", re.M)


def lines_in_namespaces(tree, path):
    """Yields (line number, text, names of the open namespaces, whether the outermost is marked) for
    each line of a file."""
    opened = []  # (name, line number, is marked)
    for i, line in enumerate(tree.files[path].split("\n")):
        match = NAMESPACE.fullmatch(line)
        opened += [(match.group(2), i, match.group(1))] if match else []
        yield i + 1, line, [name for name, _, _ in opened], opened and opened[0][2]
        is_short = line == "}" and opened and opened[-1][1] == i - 2
        if opened and (is_short or line.startswith("}  // namespace")):
            opened.pop()


def check_public_marks(tree):
    """Yields (path, line, message) where a shared library would hide names that programs link:
    - a public header opens its namespace without the mark;
    - a source defines a function that a friend declaration alone declares;
    - another file declares a public class without the mark, and g++ takes the visibility of a class
      from its first declaration.
    """
    public = closure(tree)
    classes = set()
    for path in public:
        text = tree.files[path]
        for i, line, opened, _ in lines_in_namespaces(tree, path):
            if line.startswith("namespace tessera"):
                message = f"write `namespace {MARK} tessera {{`, and nested namespaces below it"
                yield path, i, message
            found = CLASS.match(line)
            if found and found.group(2) == "{":
                classes.add("::".join([*opened, found.group(1)]))
        for friend in FRIEND.finditer(text):
            is_here = "= default" in friend.group(0) or "internal::" in friend.group(0)
            if not is_here and not re.search(rf"^\w.*{re.escape(friend.group(1))}\(", text, re.M):
                line = text.count("\n", 0, friend.start()) + 1
                yield path, line, f"declare {friend.group(1)}() in the namespace too, to export it"
    for path, _ in tree.cpp():
        if path in public or path.startswith(("tests/", "benchmarks/", "examples/", "fuzz/")):
            continue
        for i, line, opened, is_marked in lines_in_namespaces(tree, path):
            found = CLASS.match(line)
            if not found or found.group(2) != ";" or is_marked:
                continue
            if "::".join([*opened, found.group(1)]) in classes:
                yield path, i, f"declare {found.group(1)} in `namespace {MARK} tessera`"
