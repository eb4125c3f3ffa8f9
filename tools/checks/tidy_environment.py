# SPDX-License-Identifier: Apache-2.0
"""The rule of tools/tidy about docs/environment.md: it has every variable that the sources read or
set, every flag of the programs, and no others."""

import re

PAGE = "docs/environment.md"
# Sources of the library and of the programs that users run.
SOURCES = (
    r"^(base|device|compute|job|shm|transport|collectives|dtensor|files|checkpoint|input|nn|ops"
    r"|distribute|servers|tessera)/.*\.(h|cc)$"
)
NOT_SOURCES = r"_test\.cc$|/testing/|/fake/"
# A string that is a variable of Tessera, of a launcher, or of a library that Tessera sets or reads.
VARIABLE = (
    r'"((?:TESSERA|DTENSOR|SLURM|OMPI|PMI|PMIX|MPI|TORCHELASTIC|MASTER|LOCAL|NCCL|UCX|CUDA)'
    r"_[A-Z]\w*"
    r'|RANK|WORLD_SIZE|TF_CONFIG|GRPC_VERBOSITY|XDG_RUNTIME_DIR|NO_COLOR|TERM|PATH)=?"'
)
# Names of functions, and prefixes that a launcher passes on.
NOT_VARIABLES = r"MPI_[A-Z][a-z]"

# The section of the page, the source with the flags, and how the source writes them.
PROGRAMS = (
    ("tessera_run", "job/tessera_run.cc", r"ABSL_FLAG\(\s*[\w:<> ]+,\s*(\w+)"),
    ("tessera_coordinator", "job/tessera_coordinator.cc", r"ABSL_FLAG\(\s*[\w:<> ]+,\s*(\w+)"),
    ("tools/plan", "tools/plan_tool/plan_tool.cc", r"ABSL_FLAG\(\s*[\w:<> ]+,\s*(\w+)"),
    ("tessera_ckpt", "tools/ckpt_tool/arguments.cc", r'"--([a-z][a-z-]*)"'),
)
# Flags of every program, which the head of the page has.
COMMON_FLAGS = ("help", "version")


def variables(tree):
    """Maps each variable of the sources to the (path, line) of its first use."""
    found = {}
    for path, lines in tree.select(SOURCES):
        if re.search(NOT_SOURCES, path):
            continue
        for i, line in enumerate(lines):
            for name in re.findall(VARIABLE, line):
                if not re.match(NOT_VARIABLES, name):
                    found.setdefault(name, (path, i + 1))
    return found


def rows(lines, section):
    """Maps each name in the first column of the tables below `## section` to its line; "" is the
    whole page except the sections of programs."""
    found = {}
    here = ""
    for i, line in enumerate(lines):
        heading = re.match(r"## (.*)", line)
        if heading:
            here = heading.group(1).strip("`")
        inside = here == section if section else here not in [name for name, _, _ in PROGRAMS]
        cell = re.match(r"\| (`[^|]*) \|", line)
        if inside and cell:
            for name in re.findall(r"`(-{0,2}\w[\w-]*)[^`]*`", cell.group(1)):
                found.setdefault(name, i + 1)
    return found


def check_environment(tree):
    """Yields (path, line, message) for each name that only the page or only the sources have."""
    if PAGE not in tree.files:
        return
    lines = tree.files[PAGE].split("\n")
    used = variables(tree)
    described = rows(lines, "")
    for name, (path, line) in used.items():
        if name not in described:
            yield path, line, f"{PAGE} has no row for {name}"
    for name, line in described.items():
        if name not in used:
            yield PAGE, line, f"no source reads or sets {name}; drop its row"
    for section, path, pattern in PROGRAMS:
        text = tree.files.get(path, "")
        flags = {
            match.group(1).replace("_", "-"): text.count("\n", 0, match.start()) + 1
            for match in re.finditer(pattern, text)
            if match.group(1) not in COMMON_FLAGS
        }
        described = {
            name[2:].replace("_", "-"): line
            for name, line in rows(lines, section).items()
            if name.startswith("--")
        }
        for name, line in flags.items():
            if name not in described:
                yield path, line, f'{PAGE} has no row for --{name} under "## {section}"'
        for name, line in described.items():
            if name not in flags:
                yield PAGE, line, f"{path} has no flag --{name}; drop its row"
