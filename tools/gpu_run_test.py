# SPDX-License-Identifier: Apache-2.0
"""What gpu_run makes of programs that pass, skip, fail and hang: here scripts instead of them."""

import os
import shutil
import subprocess
import tarfile
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PASSES = "echo '[       OK ] A.b (1 ms)'"
SKIPS = """echo 'no GPU: no driver'
echo '[  SKIPPED ] A.b (0 ms)'
echo '[  SKIPPED ] 1 test, listed below:'
echo '[  SKIPPED ] A.b'"""
FAILS = """echo '[       OK ] A.b (1 ms)'
echo '[  FAILED  ] A.c (1 ms)'
exit 1"""
HANGS = """echo '[ RUN      ] A.slow'
sleep 60"""
HAS_GPU = """case "$1" in
  --check) exit 0 ;;
  --json=*) echo '{}' >"${1#--json=}" ;;
esac
echo 'reached: rate: 0.9'
echo 'not reached: overhead: 7 us'"""
HAS_NO_GPU = "echo 'gpu_benchmark: no GPU: no driver' >&2; exit 3"
PROGRAMS = [
    "gpu_suites", "contract_on_gpu_test", "contract_test", "conformance_test", "digits_gpu_test"
]


class GpuRunTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        os.mkdir(os.path.join(self.folder, "bin"))
        shutil.copy(os.path.join(HERE, "gpu_run"), os.path.join(self.folder, "run"))
        for name in PROGRAMS:
            self.program(name, PASSES)
        self.program("gpu_benchmark", HAS_GPU)

    def program(self, name, text):
        path = os.path.join(self.folder, "bin", name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/usr/bin/env bash\n" + text + "\n")
        os.chmod(path, 0o755)

    def run_it(self, *flags):
        """Its exit status, and its last lines by their first word."""
        ended = subprocess.run([os.path.join(self.folder, "run"), "--out=o", *flags],
                               cwd=self.folder, stdout=subprocess.PIPE, check=False)
        with open(os.path.join(self.folder, "o", "summary.txt"), encoding="utf-8") as file:
            lines = file.read().splitlines()
        self.assertEqual(ended.stdout.decode().splitlines(), lines)
        return ended.returncode, {line.split()[0]: line for line in lines}, lines[-1]

    def test_all_parts_pass(self):
        status, lines, last = self.run_it("--parts=nccl_onegpu,losses,benchmark")
        self.assertEqual((status, last), (0, "3 passed, 0 failed, 0 skipped, 0 not run"))
        self.assertIn("passed", lines["losses"])
        self.assertIn("1 reached, 1 not reached, 0 not measured", lines["benchmark"])
        self.assertEqual(lines["not"], "not reached: overhead: 7 us")
        out = os.path.join(self.folder, "o")
        self.assertEqual(sorted(os.listdir(out)),
                         ["benchmark.json", "benchmark.md", "logs.tar.gz", "summary.txt"])
        with tarfile.open(os.path.join(out, "logs.tar.gz")) as logs:
            self.assertIn("./losses.log", logs.getnames())

    def test_order_is_that_of_the_list(self):
        listed = subprocess.run([os.path.join(self.folder, "run"), "--list"], check=True,
                                stdout=subprocess.PIPE).stdout.decode().split()
        self.assertEqual(listed[0], "nccl_onegpu")
        self.assertEqual(listed[-1], "benchmark")
        _, lines, _ = self.run_it()
        self.assertEqual([name for name in lines if name in listed], listed)

    def test_without_a_gpu_all_are_skipped(self):
        for name in PROGRAMS:
            self.program(name, SKIPS)
        self.program("gpu_benchmark", HAS_NO_GPU)
        status, lines, last = self.run_it()
        self.assertEqual((status, last), (0, "0 passed, 0 failed, 13 skipped, 0 not run"))
        self.assertRegex(lines["relayouts"], "skipped +[0-9]+ s  no GPU: no driver$")
        self.assertIn("no GPU: no driver", lines["memcheck"])

    def test_a_failure_names_its_case(self):
        self.program("conformance_test", FAILS)
        status, lines, last = self.run_it("--parts=one_client,losses")
        self.assertEqual((status, last), (1, "1 passed, 1 failed, 0 skipped, 0 not run"))
        self.assertIn("1 passed, 0 skipped; [  FAILED  ] A.c (1 ms)", lines["one_client"])

    def test_a_part_without_cases_is_skipped(self):
        self.program("conformance_test", "echo '[  PASSED  ] 0 tests.'")
        status, lines, _ = self.run_it("--parts=one_client")
        self.assertEqual(status, 0)
        self.assertIn("skipped", lines["one_client"])

    def test_a_skipped_part_says_why(self):
        self.program("contract_test", """echo 'a/b_test.cc:7: Skipped'
echo '1 GPUs'
echo '[  SKIPPED ] A.b (0 ms)'""")
        status, lines, _ = self.run_it("--parts=nccl_contract")
        self.assertEqual(status, 0)
        self.assertRegex(lines["nccl_contract"], "skipped +[0-9]+ s  1 GPUs$")

    def test_what_hangs_is_ended_at_the_limit_and_the_rest_is_not_run(self):
        self.program("contract_on_gpu_test", HANGS)
        status, lines, last = self.run_it("--parts=cuda_contract,losses", "--limit=7")
        self.assertEqual((status, last), (1, "0 passed, 1 failed, 0 skipped, 1 not run"))
        self.assertIn("then the limit of 7 s", lines["cuda_contract"])
        self.assertIn("[ RUN      ] A.slow", lines["cuda_contract"])
        self.assertIn("not run", lines["losses"])

    def test_a_program_that_does_not_start_fails(self):
        self.program("gpu_suites", "echo 'error while loading shared libraries: x' >&2; exit 127")
        status, lines, _ = self.run_it("--parts=losses")
        self.assertEqual(status, 1)
        self.assertIn("error while loading shared libraries: x", lines["losses"])


if __name__ == "__main__":
    unittest.main()
