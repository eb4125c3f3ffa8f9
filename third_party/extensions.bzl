"""The repositories of Tessera for MODULE.bazel, where a workspace has repositories.bzl.

Not run: no Bazel with modules is at hand (Debian's is 4.2.3).

Libraries that the registry has come from there. modules/NAME.BUILD names the targets of the
registry under the names that the BUILD files of this tree use. CUDA, NCCL, Gloo, MPI and UCX are
those of the machine.
"""

load("@bazel_tools//tools/build_defs/repo:local.bzl", "new_local_repository")
load("//third_party:cuda.bzl", "cuda_repository")
load("//third_party:gloo.bzl", "gloo_repository")
load("//third_party:mpi.bzl", "mpi_repository")
load("//third_party:repositories.bzl", "SYSTEM_LIBRARIES")

_OF_REGISTRY = ["absl", "eigen", "grpc", "gtest", "hwy", "json"]

def _renaming_repository_impl(ctx):
    ctx.symlink(ctx.attr.build_file, "BUILD")

_renaming_repository = repository_rule(
    implementation = _renaming_repository_impl,
    attrs = {"build_file": attr.label(allow_single_file = True)},
    doc = "A repository whose targets are those of a module of the registry, under other names.",
)

def _libraries_impl(_ctx):
    cuda_repository(name = "tessera_cuda")
    gloo_repository(name = "tessera_gloo")
    mpi_repository(name = "tessera_mpi")
    for name in _OF_REGISTRY:
        _renaming_repository(
            name = "tessera_" + name,
            build_file = Label("//third_party/modules:%s.BUILD" % name),
        )
    for name, path in SYSTEM_LIBRARIES.items():
        if name not in _OF_REGISTRY:
            new_local_repository(
                name = "tessera_" + name,
                path = path,
                build_file = Label("//third_party:%s.BUILD" % name),
            )

libraries = module_extension(
    implementation = _libraries_impl,
    doc = "All repositories that a target of Tessera can reach.",
)
