# SPDX-License-Identifier: Apache-2.0
"""JAX, TF DTensor or PyTorch DTensor as a contestant of `tools/bench ops`.

  ops_peer.py LIBRARY RANK SIZE PREFIX

SIZE is the number of CPU devices: of one process for jax and tensorflow, processes of one device
each for torch. The protocol is described in worker.h, the commands in ops_worker.cc; way= is the
way to call a function. Networks, weights and data are as in training.cc. A call returns when its
result is ready.
"""

import contextlib
import functools
import math
import os
import sys
import time

import numpy as np
import python_peer

DATA_SEED = 1000
FACTOR = 0.35
EPSILON = 1e-5  # of layer_norm
SGD = {"lr": 0.05, "momentum": 0.9}
ADAMW = {"lr": 0.003, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.01}
ADAMW_ALONE = {**ADAMW, "lr": 0.001, "betas": (0.9, 0.999)}  # of the command adamw


def noise(seed, shape, factor=1.0, offset=0.0):
    """As noise() of worker.h, by float32."""
    h = np.arange(math.prod(shape), dtype=np.uint32) * np.uint32(2654435761)
    h += np.uint32(seed * 2246822519 & 0xFFFFFFFF)
    h ^= h >> np.uint32(15)
    h *= np.uint32(2246822519)
    h ^= h >> np.uint32(13)
    unit = (h >> np.uint32(8)).astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)
    return (unit * np.float32(factor) + np.float32(offset)).reshape(shape)


def value_of(array):
    """As value_of() of ops_worker.cc."""
    flat = np.abs(np.asarray(array, dtype=np.float64).ravel())
    return float(np.mean(flat * (np.arange(flat.size) % 7 + 1)))


class Digits:
    """Weights as (shape, dims along axes, factor, offset), and data."""

    def __init__(self, fields):
        sizes = {"images": 64, "inputs": 64, "hidden": 96, "classes": 10}
        n, inputs, hidden, classes = (int(fields.get(k, v)) for k, v in sizes.items())
        self.weights = [
            ((inputs, hidden), (None, "model"), FACTOR, 0),
            ((hidden,), ("model",), 0, 0),
            ((hidden, classes), ("model", None), FACTOR, 0),
            ((classes,), (None,), 0, 0),
        ]
        self.x = noise(DATA_SEED, (n, inputs), 1, 0.5)
        self.labels = (7 * np.arange(n) + 3) % classes


class Transformer:
    """Weights and data, as in Digits. Heads are a part of a dim: [width, heads * depth]."""

    def __init__(self, fields):
        sizes = {"pieces": 32, "context": 32, "width": 64, "heads": 8, "blocks": 2}
        pieces, self.context, self.width, self.heads, self.blocks = (
            int(fields.get(k, v)) for k, v in sizes.items()
        )
        width, vocabulary = self.width, 64
        row, column = ("model", None), (None, "model")
        factor = FACTOR * math.sqrt(64 / width)
        norm = [((width,), (None,), 0, 1), ((width,), (None,), 0, 0)]
        projections = [((width, width), column, factor, 0)] * 3
        block = [*norm, *projections, ((width, width), row, factor, 0), *norm]
        block += [((width, 4 * width), column, factor, 0), ((4 * width,), ("model",), 0, 0)]
        block += [((4 * width, width), row, factor, 0), ((width,), (None,), 0, 0)]
        embedding = ((vocabulary, width), row, factor, 0)
        places = ((self.context, width), (None, None), factor, 0)
        self.weights = [embedding, places, *block * self.blocks, *norm]
        text = (noise(DATA_SEED, (pieces, self.context + 1)) + np.float32(0.5)) * vocabulary
        text = text.astype(np.int64)
        self.x, self.labels = text[:, :-1], text[:, 1:]


NETWORKS = {"digits": Digits, "transformer": Transformer}


def initial_weights(network):
    return [
        noise(i + 1, shape, factor, offset)
        for i, (shape, _, factor, offset) in enumerate(network.weights)
    ]


class Call:
    """The work that a command repeats: call(set), which returns a ready result, and value()."""

    def __init__(self, call, value):
        self.call, self.value = call, value


def repeated(fn, value, sets=1):
    """A Call of a function that makes a new result. The latest result of each set is kept."""
    results = [None] * sets

    def call(i):
        results[i] = fn(i)

    return Call(call, lambda: value_of(value(results[0])))


def training(step):
    """A Call of a function that makes a step, and returns the loss before it as a float."""

    def value():
        for _ in range(4):
            step()
        return step()

    return Call(lambda _: step(), value)


# --- JAX ------------------------------------------------------------------------------------------


class Jax:
    def __init__(self, _rank, size, _prefix):
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={size}"
        os.environ["JAX_ENABLE_X64"] = "1"  # f64; everything else is given its dtype
        import jax

        self.jax, self.jnp, self.size = jax, jax.numpy, size

    def barrier(self):
        pass

    def put(self, array, axes, *dims):
        """The array with its dims split along axes of a mesh {name: size}."""
        devices = np.array(self.jax.devices()).reshape(tuple(axes.values()))
        mesh = self.jax.sharding.Mesh(devices, tuple(axes))
        spec = self.jax.sharding.PartitionSpec(*dims)
        return self.jax.device_put(array, self.jax.sharding.NamedSharding(mesh, spec))

    def eager(self, fields):
        jax, jnp = self.jax, self.jnp
        axes, shape = {"x": self.size // 2, "y": 2}, (int(fields["side"]),) * 2
        dims = {"add": [("x", None)] * 2, "matmul": [("x", None), (None, "y")]}
        dims["contracted"] = [(None, "x"), ("x", None)]
        fn = jnp.add if fields["op"] == "add" else jnp.matmul
        if fields["way"] == "jit":
            fn = jax.jit(fn)
        x, y = (
            self.put(noise(i + 1, shape), axes, *d) for i, d in enumerate(dims[fields["op"]])
        )
        return repeated(lambda _: fn(x, y).block_until_ready(), np.asarray)

    def matmul(self, fields):
        dtype = {"f32": "float32", "f64": "float64", "bf16": "bfloat16"}[fields["dtype"]]
        rows, summed, columns = (int(fields[k]) for k in ("rows", "summed", "columns"))
        a = self.jnp.asarray(noise(1, (rows, summed)), dtype)
        b = self.jnp.asarray(noise(2, (summed, columns)), dtype)
        fn = self.jax.jit(self.jnp.matmul)
        return repeated(lambda _: fn(a, b).block_until_ready(), np.asarray)

    def function(self, fields):
        jax, jnp = self.jax, self.jnp
        shape, sets = (int(fields["rows"]), int(fields["columns"])), int(fields["sets"])
        scale, bias = (jnp.asarray(noise(seed, shape[1:])) for seed in (100, 101))

        def layer_norm(x, _):
            mean = jnp.mean(x, -1, keepdims=True)
            variance = jnp.mean(jnp.square(x - mean), -1, keepdims=True)
            return (x - mean) / jnp.sqrt(variance + EPSILON) * scale + bias

        fn = jax.jit(
            {
                "add": jnp.add,
                "relu": lambda x, _: jax.nn.relu(x),
                "exp": lambda x, _: jnp.exp(x),
                "tanh": lambda x, _: jnp.tanh(x),
                "gelu": lambda x, _: jax.nn.gelu(x, approximate=False),
                "softmax": lambda x, _: jax.nn.softmax(x, axis=-1),
                "layer_norm": layer_norm,
                "chain": lambda x, y: jax.nn.relu((x + y) * 0.5 - y),
            }[fields["op"]]
        )
        x, y = (
            [jnp.asarray(noise(2 * s + k, shape, 4)) for s in range(sets)] for k in (1, 2)
        )
        return repeated(lambda i: fn(x[i], y[i]).block_until_ready(), np.asarray, sets)

    def random(self, fields):
        shape, sets = (int(fields["rows"]), int(fields["columns"])), int(fields["sets"])
        draw = getattr(self.jax.random, fields["op"])
        fn = self.jax.jit(lambda key: draw(key, shape, self.jnp.float32))
        keys = iter(self.jax.random.split(self.jax.random.key(1), 100_000))
        return repeated(lambda _: fn(next(keys)).block_until_ready(), np.asarray, sets)

    def adamw_update(self, options):
        jnp = self.jnp
        lr, (b1, b2), decay = options["lr"], options["betas"], options["weight_decay"]

        def update(w, g, m, v, t):
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            step = lr * (m / (1 - b1**t)) / (jnp.sqrt(v / (1 - b2**t)) + options["eps"])
            return (w * (1 - lr * decay) - step).astype(w.dtype), m, v

        return update

    def adamw(self, fields):
        jax, jnp = self.jax, self.jnp
        shape = (int(fields["rows"]), int(fields["columns"]))
        w, g = jnp.asarray(noise(1, shape)), jnp.asarray(noise(2, shape))
        update = jax.jit(self.adamw_update(ADAMW_ALONE), donate_argnums=(0, 2, 3))
        state = [w, jnp.zeros_like(w), jnp.zeros_like(w), jnp.float32(0)]

        def call(_):
            state[3] += 1
            state[:3] = jax.block_until_ready(update(state[0], g, *state[1:]))

        return Call(call, lambda: value_of(state[0]))

    def loss(self, network, w, x, labels):
        """The mean loss of a network."""
        jax, jnp = self.jax, self.jnp
        w = iter(w)
        if isinstance(network, Digits):
            hidden = jax.nn.relu(x @ next(w) + next(w))
            logits = hidden @ next(w) + next(w)
        else:
            logits = self.transformer(network, w, x)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
        return -jnp.mean(picked)

    def transformer(self, network, w, tokens):
        jax, jnp = self.jax, self.jnp

        def normalized(x):
            mean = jnp.mean(x, -1, keepdims=True)
            variance = jnp.mean(jnp.square(x - mean), -1, keepdims=True)
            return (x - mean) / jnp.sqrt(variance + EPSILON) * next(w) + next(w)

        def attend(x):
            split = (*x.shape[:2], network.heads, network.width // network.heads)
            q, k, v = ((x @ next(w)).reshape(split) for _ in range(3))
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(split[-1])
            sees = jnp.tril(jnp.ones((network.context, network.context), bool))
            weights = jax.nn.softmax(jnp.where(sees, scores, -jnp.inf), axis=-1)
            return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ next(w)

        def think(x):
            return jax.nn.gelu(x @ next(w) + next(w), approximate=False) @ next(w) + next(w)

        embedding = next(w)
        x = embedding[tokens] + next(w)
        for _ in range(network.blocks):
            x = x + attend(normalized(x))
            x = x + think(normalized(x))
        return jnp.einsum("btw,vw->btv", normalized(x), embedding)

    def step(self, fields):
        jax, jnp = self.jax, self.jnp
        network = NETWORKS[fields["network"]](fields)
        axes = {axis: int(fields[axis]) for axis in ("batch", "model")}
        dims = [dims for _, dims, _, _ in network.weights]
        put = lambda array, d: self.put(array, axes, *d)
        w = [put(array, d) for array, d in zip(initial_weights(network), dims)]
        zeros = lambda: [put(np.zeros(s, np.float32), d) for s, d, _, _ in network.weights]
        x, labels = (put(array, ("batch",)) for array in (network.x, network.labels))
        gradient = jax.value_and_grad(functools.partial(self.loss, network))
        if isinstance(network, Digits):
            state = [w, zeros()]

            def step(w, m, x, labels, _):
                loss, g = gradient(w, x, labels)
                m = [SGD["momentum"] * a + b for a, b in zip(m, g)]
                return loss, [a - SGD["lr"] * b for a, b in zip(w, m)], m

        else:
            state = [w, zeros(), zeros()]
            update = self.adamw_update(ADAMW)

            def step(w, m, v, x, labels, t):
                loss, g = gradient(w, x, labels)
                return loss, *map(list, zip(*(update(*each, t) for each in zip(w, g, m, v))))

        # The new weights are where the old ones were.
        shardings = jax.tree.map(lambda a: a.sharding, state)
        step = jax.jit(
            step, donate_argnums=tuple(range(len(state))), out_shardings=(None, *shardings)
        )
        time_step = np.zeros((), np.float32)

        def call():
            np.add(time_step, 1, out=time_step)
            result = jax.block_until_ready(step(*state, x, labels, time_step.copy()))
            state[:] = result[1:]
            return float(result[0])

        return training(call)


# --- PyTorch --------------------------------------------------------------------------------------


class Torch:
    """Gradients are kept where their weights are, and reduced by DTensor. Attention is computed on
    the local heads, as torchtitan does: DTensor has no rule for it on CPUs."""

    def __init__(self, rank, size, prefix):
        import torch
        import torch.distributed.tensor

        self.torch, self.size = torch, size
        self.dt = torch.distributed.tensor
        torch.set_num_threads(1)
        if size > 1:
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{prefix}.meeting", rank=rank, world_size=size
            )

    def barrier(self):
        if self.size > 1:
            self.torch.distributed.barrier()

    @functools.lru_cache(maxsize=None)
    def mesh(self, axes):
        names, sizes = zip(*axes)
        return self.torch.distributed.init_device_mesh("cpu", sizes, mesh_dim_names=names)

    def put(self, array, axes, *dims):
        places = [
            self.dt.Shard(dims.index(axis)) if axis in dims else self.dt.Replicate()
            for axis in axes
        ]
        mesh = self.mesh(tuple(axes.items()))
        return self.dt.distribute_tensor(self.torch.from_numpy(np.array(array)), mesh, places)

    def eager(self, fields):
        torch, Replicate = self.torch, self.dt.Replicate
        axes, shape = {"x": self.size // 2, "y": 2}, (int(fields["side"]),) * 2
        dims = {"add": [("x", None)] * 2, "matmul": [("x", None), (None, "y")]}
        dims["contracted"] = [(None, "x"), ("x", None)]
        x, y = (
            self.put(noise(i + 1, shape), axes, *d) for i, d in enumerate(dims[fields["op"]])
        )
        whole = [Replicate(), Replicate()]
        fn = {
            "add": lambda: x + y,
            "matmul": lambda: x @ y,
            "contracted": lambda: (x @ y).redistribute(placements=whole),
        }[fields["op"]]

        def call(_):
            with torch.no_grad():
                return fn()

        return repeated(call, lambda result: result.full_tensor().numpy())

    def matmul(self, fields):
        torch = self.torch
        dtype = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
        rows, summed, columns = (int(fields[k]) for k in ("rows", "summed", "columns"))
        a, b = (
            torch.from_numpy(noise(seed, shape)).to(dtype[fields["dtype"]])
            for seed, shape in ((1, (rows, summed)), (2, (summed, columns)))
        )
        return repeated(lambda _: a @ b, lambda result: result.to(torch.float64).numpy())

    def function(self, fields):
        torch = self.torch
        nn = torch.nn.functional
        shape, sets = (int(fields["rows"]), int(fields["columns"])), int(fields["sets"])
        scale, bias = (torch.from_numpy(noise(seed, shape[1:])) for seed in (100, 101))
        fn = {
            "add": lambda x, y: x + y,
            "relu": lambda x, _: torch.relu(x),
            "exp": lambda x, _: torch.exp(x),
            "tanh": lambda x, _: torch.tanh(x),
            "gelu": lambda x, _: nn.gelu(x),
            "softmax": lambda x, _: torch.softmax(x, -1),
            "layer_norm": lambda x, _: nn.layer_norm(x, shape[1:], scale, bias, EPSILON),
            "chain": lambda x, y: torch.relu((x + y) * 0.5 - y),
        }[fields["op"]]
        x, y = (
            [torch.from_numpy(noise(2 * s + k, shape, 4)) for s in range(sets)] for k in (1, 2)
        )
        return repeated(lambda i: fn(x[i], y[i]), lambda result: result.numpy(), sets)

    def random(self, fields):
        draw = {"normal": self.torch.randn, "uniform": self.torch.rand}[fields["op"]]
        shape = (int(fields["rows"]), int(fields["columns"]))
        return repeated(lambda _: draw(shape), lambda r: r.numpy(), int(fields["sets"]))

    def adamw(self, fields):
        torch = self.torch
        shape = (int(fields["rows"]), int(fields["columns"]))
        w = torch.nn.Parameter(torch.from_numpy(noise(1, shape)))
        w.grad = torch.from_numpy(noise(2, shape))
        optimizer = torch.optim.AdamW([w], fused=True, **ADAMW_ALONE)
        return Call(lambda _: optimizer.step(), lambda: value_of(w.detach().numpy()))

    def transformer(self, network, w, tokens):
        torch, dt = self.torch, self.dt
        nn = torch.nn.functional
        mesh = w[0].device_mesh
        w = iter(w)
        rows = [dt.Shard(0), dt.Replicate()]  # what a layer norm takes

        def normalized(x):
            x = x.redistribute(placements=rows)
            return nn.layer_norm(x, (network.width,), next(w), next(w), EPSILON)

        def attend(x):
            depth = network.width // network.heads
            split = [dt.Shard(0), dt.Shard(2)]
            local = [(x @ next(w)).redistribute(placements=split).to_local() for _ in range(3)]
            q, k, v = (each.unflatten(-1, (-1, depth)).transpose(1, 2) for each in local)
            heads = nn.scaled_dot_product_attention(q, k, v, is_causal=True)
            heads = heads.transpose(1, 2).flatten(2)
            return dt.DTensor.from_local(heads, mesh, split, run_check=False) @ next(w)

        def think(x):
            return nn.gelu(x @ next(w) + next(w)) @ next(w) + next(w)

        embedding = next(w)
        x = nn.embedding(tokens, embedding).redistribute(placements=rows) + next(w)
        for _ in range(network.blocks):
            x = x + attend(normalized(x)).redistribute(placements=rows)
            x = x + think(normalized(x)).redistribute(placements=rows)
        return (normalized(x) @ embedding.t()).redistribute(placements=rows)

    def loss(self, network, w, x, labels):
        nn = self.torch.nn.functional
        if isinstance(network, Digits):
            rows = [self.dt.Shard(0), self.dt.Replicate()]
            hidden = self.torch.relu(x @ w[0] + w[1])
            logits = (hidden @ w[2]).redistribute(placements=rows) + w[3]
        else:
            logits = self.transformer(network, w, x)
        local, labels = logits.to_local().flatten(0, -2), labels.to_local().flatten()
        loss = nn.cross_entropy(local, labels, reduction="sum") / network.labels.size
        places = [self.dt.Partial(), self.dt.Replicate()]
        return self.dt.DTensor.from_local(loss, logits.device_mesh, places, run_check=False)

    def step(self, fields):
        torch = self.torch
        network = NETWORKS[fields["network"]](fields)
        axes = {axis: int(fields[axis]) for axis in ("batch", "model")}
        w = [
            torch.nn.Parameter(self.put(array, axes, *dims))
            for array, (_, dims, _, _) in zip(initial_weights(network), network.weights)
        ]
        x, labels = (self.put(array, axes, "batch") for array in (network.x, network.labels))
        is_digits = isinstance(network, Digits)
        optimizer = torch.optim.SGD(w, **SGD) if is_digits else torch.optim.AdamW(w, **ADAMW)

        def step():
            optimizer.zero_grad()
            loss = self.loss(network, w, x, labels).full_tensor()
            loss.backward()
            for each in w:
                each.grad = each.grad.redistribute(placements=each.placements)
            optimizer.step()
            return loss.item()

        return training(step)


    def replicas(self, fields):
        """DistributedDataParallel: it reduces gradients while the backward pass goes on."""
        torch = self.torch
        network = Digits(fields)
        w = torch.nn.ParameterList(map(torch.from_numpy, initial_weights(network)))

        class Network(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.w = w

            def forward(self, x):
                return torch.relu(x @ self.w[0] + self.w[1]) @ self.w[2] + self.w[3]

        model = torch.nn.parallel.DistributedDataParallel(Network())
        optimizer = torch.optim.SGD(model.parameters(), **SGD)
        rank, num_images = torch.distributed.get_rank(), network.labels.size
        x, labels = (
            torch.from_numpy(np.array_split(each, self.size)[rank])
            for each in (network.x, network.labels)
        )

        def step():
            optimizer.zero_grad()
            # DistributedDataParallel takes the mean of the replicas' gradients.
            loss = torch.nn.functional.cross_entropy(model(x), labels, reduction="sum")
            (loss * self.size / num_images).backward()
            optimizer.step()
            return loss.detach() / num_images

        def value():
            for _ in range(4):
                step()
            loss = step()
            torch.distributed.all_reduce(loss)
            return loss.item()

        return Call(lambda _: step(), value)


# --- TF DTensor -----------------------------------------------------------------------------------


class Tensorflow(python_peer.Tensorflow):
    """Eager operations, and MirroredStrategy."""

    @functools.cached_property
    def strategy(self):
        """The collectives of a second one would meet those of the first."""
        devices = [f"CPU:{i}" for i in range(self.size)]
        return self.tf.distribute.MirroredStrategy(devices)

    def replicas(self, fields):
        tf, strategy = self.tf, self.strategy
        network = Digits(fields)
        with strategy.scope():
            w = [tf.Variable(array) for array in initial_weights(network)]
            m = [tf.Variable(tf.zeros_like(each)) for each in w]
        x, labels = (
            strategy.experimental_distribute_values_from_function(
                lambda context, each=each: tf.constant(
                    np.array_split(each, self.size)[context.replica_id_in_sync_group]
                )
            )
            for each in (network.x, network.labels)
        )

        def update(weight, momentum, gradient):
            momentum.assign(SGD["momentum"] * momentum + gradient)
            return weight.assign_sub(SGD["lr"] * momentum)

        def reduce_and_update(strategy, *gradients):
            sums = strategy.extended.batch_reduce_to("SUM", list(zip(gradients, w)))
            for weight, momentum, gradient in zip(w, m, sums):
                strategy.extended.update(weight, update, args=(momentum, gradient))

        def replica(x, labels):
            with tf.GradientTape() as tape:
                logits = tf.nn.relu(x @ w[0] + w[1]) @ w[2] + w[3]
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = tf.reduce_sum(losses) / network.labels.size
            gradients = tape.gradient(loss, w)
            tf.distribute.get_replica_context().merge_call(reduce_and_update, args=gradients)
            return loss

        step = tf.function(lambda: strategy.run(replica, args=(x, labels)))

        def value():
            for _ in range(4):
                step()
            return float(strategy.reduce("SUM", step(), axis=None))

        def call(_):
            for loss in strategy.experimental_local_results(step()):
                loss.numpy()  # waits until the step has ended

        return Call(call, value)


    def eager(self, fields):
        tf, dtensor = self.tf, self.dtensor
        side = int(fields["side"])
        axes = f"x:{self.size // 2},y:2"
        layouts = {"add": ["[x,-]", "[x,-]"], "matmul": ["[x,-]", "[-,y]"]}
        layouts["contracted"] = ["[-,x]", "[x,-]"]
        operands = []
        for i, text in enumerate(layouts[fields["op"]]):
            case = python_peer.Case(side, side, axes, text)
            values, blocks = noise(i + 1, (side, side)), []
            for device in range(self.size):
                with tf.device(f"CPU:{device}"):
                    blocks.append(tf.constant(values[case.box(case.source, device)]))
            operands.append(dtensor.pack(blocks, self.layout(case, case.source)))
        fn = tf.add if fields["op"] == "add" else tf.matmul
        if fields["way"] == "function":
            fn = tf.function(fn)

        def call(_):
            result = fn(*operands)
            for block in dtensor.unpack(result):
                memoryview(block)  # waits until the block is there; copies nothing
            return result

        whole = python_peer.Layout("[-,-]")

        def value(result):
            result = dtensor.relayout(result, self.layout(case, whole))
            return memoryview(dtensor.unpack(result)[0])

        return repeated(call, value)


# --- The protocol ---------------------------------------------------------------------------------


class Peer:
    def __init__(self, library):
        self.library = library
        self.calls = {}  # what is compiled once serves all rounds

    def release(self):
        self.calls.clear()

    def measure(self, fields):
        """(seconds of each repetition, CPU seconds a call, the value of a new operation)."""
        repetitions, calls = int(fields.pop("repetitions", 1)), int(fields.pop("calls", 1))
        full = fields.pop("full", "0") == "1"
        key = tuple(fields.items())
        is_new = key not in self.calls
        if is_new:
            self.calls[key] = getattr(self.library, fields["operation"])(fields)
        operation, sets, i = self.calls[key], int(fields.get("sets", 1)), 0
        operation.call(0)
        value = [operation.value()] if is_new and full else []
        seconds, cpu = [], python_peer.cpu_seconds()
        for _ in range(repetitions):
            self.library.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                i = i + 1 if i + 1 < sets else 0
                operation.call(i)
            seconds.append((time.perf_counter() - start) / calls)
        cpu = (python_peer.cpu_seconds() - cpu) / (repetitions * calls)
        self.library.barrier()
        return seconds, cpu, *value


def main(library, rank, size, prefix):
    libraries = {"jax": Jax, "tensorflow": Tensorflow, "torch": Torch}
    peer = Peer(libraries[library](int(rank), int(size), prefix))
    peer.library.barrier()
    python_peer.serve(prefix, rank, peer.measure, peer.release)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main(*sys.argv[1:])
