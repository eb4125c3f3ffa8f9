"""The repositories that Tessera builds with: Debian's packages, and nothing downloaded.

A workspace that uses Tessera calls `tessera_repositories()` after its own
`local_repository(name = "tessera", ...)`, and `tessera_debian_bazel()` after that if its Bazel is
Debian's 4.2.3. A workspace with MODULE.bazel calls neither: extensions.bzl.
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

# name -> path of a package of Debian; the BUILD file of absl, for one, is absl.BUILD.
SYSTEM_LIBRARIES = {
    "absl": "/usr/include/absl",
    "eigen": "/usr/include/eigen3",
    "grpc": "/usr/include/grpcpp",
    "gtest": "/usr/include/gtest",
    "hwy": "/usr/include/hwy",
    "json": "/usr/include/nlohmann",
    "ucx": "/usr/include/ucp",
    "xxhash": "/usr/share/doc/libxxhash-dev",  # the header is alone in /usr/include
}

def tessera_repositories():
    """Declares every repository that a target of Tessera can reach.

    All names begin with tessera_, so that a workspace may have an @absl or @grpc of its own.
    """
    cuda_repository(name = "tessera_cuda")
    gloo_repository(name = "tessera_gloo")
    mpi_repository(name = "tessera_mpi")

    for name, path in SYSTEM_LIBRARIES.items():
        native.new_local_repository(
            name = "tessera_" + name,
            path = path,
            build_file = "@tessera//third_party:%s.BUILD" % name,
        )

def tessera_debian_bazel():
    """Declares what Debian's Bazel 4.2.3 itself needs, where nothing may be downloaded.

    Only for that Bazel. A repository that the workspace has declared before stays.
    """
    existing = native.existing_rules()
    for name, files in {
        "rules_cc": {"BUILD": "", "cc/BUILD": "", "cc/defs.bzl": _RULES_CC_DEFS},
        "remote_coverage_tools": {"BUILD": _COVERAGE_BUILD},
    }.items():
        if name not in existing:
            _generated_repository(name = name, files = files)
    for name, path in {
        "platforms": "/usr/share/bazel/tools/platforms",
        "rules_java": "/usr/share/bazel/rules/java",
        "rules_proto": "/usr/share/bazel/rules/proto",
        "bazel_skylib": "/usr/share/bazel/tools/skylib",
    }.items():
        if name not in existing:
            native.local_repository(name = name, path = path)
