# SPDX-License-Identifier: Apache-2.0
"""torch DCP, safetensors or Orbax as a contestant of `tools/bench checkpoint`.

  checkpoint_peer.py LIBRARY RANK SIZE PREFIX

SIZE is the number of CPU devices: of one process for orbax, processes of one device each for the
others. The protocol is described in worker.h, the commands in checkpoint_worker.cc: save,
save_async and restore of f32 matrices. safetensors has no matrices of several processes: a process
saves the rows that it has to a file, and restores from the files of all.
"""

import os
import pathlib
import shutil
import sys
import time

import numpy as np
import python_peer

TENSOR_BYTES, COLUMNS = 16 << 20, 1024


def shapes(size_bytes):
    count = max(1, size_bytes // TENSOR_BYTES)
    return [(size_bytes // count // COLUMNS // 4, COLUMNS)] * count


def values(shape, number):
    """Whole matrices, different for each number."""
    flat = np.arange(shape[0] * shape[1], dtype=np.uint32) * np.uint32(2654435761 + 2 * number)
    return (flat >> np.uint32(8)).astype(np.float32).reshape(shape)


def evict(folder):
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Library:
    """`pending` is what save_async returned."""

    pending = None

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def barrier(self):
        pass

    def part(self, array, dim):
        """The rows (dim 0) or columns of this process."""
        length = array.shape[dim] // self.size
        piece = slice(self.rank * length, (self.rank + 1) * length)
        return np.ascontiguousarray(array[piece] if dim == 0 else array[:, piece])


class Torch(Library):
    def __init__(self, rank, size, prefix):
        super().__init__(rank, size)
        import torch
        import torch.distributed.checkpoint as dcp
        import torch.distributed.tensor as tensor

        self.torch, self.dcp, self.tensor = torch, dcp, tensor
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{prefix}.meeting", rank=rank, world_size=size
        )
        self.mesh = torch.distributed.init_device_mesh("cpu", (size,))

    def barrier(self):
        self.torch.distributed.barrier()

    def tensors(self, size_bytes, dim, is_set):
        made = {}
        for i, shape in enumerate(shapes(size_bytes)):
            local = self.part(values(shape, i) if is_set else np.zeros(shape, np.float32), dim)
            made[f"w{i}"] = self.tensor.DTensor.from_local(
                self.torch.from_numpy(local), self.mesh, [self.tensor.Shard(dim)]
            )
        return made

    def save(self, tensors, path, sync):
        self.dcp.save(tensors, checkpoint_id=path)

    def save_async(self, tensors, path):
        self.pending = self.dcp.async_save(tensors, checkpoint_id=path)

    def wait(self):
        self.pending.result()

    def restore(self, tensors, path, dim):
        self.dcp.load(tensors, checkpoint_id=path)

    def locals_of(self, tensors):
        return [each.to_local().numpy() for each in tensors.values()]


class Safetensors(Library):
    """Processes meet by files, and wait for each other awake."""

    def __init__(self, rank, size, prefix):
        super().__init__(rank, size)
        import safetensors
        import safetensors.numpy

        self.safetensors, self.meeting, self.barriers = safetensors, f"{prefix}.meeting", 0

    def barrier(self):
        self.barriers += 1
        pathlib.Path(f"{self.meeting}.{self.barriers}.{self.rank}").touch()
        for rank in range(self.size):
            while not os.path.exists(f"{self.meeting}.{self.barriers}.{rank}"):
                time.sleep(1e-4)

    def tensors(self, size_bytes, dim, is_set):
        if not is_set:
            return {f"w{i}": None for i in range(len(shapes(size_bytes)))}
        return {f"w{i}": self.part(values(s, i), dim) for i, s in enumerate(shapes(size_bytes))}

    def save(self, tensors, path, sync):
        os.makedirs(path, exist_ok=True)
        self.safetensors.numpy.save_file(tensors, f"{path}/{self.rank}.safetensors")

    def restore(self, tensors, path, dim):
        if dim == 0:
            tensors.update(self.safetensors.numpy.load_file(f"{path}/{self.rank}.safetensors"))
            return
        pieces = {name: [] for name in tensors}
        for rank in range(self.size):
            with self.safetensors.safe_open(f"{path}/{rank}.safetensors", "numpy") as file:
                for name in tensors:
                    length = COLUMNS // self.size
                    begin = self.rank * length
                    pieces[name].append(file.get_slice(name)[:, begin : begin + length])
        tensors.update({name: np.concatenate(parts) for name, parts in pieces.items()})

    def locals_of(self, tensors):
        return list(tensors.values())


class Orbax(Library):
    def __init__(self, _rank, size, _prefix):
        super().__init__(0, size)
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={size}"
        import jax
        import orbax.checkpoint

        self.jax, self.orbax = jax, orbax.checkpoint
        self.mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
        self.checkpointer = orbax.checkpoint.StandardCheckpointer()  # saves in the background

    def sharding(self, dim):
        dims = ("x", None) if dim == 0 else (None, "x")
        return self.jax.sharding.NamedSharding(self.mesh, self.jax.sharding.PartitionSpec(*dims))

    def tensors(self, size_bytes, dim, is_set):
        sharding = self.sharding(dim)
        if not is_set:
            empty = lambda s: self.jax.ShapeDtypeStruct(s, np.float32, sharding=sharding)
            return {f"w{i}": empty(shape) for i, shape in enumerate(shapes(size_bytes))}
        put = lambda array: self.jax.device_put(array, sharding)
        made = {f"w{i}": put(values(s, i)) for i, s in enumerate(shapes(size_bytes))}
        return self.jax.block_until_ready(made)

    def save(self, tensors, path, sync):
        self.checkpointer.save(path, tensors)
        self.checkpointer.wait_until_finished()

    def save_async(self, tensors, path):
        self.checkpointer.save(path, tensors)
        self.pending = True

    def wait(self):
        self.checkpointer.wait_until_finished()

    def restore(self, tensors, path, dim):
        tensors.update(self.jax.block_until_ready(self.checkpointer.restore(path, tensors)))

    def locals_of(self, tensors):
        return [np.asarray(each.addressable_shards[0].data) for each in tensors.values()]


class Peer:
    def __init__(self, library):
        self.library = library
        self.saved = {}  # of one size

    def tensors(self, size_bytes):
        if size_bytes not in self.saved:
            self.saved = {size_bytes: self.library.tensors(size_bytes, 0, True)}
        return self.saved[size_bytes]

    def settle(self):
        if self.library.pending is not None:
            self.library.wait()
            self.library.pending = None

    def without(self, path):
        """Removes a checkpoint when all processes have left it."""
        self.settle()
        self.library.barrier()
        if self.library.rank == 0:
            shutil.rmtree(path, ignore_errors=True)
        self.library.barrier()

    def measure(self, fields):
        """(seconds of each repetition, CPU seconds of a call)."""
        size_bytes, operation = int(fields["bytes"]), fields["operation"]
        path, seconds = f"{fields['folder']}/saved", []
        if operation == "restore":
            path = f"{fields['folder']}/checkpoint-{size_bytes}"
            if not os.path.exists(path):
                self.library.barrier()
                self.library.save(self.tensors(size_bytes), path, True)
        dim = 1 if fields.get("to") == "columns" else 0
        self.library.barrier()
        repetitions = int(fields.get("repetitions", 1))
        for i in range(-1, repetitions):
            if operation == "restore":
                tensors = self.library.tensors(size_bytes, dim, False)
                call = lambda: self.library.restore(tensors, path, dim)
                if fields.get("cold") == "1":
                    evict(path)
            else:
                self.without(path)
                tensors = self.tensors(size_bytes)
                call = lambda: (
                    self.library.save_async(tensors, path)
                    if operation == "save_async"
                    else self.library.save(tensors, path, fields["sync"] == "1")
                )
            self.library.barrier()
            cpu, start = python_peer.cpu_seconds(), time.perf_counter()
            call()
            if i >= 0:
                seconds.append(time.perf_counter() - start)
            cpu = python_peer.cpu_seconds() - cpu
            if i < 0 and operation == "restore" and fields.get("full") == "1":
                for number, found in enumerate(self.library.locals_of(tensors)):
                    expected = self.library.part(values(shapes(size_bytes)[number], number), dim)
                    assert np.array_equal(found, expected), f"wrong values of w{number}"
        if operation != "restore":
            self.without(path)
        return seconds, cpu


def main(library, rank, size, prefix):
    libraries = {"torch": Torch, "safetensors": Safetensors, "orbax": Orbax}
    peer = Peer(libraries[library](int(rank), int(size), prefix))
    peer.library.barrier()
    python_peer.serve(prefix, rank, peer.measure, lambda: peer.saved.clear())


if __name__ == "__main__":
    main(*sys.argv[1:])
