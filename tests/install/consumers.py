#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds Tessera by CMake, installs it, and builds and runs programs that use it from there.

The places that programs use it from:

    prefix    installed by `cmake --install`
    debs      the Debian packages of the same build, unpacked
    project   the tree, as a part of another project's build (FetchContent)

The builds are kept between runs, outside the tree. Each program is built in an empty folder, and
one line of its output is compared. The last line is `N passed, N failed`.
"""

import argparse
import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# One program must not take longer; its compilation takes seconds.
TIMEOUT_S = 300

PLACES = ("prefix", "debs", "project")

SUMS = "2 clients, sums 18 22 26"

BY_CMAKE = 'cmake -S "$CONSUMERS/{}" -B . {} && cmake --build . && '
BY_MAKE = 'make -f "$CONSUMERS/make/Makefile" && ./consumer'
BY_GCC = 'g++ -std=c++20 -O1 {} -o consumer "$CONSUMERS/consumer.cc" $(pkg-config {} tessera) && '
SHARED = "--cflags --libs"
STATIC = "-DTessera_USE_STATIC_LIBS=ON"
BY_RUN = "tessera_run --clients 2 ./consumer connect"


@dataclasses.dataclass(frozen=True)
class Consumer:
    """One program: a shell command, run in an empty folder, that prints the line `expected`, if
    there is one."""

    name: str
    place: str
    command: str
    expected: str = SUMS
    # The command must fail, with `expected` in its output.
    fails: bool = False
    # Without this program, the consumer is skipped.
    needs: str = ""
    # Its files are cut from docs/install.md, and so are the command and the line.
    is_page: bool = False


CONSUMERS = [
    Consumer("cmake_shared", "prefix", BY_CMAKE.format("cmake", "") + "./consumer"),
    Consumer("cmake_static", "prefix", BY_CMAKE.format("cmake", STATIC) + "./consumer"),
    Consumer("page", "prefix", "", is_page=True),
    Consumer("make", "prefix", BY_MAKE),
    Consumer("gcc", "prefix", BY_GCC.format("", SHARED) + BY_RUN),
    Consumer(
        "gcc_static",
        "prefix",
        # Both libraries are there, and -ltessera would be the shared one.
        "pkg-config() { command pkg-config --static $* | sed s/-ltessera/-l:libtessera.a/; }; "
        + BY_GCC.format("", SHARED)
        + "./consumer",
    ),
    Consumer("asan", "prefix", BY_GCC.format("-g -fsanitize=address", SHARED) + "./consumer"),
    Consumer(
        "protobuf",
        "prefix",
        BY_CMAKE.format("protobuf", "") + "./consumer",
        'job/coordinator/coordinator.proto: name: "client 0" number: 42',
    ),
    Consumer(
        "mpi",
        "prefix",
        # Open MPI starts no program of root, and no more than one per core, unless it is told to.
        BY_CMAKE.format("mpi", "")
        + "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        + "mpirun --oversubscribe -n 2 ./consumer",
        "2 ranks, sum 8",
        needs="mpirun",
    ),
    Consumer(
        "cuda_missing",
        "prefix",
        'cmake -S "$CONSUMERS/cuda" -B . 2>&1',
        'component "cuda" is not there: this Tessera was built without it',
        fails=True,
    ),
    Consumer(
        "exports",
        "prefix",
        'python3 -B "$TREE/tools/checks/exported_names.py" "$LIBRARIES/libtessera.so" '
        '"$PREFIX/include/tessera"',
        "",
    ),
    Consumer("cmake_debs", "debs", BY_CMAKE.format("cmake", "") + "./consumer"),
    Consumer("make_debs", "debs", BY_MAKE),
    Consumer("gcc_debs", "debs", BY_GCC.format("", SHARED) + BY_RUN),
    Consumer("fetch_content", "project", '"$CMAKE_PREFIX_PATH/consumer"'),
]


class Failure(Exception):
    """A command failed, or a line is missing; the text says which."""


def default_folder(root, environment):
    """Where the builds of the tree at `root` are kept."""
    home = environment.get("HOME", "/tmp")
    cache = environment.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    name = "install-" + hashlib.sha256(str(root).encode()).hexdigest()[:8]
    return pathlib.Path(cache) / "tessera" / name


def places_of(consumers):
    """The places that the consumers need, in the order of PLACES."""
    needed = {consumer.place for consumer in consumers}
    return [place for place in PLACES if place in needed]


def has_line(output, expected):
    """Whether a line of the output is `expected`. tessera_run begins lines with the client's id."""
    return expected in [without_client(line) for line in output.splitlines()]


def without_client(line):
    return re.sub(r"^\[client \d+\] ", "", line)


def cut_page(text):
    """Files, commands and output of the first program of docs/install.md."""
    section = re.search(r"^## A first program\n(.*?)^##", text, re.S | re.M).group(1)
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```$", section, re.S | re.M))
    files = {"example.cc": blocks["cpp"], "CMakeLists.txt": blocks["cmake"]}
    return files, " && ".join(blocks["sh"].splitlines()), blocks["text"]


def environment_of(prefix, libraries, environment):
    """The environment of a program that uses the Tessera at `prefix`."""

    def before(name, folder):
        rest = environment.get(name)
        return f"{folder}:{rest}" if rest else str(folder)

    return {
        **environment,
        "TREE": str(ROOT),
        "CONSUMERS": str(HERE),
        "LIBRARIES": str(libraries),
        "PREFIX": str(prefix),
        "CMAKE_PREFIX_PATH": str(prefix),
        "PKG_CONFIG_PATH": str(libraries / "pkgconfig"),
        "LD_LIBRARY_PATH": before("LD_LIBRARY_PATH", libraries),
        "PATH": before("PATH", prefix / "bin"),
    }


def select(names):
    """The consumers of the names; where there are none, all that compile Tessera no second time."""
    known = [consumer.name for consumer in CONSUMERS]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f'unknown program "{unknown[0]}"; the programs are {", ".join(known)}')
    chosen = names or [consumer.name for consumer in CONSUMERS if consumer.place != "project"]
    return [consumer for consumer in CONSUMERS if consumer.name in chosen]


def run(command, folder, environment=None, timeout=None):
    """Runs a shell command, and returns its exit status and output. Kills all of its processes when
    the time is over."""
    process = subprocess.Popen(
        ["bash", "-c", "set -euo pipefail; " + command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        output += f"\nkilled after {timeout} s\n"
    return process.returncode, output


def must_run(command, folder):
    code, output = run(command, folder)
    if code != 0:
        raise Failure(f"{output}\ncd {folder} && {command}\nexit status {code}")


def empty_folder(path):
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def make_prefix(build, jobs):
    """Builds both libraries and the programs, and installs them."""
    # CUDA kernels would take a third of the time, and no consumer has a GPU.
    must_run(
        f'cmake -S "{ROOT}" -B build -DCMAKE_BUILD_TYPE=Release -DTESSERA_CUDA=OFF '
        f"-DCMAKE_INSTALL_LIBDIR=lib && cmake --build build -j {jobs}",
        build,
    )
    empty_folder(build / "prefix")
    must_run('cmake --install build --prefix "$PWD/prefix"', build)
    return build / "prefix"


def make_debs(build, jobs):
    """Makes the packages of the same build, with libraries in Debian's folder, and unpacks them."""
    make_prefix(build, jobs)
    empty_folder(build / "packages")
    empty_folder(build / "debs")
    must_run(
        'cmake build -DCMAKE_INSTALL_LIBDIR="lib/$(g++ -print-multiarch)" && '
        'cpack --config build/CPackConfig.cmake -G DEB -B "$PWD/packages" && '
        "for package in packages/*.deb; do dpkg-deb -x $package debs; done",
        build,
    )
    return build / "debs" / "usr"


def make_project(build, jobs):
    """Builds a project that contains Tessera."""
    # Its sources are compiled once more: without optimization, which takes less time.
    must_run(
        f'cmake -S "{HERE}/fetch_content" -B project -DTESSERA_SOURCE="{ROOT}" -DTESSERA_CUDA=OFF '
        "-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 && "
        f"cmake --build project -j {jobs}",
        build,
    )
    return build / "project"


def library_folder(prefix):
    """The folder of the libraries: Debian's has one more level."""
    found = sorted(prefix.glob("lib*/**/pkgconfig/tessera.pc"))
    return found[0].parent.parent if found else prefix / "lib"


def check(consumer, prefix, build):
    """Runs one consumer; a Failure has its output."""
    folder = empty_folder(build / "programs" / consumer.name)
    if consumer.is_page:
        files, command, output = cut_page((ROOT / "docs/install.md").read_text())
        for name, text in files.items():
            (folder / name).write_text(text)
        line = without_client(output.strip())
        consumer = dataclasses.replace(consumer, command=command, expected=line)
    environment = environment_of(prefix, library_folder(prefix), dict(os.environ))
    code, output = run(consumer.command, folder, environment, TIMEOUT_S)
    if (code != 0) != consumer.fails:
        raise Failure(f"{output}\nexit status {code}")
    if consumer.fails and consumer.expected not in output:
        raise Failure(f"{output}\nthe message does not have: {consumer.expected}")
    if not consumer.fails and consumer.expected and not has_line(output, consumer.expected):
        raise Failure(f"{output}\nno line is: {consumer.expected}")


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(prog="tests/install/run", description=__doc__.split("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="PROGRAM", help="the programs; default: all of an installation"
    )
    parser.add_argument("--list", action="store_true", help="list the programs and end")
    parser.add_argument("--folder", type=pathlib.Path, help="keep the builds there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at one time")
    for place in PLACES:
        parser.add_argument(
            f"--{place}", type=pathlib.Path, help=f"use this {place}, and build none"
        )
    options = parser.parse_args(arguments)
    try:
        options.consumers = select(options.names)
    except ValueError as error:
        parser.error(str(error))
    return options


def report(name, place, result, started):
    print(f"{name:14} {place:7} {result:7} {time.monotonic() - started:6.1f} s", flush=True)


def main(arguments):
    options = parse_arguments(arguments)
    if options.list:
        for consumer in CONSUMERS:
            print(f"{consumer.name:14} {consumer.place:7} {consumer.command}")
        return 0
    build = (options.folder or default_folder(ROOT, os.environ)).resolve()
    build.mkdir(parents=True, exist_ok=True)
    print(f"builds are in {build}", flush=True)

    passed = 0
    failed = []
    skipped = 0
    prefixes = {}
    makers = {"prefix": make_prefix, "debs": make_debs, "project": make_project}
    for place in places_of(options.consumers):
        started = time.monotonic()
        try:
            given = getattr(options, place)
            prefixes[place] = given.resolve() if given else makers[place](build, options.jobs)
            report("build", place, "ok", started)
        except Failure as failure:
            report("build", place, "FAILED", started)
            print(failure, flush=True)
    for consumer in options.consumers:
        started = time.monotonic()
        if consumer.needs and not shutil.which(consumer.needs):
            report(consumer.name, consumer.place, "skipped", started)
            print(f"    {consumer.needs} is not installed")
            skipped += 1
            continue
        try:
            if consumer.place not in prefixes:
                raise Failure(f"{consumer.place} was not built")
            check(consumer, prefixes[consumer.place], build)
            report(consumer.name, consumer.place, "ok", started)
            passed += 1
        except Failure as failure:
            report(consumer.name, consumer.place, "FAILED", started)
            print(f"{failure}\n    {consumer.command}", flush=True)
            failed.append(consumer.name)

    if failed:
        print(f"to repeat it: tests/install/run {' '.join(failed)}")
    if skipped:
        print(f"{skipped} skipped")
    print(f"{passed} passed, {len(failed)} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
