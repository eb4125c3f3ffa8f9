# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_run with programs that pass, skip, fail and hang; scripts stand in for the programs."""

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
RECENT_NCCL = "\0NCCL version 2.28.9+cuda13.0\0ncclCommRevoke\0"
OLD_NCCL = "\0NCCL version 2.28.3+cuda13.0\0"
NO_NCCL = """echo 'UNIMPLEMENTED: libnccl.so.2 is too old: it has no ncclCommRevoke; groups need'
echo '[  SKIPPED ] A.b (0 ms)'"""
# A program that logs its environment and arguments.
SHOWS = """echo "NCCL_DEBUG=$NCCL_DEBUG"
echo "one job: $TESSERA_TEST_ONE_JOB"
echo "$@"
echo text >"${NCCL_DEBUG_FILE/\\%p/1}"
echo '[       OK ] A.b (1 ms)'"""
HAS_NO_GPU = "echo 'gpu_benchmark: no GPU: no driver' >&2; exit 3"
PROGRAMS = [
    "gpu_suites", "contract_on_gpu_test", "math_contract_on_gpu_test", "contract_test",
    "conformance_test", "03_digits"
]


class GpuRunTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        os.mkdir(os.path.join(self.folder, "bin"))
        shutil.copy(os.path.join(HERE, "..", "gpu_run"), os.path.join(self.folder, "run"))
        for name in PROGRAMS:
            self.program(name, PASSES)
        self.program("03_digits", "echo 'held-out accuracy 0.9916'")
        self.program("gpu_benchmark", HAS_GPU)
        # The machine of a test has a recent NCCL and no sign of a GPU.
        self.library("machine/new/libnccl.so.2", RECENT_NCCL)
        self.environment = {
            **os.environ, "TESSERA_LIBRARY_SEARCH": os.path.join(self.folder, "machine"),
            "TESSERA_PROC": os.path.join(self.folder, "proc"),
            "TESSERA_SHM_GIB": "0",  # do not remount the /dev/shm of this machine
            "LD_LIBRARY_PATH": "",
            "NCCL_HOME": os.path.join(self.folder, "none"),
            "CUDA_HOME": os.path.join(self.folder, "none"),
            "PATH": os.path.join(self.folder, "tools") + ":" + os.environ["PATH"]
        }
        self.program("ldconfig", "exit 0", "tools")
        self.program("mount", "echo \"$*\" >>mounted", "tools")
        self.program("nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9", "tools")

    def library(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def program(self, name, text, folder="bin"):
        os.makedirs(os.path.join(self.folder, folder), exist_ok=True)
        path = os.path.join(self.folder, folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/usr/bin/env bash\n" + text + "\n")
        os.chmod(path, 0o755)

    def run_it(self, *flags):
        """The exit status, and the last lines by their first word."""
        ended = subprocess.run([os.path.join(self.folder, "run"), "--out=o", *flags],
                               cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
                               check=False)
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
        self.program("03_digits", "echo 'FAILED_PRECONDITION: no GPU: no driver' >&2; exit 1")
        self.program("gpu_benchmark", HAS_NO_GPU)
        status, lines, last = self.run_it()
        self.assertEqual((status, last), (0, "0 passed, 0 failed, 18 skipped, 0 not run"))
        self.assertRegex(lines["relayouts"], "skipped +[0-9]+ s  no GPU: no driver$")
        self.assertIn("no GPU: no driver", lines["memcheck"])

    def test_nccl_is_the_first_that_can_revoke(self):
        """The loader finds an old NCCL; the recent one is in a Python package."""
        old = self.library("machine/a_old/libnccl.so.2", OLD_NCCL)
        self.program("ldconfig", "echo '  libnccl.so.2 (libc6,x86-64) => %s'" % old, "tools")
        self.environment["LD_LIBRARY_PATH"] = os.path.dirname(old)
        status, lines, _ = self.run_it("--parts=losses")
        self.assertEqual(status, 0)
        recent = os.path.realpath(os.path.join(self.folder, "machine/new/libnccl.so.2"))
        self.assertEqual(lines["nccl:"], "nccl: 2.28.9 " + recent)
        link = os.path.join(self.folder, "lib", "libnccl.so.2")
        self.assertEqual(os.path.realpath(link), recent)

    def test_nccl_of_the_bundle_is_the_last_resort(self):
        os.remove(os.path.join(self.folder, "machine/new/libnccl.so.2"))
        old = self.library("machine/a_old/libnccl.so.2", OLD_NCCL)
        carried = self.library("carried/libnccl.so.2", RECENT_NCCL)
        status, lines, _ = self.run_it("--parts=losses")
        self.assertEqual(status, 0)
        self.assertEqual(lines["nccl:"],
                         "nccl: 2.28.9 of the bundle, sm_90 alone; too old: 2.28.3 " + old)
        link = os.path.join(self.folder, "lib", "libnccl.so.2")
        self.assertEqual(os.path.realpath(link), os.path.realpath(carried))

    def test_an_old_nccl_on_a_machine_with_a_gpu_is_a_failure(self):
        os.remove(os.path.join(self.folder, "machine/new/libnccl.so.2"))
        old = self.library("machine/a_old/libnccl.so.2", OLD_NCCL)
        self.program("gpu_suites", NO_NCCL)
        status, lines, last = self.run_it("--parts=losses,one_client")
        self.assertEqual((status, last), (1, "1 passed, 1 failed, 0 skipped, 0 not run"))
        self.assertIn("failed: no NCCL of 2.28.7 or later; too old: 2.28.3 " + old,
                      lines["failed:"])
        self.assertRegex(lines["losses"], "failed +[0-9]+ s  libnccl.so.2 is too old: it has no")

    def test_a_gpu_that_cuda_cannot_use_is_a_failure(self):
        self.program("gpu_benchmark", HAS_NO_GPU)
        for name in PROGRAMS:
            self.program(name, SKIPS)
        self.program("nvidia-smi", "echo 'NVIDIA H200, 570.1'; echo 'NVIDIA H200, 570.1'", "tools")
        status, lines, last = self.run_it("--parts=losses")
        self.assertEqual((status, last), (1, "0 passed, 0 failed, 1 skipped, 0 not run"))
        self.assertEqual(lines["gpu:"], "gpu: NVIDIA H200, 570.1")
        self.assertIn("has a GPU (NVIDIA H200, 570.1), and CUDA cannot", lines["failed:"])

    def test_a_gpu_that_only_the_driver_shows_is_one_too(self):
        self.program("gpu_benchmark", HAS_NO_GPU)
        os.makedirs(os.path.join(self.folder, "proc/driver/nvidia/gpus/0000:00:1e.0"))
        status, lines, _ = self.run_it("--parts=losses")
        self.assertEqual(status, 1)
        self.assertIn("CUDA cannot use it", lines["failed:"])

    def test_nccl_writes_what_it_does(self):
        self.program("gpu_suites", SHOWS)
        self.run_it("--parts=nccl_onegpu,losses")
        with tarfile.open(os.path.join(self.folder, "o", "logs.tar.gz")) as logs:
            self.assertIn("./nccl_losses.1", logs.getnames())
            self.assertIn("./nccl_nccl_onegpu.1", logs.getnames())
            first = logs.extractfile("./nccl_onegpu.log").read().decode()
            later = logs.extractfile("./losses.log").read().decode()
        self.assertIn("NCCL_DEBUG=INFO\n", first)
        self.assertIn("--gtest_fail_fast", first)
        self.assertIn("NCCL_DEBUG=WARN\n", later)
        self.assertNotIn("--gtest_fail_fast", later)

    def test_suites_of_eight_processes_have_one_job(self):
        self.program("gpu_suites", SHOWS)
        self.run_it("--parts=collectives_8,relayouts,tensors")
        with tarfile.open(os.path.join(self.folder, "o", "logs.tar.gz")) as logs:
            for name, job in (("collectives_8", ""), ("relayouts", "8x1"), ("tensors", "8x1")):
                log = logs.extractfile(f"./{name}.log").read().decode()
                self.assertIn(f"one job: {job}\n", log)

    def test_suites_of_processes_run_under_mps_except_losses(self):
        self.program("gpu_suites", SHOWS + """
echo "mps: ${CUDA_MPS_PIPE_DIRECTORY:-none}, queues: $CUDA_DEVICE_MAX_CONNECTIONS."
""")
        calls = os.path.join(self.folder, "mps_calls")
        control = f"""if [ "$1" = -d ]; then echo "begin $CUDA_MPS_PIPE_DIRECTORY"
else read -r word; echo "$word $CUDA_MPS_PIPE_DIRECTORY"; fi >>{calls}"""
        self.program("nvidia-cuda-mps-control", control, "tools")
        self.run_it("--parts=losses,tensors")
        with tarfile.open(os.path.join(self.folder, "o", "logs.tar.gz")) as logs:
            tensors = logs.extractfile("./tensors.log").read().decode()
            self.assertIn("mps: none, queues: .\n",
                          logs.extractfile("./losses.log").read().decode())
        self.assertRegex(tensors, "mps: /.*, queues: 2[.]\n")
        with open(calls, encoding="utf-8") as file:
            begin, end = file.read().splitlines()
        self.assertEqual(begin.split()[0], "begin")
        self.assertEqual(end, "quit " + begin.split()[1])
        self.assertFalse(os.path.exists(begin.split()[1]))
        # MPS that does not start is not used.
        self.program("nvidia-cuda-mps-control", "exit 1", "tools")
        self.run_it("--parts=tensors")
        with tarfile.open(os.path.join(self.folder, "o", "logs.tar.gz")) as logs:
            self.assertIn("mps: none", logs.extractfile("./tensors.log").read().decode())

    def test_shared_memory_is_shown_and_mounted_larger(self):
        mounted = os.path.join(self.folder, "mounted")
        _, lines, _ = self.run_it("--parts=losses")
        self.assertRegex(lines["shm:"], r"[0-9.]+[MGT]? .*8 processes of 15 communicators")
        self.assertFalse(os.path.exists(mounted))
        self.environment["TESSERA_SHM_GIB"] = "1048576"
        self.program("id", "echo 0", "tools")
        self.program("gpu_benchmark", HAS_NO_GPU)
        self.run_it("--parts=losses")
        self.assertFalse(os.path.exists(mounted))  # a machine without a GPU is not changed
        self.program("gpu_benchmark", HAS_GPU)
        self.run_it("--parts=losses")
        with open(mounted, encoding="utf-8") as file:
            self.assertEqual(file.read(), "-o remount,size=1048576G /dev/shm\n")

    def test_the_clock_starts_with_the_program(self):
        """The search for libraries counts towards the limit."""
        self.program("nvidia-smi", "sleep 4; exit 9", "tools")
        status, lines, last = self.run_it("--parts=losses", "--limit=7")
        self.assertEqual((status, last), (0, "0 passed, 0 failed, 0 skipped, 1 not run"))
        self.assertIn("no time left", lines["losses"])

    def test_a_failure_names_its_case(self):
        self.program("conformance_test", FAILS)
        status, lines, last = self.run_it("--parts=one_client,losses")
        self.assertEqual((status, last), (1, "1 passed, 1 failed, 0 skipped, 0 not run"))
        self.assertIn("1 passed, 0 skipped; [  FAILED  ] A.c (1 ms)", lines["one_client"])

    def test_training_must_reach_an_accuracy(self):
        for accuracy, result in (("0.9500", "passed"), ("1.0000", "passed"), ("0.9499", "failed")):
            self.program("03_digits", f"echo 'held-out accuracy {accuracy}'")
            _, lines, _ = self.run_it("--parts=training")
            self.assertRegex(lines["training"], f"{result} .* held-out accuracy {accuracy}$")

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
        self.assertRegex(lines["cuda_contract"], "then the limit of [567] s")
        self.assertIn("[ RUN      ] A.slow", lines["cuda_contract"])
        self.assertIn("not run", lines["losses"])

    def test_a_program_that_does_not_start_fails(self):
        self.program("gpu_suites", "echo 'error while loading shared libraries: x' >&2; exit 127")
        status, lines, _ = self.run_it("--parts=losses")
        self.assertEqual(status, 1)
        self.assertIn("error while loading shared libraries: x", lines["losses"])


if __name__ == "__main__":
    unittest.main()
