"""@tessera_mpi: the MPI of this machine, or an empty repository where it is not installed.

Only tests use it: tessera/mpi.h is compiled by the user's program, with the MPI of that. Searched
in $MPI_HOME if that is set, else where Debian's libopenmpi-dev is: include/mpi.h, lib/libmpi.so.

`@tessera_mpi//:defs.bzl` says what was found: HAVE_MPI. `@tessera_mpi//:mpi` exists in either case.
"""

_PLACES = ["/usr/lib/x86_64-linux-gnu/openmpi", "/usr/lib/aarch64-linux-gnu/openmpi"]

_BUILD = """
# Written by third_party/mpi.bzl.
cc_library(
    name = "mpi",
    hdrs = {headers},
    # Without the C++ bindings of MPI-2, which are a library of their own.
    defines = ["OMPI_SKIP_MPICXX", "MPICH_SKIP_MPICXX"],
    includes = ["include"],
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)
"""

def _mpi_repository_impl(ctx):
    home = ctx.os.environ.get("MPI_HOME")
    found = None
    for place in [home] if home else _PLACES:
        needed = [place + "/include/mpi.h", place + "/lib/libmpi.so"]
        if not found and all([ctx.path(path).exists for path in needed]):
            found = place
    ctx.file("WORKSPACE", "")
    if found:
        ctx.symlink(found + "/include", "include")
    ctx.file("BUILD", _BUILD.format(
        headers = "glob([\"include/*.h\"])" if found else "[]",
        linkopts = "[\"-L{}/lib\", \"-lmpi\"]".format(found) if found else "[]",
    ))
    ctx.file("defs.bzl", "\"\"\"What third_party/mpi.bzl found.\"\"\"\n\nHAVE_MPI = {}\n".format(
        bool(found),
    ))

mpi_repository = repository_rule(
    implementation = _mpi_repository_impl,
    environ = ["MPI_HOME"],
    local = True,
    configure = True,
    doc = "The MPI of this machine, if it is there.",
)
