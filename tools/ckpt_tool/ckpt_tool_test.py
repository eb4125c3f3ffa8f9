#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs tessera_ckpt: exit codes, JSON that Python reads, files that Python writes, and a kill."""

import json
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

CKPT = pathlib.Path(sys.argv[1])


def run(*arguments, text=None):
    return subprocess.run(
        [CKPT, *map(str, arguments)], input=text or "", capture_output=True, text=True, check=False
    )


def write_safetensors(path, tensors):
    """Writes the tensors, (name, dtype, shape, bytes), with a header as the format says."""
    header, end = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(data for *_, data in tensors)
    )


def read_safetensors(path):
    """The tensors of a file, by name: dtype, shape, bytes."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    data = content[8 + length :]
    return {
        name: (each["dtype"], each["shape"], data[slice(*each["data_offsets"])])
        for name, each in header.items()
    }


TENSORS = [
    ("w", "F32", [2, 3], struct.pack("<6f", *range(6))),
    ("ids/é", "I64", [2], struct.pack("<2q", -1, 7)),
    ("mask", "BOOL", [3], b"\1\0\1"),
]


class CkptToolTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = self.folder / "model.safetensors"
        write_safetensors(self.model, TENSORS)

    def run_json(self, *arguments, code=0):
        result = run(*arguments, "--json")
        self.assertEqual(result.returncode, code, result.stderr)
        return json.loads(result.stdout)

    def test_a_file_goes_through_a_checkpoint_and_back(self):
        run_folder = self.folder / "run"
        run_folder.mkdir()
        step = run_folder / "step-0000000007"
        made = self.run_json("convert", self.model, step)
        self.assertEqual((made["tensors"], made["bytes"]), (3, 24 + 16 + 3))
        listed = self.run_json("list", run_folder)["checkpoints"]
        self.assertEqual([each["state"] for each in listed], ["complete"])
        self.assertEqual(self.run_json("verify", step)["verified"][0]["checksums"], True)
        shown = self.run_json("show", step, "--pieces")
        self.assertEqual([each["name"] for each in shown["tensors"]], [t[0] for t in TENSORS])
        back = self.folder / "back.safetensors"
        self.run_json("convert", step, back)
        self.assertEqual(read_safetensors(back), {t[0]: t[1:] for t in map(tuple, TENSORS)})
        # The file of a checkpoint is a plain safetensors file itself.
        (data,) = step.glob("data-*.safetensors")
        self.assertEqual(read_safetensors(data), read_safetensors(back))

    def test_arrays_are_those_of_numpy(self):
        target = self.folder / "out"
        files = self.run_json("convert", self.model, target, "--to", "npy")["files"]
        self.assertEqual(
            sorted(pathlib.Path(file).name for file in files),
            ["ids%2F%C3%A9.npy", "mask.npy", "w.npy"],
        )
        content = (target / "w.npy").read_bytes()
        text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
        front = b"\x93NUMPY\x01\x00\x76\x00" + text
        self.assertEqual(content, front.ljust(127) + b"\n" + TENSORS[0][3])

    def test_large_models_have_the_index_of_transformers(self):
        target = self.folder / "out"
        self.run_json(
            "convert", self.model, target, "--to", "safetensors", "--max-file-bytes", "200"
        )
        index = json.loads((target / "model.safetensors.index.json").read_text())
        self.assertEqual(index["metadata"], {"total_size": 43})
        self.assertEqual(set(index["weight_map"]), {t[0] for t in TENSORS})
        for name, file in index["weight_map"].items():
            self.assertIn(name, read_safetensors(target / file))

    def test_exit_codes(self):
        rows = [
            ([], 2, "a command is missing"),
            (["list"], 2, "list takes one path, ROOT, not 0"),
            (["show", self.model, "--json=1"], 2, "--json takes no value"),
            (["show", "/nowhere"], 1, "/nowhere"),
            (["list", "/nowhere"], 1, "/nowhere"),
            (["clean", "/nowhere"], 1, "/nowhere"),
            (["verify", self.model, "/nowhere"], 1, "/nowhere"),
            (["convert", self.model, self.model], 1, "is there; nothing is written over"),
        ]
        for arguments, code, message in rows:
            result = run(*arguments)
            self.assertEqual(result.returncode, code, arguments)
            self.assertTrue(result.stderr.startswith("tessera_ckpt: "), result.stderr)
            self.assertIn(message, result.stderr)
        error = self.run_json("show", "/nowhere", code=1)["error"]
        self.assertEqual(error["code"], "NOT_FOUND")

    def test_clean_asks(self):
        step = self.folder / "step-0000000001"
        step.mkdir()
        (step / "data-00000-0123456789abcdef.safetensors.partial").write_text("x")
        self.assertEqual(run("clean", self.folder, text="n\n").returncode, 1)
        self.assertTrue(step.exists())
        self.assertEqual(run("clean", self.folder, text="y\n").returncode, 0)
        self.assertFalse(step.exists())
        self.assertTrue(self.model.exists())

    def test_killed_while_it_writes_it_leaves_no_target(self):
        source = self.folder / "large.npy"
        text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (16777216,), }"
        source.write_bytes((b"\x93NUMPY\x01\x00\x76\x00" + text).ljust(127) + b"\n")
        with source.open("r+b") as file:
            file.truncate(128 + (1 << 26))
        for attempt in range(20):
            target = self.folder / f"out{attempt}.safetensors"
            process = subprocess.Popen([CKPT, "convert", source, target])
            while process.poll() is None:
                if any(self.folder.glob(f"out{attempt}.*.partial")):
                    process.kill()
            if process.returncode == -signal.SIGKILL:
                self.assertFalse(target.exists())
                return
            self.assertEqual(process.returncode, 0)
            self.assertEqual(run("verify", target).returncode, 0)
        self.fail("20 conversions were complete before they could be killed")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
