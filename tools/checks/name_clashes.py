#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the public headers, and the sources that write messages, after all standard headers.

A call of a function of ours with a std::string or a std::vector also finds a function of that name
in namespace std, wherever some header declares it. Which headers do depends on the release of
libstdc++ and of Abseil: <chrono> of g++ 13 includes <iomanip>, which has std::quoted(). So this
check includes all of them first, with the names of C++23 too. It checks syntax only, and no tests.

The sources are those that call in_quotes(): that is where most texts and lists are arguments.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# <bits/stdc++.h> includes every header of the standard library, <iomanip> among them. The headers
# of Abseil are here because they are most of the time of a file.
FIRST = ["bits/stdc++.h", "absl/status/statusor.h", "absl/strings/str_cat.h", "absl/time/time.h"]
PUBLIC = ["tessera.h", "dtensor/eigen.h"]
OPTIONS = [
    "-std=c++23",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-I.",
    "-I/usr/include/eigen3",
]
# Sources below these folders are no part of the library, or need headers that are generated
# (coordinator, servers) or not installed everywhere.
SKIPPED_FOLDERS = {
    *("tests", "testing", "benchmarks", "fuzz", "examples"),
    *("coordinator", "servers", "cuda", "nccl", "gloo", "mpi", "gpu"),
}


def is_checked(path, text):
    """Whether the source is compiled: part of the library, and it calls in_quotes()."""
    return (
        path.endswith(".cc")
        and not path.endswith("_test.cc")
        and not SKIPPED_FOLDERS.intersection(pathlib.PurePath(path).parts)
        and "in_quotes(" in text
    )


def sources(root):
    listed = subprocess.run(
        ["git", "ls-files", "-zco", "--exclude-standard", "*.cc"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = [root / path for path in listed.split("\0") if path]
    return sorted(
        str(path.relative_to(root))
        for path in paths
        if path.is_file() and is_checked(str(path.relative_to(root)), path.read_text())
    )


def compile_all(root, files, folder):
    """Compiles the files, and returns the errors of each that has errors. `folder` is scratch."""
    first = folder / "first.h"
    first.write_text("".join(f"#include <{name}>\n" for name in FIRST))
    compiler = [os.environ.get("CXX", "g++"), *OPTIONS, f"-I{folder}"]
    precompile = [*compiler, "-x", "c++-header", first, "-o", f"{first}.gch"]
    subprocess.run(precompile, cwd=root, check=True)

    def errors_of(file):
        run = subprocess.run(
            [*compiler, "-include", "first.h", "-Werror", "-fsyntax-only", file],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        return run.stderr if run.returncode else ""

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [text for text in pool.map(errors_of, files) if text]


def main():
    with tempfile.TemporaryDirectory(prefix="tessera_names_") as name:
        folder = pathlib.Path(name)
        public = folder / "public_headers.cc"
        public.write_text("".join(f'#include "{header}"\n' for header in PUBLIC))
        files = [str(public), *sources(ROOT)]
        errors = compile_all(ROOT, files, folder)
    for text in errors:
        print(text)
    print(f"{len(files)} files, {len(errors)} with errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
