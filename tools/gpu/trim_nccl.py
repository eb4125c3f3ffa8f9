# SPDX-License-Identifier: Apache-2.0
"""Makes a libnccl.so of one GPU architecture, with holes where the others were.

    python3 tools/gpu/trim_nccl.py libnccl.so.2 trimmed/libnccl.so.2 90

NCCL has its kernels once for each architecture, in fat binaries: containers in the section
.nv_fatbin, each a header and entries (a header of its own, with the architecture, and the code).
The code of the other architectures becomes zeros, and so do the debug sections and __nv_relfatbin,
which only the linker uses. Every header, address and size stays, so the library loads and finds its
kernels as before. Zeros compress well, and a sparse file stores none.
"""

import os
import struct
import sys

CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes after it
CONTAINER_MAGIC = 0xBA55ED50
ENTRY = struct.Struct("<HHIQ")  # kind, version, bytes of this header, bytes after it
ARCHITECTURE_AT = 28  # in an entry's header
BLOCK = 4096


def sections(data):
    """(name, offset, size) of each section of a 64-bit little-endian ELF file."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    first, = struct.unpack_from("<Q", data, 0x28)
    entry_size, number, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = []
    for k in range(number):
        name, kind = struct.unpack_from("<II", data, first + k * entry_size)
        offset, size = struct.unpack_from("<QQ", data, first + k * entry_size + 0x18)
        headers.append((name, kind, offset, size))
    text = headers[names][2]
    no_bits = 8
    for name, kind, offset, size in headers:
        end = data.index(b"\0", text + name)
        if kind != no_bits:
            yield bytes(data[text + name:end]).decode(), offset, size


def entries(data, begin, end):
    """(architecture, offset, size) of the code of each entry of the containers in [begin, end)."""
    at = begin
    while at + CONTAINER.size <= end:
        magic, _, header, size = CONTAINER.unpack_from(data, at)
        if magic == 0 and not any(data[at:at + 8]):
            at += 8  # between two containers
            continue
        if magic != CONTAINER_MAGIC or at + header + size > end:
            raise ValueError("no fat binary at byte %d" % at)
        entry, after = at + header, at + header + size
        while entry < after:
            _, _, entry_header, code = ENTRY.unpack_from(data, entry)
            if entry_header < ARCHITECTURE_AT + 4 or entry + entry_header + code > after:
                raise ValueError("no entry of a fat binary at byte %d" % entry)
            architecture, = struct.unpack_from("<I", data, entry + ARCHITECTURE_AT)
            yield architecture, entry + entry_header, code
            entry += entry_header + code
        at = after


def trim(data, architecture):
    """Zeros the parts that `architecture` does not need; returns the bytes of code that stay."""
    kept = 0
    found = {name: (offset, size) for name, offset, size in sections(data)}
    if ".nv_fatbin" not in found:
        raise ValueError("no .nv_fatbin")
    begin, size = found[".nv_fatbin"]
    for of, offset, code in entries(data, begin, begin + size):
        if of == architecture:
            kept += code
        else:
            data[offset:offset + code] = bytes(code)
    for name, (offset, size) in found.items():
        if name == "__nv_relfatbin" or name.startswith(".debug_"):
            data[offset:offset + size] = bytes(size)
    if kept == 0:
        raise ValueError("nothing of sm_%d" % architecture)
    return kept


def write_sparsely(path, data):
    with open(path, "wb") as file:
        for at in range(0, len(data), BLOCK):
            block = data[at:at + BLOCK]
            if any(block):
                file.seek(at)
                file.write(block)
        file.truncate(len(data))
    os.chmod(path, 0o755)


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: trim_nccl.py LIBNCCL OUT ARCHITECTURE")
    with open(sys.argv[1], "rb") as file:
        data = bytearray(file.read())
    try:
        kept = trim(data, int(sys.argv[3]))
    except ValueError as error:
        sys.exit("trim_nccl: %s: %s" % (sys.argv[1], error))
    write_sparsely(sys.argv[2], data)
    print("trim_nccl: %d MiB of code for sm_%s" % (kept >> 20, sys.argv[3]))


if __name__ == "__main__":
    main()
