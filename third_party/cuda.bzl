"""@tessera_cuda: the CUDA toolkit and NCCL, or an empty repository where they are not installed.

Searched in $CUDA_HOME if that is set, else in /usr/local/cuda: `nvcc`, cuda_runtime_api.h and
the static runtime library, of CUDA 12.1 or later (12.0 allows a kernel 4096
bytes of parameters, and ours take up to 8712). NCCL (nccl.h and libnccl.so.2, of 2.28.7 or later)
is searched in $NCCL_HOME if that is set, else in the toolkit and the system's folders.

`@tessera_cuda//:defs.bzl` says what was found: HAVE_CUDA, HAVE_NCCL, HAVE_CUBLASLT, NVCC.
`@tessera_cuda//:cudart`, `@tessera_cuda//:nccl_headers` and `@tessera_cuda//:nccl_library` exist in
either case; without a toolkit, or without NCCL, they are empty, and targets that depend on them
build without that part. Programs link neither NCCL nor cuBLASLt: they load them when they need
them. Only the tests that look up names use the libraries here. cuBLASLt has 500 MB, so its test
gets the path (CUBLASLT_LIBRARY, empty where it is not installed), and Bazel does not read the file.
"""

_PLACES = ["/usr/local/cuda"]

# The headers that the runtime's headers include; the toolkit's C++ libraries have thousands more.
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

filegroup(
    name = "nccl_library",
    srcs = {nccl_library},
    visibility = ["//visibility:public"],
)
"""

# The first NCCL with ncclCommRevoke.
_OLDEST_NCCL = (2, 28, 7)

_DEFS = '''"""What third_party/cuda.bzl found."""

HAVE_CUDA = {have_cuda}
HAVE_NCCL = {have_nccl}
HAVE_CUBLASLT = {have_cublaslt}
CUBLASLT_LIBRARY = "{cublaslt_library}"
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
    # With CUDA_HOME set, no other folder is tried.
    for place in [home] if home else _PLACES:
        library = _first_existing(ctx, [
            place + folder + "/libcudart_static.a"
            for folder in ["/lib64", "/lib", "/targets/x86_64-linux/lib"]
        ])
        needed = [place + "/bin/nvcc", place + "/include/cuda_runtime_api.h"]
        if library and all([ctx.path(path).exists for path in needed]):
            return struct(home = place, cudart = library)
    return None

def _nccl_version(ctx, header):
    """(major, minor, patch) of the header; zeros for what it does not define."""
    version = {"MAJOR": 0, "MINOR": 0, "PATCH": 0}
    for line in ctx.read(header).split("\n"):
        words = [word for word in line.split(" ") if word]
        if len(words) == 3 and words[0] == "#define" and words[1].startswith("NCCL_"):
            part = words[1][len("NCCL_"):]
            if part in version and words[2].isdigit():
                version[part] = int(words[2])
    return (version["MAJOR"], version["MINOR"], version["PATCH"])

def _find_nccl(ctx, toolkit):
    """NCCL's header and library, or None where one is missing or too old."""
    home = ctx.os.environ.get("NCCL_HOME")
    places = [home] if home else [toolkit.home, "/usr", "/usr/local"]
    for place in places:
        header = _first_existing(ctx, [place + "/include/nccl.h"])
        library = _first_existing(ctx, [
            place + folder + "/libnccl.so.2"
            for folder in ["/lib64", "/lib", "/lib/x86_64-linux-gnu"]
        ])
        if header and library and _nccl_version(ctx, header) >= _OLDEST_NCCL:
            return struct(header = header, library = library)
    return None

def _find_cublaslt(ctx, toolkit):
    """The library of the toolkit's cuBLASLt, "" where there is none; None without its header."""
    if not ctx.path(toolkit.home + "/include/cublasLt.h").exists:
        return None
    return _first_existing(ctx, [
        toolkit.home + folder + "/libcublasLt.so" + version
        for folder in ["/lib64", "/lib", "/targets/x86_64-linux/lib"]
        for version in ["", ".13", ".12"]
    ]) or ""

def _cuda_repository_impl(ctx):
    toolkit = _find_toolkit(ctx)
    nccl = None
    cublaslt = _find_cublaslt(ctx, toolkit) if toolkit else None
    ctx.file("WORKSPACE", "")
    if toolkit:
        ctx.symlink(toolkit.home + "/include", "include")
        ctx.symlink(toolkit.cudart, "lib/libcudart_static.a")
        nccl = _find_nccl(ctx, toolkit)
        if nccl:
            ctx.symlink(nccl.header, "nccl/nccl.h")
            ctx.symlink(nccl.library, "nccl/libnccl.so.2")
    ctx.file("BUILD", _BUILD.format(
        libraries = "[\"lib/libcudart_static.a\"]" if toolkit else "[]",
        headers = "glob({})".format(_HEADERS) if toolkit else "[]",
        linkopts = "[\"-ldl\", \"-lrt\", \"-pthread\"]" if toolkit else "[]",
        nccl_headers = "[\"nccl/nccl.h\"]" if nccl else "[]",
        nccl_library = "[\"nccl/libnccl.so.2\"]" if nccl else "[]",
    ))
    ctx.file("defs.bzl", _DEFS.format(
        have_cuda = bool(toolkit),
        have_nccl = bool(nccl),
        have_cublaslt = cublaslt != None,
        cublaslt_library = cublaslt or "",
        nvcc = toolkit.home + "/bin/nvcc" if toolkit else "",
    ))

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    environ = ["CUDA_HOME", "NCCL_HOME"],
    local = True,
    configure = True,
    doc = "The CUDA toolkit and NCCL of this machine, if they are there.",
)

# Machine code for these, and PTX of the last one for later architectures.
_ARCHITECTURES = ["80", "90"]

def _compiled_once_impl(ctx):
    return [DefaultInfo(files = depset(ctx.files.object))]

_compiled_once = rule(
    implementation = _compiled_once_impl,
    attrs = {"object": attr.label(allow_files = True, cfg = "host")},
    doc = "A file that is the same under every config, made once for all of them.",
)

def cuda_library(name, src, src_hdrs, nvcc, **attributes):
    """A library of one .cu file for the architectures above; without `nvcc` it is empty.

    The code for a GPU is the same under every config, and compiled once for all.

    Args:
      name: of the target.
      src: the .cu file.
      src_hdrs: the headers of this repository that the .cu file includes.
      nvcc: the compiler, as @tessera_cuda//:defs.bzl has it.
      **attributes: of the cc_library.
    """
    objects = []
    if nvcc:
        codes = ["-gencode=arch=compute_%s,code=sm_%s" % (a, a) for a in _ARCHITECTURES]
        newest = _ARCHITECTURES[-1]
        codes.append("-gencode=arch=compute_%s,code=compute_%s" % (newest, newest))
        native.genrule(
            name = name + "_of_gpu",
            srcs = [src] + src_hdrs,
            outs = [name + "_of_gpu.o"],
            # Removes the path in the repository: what is left is its root, empty in its own
            # workspace. Its name is Bazel's choice.
            cmd = " ".join([
                "src=$(location %s); root=$${src%%%%%s/%s};" % (src, native.package_name(), src),
                nvcc,
                "-std=c++20 -O3 -Xcompiler=-fPIC -Xcompiler=-Wall --Werror=all-warnings",
            ] + codes + ["-I./$$root -c $$src -o $@"]),
            message = "Compiling kernels with nvcc",
            # Else `//...` compiles it once more, under the config of the command.
            tags = ["manual"],
        )
        _compiled_once(name = name + "_once", object = name + "_of_gpu.o")
        objects.append(name + "_once")
    native.cc_library(name = name, srcs = objects, linkstatic = True, **attributes)
