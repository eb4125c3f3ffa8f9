"""The C++ rules of Tessera: the native ones, with precompiled system headers.

GoogleTest, Abseil and the standard library are some 100,000 lines in each of 200 translation units:
two of the four to eight seconds that a unit takes to compile. With
`--define=tessera_precompiled_headers=1`, which the .bazelrc of this workspace sets, they are
compiled once per configuration. Another workspace that uses Tessera may set it too. Without it
nothing is precompiled, because clang fails if a target's options differ from those of the headers.

A file still includes what it uses, which tools/tidy checks.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_headers_impl(ctx):
    # gcc and clang both use NAME.h.gch if a command includes NAME.h first and the options agree.
    # Else gcc reads NAME.h, and clang fails. The .gch is not compiled from NAME.h, because clang
    # stores the absolute path of its source, which is in a sandbox.
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    precompiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    ctx.actions.write(header, "".join(["#include <%s>\n" % name for name in ctx.attr.headers]))

    includes = []
    for name in ctx.attr.headers[:-1]:
        includes += ["-include", name]

    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features + ["module_maps", "layering_check"],
    )
    options = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts
    if "layering_check" in ctx.features:
        options = options + ["-fmodules-strict-decluse"]  # must match in header and source
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = "/usr/include/" + ctx.attr.headers[-1],
        output_file = precompiled.path,
        user_compile_flags = options + includes + ["-x", "c++-header"],
        use_pic = True,
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = ACTION_NAMES.cpp_compile,
        ),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = ACTION_NAMES.cpp_compile,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = ACTION_NAMES.cpp_compile,
            variables = variables,
        ),
        inputs = toolchain.all_files,
        outputs = [precompiled],
        mnemonic = "CppPrecompile",
    )
    context = cc_common.create_compilation_context(headers = depset([header, precompiled]))
    return [
        DefaultInfo(files = depset([header, precompiled])),
        CcInfo(compilation_context = context),
    ]

precompiled_headers = rule(
    implementation = _precompiled_headers_impl,
    attrs = {
        "headers": attr.string_list(doc = "Of the system; the last is in /usr/include."),
        "copts": attr.string_list(doc = "As of the targets that include it."),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def _if_precompiled(values):
    return select({"//third_party:precompiled": values, "//conditions:default": []})

def _with_headers(rule, headers, attributes, copts = []):
    """Calls the rule, with precompiled headers and `copts` where it compiles something."""
    if attributes.get("srcs"):
        # Empty in its own workspace. Else the name that Bazel has for it, which is the name of its
        # folder: "tessera", and with MODULE.bazel "tessera~" or "tessera+".
        repository = native.repository_name().lstrip("@")
        root = "$(BINDIR)" + ("/external/" + repository if repository else "")
        attributes["copts"] = _if_precompiled(
            ["-include", "%s/third_party/%s.h" % (root, headers)],
        ) + copts + attributes.pop("copts", [])
        attributes["deps"] = attributes.pop("deps", []) + _if_precompiled(
            ["//third_party:" + headers],
        )
    rule(**attributes)

def _as_one_file(attributes):
    """With `--define=tessera_one_file=1` the files of a library are compiled as one.

    What they instantiate and inline is much the same: those of ops/ take 43 s as one, apart 73.
    .bazelrc sets it. `--config=apart` compiles them apart, and finds what one of them has from
    another by chance.
    """
    srcs = attributes.get("srcs", [])
    files = [src for src in srcs if src.endswith(".cc")]
    if len(files) < 2:
        return
    one = attributes["name"] + "_as_one_file"
    lines = ["'%s'" % line for line in [
        # gcc takes the files for headers: a class there may not have a member of a file's own type.
        "#ifndef __clang__",
        "#pragma GCC diagnostic ignored \"-Wsubobject-linkage\"",
        "#endif",
    ] + ["#include \"%s/%s\"" % (native.package_name(), file) for file in files]]
    native.genrule(
        name = one,
        testonly = attributes.get("testonly", False),
        outs = [one + ".cc"],
        cmd = "printf '%%s\\n' %s > $@" % " ".join(lines),
        visibility = ["//visibility:private"],
    )
    attributes["srcs"] = [src for src in srcs if src not in files] + select({
        "//third_party:one_file": [one + ".cc"],
        "//conditions:default": files,
    })
    attributes["textual_hdrs"] = attributes.pop("textual_hdrs", []) + select({
        "//third_party:one_file": files,
        "//conditions:default": [],
    })

def cc_library(precompiled = True, of_tests = False, one_file = True, **attributes):
    """A library.

    Args:
      precompiled: whether it includes the precompiled headers.
      of_tests: it is the text of tests, which has their options.
      one_file: its files may be compiled as one.
      **attributes: of the native rule.
    """
    if one_file and precompiled:
        _as_one_file(attributes)
    if of_tests:
        _with_headers(native.cc_library, "test_headers", attributes, ["-O0"])
    elif precompiled:
        _with_headers(native.cc_library, "library_headers", attributes)
    else:
        native.cc_library(**attributes)

def cc_binary(**attributes):
    _with_headers(native.cc_binary, "library_headers", attributes)

def cc_test(optimized = False, **attributes):
    """A test; `optimized` where running its own text takes longer than compiling it."""
    if optimized:
        _with_headers(native.cc_test, "library_headers", attributes, ["-O1"])
    else:
        _with_headers(native.cc_test, "test_headers", attributes, ["-O0"])

_TEST_DEPS = [
    "//tests/support:matchers",
    "@tessera_absl//:absl",
    "@tessera_gtest//:gtest",
    "@tessera_gtest//:gtest_main",
]

def tessera_test(deps = [], **attributes):
    """A cc_test with GoogleTest, its main(), Abseil and the matchers of tests/support."""
    cc_test(deps = deps + _TEST_DEPS, **attributes)
