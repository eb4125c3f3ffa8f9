"""The repositories that Tessera builds with: Debian's packages, and nothing downloaded.

A workspace that uses Tessera calls `tessera_repositories()` after its own
`local_repository(name = "tessera", ...)`.
"""

load("//third_party:cuda.bzl", "cuda_repository")
load("//third_party:gloo.bzl", "gloo_repository")
load("//third_party:mpi.bzl", "mpi_repository")

def _generated_repository_impl(ctx):
    ctx.file("WORKSPACE", "")
    for path, content in ctx.attr.files.items():
        ctx.file(path, content)

_generated_repository = repository_rule(
    implementation = _generated_repository_impl,
    attrs = {"files": attr.string_dict(doc = "path -> content")},
    doc = "A repository whose files are written out here.",
)

# Debian's bazel-rules-cc 0.0.4 does not load in Bazel 4.2.3 (gotchas.md), and Bazel's own tools
# load "@rules_cc//cc:defs.bzl": this one exports the native rules under those names.
_RULES_CC_DEFS = "\n".join([
    "def {name}(**kwargs):\n    native.{name}(**kwargs)\n".format(name = name)
    for name in [
        "cc_binary",
        "cc_import",
        "cc_library",
        "cc_proto_library",
        "cc_test",
        "cc_toolchain",
        "cc_toolchain_suite",
        "fdo_prefetch_hints",
        "fdo_profile",
    ]
])

# `bazel test` resolves this label even when coverage is off.
_COVERAGE_BUILD = """
filegroup(name = "coverage_report_generator", srcs = [], visibility = ["//visibility:public"])
"""

def tessera_repositories():
    """Declares every repository that a target of Tessera can reach."""
    _generated_repository(
        name = "rules_cc",
        files = {"BUILD": "", "cc/BUILD": "", "cc/defs.bzl": _RULES_CC_DEFS},
    )
    _generated_repository(
        name = "remote_coverage_tools",
        files = {"BUILD": _COVERAGE_BUILD},
    )
    native.local_repository(name = "platforms", path = "/usr/share/bazel/tools/platforms")
    native.local_repository(name = "rules_java", path = "/usr/share/bazel/rules/java")
    native.local_repository(name = "rules_proto", path = "/usr/share/bazel/rules/proto")
    native.local_repository(name = "bazel_skylib", path = "/usr/share/bazel/tools/skylib")

    cuda_repository(name = "cuda")
    gloo_repository(name = "gloo")
    mpi_repository(name = "mpi")

    for name, path in {
        "absl": "/usr/include/absl",
        "eigen": "/usr/include/eigen3",
        "grpc": "/usr/include/grpcpp",
        "gtest": "/usr/include/gtest",
        "hwy": "/usr/include/hwy",
        "json": "/usr/include/nlohmann",
        "ucx": "/usr/include/ucp",
        "xxhash": "/usr/share/doc/libxxhash-dev",  # the header is alone in /usr/include
    }.items():
        native.new_local_repository(
            name = name,
            path = path,
            build_file = "@tessera//third_party:%s.BUILD" % name,
        )
