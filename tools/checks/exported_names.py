#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what libtessera.so exports with what the public headers declare.

Each exported name must be declared by a header of the folder, at namespace scope, and a class must
be defined there. So neither an internal of Tessera nor a name of a library that it uses becomes a
part of the ABI unseen. The names that are not declared are printed, and the exit code is 1.

Macros declare functions too, so $CXX (by default g++) preprocesses the headers.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys

import declarations

# Names of headers that include those of another library, which need not be there.
NEED_OTHERS = {"eigen.h", "mpi.h"}

# What comes before the name of a class or a function in a demangled symbol.
_PREFIX = re.compile(
    r"^((non-virtual |virtual |covariant return )*thunk to |vtable for |VTT for |typeinfo for "
    r"|typeinfo name for |guard variable for )+"
)


def remove_angles(text):
    """The text without template arguments."""
    result, depth = "", 0
    for character in text.replace("->", "  "):
        depth -= character == ">"
        if depth == 0 and character not in "<>":
            result += character
        depth += character == "<"
    return result


def qualified_name(symbol):
    """The name of a demangled symbol: "tessera::Mesh::create"."""
    text = _PREFIX.sub("", symbol).replace("(anonymous namespace)", "")
    # The rest of an operator's name may have brackets.
    text = re.sub(r"\boperator\b(?! (bool|new|delete)).*", "operator", text)
    text = remove_angles(re.sub(r"\[abi:\w+\]", "", text)).split("(")[0]
    return text.split()[-1] if text.split() else ""  # templates have their result's type first


def lines_of(folder, preprocessed):
    """The lines of a preprocessor's output that are of files below the folder."""
    lines = []
    is_inside = False
    for line in preprocessed.splitlines():
        marker = re.match(r'# \d+ "(.*?)"', line)
        if marker:
            is_inside = marker.group(1).startswith(f"{folder}/")
        elif is_inside:
            lines.append(line)
    return "\n".join(lines)


def preprocess(folder):
    """The text of all headers of the folder; of those that need MPI or Eigen as it is."""
    others = [path for path in folder.rglob("*.h") if path.name in NEED_OTHERS]
    headers = sorted(set(folder.rglob("*.h")) - set(others))
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-E", "-x", "c++", "-"]
    result = subprocess.run(
        [*command, f"-I{folder.parent}"],
        input="".join(f'#include "{path}"\n' for path in headers),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return lines_of(folder, result.stdout) + "".join(path.read_text() for path in others)


def declared_names(text):
    """The qualified names that headers declare; of classes those that they define."""
    names = set()
    for each in declarations.scan(text):
        words = each.head.split()
        is_class = re.match(r"(template\s*<.*>\s*)?(class|struct|union)\b", each.head, re.DOTALL)
        if "" in each.namespaces or words[0] == "using" or (is_class and not each.has_body):
            continue
        names.add("::".join([*each.namespaces, each.name]))
    return names


def undeclared(symbols, names):
    """The symbols that are neither in `names` nor members of what is."""
    result = []
    for symbol in symbols:
        parts = qualified_name(symbol).split("::")
        if not any("::".join(parts[:count]) in names for count in range(1, len(parts) + 1)):
            result.append(symbol)
    return result


def main(arguments):
    parser = argparse.ArgumentParser(prog="exported_names.py", description=__doc__)
    parser.add_argument("library", help="libtessera.so")
    parser.add_argument("headers", type=pathlib.Path, help="the folder include/tessera")
    options = parser.parse_args(arguments)
    command = ["nm", "--dynamic", "--defined-only", "--demangle", "--format=posix", options.library]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    # A line is the name, its kind, and numbers. The version TESSERA_0 is an absolute one.
    lines = [re.fullmatch(r"(.*?)(@@?\S+)? (\w) ?[0-9a-f ]*", line) for line in output.splitlines()]
    symbols = sorted({line.group(1) for line in lines if line.group(3) != "A"})
    names = declared_names(preprocess(options.headers.resolve()))
    wrong = undeclared(symbols, names)
    for symbol in wrong:
        print(symbol)
    print(f"{len(symbols)} names exported, {len(wrong)} of them not in the headers")
    return 1 if wrong or not symbols else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
