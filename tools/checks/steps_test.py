# SPDX-License-Identifier: Apache-2.0
"""Counts of test cases, from test.xml files and build events of Bazel 4.2.3 and GoogleTest."""

import contextlib
import io
import json
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

    def test_a_sample_has_one_sanitizer(self):
        step_list = [
            steps.Step("a", "a", "true"),
            steps.Step("b", "b", "true", one_in=1),
            steps.Step("c", "c", "true", one_in=1),
        ]
        seen = set()
        for sample in map(str, range(20)):
            code, output = self.run_main(step_list, "--sample", sample)
            self.assertEqual(code, 0)
            self.assertIn("==> a: 1 passed", output)
            names = [name for name in "bc" if f"==> {name}: 1 passed" in output]
            self.assertEqual(len(names), 1, output)
            other = "c" if names == ["b"] else "b"
            self.assertIn(f"==> {other}: not in the sample; tools/test --only {other} runs", output)
            self.assertTrue(output.endswith("\n2 passed, 0 failed\n"), output)
            seen.update(names)
        self.assertEqual(seen, {"b", "c"})
        for arguments in [["--sample", "all"], ["--only", "a,b,c"]]:
            _, output = self.run_main(step_list, *arguments)
            self.assertTrue(output.endswith("\n3 passed, 0 failed\n"), output)

    def test_samples_of_tests_cover_all(self):
        labels = [f"//tests:t{i}" for i in range(90)]
        queries = []

        def query(text):
            queries.append(text)
            return labels

        step = steps.Step("asan", "", "bazel test -- //... -//a/... -//b/...", one_in=3)
        run = set()
        for sample in map(str, range(40)):
            left_out = steps.tests_left_out(step, sample, query)
            self.assertEqual(left_out, steps.tests_left_out(step, sample, query))
            self.assertTrue(40 < len(left_out) < 80, len(left_out))
            run.update(set(labels) - set(left_out))
        self.assertEqual(run, set(labels))
        self.assertEqual(set(queries), {"tests(//... - //a/... - //b/...)"})
        self.assertEqual(steps.tests_left_out(step, "all", query), [])

    def test_tests_that_are_left_out_are_no_targets(self):
        step = steps.Step("a", "", 'check() { [[ "$*" == "x -//a:b" ]]; }; check x', one_in=3)
        self.assertEqual(steps.run_step(step, [], ["//a:b"]).passed, 1)
        self.assertEqual(steps.run_step(step, []).failed, 1)

    def test_failed_targets_are_repeated_alone(self):
        step = steps.Step("asan", "", "bazel test --config=asan //...")
        commands = steps.repeat_commands(step, steps.Count(failed=1, failed_targets=["//a:b"]))
        self.assertEqual(commands, ["bazel test --config=asan //a:b"])
        step.command = "bazel test --config=tsan -- //... -//mesh/..."
        commands = steps.repeat_commands(step, steps.Count(failed=1, failed_targets=["//a:b"]))
        self.assertEqual(commands, ["bazel test --config=tsan //a:b"])


if __name__ == "__main__":
    unittest.main()
