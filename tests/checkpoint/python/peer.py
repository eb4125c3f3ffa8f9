# SPDX-License-Identifier: Apache-2.0
"""Reads and writes files with Python's libraries, for interchange_test.

  peer.py has LIBRARY              exit code 0 if it can be imported
  peer.py read KIND PATH           prints a line for each tensor: its name, dtype and shape
  peer.py write KIND PATH

KIND is safetensors (a file), pieces (safetensors files with the boxes of a checkpoint), npy (a
folder of arrays), or torch (a folder, by torch.distributed.checkpoint).

Tensors are named like their dtype, as Tessera writes it: "f32", perhaps with a suffix ".fortran".
Element i of all elements is i % 100, of "bool" i % 2. Exit code 1 for another value.
"""

import importlib
import json
import pathlib
import sys

DTYPES = {
    "bool": "bool",
    "i8": "int8",
    "u8": "uint8",
    "i32": "int32",
    "i64": "int64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
}
OF_NUMPY = [name for name in DTYPES if name != "bf16"]
SHAPE = (13, 6)


def values(dtype, shape=SHAPE):
    import numpy as np

    numbers = np.arange(int(np.prod(shape)), dtype=np.int64) % (2 if dtype == "bool" else 100)
    return numbers.reshape(shape).astype(DTYPES[dtype])


def check(name, array):
    """`array`: of numpy."""
    import numpy as np

    dtype = name.split(".")[0]
    expected = values(dtype if dtype in OF_NUMPY else "f32", array.shape)
    if not np.array_equal(array, expected):
        sys.exit(f"wrong values of {name}: {array}")
    print(name, "x".join(map(str, array.shape)))


def check_dtype(name, found):
    if DTYPES[name.split(".")[0]] not in str(found):
        sys.exit(f"{name} has dtype {found}")


def read_safetensors(path):
    import safetensors.numpy

    for name, array in safetensors.numpy.load_file(path).items():
        check_dtype(name, array.dtype)
        check(name, array)


def write_safetensors(path):
    import safetensors.numpy

    arrays = {dtype: values(dtype) for dtype in OF_NUMPY}
    safetensors.numpy.save_file(arrays, path, metadata={"by": "safetensors"})


def read_pieces(folder):
    """Puts the boxes of all files together."""
    import numpy as np
    import safetensors

    pieces = {}
    for path in pathlib.Path(folder).glob("*.safetensors"):
        with safetensors.safe_open(path, "numpy") as file:
            places = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            for name in file.keys():
                offsets = places[name]["saved_offsets"]
                pieces.setdefault(name, []).append((offsets, file.get_tensor(name)))
    for name, boxes in pieces.items():
        ends = [[o + n for o, n in zip(offsets, box.shape)] for offsets, box in boxes]
        whole = np.zeros([max(dim) for dim in zip(*ends)], boxes[0][1].dtype)
        for (offsets, box), end in zip(boxes, ends):
            whole[tuple(slice(o, e) for o, e in zip(offsets, end))] = box
        check_dtype(name, whole.dtype)
        check(name, whole)


def read_npy(folder):
    import numpy as np

    for path in pathlib.Path(folder).glob("*.npy"):
        array = np.load(path, allow_pickle=False)
        check_dtype(path.stem, array.dtype)
        check(path.stem, array)


def write_npy(folder):
    import numpy as np

    for dtype in OF_NUMPY:
        array = values(dtype)
        np.save(f"{folder}/{dtype}.npy", array)
        np.save(f"{folder}/{dtype}.fortran.npy", np.asfortranarray(array))
        np.save(f"{folder}/{dtype}.big.npy", array.astype(array.dtype.newbyteorder(">")))


def read_torch(folder):
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    found = HuggingFaceStorageReader(folder).read_metadata().state_dict_metadata
    state = {}
    for name, each in found.items():
        check_dtype(name, each.properties.dtype)
        state[name] = torch.zeros(each.size, dtype=each.properties.dtype)
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder))
    for name, tensor in state.items():
        check(name, (tensor.float() if name == "bf16" else tensor).numpy())


def write_torch(folder):
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    state = {dtype: torch.from_numpy(values(dtype)) for dtype in OF_NUMPY}
    state["bf16"] = torch.from_numpy(values("f32")).bfloat16()
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(path=folder, save_distributed=True))


def main(action, *arguments):
    if action == "has":
        try:
            importlib.import_module(arguments[0])
        except ImportError:
            sys.exit(1)
        return
    kind, path = arguments
    globals()[f"{action}_{kind}"](path)


if __name__ == "__main__":
    main(*sys.argv[1:])
