# SPDX-License-Identifier: Apache-2.0
"""Training steps of a transformer on one GPU, beside PyTorch and JAX (benchmarks/README.md).

  training_contest.py GPU_TRAINING --out=FOLDER [--kernel-times=kernel_times] [--rounds=9]
                      [--before=GPU_TRAINING of another build]

Every contestant of every case is a process of its own. All prepare at the same time, so that the
compilers run side by side; then they take turns, round by round. Prints a table, and writes it to
FOLDER with what CUPTI saw of the kernels.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

CASES = {
    "256 x 4, f32": ("transformer 256 4 16 256 f32", 20),
    "256 x 4, bf16": ("transformer 256 4 16 256 bf16", 20),
    "1024 x 8, f32": ("transformer 1024 8 16 256 f32", 3),
    "1024 x 8, bf16": ("transformer 1024 8 16 256 bf16", 5),
    "x + y, 1 KiB": ("small 1", 2000),
    "x + y, 1 KiB x 8": ("small 8", 1000),
}
PEERS = ("torch", "torch.compile", "jax")
TOKENS = 16 * 256


class Contestant:
    def __init__(self, name, case, program, out):
        self.name, self.case, self.times, self.error = name, case, [], None
        self.command, self.count = CASES[case]
        peer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "training_peer.py")
        command = [sys.executable, peer, name] if name in PEERS else program.split()
        self.log = os.path.join(out, f"{name}-{self.command.replace(' ', '-')}.log")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(self.log, "w"),
            text=True,
        )
        self.send(f"prepare {self.command}")

    def send(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def answer(self):
        line = self.process.stdout.readline()
        if not line.startswith("{"):
            self.error = self.error or f"{line.strip()} (see {os.path.basename(self.log)})"
            return {}
        return json.loads(line)

    def ask(self, line):
        self.send(line)
        return self.answer()


def median(times, key):
    return statistics.median(each[key] for each in times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--out", required=True)
    parser.add_argument("--kernel-times", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--before", default="")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    start = time.time()
    programs = {"tessera": options.program}
    if options.before:
        programs["before"] = options.before
    programs.update({name: "" for name in PEERS})
    everyone = [
        Contestant(name, case, program, options.out)
        for case in CASES
        for name, program in programs.items()
        if not (name in PEERS and case.endswith("x 8"))
    ]
    values = {}
    for each in everyone:
        values[each] = each.answer().get("value", float("nan"))
    print(f"prepared in {time.time() - start:.0f} s", flush=True)
    for each in everyone:
        if each.error is None:
            each.ask(f"go {max(1, each.count // 4)}")
    for _ in range(options.rounds):
        for each in everyone:
            if each.error is None:
                each.times.append(each.ask(f"go {each.count}"))
    lines = [
        "| case | contestant | ms | of Tessera's | waited, ms | CPU, ms | GPU busy, ms | idle |"
        " kernels | tokens/s | value |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    kernels = {}
    for case in CASES:
        own = None
        for each in (c for c in everyone if c.case == case):
            if each.error is not None or not all(each.times):
                lines.append(f"| {case} | {each.name} | failed: {each.error} |")
                continue
            ms = median(each.times, "ms")
            if each.name == "tessera":
                own = ms
            ratio = f"{ms / own:.2f}" if own else ""
            busy = idle = calls = ""
            if options.kernel_times and "transformer" in each.command:
                path = os.path.join(options.out, os.path.basename(each.log)[:-4] + ".json")
                error = each.ask(f"trace {options.kernel_times} {path} {each.count}").get("error")
                if error == 0:
                    found = json.load(open(path))
                    kernels[f"{case}, {each.name}"] = found["kernels"][:14]
                    per_step = found["busy_ms"] / each.count
                    busy, calls = f"{per_step:.3f}", f"{found['calls'] / each.count:.0f}"
                    idle = f"{max(0, 1 - per_step / ms):.0%}"
                else:
                    busy = f"error {error}"
            rate = f"{1000 * TOKENS / ms:,.0f}" if "transformer" in each.command else ""
            lines.append(
                f"| {case} | {each.name} | {ms:.4f} | {ratio} |"
                f" {median(each.times, 'waited_ms'):.4f} | {median(each.times, 'cpu_ms'):.4f} |"
                f" {busy} | {idle} | {calls} | {rate} | {values[each]:.6g} |"
            )
    text = "\n".join(lines)
    print(text)
    for name, found in kernels.items():
        text += f"\n\n{name}: ms of all traced steps, calls, kernel\n"
        text += "\n".join(f"  {ms:9.3f} {calls:6d} {kernel[:150]}" for ms, calls, kernel in found)
    with open(os.path.join(options.out, "training.txt"), "w") as file:
        file.write(text + "\n")
    for each in everyone:
        each.process.stdin.close()
    for each in everyone:
        try:
            each.process.wait(20)
        except subprocess.TimeoutExpired:
            each.process.kill()


main()
