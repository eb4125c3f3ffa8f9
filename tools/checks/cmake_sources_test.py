# SPDX-License-Identifier: Apache-2.0
"""Lists of sources and flags, from answers of Bazel 4.2.3's aquery."""

import json
import unittest

import cmake_sources

COMMON = ["-Wall", "-std=c++0x", "-iquote", ".", "-isystem", "external/eigen", "-std=c++20"]


def action(source, *flags, pic="pic."):
    """A command as aquery prints it."""
    stem = "bazel-out/k8-fastbuild/bin/_objs/x/" + source.replace(".cc", f".{pic}")
    return {
        "mnemonic": "CppCompile",
        "arguments": ["/usr/bin/gcc", *COMMON[:2], "-MD", "-MF", stem + "d"]
        + ["-frandom-seed=" + stem + "o", *COMMON[2:], *flags, "-c", source, "-o", stem + "o"],
    }


def answer(*actions):
    return json.dumps({"artifacts": [], "actions": list(actions)})


def no_names(_):
    return set()


LIBRARY = [
    action("base/text.cc"),
    action("job/start.cc", "-O1"),
    action("ops/kernels/reduce.cc", "-O3", "-ffp-contract=off"),
    action("ops/kernels/gemm.cc", "-O3", "-DTESSERA_GEMM=gemm_avx2", "-mavx2"),
    action("ops/kernels/gemm.cc", "-O3", "-DTESSERA_GEMM=gemm_baseline"),
    action("bazel-out/k8-fastbuild/bin/job/job.pb.cc", "-w"),
    action("bazel-out/k8-fastbuild/bin/job/job.grpc.pb.cc", "-w", "-O1"),
    action("external/other/other.cc"),
    action("transport/gloo/engine_without_gloo.cc"),
]


def written(library=None, program=(), names_of=no_names):
    return cmake_sources.sources_file(
        answer(*(library or LIBRARY)), {"tool": answer(*program)}, names_of
    )


class SourcesFileTest(unittest.TestCase):
    def test_sources_are_grouped_by_the_flags_of_their_targets(self):
        text = written()
        for expected in [
            "set(TESSERA_tessera_UNITS 1)\n"
            "set(TESSERA_tessera_UNIT_1\n  base/text.cc\n  job/start.cc\n)\n",
            "set(TESSERA_PROTOS\n  job/job.proto\n)\n",
            "set(TESSERA_FLAG_SETS\n  gemm_avx2\n  gemm_baseline\n  ops_kernels\n)\n",
            "set(TESSERA_gemm_avx2_FLAGS\n  -O3\n  -DTESSERA_GEMM=gemm_avx2\n  -mavx2\n)\n",
            "set(TESSERA_gemm_baseline_SOURCES\n  ops/kernels/gemm.cc\n)\n",
            "set(TESSERA_ops_kernels_FLAGS\n  -O3\n  -ffp-contract=off\n)\n",
            "set(TESSERA_WITHOUT_GLOO\n  transport/gloo/engine_without_gloo.cc\n)\n",
        ]:
            self.assertIn(expected, text)
        self.assertNotIn("other.cc", text)

    def test_a_machine_with_a_part_and_one_without_it_write_the_same(self):
        machine = LIBRARY[:-1] + [
            action("transport/gloo/gloo_engine.cc"),
            action("device/cuda/toolkit_api.cc"),
        ]
        self.assertEqual(written(), written(machine))

    def test_a_file_compiled_twice_alike_is_listed_once(self):
        self.assertEqual(written(), written(LIBRARY + [action("base/text.cc", pic="")]))

    def test_programs_have_what_the_library_has_not(self):
        text = written(program=[action("job/tool.cc", "-O1"), action("job/flags.cc", "-O1")])
        self.assertIn("set(TESSERA_PROGRAMS\n  tool\n)\n", text)
        self.assertIn("set(TESSERA_tool_UNIT_1\n  job/flags.cc\n  job/tool.cc\n)\n", text)

    def test_commands_that_are_not_as_expected_are_a_problem(self):
        for library in [
            LIBRARY + [action("base/shape.cc", "-O3", "-ffp-contract=off")],
            LIBRARY[:-1] + [action("transport/gloo/gloo_engine.cc", "-O3")],
            [action("external/other/other.cc")],
        ]:
            with self.assertRaises(cmake_sources.Problem):
                written(library)


class UnitsTest(unittest.TestCase):
    def test_sources_with_a_name_in_common_are_in_different_units(self):
        names = {"a.cc": {"f"}, "b.cc": {"g"}, "c.cc": {"f", "h"}, "d.cc": {"h"}}
        units = cmake_sources.make_units(sorted(names), names.get)
        self.assertEqual(units, [["a.cc", "b.cc", "d.cc"], ["c.cc"]])

    def test_a_unit_has_a_limit(self):
        sources = [f"{number:02}.cc" for number in range(cmake_sources.MAX_UNIT + 1)]
        units = cmake_sources.make_units(sources, no_names)
        self.assertEqual([len(unit) for unit in units], [cmake_sources.MAX_UNIT, 1])


class PrivateNamesTest(unittest.TestCase):
    def test_names_of_unnamed_namespaces_static_names_and_macros_are_private(self):
        text = """
#define KEPT(x) \\
  int x;
#define GONE 1
#undef GONE
namespace tessera {
namespace {
// A comment with a brace: {
constexpr char kText[] = R"(a string ) { with; braces)";
constexpr Row kRows[] = {{"a", 1}, {"b", 2}};
template <class T, class U = std::vector<T>>
class Maker final : public Base<T> {
  int inside;
  void also_inside() {}
};
enum class Kind { kOne };
struct Declared;
using Rows = std::vector<int>;
using other::Used;
template <class T>
std::enable_if_t<kIs<T>, int> function(T t, int (*callback)(int)) {
  static int local = 0;
  if (t) { return 1; }
}
Status declared_only(int x);
const char digits = '{';
static_assert(sizeof(int) == 4, "text");
}  // namespace

Status shared(int x) { return x; }
static int old_style = 1;
Status Class::member(int x) { int local = x; }

namespace inner {
int also_shared() { return 1; }
namespace {
int hidden() { return 1; }
}
}
}  // namespace tessera
"""
        self.assertEqual(
            cmake_sources.private_names(text),
            {"KEPT", "kText", "kRows", "Maker", "Kind", "Declared", "Rows", "Used", "function"}
            | {"declared_only", "digits", "old_style", "hidden"},
        )


if __name__ == "__main__":
    unittest.main()
