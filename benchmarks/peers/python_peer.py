# SPDX-License-Identifier: Apache-2.0
"""JAX, TF DTensor or PyTorch DTensor as a contestant of tools/bench_relayouts.

  python_peer.py LIBRARY RANK SIZE PREFIX

SIZE is the number of CPU devices: of one process for jax and tensorflow, processes of one device
each for torch. worker.h describes the protocol. The command is `relayout`, with one axis for each
dim: "rows= cols= mesh=x:2,y:2 from_layout=[x,y] to_layout=[y,x] way=jit". A call returns when the
result is ready, and every call makes a new result.
"""

import functools
import json
import math
import os
import re
import resource
import sys
import time

import numpy as np


class Layout:
    """ "[x,-]sum{y}": the axis of each dim, and the axis over which the values are partial."""

    def __init__(self, text):
        dims, self.partial = re.fullmatch(r"\[(.*)\](?:sum\{(.*)\})?", text).groups()
        self.dims = [None if dim == "-" else dim for dim in dims.split(",")]


class Case:
    """A relayout of a matrix with the values of host_worker.cc."""

    def __init__(self, rows, cols, mesh, from_layout):
        self.shape = (int(rows), int(cols))
        self.axes = {name: int(size) for name, size in (a.split(":") for a in mesh.split(","))}
        self.size = math.prod(self.axes.values())
        self.source = Layout(from_layout)
        self.terms = self.axes[self.source.partial] if self.source.partial else 1

    def box(self, layout, position):
        """The slice of each dim that the device at a position of the mesh holds."""
        coordinates = dict(zip(self.axes, np.unravel_index(position, tuple(self.axes.values()))))
        box = []
        for axis, size in zip(layout.dims, self.shape):
            part, index = (size // self.axes[axis], coordinates[axis]) if axis else (size, 0)
            box.append(slice(index * part, (index + 1) * part))
        return tuple(box)

    @staticmethod
    def values(box):
        rows, cols = (np.arange(dim.start, dim.stop, dim.step) for dim in box)
        return ((rows[:, None] * 131 + cols * 31) & 0xFFFF).astype(np.float32)

    def source_block(self, position):
        """A partial source has one axis; term t of each element is t more than the element."""
        term = position if self.source.partial else 0
        return self.values(self.box(self.source, position)) + np.float32(term)

    def check(self, layout, position, block, full):
        strides = [1 if full else max(1, n // prime) for n, prime in zip(block.shape, (31, 37))]
        box = [slice(d.start, d.stop, s) for d, s in zip(self.box(layout, position), strides)]
        expected = self.terms * self.values(box) + self.terms * (self.terms - 1) // 2
        got = block[:: strides[0], :: strides[1]]
        return "" if np.array_equal(got, expected) else f"wrong result on device {position}"


class Library:
    """The parts that the libraries share; each relayouts in its own way."""

    def barrier(self):
        pass

    def fresh(self, source):
        """The source without anything that an earlier relayout left in it."""
        return source


class Jax(Library):
    def __init__(self, _rank, size, _prefix):
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={size}"
        import jax

        self.jax = jax

    def sharding(self, case, *dims):
        devices = np.array(self.jax.devices()).reshape(tuple(case.axes.values()))
        mesh = self.jax.sharding.Mesh(devices, tuple(case.axes))
        return self.jax.sharding.NamedSharding(mesh, self.jax.sharding.PartitionSpec(*dims))

    def source(self, case):
        """The terms of a partial matrix are along a dim of their own."""
        blocks = [case.source_block(i) for i in range(case.size)]
        shape, sharding = case.shape, self.sharding(case, *case.source.dims)
        if case.source.partial:
            blocks = [block[None] for block in blocks]
            shape, sharding = (case.terms, *shape), self.sharding(case, case.source.partial)
        arrays = [self.jax.device_put(b, d) for b, d in zip(blocks, self.jax.devices())]
        return self.jax.make_array_from_single_device_arrays(shape, sharding, arrays)

    def fresh(self, source):
        """device_put keeps the gathered values in its argument. A new array on the same shards has
        none, so that each call gathers."""
        shards = [shard.data for shard in source.addressable_shards]
        return self.jax.make_array_from_single_device_arrays(
            source.shape, source.sharding, shards
        )

    def function(self, case, to, way):
        jax, axis = self.jax, case.source.partial
        target = self.sharding(case, *to.dims)
        if way == "device_put":
            relayout = lambda x: jax.device_put(x, target)
        elif way == "jit":
            move = (lambda x: x.sum(0)) if axis else (lambda x: x)
            relayout = jax.jit(move, out_shardings=target)
        else:  # shard_map
            reduce = jax.lax.psum_scatter if to.dims[0] else jax.lax.psum
            options = {"tiled": True} if to.dims[0] else {}
            relayout = jax.jit(
                jax.shard_map(
                    lambda x: reduce(x[0], axis, **options),
                    mesh=target.mesh,
                    in_specs=jax.sharding.PartitionSpec(axis),
                    out_specs=target.spec,
                )
            )
        return lambda x: relayout(x).block_until_ready()

    def blocks(self, result):
        return [(shard.device.id, np.asarray(shard.data)) for shard in result.addressable_shards]


class Tensorflow(Library):
    def __init__(self, _rank, size, _prefix):
        import tensorflow as tf
        from tensorflow.experimental import dtensor

        self.tf, self.dtensor, self.size = tf, dtensor, size
        device = tf.config.list_physical_devices("CPU")[0]
        devices = [tf.config.LogicalDeviceConfiguration()] * size
        tf.config.set_logical_device_configuration(device, devices)

    @functools.lru_cache(maxsize=None)
    def mesh(self, axes):
        return self.dtensor.create_mesh(axes, devices=[f"CPU:{i}" for i in range(self.size)])

    def layout(self, case, layout):
        specs = [dim or self.dtensor.UNSHARDED for dim in layout.dims]
        return self.dtensor.Layout(specs, self.mesh(tuple(case.axes.items())))

    def source(self, case):
        blocks = []
        for i in range(self.size):
            with self.tf.device(f"CPU:{i}"):
                blocks.append(self.tf.constant(case.source_block(i)))
        return self.dtensor.pack(blocks, self.layout(case, case.source))

    def function(self, case, to, way):
        target = self.layout(case, to)
        relayout = lambda x: self.dtensor.relayout(x, target)
        if way == "function":
            relayout = self.tf.function(relayout)

        def call(x):
            result = relayout(x)
            for block in self.dtensor.unpack(result):
                memoryview(block)  # waits until the block is there; copies nothing
            return result

        return call

    def blocks(self, result):
        return list(enumerate(map(np.asarray, map(memoryview, self.dtensor.unpack(result)))))


class Torch(Library):
    def __init__(self, rank, size, prefix):
        import torch
        import torch.distributed
        import torch.distributed.tensor

        self.rank, self.torch = rank, torch
        torch.set_grad_enabled(False)
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{prefix}.meeting", rank=rank, world_size=size
        )

    def barrier(self):
        self.torch.distributed.barrier()

    @functools.lru_cache(maxsize=None)
    def mesh(self, axes):
        names, sizes = zip(*axes)
        return self.torch.distributed.init_device_mesh("cpu", sizes, mesh_dim_names=names)

    def placements(self, case, layout):
        tensor = self.torch.distributed.tensor
        result = []
        for axis in case.axes:
            if axis in layout.dims:
                result.append(tensor.Shard(layout.dims.index(axis)))
            else:
                result.append(tensor.Partial() if axis == layout.partial else tensor.Replicate())
        return result

    def source(self, case):
        return self.torch.distributed.tensor.DTensor.from_local(
            self.torch.from_numpy(case.source_block(self.rank)),
            self.mesh(tuple(case.axes.items())),
            self.placements(case, case.source),
        )

    def function(self, case, to, _way):
        mesh, target = self.mesh(tuple(case.axes.items())), self.placements(case, to)
        return lambda x: x.redistribute(mesh, target)

    def blocks(self, result):
        return [(self.rank, result.to_local().numpy())]


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Peer:
    def __init__(self, library):
        self.library = library

    # Consecutive commands differ in the way alone.
    @functools.lru_cache(maxsize=1)
    def sources(self, sets, *case_fields):
        case = Case(*case_fields)
        return case, [self.library.source(case) for _ in range(sets)]

    def measure(self, fields):
        """(seconds of each repetition, CPU seconds a call); raises AssertionError if a result is
        wrong."""
        sets, calls = int(fields.get("sets", 1)), int(fields.get("calls", 1))
        key = [fields[name] for name in ("rows", "cols", "mesh", "from_layout")]
        case, sources = self.sources(sets, *key)
        to = Layout(fields["to_layout"])
        call = self.library.function(case, to, fields["way"])
        results = [None] * sets

        def check(i, full):
            for position, block in self.library.blocks(results[i]):
                error = case.check(to, position, block, full)
                assert not error, error

        results[0] = call(self.library.fresh(sources[0]))
        check(0, fields.get("full") == "1")
        seconds, i = [], 0
        repetitions = int(fields.get("repetitions", 1))
        cpu = cpu_seconds()
        for _ in range(repetitions):
            inputs = [self.library.fresh(sources[k % sets]) for k in range(calls)]
            self.library.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                i = i + 1 if i + 1 < sets else 0
                results[i] = call(inputs.pop())
            seconds.append((time.perf_counter() - start) / calls)
        cpu = (cpu_seconds() - cpu) / (repetitions * calls)
        check(i, False)
        self.library.barrier()
        return seconds, cpu


def serve(prefix, rank, measure, release):
    """Answers commands until "quit". `measure(fields)` returns the seconds of each repetition, the
    CPU seconds of a call, and perhaps the value of worker.h."""
    with open(f"{prefix}.{rank}.in") as commands, open(f"{prefix}.{rank}.out", "w") as out:
        print(json.dumps({"ready": time.monotonic(), "error": ""}), file=out, flush=True)
        for line in commands:
            operation, *words = line.split()
            if operation == "quit":
                return
            reply = {"seconds": [], "cpu": 0, "error": ""}
            if operation == "release":
                release()
            else:
                fields = dict(word.split("=", 1) for word in words)
                try:
                    seconds, cpu, *value = measure({"operation": operation, **fields})
                    reply.update(seconds=seconds, cpu=cpu, **{"value": v for v in value})
                except Exception as failure:  # goes to the driver
                    reply["error"] = f"{type(failure).__name__}: {failure}"[:300]
            print(json.dumps({**reply, "at": time.monotonic()}), file=out, flush=True)


def main(library, rank, size, prefix):
    libraries = {"jax": Jax, "tensorflow": Tensorflow, "torch": Torch}
    peer = Peer(libraries[library](int(rank), int(size), prefix))
    peer.library.barrier()
    serve(prefix, rank, peer.measure, peer.sources.cache_clear)


if __name__ == "__main__":
    main(*sys.argv[1:])
