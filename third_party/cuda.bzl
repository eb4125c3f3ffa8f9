"""@cuda: the CUDA toolkit and NCCL where they are installed, and an empty shell where not.

Looked for in $CUDA_HOME, where that is set, else in /usr/local/cuda: `nvcc`, cuda_runtime_api.h and
the static runtime library, of CUDA 12 or later. NCCL (nccl.h) may lie there or in the system's own
folders.

`@cuda//:defs.bzl` says what there is: HAVE_CUDA, HAVE_NCCL, NVCC. `@cuda//:cudart` and
`@cuda//:nccl_headers` exist in either case; without a toolkit they are empty, and what depends on
them builds with its part for CUDA left out.
"""

_PLACES = ["/usr/local/cuda"]

# What the headers of the runtime include, without the thousands of files of the C++ libraries.
_HEADERS = ["include/*.h", "include/*.hpp", "include/crt/*"]

_BUILD = """
# Written by third_party/cuda.bzl.
cc_library(
    name = "cudart",
    srcs = {libraries},
    hdrs = {headers},
    includes = ["include"],
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)

cc_library(
    name = "nccl_headers",
    hdrs = {nccl_headers},
    includes = ["nccl"],
    visibility = ["//visibility:public"],
    deps = [":cudart"],
)
"""

_DEFS = '''"""What third_party/cuda.bzl found."""

HAVE_CUDA = {have_cuda}
HAVE_NCCL = {have_nccl}
NVCC = "{nvcc}"
'''

def _first_existing(ctx, paths):
    for path in paths:
        if ctx.path(path).exists:
            return path
    return None

def _find_toolkit(ctx):
    """The toolkit's folder and its static runtime library, or None where one is missing."""
    home = ctx.os.environ.get("CUDA_HOME")
    # A folder that somebody names is the only one looked at.
    for place in [home] if home else _PLACES:
        library = _first_existing(ctx, [
            place + folder + "/libcudart_static.a"
            for folder in ["/lib64", "/lib", "/targets/x86_64-linux/lib"]
        ])
        needed = [place + "/bin/nvcc", place + "/include/cuda_runtime_api.h"]
        if library and all([ctx.path(path).exists for path in needed]):
            return struct(home = place, cudart = library)
    return None

def _cuda_repository_impl(ctx):
    toolkit = _find_toolkit(ctx)
    nccl = None
    ctx.file("WORKSPACE", "")
    if toolkit:
        ctx.symlink(toolkit.home + "/include", "include")
        ctx.symlink(toolkit.cudart, "lib/libcudart_static.a")
        nccl = _first_existing(ctx, [
            toolkit.home + "/include/nccl.h",
            "/usr/include/nccl.h",
            "/usr/local/include/nccl.h",
        ])
        if nccl:
            ctx.symlink(nccl, "nccl/nccl.h")
    ctx.file("BUILD", _BUILD.format(
        libraries = "[\"lib/libcudart_static.a\"]" if toolkit else "[]",
        headers = "glob({})".format(_HEADERS) if toolkit else "[]",
        linkopts = "[\"-ldl\", \"-lrt\", \"-pthread\"]" if toolkit else "[]",
        nccl_headers = "[\"nccl/nccl.h\"]" if nccl else "[]",
    ))
    ctx.file("defs.bzl", _DEFS.format(
        have_cuda = bool(toolkit),
        have_nccl = bool(nccl),
        nvcc = toolkit.home + "/bin/nvcc" if toolkit else "",
    ))

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    environ = ["CUDA_HOME"],
    local = True,
    configure = True,
    doc = "The CUDA toolkit of this machine, if there is one.",
)

# Code for these and, by the last one's intermediate form, for what comes after them.
_ARCHITECTURES = ["80", "90"]

def cuda_object(name, src, hdrs, nvcc):
    """Compiles one .cu file to `name`.o for the architectures above.

    Args:
      name: of the target, and of the object file without its ending.
      src: the .cu file.
      hdrs: headers of this repository that it includes.
      nvcc: the compiler, as @cuda//:defs.bzl has it.
    """
    codes = ["-gencode=arch=compute_%s,code=sm_%s" % (a, a) for a in _ARCHITECTURES]
    newest = _ARCHITECTURES[-1]
    codes.append("-gencode=arch=compute_%s,code=compute_%s" % (newest, newest))
    native.genrule(
        name = name,
        srcs = [src] + hdrs,
        outs = [name + ".o"],
        # The second folder is this repository's where another workspace builds it.
        cmd = " ".join([
            nvcc,
            "-std=c++20 -O3 -Xcompiler=-fPIC -Xcompiler=-Wall --Werror=all-warnings",
        ] + codes + ["-I. -Iexternal/tessera -c $(location %s) -o $@" % src]),
        message = "Compiling kernels with nvcc",
    )
