#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes cmake/sources.cmake from the compile commands of Bazel.

Bazel is the build of development, CMake the build of distribution. The CMake build has no lists of
its own: this program asks Bazel for the command of every source of the library and of the programs,
and groups the sources by the flags of their targets. `--check` fails if the file is not what would
be written.

Sources without flags of their own are grouped into units, which CMake compiles as one file each.
No two sources of a unit have a private name in common.
"""

import argparse
import difflib
import json
import pathlib
import re
import subprocess
import sys

import declarations

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUTPUT = "cmake/sources.cmake"

LIBRARY = "//:tessera + //tessera:mpi"
# Program -> its target.
PROGRAMS = {
    "tessera_run": "//job:tessera_run",
    "tessera_coordinator": "//job:tessera_coordinator",
    "tessera_plan": "//tools/plan_tool:plan_tool",
    "tessera_ckpt": "//tools/ckpt_tool:tessera_ckpt",
}

# Option of CMake -> the sources of a build with that part, and of a build without it. Bazel
# compiles the first or the second, as it finds the part on its machine. No command of it names a
# .cu file.
# CUBLASLT and its twin are only in a build with CUDA; all builds of Bazel have UCX.
OPTIONAL = {
    "CUDA": (
        [
            "compute/cuda/math_launch.cu",
            "compute/cuda/toolkit_math.cc",
            "device/cuda/kernel_launch.cu",
            "device/cuda/toolkit_api.cc",
            "device/cuda/toolkit_status.cc",
        ],
        [
            "compute/cuda/open_libraries_without_toolkit.cc",
            "device/cuda/open_api_without_toolkit.cc",
        ],
    ),
    "CUBLASLT": (
        ["compute/cuda/cublaslt.cc", "compute/cuda/products_by_cublaslt.cc"],
        ["compute/cuda/products_without_cublaslt.cc"],
    ),
    "NCCL": (["collectives/nccl/nccl_api.cc"], ["collectives/nccl/open_api_without_nccl.cc"]),
    "UCX": (
        [
            "transport/ucx/connections.cc",
            "transport/ucx/ucx_api.cc",
            "transport/ucx/ucx_engine.cc",
            "transport/ucx/worker.cc",
        ],
        ["transport/ucx/engine_without_ucx.cc"],
    ),
    "GLOO": (["transport/gloo/gloo_engine.cc"], ["transport/gloo/engine_without_gloo.cc"]),
}

# .bazelrc compiles job/ with it, because the speed of that code does not matter.
IGNORED_FLAGS = {"-O1"}

MAX_UNIT = 16

HEADER = """\
# SPDX-License-Identifier: Apache-2.0
#
# Written by tools/cmake_sources from the compile commands of Bazel. Do not edit.
#
# A library or program NAME has the units TESSERA_NAME_UNIT_1 to TESSERA_NAME_UNIT_n, where n is
# TESSERA_NAME_UNITS. The sources of a unit can be compiled as one file.
"""


class Problem(Exception):
    """The commands are not as this program expects them."""


def flags_of(arguments):
    """The flags of a command that say how to compile, without folders, output and language."""
    flags = []
    i = 1
    while i < len(arguments):
        argument = arguments[i]
        if argument in ("-iquote", "-isystem", "-I", "-MF", "-c", "-o", "-include"):
            i += 2
            continue
        i += 1
        if not argument.startswith("-frandom-seed="):
            flags.append(argument)
    return flags


def read_commands(text):
    """Source -> list of its commands' flags; a source may be compiled several times."""
    commands = {}
    for action in json.loads(text).get("actions", []):
        arguments = action["arguments"]
        source = re.sub(r"^bazel-out/[^/]+/bin/", "", arguments[arguments.index("-c") + 1])
        if source.startswith("external/"):
            continue
        flags = flags_of(arguments)
        if flags not in commands.setdefault(source, []):
            commands[source].append(flags)
    return commands


def remove_common_flags(commands):
    """Leaves only the flags of a source's own target, each command as a tuple."""
    all_flags = [flags for each in commands.values() for flags in each]
    common = set(all_flags[0]).intersection(*all_flags) | IGNORED_FLAGS
    return {
        source: sorted({tuple(flag for flag in flags if flag not in common) for flags in each})
        for source, each in commands.items()
    }


def name_of_set(flags, sources):
    """The value of the first macro (gemm_avx2), or the folder of the sources (device_cpu)."""
    for flag in flags:
        macro = re.fullmatch(r"-DTESSERA_\w+=(\w+)", flag)
        if macro:
            return macro.group(1)
    folders = {str(pathlib.PurePosixPath(source).parent) for source in sources}
    if len(folders) != 1:
        raise Problem(f"{' '.join(flags)} is for {', '.join(sorted(folders))}; one should have it")
    return folders.pop().replace("/", "_")


def group_by_flags(commands):
    """Flags -> the sorted sources compiled with them."""
    groups = {}
    for source, each in commands.items():
        for flags in each:
            groups.setdefault(flags, []).append(source)
    return {flags: sorted(sources) for flags, sources in groups.items()}


def private_names(text):
    """Names that only this source can use: of unnamed namespaces, static ones, and macros."""
    names = declarations.macros(text)
    for declaration in declarations.scan(text):
        is_private = "" in declaration.namespaces or declaration.head.split()[:1] == ["static"]
        if is_private and declaration.name != "operator":  # operators differ in their arguments
            names.add(declaration.name)
    return names


def make_units(sources, names_of):
    """Lists of at most MAX_UNIT sources, in order, no two of a list with a name in common."""
    units = []  # (sources, their names)
    for source in sources:
        names = names_of(source)
        for members, taken in units:
            if len(members) < MAX_UNIT and not names & taken:
                members.append(source)
                taken |= names
                break
        else:
            units.append(([source], set(names)))
    return [members for members, _ in units]


def format_list(name, values):
    return f"set({name}\n" + "".join(f"  {value}\n" for value in values) + ")\n"


def format_units(name, units):
    text = f"set(TESSERA_{name}_UNITS {len(units)})\n"
    for number, unit in enumerate(units, 1):
        text += format_list(f"TESSERA_{name}_UNIT_{number}", unit)
    return text


def split_generated(sources):
    """(other sources, .proto files of the sources that protoc writes)."""
    protos = {re.sub(r"(\.grpc)?\.pb\.cc$", ".proto", each) for each in sources if ".pb." in each}
    return [each for each in sources if ".pb." not in each], sorted(protos)


def sources_file(library, programs, names_of):
    """The text of OUTPUT.

    Args:
      library: the answer of aquery for the library, as JSON.
      programs: program -> the answer for what is not in the library.
      names_of: source -> its private names.
    """
    commands = read_commands(library)
    if not commands:
        raise Problem("Bazel names no source of the library")
    commands = remove_common_flags(commands)
    twins = {each for pair in OPTIONAL.values() for sources in pair for each in sources}
    for source in twins & set(commands):
        if commands.pop(source) != [()]:
            raise Problem(f"{source} has flags of its own, and a twin")
    commands, protos = (
        {each: commands[each] for each in split_generated(commands)[0]},
        split_generated(commands)[1],
    )
    groups = group_by_flags(commands)

    text = HEADER + "\n" + format_units("tessera", make_units(groups.pop(()), names_of))
    text += "\n# Written by protoc and its gRPC plugin.\n" + format_list("TESSERA_PROTOS", protos)
    text += "\n# Sources with flags of their own: these are never joined.\n"
    names = {name_of_set(flags, sources): flags for flags, sources in groups.items()}
    if len(names) != len(groups):
        raise Problem("two sets of flags have one name")
    text += format_list("TESSERA_FLAG_SETS", sorted(names))
    for name, flags in sorted(names.items()):
        text += format_list(f"TESSERA_{name}_FLAGS", flags)
        text += format_list(f"TESSERA_{name}_SOURCES", groups[flags])
    text += "\n# Sources of a build with a part, and of one without it.\n"
    for option, (with_part, without) in OPTIONAL.items():
        text += format_list(f"TESSERA_WITH_{option}", with_part)
        text += format_list(f"TESSERA_WITHOUT_{option}", without)
    text += "\n" + format_list("TESSERA_PROGRAMS", list(programs))
    for name, answer in programs.items():
        sources = sorted(read_commands(answer))
        text += format_units(name, make_units(sources, names_of))
    return text


def ask_bazel(expression):
    command = ["bazel", "aquery", "--output=jsonproto", "--noshow_progress"]
    command += ["--define=tessera_precompiled_headers=0", "--define=tessera_one_file=0"]
    command += ["--ui_event_filters=-info", f'mnemonic("CppCompile", {expression})']
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def main(arguments):
    parser = argparse.ArgumentParser(prog="tools/cmake_sources", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare the file, write nothing")
    options = parser.parse_args(arguments)
    try:
        text = sources_file(
            ask_bazel(f"deps({LIBRARY})"),
            {
                program: ask_bazel(f"deps({target}) except deps({LIBRARY})")
                for program, target in PROGRAMS.items()
            },
            lambda source: private_names((ROOT / source).read_text()),
        )
    except Problem as problem:
        print(f"cmake_sources: {problem}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode
    path = ROOT / OUTPUT
    if not options.check:
        path.write_text(text)
        return 0
    lines = difflib.unified_diff(
        path.read_text().splitlines(), text.splitlines(), OUTPUT, "compiled by Bazel", lineterm=""
    )
    differences = "\n".join(lines)
    if differences:
        print(f"{differences}\n{OUTPUT} is not what Bazel compiles; run tools/cmake_sources")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
