# SPDX-License-Identifier: Apache-2.0
"""Counts of test cases, from test.xml files and build events of Bazel 4.2.3 and GoogleTest."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import steps

GTEST_XML = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="5" failures="1" disabled="1" errors="0" time="0.1" name="AllTests">
  <testsuite name="MeshTest" tests="5" failures="1" disabled="1" skipped="1" errors="0" time="0.1">
    <testcase name="A" status="run" result="completed" time="0." classname="MeshTest" />
    <testcase name="B" status="run" result="completed" time="0." classname="MeshTest" />
    <testcase name="C" status="run" result="completed" time="0." classname="MeshTest">
      <failure message="x" type=""><![CDATA[x]]></failure>
    </testcase>
    <testcase name="D" status="run" result="skipped" time="0." classname="MeshTest">
      <skipped message="no GPU"><![CDATA[no GPU]]></skipped>
    </testcase>
    <testcase name="DISABLED_E" status="notrun" result="suppressed" classname="MeshTest" />
  </testsuite>
</testsuites>
"""
BAZEL_XML = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="tools/checks/tidy_test" tests="1" failures="0" errors="0">
<testcase name="tools/checks/tidy_test" status="run" duration="0" time="0"></testcase>
<system-out>Generated test.log</system-out></testsuite></testsuites>
"""
EMPTY_XML = (
    '<testsuites tests="0" failures="0" disabled="0" errors="0" time="0." name="AllTests" />'
)


def result(label, xml_path, status="PASSED", shard=1, attempt=1):
    event_id = {"label": label, "run": 1, "shard": shard, "attempt": attempt}
    outputs = [{"name": "test.log", "uri": "file:///log"}]
    if xml_path:
        outputs.append({"name": "test.xml", "uri": "file://" + xml_path})
    return json.dumps(
        {
            "id": {"testResult": event_id},
            "testResult": {"status": status, "testActionOutput": outputs},
        }
    )


def summary(label, status):
    event = {"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": status}}
    return json.dumps(event)


def count(*lines):
    files = {"/gtest": GTEST_XML, "/bazel": BAZEL_XML, "/empty": EMPTY_XML, "/torn": "<testsuites>"}

    def read(path):
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    counted = steps.count_events(lines, read)
    return counted.passed, counted.failed, counted.skipped, counted.failed_targets


class CountTest(unittest.TestCase):
    def test_cases_not_targets_are_counted(self):
        self.assertEqual(count(result("//a:a", "/gtest", "FAILED")), (2, 1, 2, ["//a:a"]))

    def test_a_test_without_cases_of_its_own_counts_as_one(self):
        self.assertEqual(count(result("//a:a", "/bazel")), (1, 0, 0, []))

    def test_shards_add_up_and_an_empty_shard_is_no_failure(self):
        shards = [result("//a:a", "/bazel", shard=1), result("//a:a", "/empty", shard=2)]
        self.assertEqual(count(*shards), (1, 0, 0, []))

    def test_only_the_last_attempt_counts(self):
        attempts = [
            result("//a:a", "/gtest", "FAILED", attempt=1),
            result("//a:a", "/bazel", attempt=2),
            summary("//a:a", "FLAKY"),
        ]
        self.assertEqual(count(*attempts), (1, 0, 0, []))

    def test_a_target_that_ran_nothing_failed(self):
        self.assertEqual(count(result("//a:a", "/empty")), (0, 1, 0, ["//a:a"]))

    def test_a_target_that_was_not_built_failed(self):
        self.assertEqual(count(summary("//a:a", "FAILED_TO_BUILD")), (0, 1, 0, ["//a:a"]))
        self.assertEqual(count(summary("//a:a", "NO_STATUS")), (0, 1, 0, ["//a:a"]))

    def test_a_crash_or_timeout_failed_even_if_its_cases_passed(self):
        timeout = [result("//a:a", "/bazel", "TIMEOUT"), summary("//a:a", "TIMEOUT")]
        self.assertEqual(count(*timeout), (1, 1, 0, ["//a:a"]))

    def test_a_missing_or_torn_list_of_cases_failed(self):
        for path in [None, "/nowhere", "/torn"]:
            self.assertEqual(count(result("//a:a", path)), (0, 1, 0, ["//a:a"]))

    def test_other_events_are_passed_over(self):
        lines = ['{"id":{"started":{}},"started":{}}', result("//a:a", "/bazel")]
        self.assertEqual(count(*lines), (1, 0, 0, []))


class StepsTest(unittest.TestCase):
    def run_main(self, step_list, *arguments):
        """Exit status and output of main() over other steps."""
        saved, steps.STEPS = steps.STEPS, step_list
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                return steps.main(list(arguments)), output.getvalue()
        finally:
            steps.STEPS = saved

    def test_stops_at_the_first_failure_and_says_how_to_repeat_it(self):
        step_list = [steps.Step(n, n, c) for n, c in [("a", "true"), ("b", "false"), ("c", "true")]]
        code, output = self.run_main(step_list)
        self.assertEqual(code, 1)
        self.assertIn("b failed; to repeat it: tools/test --only b, or\n    false\n", output)
        self.assertIn("==> c: not run", output)
        self.assertTrue(output.endswith("\n1 passed, 1 failed\n"), output)

    def test_keep_going_runs_the_rest(self):
        step_list = [steps.Step(n, n, c) for n, c in [("a", "false"), ("b", "true")]]
        code, output = self.run_main(step_list, "--keep-going")
        self.assertEqual(code, 1)
        self.assertTrue(output.endswith("\n1 passed, 1 failed\n"), output)

    def test_only_runs_what_is_named(self):
        step_list = [steps.Step(n, n, c) for n, c in [("a", "false"), ("b", "true")]]
        code, output = self.run_main(step_list, "--only", "b")
        self.assertEqual(code, 0)
        self.assertTrue(output.endswith("\n1 passed, 0 failed\n"), output)

    def test_a_failure_inside_a_pipe_counts(self):
        code, _ = self.run_main([steps.Step("a", "a", "false | true")])
        self.assertEqual(code, 1)

    def test_nothing_ran_is_a_failure(self):
        code, output = self.run_main([])
        self.assertEqual(code, 1)
        self.assertTrue(output.endswith("nothing ran\n0 passed, 0 failed\n"), output)

    def test_an_unknown_step_is_named(self):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit):
            steps.parse_arguments(["--only", "tidy,tets"])
        self.assertIn('unknown step "tets"; the steps are tidy, format', errors.getvalue())

    def test_a_sample_has_one_share_of_one_sanitizer_or_the_programs_outside(self):
        step_list = [
            steps.Step("a", "a", "true"),
            steps.Step("b", "b", "true -- //...", group="b", has_shares=True),
            steps.Step("c", "c", "true -- //...", group="c", has_shares=True),
            steps.Step("d", "d", "true", group="d_and_e"),
            steps.Step("e", "e", "true", group="d_and_e"),
            steps.Step("f", "f", "true", is_left_out=True),
        ]
        seen = set()
        for sample in map(str, range(200)):
            code, output = self.run_main(step_list, "--sample", sample)
            self.assertEqual(code, 0)
            self.assertIn("==> a: 1 passed", output)
            group, share = steps.sample_of(step_list, sample)
            for step in step_list[1:]:
                left_out = f"==> {step.name}: not in the sample; tools/test --only {step.name} runs"
                is_in = step.group == group
                self.assertEqual(left_out in output, not is_in, output)
                self.assertEqual(f"==> {step.name}: 1 passed" in output, is_in, output)
            if group == "d_and_e":
                self.assertNotIn("sanitizers", output)
                self.assertTrue(output.endswith("in all\n3 passed, 0 failed\n"), output)
                seen.add(group)
                continue
            self.assertIn(f'==> {group}: share "{share}" of: {group}\n    true --build', output)
            note = (
                f'of the sanitizers {group} ran, on the share "{share}"; to repeat it: '
                f"tools/test --only {group} --sample {sample}\n2 passed, 0 failed\n"
            )
            self.assertTrue(output.endswith(note), output)
            seen.add((group, share))
        self.assertEqual(seen, {(g, share) for g in "bc" for share in steps.SHARES} | {"d_and_e"})
        for arguments in [["--sample", "all"], ["--only", "a,b,c,d,e,f"]]:
            _, output = self.run_main(step_list, *arguments)
            self.assertIn("    true -- //...\n", output)
            self.assertNotIn("share", output)
            self.assertTrue(output.endswith("\n6 passed, 0 failed\n"), output)

    def test_the_steps_outside_the_tree_are_one_group(self):
        groups = {step.name: step.group for step in steps.STEPS if step.group}
        outside = {"external": "outside", "install": "outside"}
        self.assertEqual(groups, {"asan": "asan", "tsan": "tsan", **outside})

    def test_a_sample_has_a_fourth_of_the_long_tests(self):
        step_list = [steps.Step("a", "a", "echo bazel test //...", has_long_tests=True)]
        seen = set()
        for sample in map(str, range(50)):
            code, output = self.run_main(step_list, "--sample", sample)
            self.assertEqual(code, 0)
            step, tag = steps.skip_long_tests(step_list[0], sample)
            self.assertIn(f"    {step.command}\n", output)
            others = [f"-long_{i}" for i in range(1, steps.NUM_LONG + 1) if f"long_{i}" != tag]
            self.assertIn(f"bazel test --test_tag_filters={','.join(others)} //...", output)
            self.assertIn(f"of the long tests those of the tag {tag} ran; to run all: ", output)
            seen.add(tag)
        self.assertEqual(len(seen), steps.NUM_LONG)
        for arguments in [["--sample", "all"], ["--only", "a"]]:
            _, output = self.run_main(step_list, *arguments)
            self.assertIn("    echo bazel test //...\n", output)
            self.assertNotIn("long", output)

    def test_names_the_folders_of_shares_that_are_gone(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for text in steps.SHARES.values():
                for each in text.split():
                    (root / each).mkdir(parents=True, exist_ok=True)
            self.assertEqual(steps.missing_folders(root), [])
            (root / "fuzz").rmdir()
            self.assertEqual(steps.missing_folders(root), ["fuzz"])

    def test_shares_cover_all_that_a_step_covers(self):
        step = steps.Step("b", "b", "bazel test --config=b -- //... -//benchmarks/... -//mesh/...")
        named = []
        for share in list(steps.SHARES)[:-1]:
            command = steps.take_share(step, share).command
            verb, patterns = command.split(" -- ")
            self.assertEqual(verb, "bazel test --config=b --build_tests_only")
            named += patterns.split()
        self.assertEqual(len(named), len(set(named)))
        self.assertIn("//job/...", named)
        self.assertNotIn("//mesh/...", named)
        rest = steps.take_share(step, list(steps.SHARES)[-1]).command.split(" -- ")[1].split()
        self.assertEqual(rest[:3], ["//...", "-//benchmarks/...", "-//mesh/..."])
        self.assertEqual(set(rest[3:]), {f"-{pattern}" for pattern in named})

    def test_failed_targets_are_repeated_alone(self):
        step = steps.Step("asan", "", "bazel test --config=asan //...")
        commands = steps.repeat_commands(step, steps.Count(failed=1, failed_targets=["//a:b"]))
        self.assertEqual(commands, ["bazel test --config=asan //a:b"])
        step.command = "bazel test --config=tsan -- //... -//mesh/..."
        commands = steps.repeat_commands(step, steps.Count(failed=1, failed_targets=["//a:b"]))
        self.assertEqual(commands, ["bazel test --config=tsan //a:b"])


if __name__ == "__main__":
    unittest.main()
