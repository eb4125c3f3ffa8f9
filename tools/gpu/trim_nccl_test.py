# SPDX-License-Identifier: Apache-2.0
"""The parts of a library that trim_nccl.py keeps; the library here has a few hundred bytes."""

import os
import struct
import tempfile
import unittest

import trim_nccl


def entry(architecture, code):
    header = struct.pack("<HHIQ", 2, 0x101, 64, len(code)).ljust(28, b"\1")
    return (header + struct.pack("<I", architecture)).ljust(64, b"\2") + code


def container(*of):
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, sum(map(len, of))) + b"".join(of)


def library(**of):
    """An ELF file of these sections."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in of) + b".names\0"
    body, headers = b"", [bytes(64)]
    for name, text in list(of.items()) + [(".names", names)]:
        header = struct.pack("<II", names.index(name.encode() + b"\0"), 1).ljust(24, b"\0")
        headers.append((header + struct.pack("<QQ", 64 + len(body), len(text))).ljust(64, b"\0"))
        body += text.ljust(-(-len(text) // 8) * 8, b"\0")
    start = b"\x7fELF\x02\x01".ljust(0x28, b"\0") + struct.pack("<Q", 64 + len(body))
    start = start.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, len(headers), len(headers) - 1)
    return bytearray(start.ljust(64, b"\0") + body + b"".join(headers))


class TrimNcclTest(unittest.TestCase):

    def test_other_architectures_become_zeros(self):
        fat = (container(entry(80, b"a" * 40), entry(90, b"b" * 24)) + bytes(8) +
               container(entry(90, b"c" * 8), entry(120, b"d" * 16)))
        data = library(**{".nv_fatbin": fat, ".text": b"abcd", "__nv_relfatbin": b"r" * 9,
                          ".debug_info": b"i" * 30})
        want = library(**{
            ".nv_fatbin": container(entry(80, bytes(40)), entry(90, b"b" * 24)) + bytes(8) +
                          container(entry(90, b"c" * 8), entry(120, bytes(16))),
            ".text": b"abcd", "__nv_relfatbin": bytes(9), ".debug_info": bytes(30)})
        self.assertEqual(trim_nccl.trim(data, 90), 32)
        self.assertEqual(data, want)

    def test_what_it_does_not_know_is_an_error(self):
        for data, error in [
            (b"MZ not a library", "not a 64-bit"),
            (library(**{".text": b"abcd"}), "no .nv_fatbin"),
            (library(**{".nv_fatbin": b"x" * 32}), "no fat binary at byte 64"),
            (library(**{".nv_fatbin": container(entry(80, b"a" * 8))}), "nothing of sm_90"),
            (library(**{".nv_fatbin": container(entry(80, b"a" * 8)[:70])}), "no entry of a fat"),
        ]:
            with self.assertRaisesRegex(ValueError, error):
                trim_nccl.trim(bytearray(data), 90)

    def test_zeros_take_no_place_on_the_disk(self):
        data = b"a" * 4096 + bytes(1 << 20) + b"b"
        path = os.path.join(tempfile.mkdtemp(), "library")
        trim_nccl.write_sparsely(path, data)
        with open(path, "rb") as file:
            self.assertEqual(file.read(), data)
        self.assertLess(os.stat(path).st_blocks * 512, 1 << 16)


if __name__ == "__main__":
    unittest.main()
