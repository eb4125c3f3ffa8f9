# SPDX-License-Identifier: Apache-2.0
"""Provokes every rule of tools/checks/tidy.py, and shows similar text that the rule accepts."""

import pathlib
import re
import unittest

import tidy
import tidy_surface

ROOT = pathlib.Path(__file__).parent.parent.parent

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
HEAD = SPDX + "//\n// Layout: how a tensor is split.\n"


# Code that needs each precompiled header, and similar code that does not.
NAMES = [
    ("algorithm", ["std::max(a, b)", "std::sort(b, e)"], ["std::remove(path)", "my::max(a)"]),
    ("atomic", ["std::atomic<int> a", "std::memory_order_acquire"], ["std::atomics", "atomic"]),
    ("condition_variable", ["std::condition_variable c"], ["condition_variable c"]),
    ("cstdint", ["int64_t i", "UINT32_MAX", "std::uint8_t b"], ["size_t s", "my_int64_t"]),
    ("functional", ["std::function<void()> f", "std::hash<int>"], ["std::functional", "hash<int>"]),
    ("map", ["std::map<int, int> m", "std::multimap<int, int>"], ["std::mapped", "map(f)"]),
    ("memory", ["std::shared_ptr<int> p", "std::make_unique<int>()"], ["std::aligned_alloc(8, 8)"]),
    ("mutex", ["std::mutex m", "std::lock_guard lock(m)"], ["std::shared_mutex m", "mutex"]),
    ("numeric", ["std::iota(b, e, 0)"], ["std::numeric_limits<int>", "iota(b)"]),
    ("optional", ["std::optional<int> o", "std::nullopt"], ["absl::optional<int>", "nullopt"]),
    ("set", ["std::set<int> s"], ["std::setw(3)", "std::unordered_set<int> s"]),
    ("string", ["std::string s", "std::stoi(s)"], ["std::string_view s", "string"]),
    ("thread", ["std::thread t", "std::this_thread::get_id()"], ["thread t", "std::threads"]),
    ("utility", ["std::move(a)", "std::pair p(1, 2)"], ["std::move_iterator i", "std::tuple t(1)"]),
    ("vector", ["std::vector<int> v"], ["absl::InlinedVector<int, 2> v", "vector"]),
    ("absl/status/statusor.h", ["absl::StatusOr<int> s"], ["StatusOr<int> s", "absl::Status s"]),
    ("absl/strings/numbers.h", ["absl::SimpleAtoi(s, &i)"], ["SimpleAtoi", "absl::SimpleThing"]),
    ("absl/strings/str_cat.h", ["absl::StrCat(1)", "absl::kZeroPad16"], ["absl::StrCats"]),
    ("absl/strings/str_join.h", ['absl::StrJoin(v, ",")'], ["StrJoin", "absl::StrSplit(s, c)"]),
    ("absl/time/clock.h", ["absl::Now()"], ["Now()", "absl::Nowhere"]),
    ("absl/time/time.h", ["absl::Seconds(1)", "absl::ToInt64Seconds(d)"], ["absl::ToString"]),
    ("absl/types/span.h", ["absl::Span<int> s", "absl::MakeSpan(v)"], ["absl::Spans", "Span s"]),
    (
        "gmock/gmock-matchers.h",
        ["EXPECT_THAT(a, b)", "using ::testing::HasSubstr;"],
        ["TESSERA_EXPECT_THAT", "tessera::testing::IsOk()"],
    ),
    ("gmock/gmock-more-matchers.h", ["testing::IsEmpty()"], ["IsEmpty()", "testing::IsOk()"]),
    (
        "gtest/gtest.h",
        ["TEST(A, B) {", "EXPECT_EQ(a, b)", "class A : public ::testing::Test"],
        ["EXPECT_CALL(a, b)", "TESSERA_ASSERT_OK_AND_ASSIGN(a, b)", "testing::TestDeadline d"],
    ),
]


def precompiled_build(headers):
    """third_party/BUILD with these headers, the first of them on line 2."""
    return "_LIBRARY_HEADERS = [\n" + "".join(f'    "{header}",\n' for header in headers) + "]\n"


def findings(rule, files):
    """The findings of one rule, as "path:line: message"."""
    return [f"{f.path}:{f.line}: {f.message}" for f in rule(tidy.Tree(files))]


class RuleTest(unittest.TestCase):
    def check(self, rule, files, *wanted):
        """The rule finds exactly `wanted`, each a (place, part of the message)."""
        found = findings(rule, files)
        self.assertEqual(len(found), len(wanted), found)
        for finding, (place, part) in zip(found, wanted):
            self.assertTrue(finding.startswith(place + ": "), finding)
            self.assertIn(part, finding)

    def test_what_comment(self):
        self.check(tidy.rule_what_comment, {"a/b.h": HEAD, "a/b.cc": SPDX + '#include "a/b.h"\n'})
        self.check(tidy.rule_what_comment, {"a/b.h": ""}, ("a/b.h:1", "SPDX"))
        self.check(
            tidy.rule_what_comment,
            {"a/b.h": SPDX + "//\n// Layout.\n"},
            ("a/b.h:2", "what the file is"),
        )
        no_header = {"a/b_test.cc": SPDX + '#include "a/b.h"\n'}
        self.check(tidy.rule_what_comment, no_header, ("a/b_test.cc:2", "what the file is"))

    def test_script_head(self):
        good = "#!/bin/sh\n# " + tidy.SPDX + "\n"
        self.check(tidy.rule_script_head, {"x": good, "a/BUILD": "# a - what a is for\n"})
        self.check(tidy.rule_script_head, {"x": "#!/bin/sh\n"}, ("x:2", "SPDX"))
        self.check(
            tidy.rule_script_head, {"a/BUILD": "package()\n"}, ("a/BUILD:1", "what the folder")
        )

    def test_guard(self):
        good = HEAD + "#ifndef TESSERA_A_B_H_\n#define TESSERA_A_B_H_\n#endif\n"
        self.check(tidy.rule_guard, {"a/b.h": good})
        self.check(
            tidy.rule_guard,
            {"tessera.h": "#ifndef TESSERA_TESSERA_H_\n#define TESSERA_TESSERA_H_\n"},
        )
        self.check(tidy.rule_guard, {"c/b.h": good}, ("c/b.h:4", "TESSERA_C_B_H_"))
        self.check(tidy.rule_guard, {"a/b.h": HEAD}, ("a/b.h:1", "TESSERA_A_B_H_"))
        self.check(tidy.rule_guard, {"a/b.h": "#pragma once\n"}, ("a/b.h:1", "TESSERA_A_B_H_"))

    def test_line_length(self):
        self.check(tidy.rule_line_length, {"a.cc": "x" * 100, "b.h": "// https://" + "x" * 100})
        table = "// clang-format off\n" + "x" * 101 + "\n// clang-format on\n"
        self.check(tidy.rule_line_length, {"a.cc": table})
        self.check(tidy.rule_line_length, {"a.cc": table + "x" * 101}, ("a.cc:4", "101 columns"))
        self.check(tidy.rule_line_length, {"a.cc": "\n" + "x" * 101}, ("a.cc:2", "101 columns"))

    def test_target(self):
        build = 'cc_library(name = "b", srcs = ["b.cc", "c/d.cc"], hdrs = glob(["*.h"]))\n'
        self.check(
            tidy.rule_target,
            {"a/BUILD": build, "a/b.cc": "", "a/b.h": "", "a/c/d.cc": "", "n.md": ""},
        )
        self.check(
            tidy.rule_target,
            {"a/BUILD": build, "a/e.cc": ""},
            ("a/e.cc:1", 'add "e.cc" to a/BUILD'),
        )
        commented = {"a/BUILD": '# "e.cc"\n', "a/e.cc": ""}
        self.check(tidy.rule_target, commented, ("a/e.cc:1", "no target has it"))

    def test_manual(self):
        one = 't(\n    name = "a",\n    srcs = ["a.cc"],\n    deps = ["//x", "//y"],\n)\n'
        other = 't(\n    name = "b",\n    srcs = ["b.cc"],\n    deps = ["//z"],\n)\n'
        both = 't(\n    name = "all",\n    srcs = ["a.cc"],\n    tags = ["manual"],\n'
        good = {"f/BUILD": one + other + both + '    deps = ["//x", "//y"],\n)\n'}
        self.check(tidy.rule_manual, good)
        bad = {"f/BUILD": one + other + both + '    deps = ["//x"],\n)\n'}
        self.check(tidy.rule_manual, bad, ("f/BUILD:12", "its sources need //y"))
        self.check(tidy.rule_manual, {**bad, "f/macro.bzl": '_MORE_DEPS = ["//y"]\n'})
        elsewhere = both.replace('"a.cc"', '"//f:a.cc"') + '    deps = ["//x"],\n)\n'
        apart = {"f/BUILD": one + other, "g/BUILD": "#\n" + elsewhere}
        self.check(tidy.rule_manual, apart, ("g/BUILD:3", "its sources need //y"))

    def test_file_options(self):
        rule = tidy.rule_file_options
        tree = {"a/b.cc": "", "a/c.proto": "", "d/e.cc": ""}
        good = r"build --per_file_copt=^(a|d)/.*,-_test\.cc$@-O1" + "\n"
        good += r"build --per_file_copt=\.pb\.cc$@-w" + "\nbuild --per_file_copt=external/.*@-w\n"
        good += "build --per_file_copt=^(bazel-out/[^/]*/bin/)?(a|d)/@-w\n"
        self.check(rule, {**tree, ".bazelrc": good})
        bad = "#\nbuild --per_file_copt=^(a|f)/.*@-O1\n"
        self.check(rule, {**tree, ".bazelrc": bad}, (".bazelrc:2", '"^f/.*" selects no source'))
        nested = r"build:x --per_file_copt=(\.pb|b/f)\.cc$@-O0"
        found = ("a/.bazelrc:1", r'"b/f\.cc$" selects no source')
        self.check(rule, {**tree, "a/.bazelrc": nested}, found)

    def test_machine_path(self):
        folder = "/" + "home/"
        self.check(tidy.rule_machine_path, {"a": "see ../home/x, /usr/include and a/work/b"})
        self.check(
            tidy.rule_machine_path, {"a": "\ncp " + folder + "me/x ."}, ("a:2", "one machine")
        )

    def test_layers(self):
        good = {
            "layout/a.cc": '#include "mesh/mesh.h"\n#include "absl/status/status.h"\n',
            "layout/a_test.cc": '#include "tests/support/matchers.h"\n',
            "tests/a.cc": '#include "dtensor/dtensor.h"\n',
            "job/BUILD": 'cc_library(\n    testonly = True,\n    hdrs = ["suite.h"],\n)\n',
            "job/suite.h": '#include "tests/support/matchers.h"\n',
            "examples/a.cc": '#include "tessera.h"\n',
        }
        self.check(tidy.rule_layers, good)
        upwards = {"mesh/a.h": '\n#include "layout/layout.h"\n'}
        self.check(tidy.rule_layers, upwards, ("mesh/a.h:2", "mesh/ may not use layout/"))
        sideways = {"device/a.cc": '#include "mesh/mesh.h"\n'}
        self.check(tidy.rule_layers, sideways, ("device/a.cc:1", "it may use device, base"))
        to_tests = {"layout/a.cc": '#include "tests/support/matchers.h"\n'}
        self.check(tidy.rule_layers, to_tests, ("layout/a.cc:1", "may not use tests/"))
        past_umbrella = {"examples/a.cc": '#include "mesh/mesh.h"\n'}
        self.check(tidy.rule_layers, past_umbrella, ("examples/a.cc:1", "may not use mesh/"))
        umbrella = {"dtensor/a.cc": '#include "tessera.h"\n'}
        self.check(tidy.rule_layers, umbrella, ("dtensor/a.cc:1", "for programs"))
        front = {"dtensor/a.cc": '#include "tessera/core.h"\n#include "tessera/version.h"\n'}
        self.check(tidy.rule_layers, front, ("dtensor/a.cc:1", "tessera/core.h is for programs"))
        self.check(tidy.rule_layers, {"examples/a.cc": front["dtensor/a.cc"]})

    def test_layers_are_those_of_the_architecture(self):
        """The table of docs/architecture.md, whose column `may use` is LAYERS."""
        page = (ROOT / "docs/architecture.md").read_text()
        rows = re.findall(r"^\| `(\w+)/` \|.*\| ([^|]*) \|$", page, re.M)
        self.assertGreater(len(rows), 9)
        used = {folder: re.sub("`[^`]*`|-", "", may_use).split() for folder, may_use in rows}
        self.assertEqual(used, {folder: tidy.LAYERS[folder] for folder in used})
        self.assertEqual(tidy.LAYERS.keys() - used.keys(), {"benchmarks"})

    def test_layers_of_each_folder(self):
        for folder, allowed in tidy.LAYERS.items():
            for other in [*tidy.LAYERS, "tests"]:
                with self.subTest(folder=folder, other=other):
                    file = {f"{folder}/a.cc": f'#include "{other}/b.h"\n'}
                    message = (f"{folder}/a.cc:1", f"{folder}/ may not use {other}/")
                    is_allowed = other == folder or other in allowed
                    self.check(tidy.rule_layers, file, *([] if is_allowed else [message]))

    def test_pure(self):
        self.check(
            tidy.rule_pure, {"base/a.cc": "#include <thread>\n", "mesh/a.cc": "#include <map>\n"}
        )
        self.check(tidy.rule_pure, {"mesh/a.cc": "#include <thread>\n"}, ("mesh/a.cc:1", "is pure"))

    def test_include(self):
        rule = tidy.rule_include
        build = precompiled_build(tidy.PRECOMPILED)

        def check(files, *wanted):
            self.check(rule, {tidy.PRECOMPILED_BUILD: build, **files}, *wanted)

        uses = "\nvoid f(std::vector<int>);\nstd::vector<int> g();\n"
        has = "#include <vector>\n"
        check(
            {"a/b.h": uses},
            ("a/b.h:2", "std::vector is used here; include <vector>"),
        )
        check(
            {"a/b.cc": "absl::StrCat(1);"},
            ("a/b.cc:1", 'absl::StrCat is used here; include "absl/strings/str_cat.h"'),
        )
        check({"examples/external/a.cc": uses}, ("examples/external/a.cc:2", "include <vector>"))
        check({"a/b.h": has + uses, "a/c.py": uses})
        check({"a/b.cc": '// std::vector\n/* std::vector\n */ auto s = "std::vector";\n'})
        check({"a/b.cc": "// NOTIDY(include): the line is an example\nstd::vector<int> f();\n"})
        check({"a/b.cc": "// #include <vector>" + uses}, ("a/b.cc:2", "include <vector>"))

        # The file's own header may include it, if the file includes that header.
        own = '#include "a/b.h"\n'
        check({"a/b.h": has, "a/b.cc": own + uses, "a/b_test.cc": own + uses})
        check({"a/b.h": has, "a/b.cc": uses}, ("a/b.cc:2", "include <vector>"))
        check({"a/b.h": has, "a/c.cc": own + uses}, ("a/c.cc:3", "include <vector>"))
        nested = {"a/b.h": '#include "a/c.h"\n', "a/c.h": has, "a/b.cc": own + uses}
        check(nested, ("a/b.cc:3", "include <vector>"))

    def test_include_knows_what_is_precompiled(self):
        rule = tidy.rule_include
        build = tidy.PRECOMPILED_BUILD
        known = list(tidy.PRECOMPILED)
        self.check(rule, {build: precompiled_build(known)})
        self.check(
            rule,
            {build: precompiled_build([*known, "bit"])},
            (f"{build}:{len(known) + 2}", '"bit" needs a row of PRECOMPILED in tidy_headers.py'),
        )
        self.check(
            rule,
            {build: precompiled_build(known[1:])},
            (build + ":1", f'"{known[0]}" is not precompiled; drop its row'),
        )
        of_tests = '    headers = _LIBRARY_HEADERS + [\n        "bit",\n    ],\n'
        self.check(
            rule,
            {build: precompiled_build(known) + of_tests},
            (f"{build}:{len(known) + 4}", '"bit" needs a row'),
        )

    def test_include_knows_names_of_each_header(self):
        self.assertEqual([header for header, _, _ in NAMES], list(tidy.PRECOMPILED))
        build = precompiled_build(tidy.PRECOMPILED)
        for header, used, not_used in NAMES:
            written = f'"{header}"' if "/" in header else f"<{header}>"
            for text in used:
                with self.subTest(header=header, text=text):
                    file = {tidy.PRECOMPILED_BUILD: build, "a.cc": text}
                    self.check(tidy.rule_include, file, ("a.cc:1", "include " + written))
                    file["a.cc"] = f"#include {written}\n{text}"
                    self.check(tidy.rule_include, file)
            for text in not_used:
                with self.subTest(header=header, text=text):
                    file = {tidy.PRECOMPILED_BUILD: build, "a.cc": text}
                    self.check(tidy.rule_include, file)

    def test_todo(self):
        self.check(tidy.rule_todo, {"a.cc": "// TODO(#12): more dtypes\nint TODO;\n"})
        self.check(tidy.rule_todo, {"a.cc": "// TODO(me): more\n"}, ("a.cc:1", "TODO(#123)"))
        self.check(tidy.rule_todo, {"a.py": "x = 1  # TODO: more\n"}, ("a.py:1", "TODO(#123)"))

    def test_wall_clock(self):
        good = "steady_now();  // absl::Now() is not\n"
        self.check(tidy.rule_wall_clock, {"job/a.cc": good, "examples/a.cc": "absl::Now();\n"})
        for bad in ("absl::Now();", "std::chrono::system_clock::now();", "f(CLOCK_REALTIME);"):
            finding = ("tests/a_test.cc:2", "steady_now()")
            self.check(tidy.rule_wall_clock, {"tests/a_test.cc": "\n" + bad}, finding)
        reason = "absl::Now();  // NOTIDY(wall-clock): a date for people\n"
        self.check(tidy.rule_wall_clock, {"job/a.cc": reason})

    def test_banned(self):
        good = (
            "static_assert(true);\nTESSERA_DCHECK(x);\n// assert(x) would throw\n"
            'auto s = "throw";\nsnprintf(b, 2, "x");\nmatcher.assert(x);\n'
        )
        self.check(tidy.rule_banned, {"layout/a.cc": good, "examples/a.cc": "std::cout << 1;\n"})
        threads = "std::thread t;\nstd::thread::id id;\n"
        self.check(tidy.rule_banned, {"layout/a_test.cc": threads, "examples/a.cc": threads})
        self.check(tidy.rule_banned, {"layout/a.cc": "std::thread::id id;\n"})
        for bad, instead in [
            ("  assert(x);", "TESSERA_DCHECK"),
            ("  throw 1;", "absl::Status"),
            ("  std::cout << 1;", "ostream"),
            ('  printf("x");', "ostream"),
            ("  std::thread worker_;", "start_thread"),
            ("  std::jthread([] {});", "start_thread"),
            ("  absl::MutexLock lock(&mu);", "std::mutex"),
            ('#include "absl/synchronization/mutex.h"', "std::mutex"),
        ]:
            self.check(tidy.rule_banned, {"layout/a.cc": "\n" + bad}, ("layout/a.cc:2", instead))

    def test_a_reason_lifts_a_ban(self):
        reason = "// NOTIDY(banned): the launcher's output is its result\nstd::cout << 1;\n"
        self.check(tidy.rule_banned, {"job/a.cc": reason})
        self.check(
            tidy.rule_banned,
            {"job/a.cc": "std::cout << 1;  // NOTIDY(banned)\n"},
            ("job/a.cc:1", "banned"),
        )

    def test_notidy(self):
        rule = tidy.rule_notidy
        for good in [
            "// NOTIDY(banned): its output\nstd::cout << 1;\n",
            "std::cout << 1;  // NOTIDY(banned): its output\n",
            '#include "mesh/mesh.h"  // NOTIDY(layers): a part of it\n' * 2,
        ]:
            self.check(rule, {"job/a.cc": good})
        for bad in [
            "// NOTIDY(banned): its output\n\nstd::cout << 1;\n",
            "// NOTIDY(pure): reads files\n#include <fstream>\n",
            "std::cout << 1;  // NOTIDY(baned): its output\n",
        ]:
            self.check(rule, {"job/a.cc": bad}, ("job/a.cc:1", "finds nothing here"))
        self.check(rule, {"mesh/a.cc": "// NOTIDY(pure): reads files\n#include <fstream>\n"})

    def test_sleep(self):
        for name in [
            "absl::SleepFor",
            "std::this_thread::sleep_for",
            "usleep",
            "nanosleep",
            "sleep",
        ]:
            call = f"  {name}(x);"
            self.check(tidy.rule_sleep, {"a_test.cc": call}, ("a_test.cc:1", "// sleep: reason"))
            self.check(tidy.rule_sleep, {"a_test.cc": call + "  // sleep: is the slow op\n"})
            self.check(tidy.rule_sleep, {"a_test.cc": "// sleep: is the slow op\n" + call})

    def test_link(self):
        good = (
            "# A\n[b](docs/b.md) [c](docs) [d](docs/b.md#two-words) [e](https://x.y) [f](#a)\n"
            "```\n[no](nowhere.md)\n```\n`[no](nowhere.md)`\n"
        )
        self.check(
            tidy.rule_link,
            {"README.md": good, "docs/b.md": "# B\n## Two words!\n[a](../README.md)"},
        )
        self.check(
            tidy.rule_link, {"docs/a.md": "\n[b](b.md)"}, ("docs/a.md:2", '"b.md" leads nowhere')
        )
        self.check(
            tidy.rule_link, {"docs/a.md": "# A\n[b](#b)"}, ("docs/a.md:2", 'no heading "#b"')
        )

    def test_one_h1(self):
        self.check(tidy.rule_one_h1, {"a.md": "# A\n```\n# not a title\n```\n## B\n"})
        self.check(tidy.rule_one_h1, {"a.md": "## B\n"}, ("a.md:1", "0 titles"))
        self.check(tidy.rule_one_h1, {"a.md": "# A\n\n# B\n"}, ("a.md:3", "2 titles"))

    def test_plain_english(self):
        rule = tidy.rule_plain_english
        for bad in [
            "the memory of who reads it",
            "whoever sets it",
            "until somebody reads it",
            "Nobody waits",
            "all but for the last",
            "rows are dear",
            "lets go of it",
            "messages for people",
            "a field of no meaning",
            "it comes to an end",
            "the others hear of it",
            "a device at work",
            "where it lies in memory",
            "give one entry a dim",
            "4 a host",
            "two devices a client",
            "72 devices a process",
            "two devices a GPU",
            "read once a process",
            "a member counts himself out",
            "the library as it comes",
            "it says what came of it",
        ]:
            place = ("job/a.cc:2", "write")
            self.check(rule, {"job/a.cc": f"\n// This is {bad}.\n"}, place)
            self.check(rule, {"job/a.cc": f'\nf("{bad}");\n'}, place)
            self.check(rule, {"a.md": f"# A\n{bad}\n"}, ("a.md:2", "write"))
            self.check(rule, {"job/a.py": f"\n# {bad}\n"}, ("job/a.py:2", "write"))
        for good in [
            "Who sets it? Nothing does",
            "a client whose device waits",
            "client 0 a device",
            "one is a row",
            "one of a device",
            "what was heralded",
            "the sum of all but one",
            "outcomes to print",
        ]:
            self.check(rule, {"job/a.cc": f"// This is {good}.\n", "a.md": good})

    def test_plain_english_reads_build_files_scripts_and_results(self):
        rule = tidy.rule_plain_english
        for path in [
            ".bazelrc",
            "a/b/.bazelrc",
            ".ci/run",
            "BUILD",
            "a/b/BUILD",
            "a/b.BUILD",
            "a/b.bzl",
            "a/b.py",
            "tools/bench",
            "WORKSPACE",
        ]:
            self.check(rule, {path: "a\n# What nobody\n# waits for.\n"}, (path + ":2", "write"))
            self.check(rule, {path: "a\n# All but\n# for one.\n"}, (path + ":2", "except"))
            self.check(rule, {path: 'b = 1  # dear\n'}, (path + ":1", "expensive"))
        docstring = 'def f():\n    """One.\n\n    It is dear.\n    """\n'
        self.check(rule, {"a/b.py": docstring}, ("a/b.py:4", "expensive"))
        self.check(rule, {"a/b.bzl": docstring}, ("a/b.bzl:4", "expensive"))
        page = "benchmarks/results/a.md"
        self.check(rule, {page: "# A\n4 us an operation\n"}, (page + ":2", "write"))
        self.check(rule, {page: "# A\n```\nwho\n```\n"})

    def test_ragged_item(self):
        rule = tidy.rule_ragged_item
        long_line = "word " * 17
        broken = f"//   3. {long_line}\n//   takes\n//      the lock.\n"
        self.check(rule, {"a.h": broken}, ("a.h:2", "rewrap"))
        self.check(rule, {"a.cc": f"  // - {long_line}\n  // a\n  //   b\n"}, ("a.cc:2", "rewrap"))
        self.check(rule, {"a.h": f"//   3. {long_line}\n//      takes\n//      the lock.\n"})
        self.check(rule, {"a.h": f"//   3. {long_line}\n//   4. b\n//      c\n", "a.md": broken})

    def test_plain_english_joins_lines_of_prose_alone(self):
        rule = tidy.rule_plain_english
        self.check(rule, {"a.cc": "  // all but\n  // for one\n"}, ("a.cc:1", "except"))
        self.check(rule, {"a.cc": 'f("all but "\n  "for one");\n'}, ("a.cc:1", "except"))
        self.check(rule, {"a.cc": 'auto who = f("but ", "for");  // but\nfor (;;) {\n'})
        self.check(rule, {"a.cc": "// all but\n//\n// for one\n"})
        self.check(rule, {"a.md": "`who`\n```\nwho\n```\n"})

    def test_plain_english_of_commit_subjects(self):
        def found(subject):
            return list(tidy.rule_plain_english(tidy.Tree({}, [subject])))

        self.assertEqual(len(found("device: who comes waits")), 1)
        self.assertEqual(found("device: spin while the previous task finishes"), [])

    def test_citation(self):
        pages = {"docs/b.md": "# B\n", "tests/facts/c.md": "# C\n"}
        good = "// See docs/b.md, b.md, and tests/facts/c.md; https://x.y/z.md is elsewhere.\n"
        self.check(tidy.rule_citation, {**pages, "a.cc": good})
        bad = "// As design.md says.\n"
        self.check(tidy.rule_citation, {**pages, "a.cc": bad}, ("a.cc:1", '"design.md" is not'))

    def test_label(self):
        rule = tidy.rule_label
        build = {
            "BUILD": 'load("//a:a.bzl", "t")\nt(name = "r")\n',
            "a/BUILD": (
                'load("//a:a.bzl", "HAVE", "t")\n'
                'cc_test(\n    name = "b_test",\n    srcs = ["d_test.cc"] + glob(["*.x"]),\n)\n'
                '[t(name = n + "_test", deps = select({"e": [HAVE]})) for n in ["c"]]\n'
            ),
        }
        good = "# P\n`//a:b_test` //a:c_test //a/... //:r https://x.y:z\n"
        self.check(rule, {**build, "p.md": good})
        for label in ["//a:d_test", "//a:b", "//a:c", "//a:e", "//a:n", "//:b_test"]:
            place = label[2:].partition(":")[0]
            message = f'"{label}" is not a target of {place + "/" if place else ""}BUILD'
            self.check(rule, {**build, "p.md": f"# P\n`{label}`\n"}, ("p.md:2", message))
        self.check(rule, {"p.md": "//f:g"}, ("p.md:1", '"//f:g" is not a target of f/BUILD'))

    def test_public_header(self):
        rule = tidy.rule_public_header
        tree = {
            "tessera.h": HEAD + '#include "a/b.h"\n',
            "a/b.h": "#include <vector>\n",
            "a/b.cc": '#include "a/c.h"\n',
            "a/c.h": "",
            tidy_surface.LIST: "# Comment.\ntessera.h\na/b.h  # why\n",
        }
        self.check(rule, tree)
        joined = {**tree, "a/b.h": '#include "a/c.h"\n#include "absl/d.h"\n'}
        message = "programs would get a/c.h. Declare the names that a/b.h needs of it, or move"
        self.check(rule, joined, ("a/b.h:1", message))
        self.check(rule, joined, ("a/b.h:1", f"add it to {tidy_surface.LIST} if programs use"))
        left = {**tree, "tessera.h": HEAD}
        self.check(rule, left, (tidy_surface.LIST + ":3", "do not get a/b.h; drop its line"))
        mpi = {**tree, "tessera/mpi.h": '#include "a/c.h"\n'}
        self.check(rule, mpi, ("tessera/mpi.h:1", "tessera/mpi.h."), ("tessera/mpi.h:1", "a/c.h."))

    def test_public_mark(self):
        rule = tidy.rule_public_mark
        end = "}  // namespace a\n}  // namespace tessera\n"
        marked = "namespace TESSERA_PUBLIC tessera {\nnamespace a {\n"
        plain = "namespace tessera::a {\n"
        tree = {
            "tessera/a.h": marked + "class B : C {\n};\n" + end,
            "a/d.h": marked + "class B;\n" + end + plain + "class D;\n",
            "a/e.h": "namespace tessera {\nclass B;\n",
            "tests/f.h": plain + "class B;\n",
        }
        self.check(rule, tree)
        for line in ("namespace tessera {", "namespace tessera::a {"):
            unmarked = {"tessera/a.h": line + "\n"}
            self.check(rule, unmarked, ("tessera/a.h:1", "write `namespace TESSERA_PUBLIC tessera"))
        for outer in (plain, "namespace tessera {\nnamespace a {\n"):
            declared = {**tree, "a/d.h": marked + end + outer + "class B;\n"}
            message = "declare B in `namespace TESSERA_PUBLIC tessera`"
            self.check(rule, declared, (f"a/d.h:{5 + outer.count(chr(10))}", message))
        friend = "class A {\n  friend class C;\n  friend void g(A) {\n  friend bool f(A,\n      A);\n"
        friend += "  friend bool operator==(A, A) = default;\n"
        self.check(rule, {"tessera/a.h": friend}, ("tessera/a.h:4", "declare f() in the namespace"))
        self.check(rule, {"tessera/a.h": friend + "bool f(A, A);\n"})

    def test_public_surface(self):
        rule = tidy.rule_public_surface
        tree = {
            "tessera/tessera.h": '#include <vector>\n\n#include "a/b.h"\n#include "absl/d.h"\n',
            "a/b.h": "#define TESSERA_X\n",
            "tessera/mpi.h": "#include <mpi.h>\n",
            "a/c.h": "#define X\n#include <mpi.h>\n",
        }
        self.check(rule, tree)
        defined = {**tree, "a/b.h": "#define TESSERA_X\n#define X\n"}
        self.check(rule, defined, ("a/b.h:2", "programs get the macro X"))
        included = {**tree, "a/b.h": '#include "grpcpp/grpcpp.h"\n'}
        self.check(rule, included, ("a/b.h:1", "programs would need grpcpp/grpcpp.h"))
        for system in ("mpi.h", "sys/mman.h"):
            included = {**tree, "a/b.h": f"#include <{system}>\n"}
            self.check(rule, included, ("a/b.h:1", f"programs would need {system}"))
        reached = {**tree, "a/b.h": '#include "tessera/mpi.h"\n'}
        self.check(rule, reached, ("a/b.h:1", "tessera/tessera.h reaches tessera/mpi.h"))

    def test_public_comment(self):
        rule = tidy.rule_public_comment
        tree = {
            "tessera.h": '#include "a/b.h"\n',
            "a/b.h": "// As b.h, a/b.h, Eigen.h and mpi.h say, and b.html.\n",
            "a/c.h": "// c.cc\n",
            "a/c.cc": "",
        }
        self.check(rule, tree)
        named = {**tree, "a/b.h": "class C;  // a/c.h\n// c.cc\n"}
        found = [("a/b.h:1", "programs do not get a/c.h"), ("a/b.h:2", "do not get c.cc")]
        self.check(rule, named, *found)

    def test_fact_row(self):
        rule = tidy.rule_fact_row

        def files(name, text):
            row = f"| name | case |\n| --- | --- |\n| {name} | x |\n"
            return {"tests/facts/c.md": row, "a/b_test.cc": text}

        for text in [
            "TEST(A, TwoRows) {}",
            '{"two_rows", 1},',
            "TEST(A, AllTwoRowsAreLegal) {}",
            '{"of_two_rows_only", 1},',
        ]:
            self.check(rule, files("two_rows", text))
        for text in ["", "TEST(A, TwoRowsets) {}", '{"rows_two"},', '{"two", "rows"},', "TwoBigRows"]:
            place = ("tests/facts/c.md:3", 'the row "two_rows"')
            self.check(rule, files("two_rows", text), place)
        self.check(rule, files("bool_i32_4x2", "TEST(A, BoolI32_4x2) {}"))
        self.check(rule, files("n_1", "TEST(A, N12) {}"), ("tests/facts/c.md:3", '"n_1"'))

    def test_environment(self):
        page = (
            "# E\n\n| `TESSERA_X`, `RANK` | what |\n| text | `CODE` |\n\n"
            "## tessera_run\n\n| `--log-dir DIR` | what |\n"
        )
        files = {
            "docs/environment.md": page,
            "job/a.cc": HEAD + 'f("TESSERA_X"); g("RANK=");\n',
            "job/a_test.cc": HEAD + 'f("TESSERA_Y");\n',
            "job/tessera_run.cc": 'ABSL_FLAG(std::string, log_dir, "", "");\n',
        }
        rule = tidy.rule_environment
        self.check(rule, files)
        self.check(rule, {})
        self.check(
            rule,
            {**files, "job/a.cc": HEAD + 'f("TESSERA_Z");\n', "job/b.cc": 'f("RANK");\n'},
            ("job/a.cc:4", "no row for TESSERA_Z"),
            ("docs/environment.md:3", "reads or sets TESSERA_X"),
        )
        self.check(
            rule,
            {**files, "job/tessera_run.cc": "ABSL_FLAG(int, nodes, 1);\n"},
            ("job/tessera_run.cc:1", 'no row for --nodes under "## tessera_run"'),
            ("docs/environment.md:8", "no flag --log-dir"),
        )

    def test_paragraph(self):
        rule = tidy.rule_paragraph
        long = "word " * 81
        self.check(rule, {"docs/a.md": "# A\n\n" + "word " * 79 + "\n| " + long + " |\n"})
        self.check(rule, {"docs/a.md": "# A\n```\n" + long + "\n```\n"})
        self.check(rule, {"docs/internals/a.md": "# A\n" + long + "\n"})
        self.check(rule, {"docs/a.md": "# A\n" + long + "\n"}, ("docs/a.md:2", "405 characters"))

    def test_error_row(self):
        def files(messages, labels, **texts):
            """A row, and tests //a:NAME of these texts."""
            names = ", ".join(f"`{label}`" for label in labels)
            build = "".join(
                f'cc_test(\n    name = "{name}",\n    srcs = ["{name}.cc"],\n)\n' for name in texts
            )
            return {
                "docs/errors.md": f"# E\n\n| {messages} | why | fix | {names} |\n",
                "a/BUILD": build,
                **{f"a/{name}.cc": f'f("{text}");\n' for name, text in texts.items()},
            }

        rule = tidy.rule_error_row
        at = "docs/errors.md:3"
        message = '`mesh {...} names axis "x" twice; give each axis another name`'
        b = ["//a:b_test"]
        self.check(rule, files(message, b, b_test='twice; give each "\n    "axis'))
        self.check(
            rule,
            files(message, b, b_test="give one"),
            (at, "no test named here"),
            (at, "//a:b_test holds no words"),
        )
        self.check(rule, files(message, ["//a:c_test"], b_test="give each axis"), (at, "not a target"))

        # Every test of a row, and every message.
        both = ["//a:b_test", "//a:c_test"]
        words = "twice; give each axis"
        self.check(rule, files(message, both, b_test=words, c_test="another name" + words))
        self.check(
            rule,
            files(message, both, b_test=words, c_test="give one"),
            (at, "//a:c_test holds no words of the messages of its row"),
        )
        two = message + ", `the mesh is too large`"
        self.check(rule, files(two, both, b_test=words, c_test="mesh is too large"))
        self.check(
            rule,
            files(two, both, b_test=words, c_test=words),
            (at, 'no test named here holds words of "the mesh is too large"'),
        )

        # Two words where a message has no three in a row. Names alone are not checked.
        self.check(rule, files('`"x" ends where`, `await`', b, b_test="ends where"))
        self.check(rule, files("`all_reduce ...`", b, b_test="x"), (at, "quote more of it"))

    def test_function_length(self):
        def body(lines):
            return "int f() {\n" + "  g();\n" * (lines - 2) + "}\n"

        rule = tidy.rule_function_length
        self.check(rule, {"a.cc": body(70)})
        self.check(rule, {"a.cc": "\n" + body(71)}, ("a.cc:2", "f has 71 lines; at most 70"))
        self.check(rule, {"a.cc": body(80), tidy.RATCHET: "# why\na.cc f 80\n"})
        self.check(rule, {"a.cc": body(81), tidy.RATCHET: "a.cc f 80\n"}, ("a.cc:1", "at most 80"))
        self.check(rule, {"a.cc": body(79), tidy.RATCHET: "a.cc f 80\n"}, ("a.cc:1", "80 to 79"))
        self.check(
            rule, {"a.cc": body(9), tidy.RATCHET: "a.cc f 80\n"}, (tidy.RATCHET + ":1", "no longer")
        )

    def test_every_rule_has_a_row_of_the_page(self):
        page = (ROOT / "docs/testing.md").read_text().partition("\n## Tidy\n")[2]
        rows = [row for row in re.findall(r"^\| (`.*?) \|", page.partition("\n## ")[0], re.M)]
        names = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
        rules = [rule.__name__[5:].replace("_", "-") for rule in tidy.RULES]
        self.assertEqual(sorted(names), sorted(rules))

    def test_every_rule_is_tested(self):
        """Each rule of the module is named by a test of its own."""
        for rule in tidy.RULES:
            self.assertTrue(hasattr(self, rule.__name__.replace("rule_", "test_")), rule.__name__)


class FunctionsTest(unittest.TestCase):
    def names(self, text):
        return [(name, line, length) for name, line, length in tidy.functions(text)]

    def test_finds_functions_where_they_hide(self):
        text = """\
#define WRAP(x) do { x; } while (0)
namespace tessera {
namespace {
enum class Color { kRed };
struct Row { const char* name; std::vector<int> sizes; };
const Row kRows[] = {
    {"a", {1}},
};
}  // namespace
class Box : public Base<int> {
 public:
  explicit Box(int n) : n_(n) {
    use("}{");  // }
  }
  bool empty() const { return n_ == 0; }
  friend bool operator==(const Box& a, const Box& b) {
    return true;
  }
};
template <class T, class = std::enable_if_t<(sizeof(T) > 1)>>
absl::StatusOr<std::vector<T>> Box::make(
    std::function<void()> f = [] {}) {
  auto g = [&](int i) {
    for (;;) {
    }
  };
  return {};
}
TEST(BoxTest, IsEmpty) {
  EXPECT_TRUE(Box(0).empty());
}
}  // namespace tessera
"""
        self.assertEqual(
            self.names(text),
            [
                ("Box", 12, 3),
                ("empty", 15, 1),
                ("operator==", 16, 3),
                ("Box::make", 20, 9),
                ("BoxTest.IsEmpty", 29, 3),
            ],
        )

    def test_strip_keeps_line_numbers(self):
        text = 'a // b\n/* c\n d */ e "f\\"g" R"(\n"h)" \'"\' 1\'000 "i"\n'
        stripped = tidy.strip_cpp(text)
        self.assertEqual(stripped.count("\n"), text.count("\n"))
        for gone in "bcdfghi":
            self.assertNotIn(gone, stripped)
        self.assertIn("1'000", stripped)


if __name__ == "__main__":
    unittest.main()
