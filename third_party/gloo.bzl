"""@tessera_gloo: the Gloo of this machine, or an empty repository where it is not installed.

Searched in $GLOO_HOME if that is set, else where Debian's libgloo-dev is: include/gloo/config.h.
Only the headers: a program loads the library when it needs it (transport/gloo/gloo_engine.h).

`@tessera_gloo//:defs.bzl` says what was found: HAVE_GLOO. `@tessera_gloo//:gloo` exists in either
case.
"""

_BUILD = """
# Written by third_party/gloo.bzl.
cc_library(
    name = "gloo",
    hdrs = {headers},
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _gloo_repository_impl(ctx):
    folder = ctx.os.environ.get("GLOO_HOME", "/usr") + "/include/gloo"
    found = ctx.path(folder + "/config.h").exists
    ctx.file("WORKSPACE", "")
    if found:
        ctx.symlink(folder, "include/gloo")
    ctx.file("BUILD", _BUILD.format(
        headers = "glob([\"include/gloo/**/*.h\"])" if found else "[]",
    ))
    ctx.file("defs.bzl", "\"\"\"What third_party/gloo.bzl found.\"\"\"\n\nHAVE_GLOO = {}\n".format(
        bool(found),
    ))

gloo_repository = repository_rule(
    implementation = _gloo_repository_impl,
    environ = ["GLOO_HOME"],
    local = True,
    configure = True,
    doc = "The Gloo of this machine, if it is there.",
)
