# SPDX-License-Identifier: Apache-2.0
"""A training step of a transformer on a GPU by PyTorch or JAX: training_contest.py's other
contestants. The commands are as in gpu_training.cc; network, weights and data are as in
../peers/ops_peer.py.

  training_peer.py torch|torch.compile|jax
"""

import ctypes
import functools
import json
import os
import resource
import sys
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../peers"))
from ops_peer import ADAMW, EPSILON, Transformer, initial_weights, noise  # noqa: E402


class Torch:
    def __init__(self, is_compiled):
        import torch

        self.torch, self.is_compiled = torch, is_compiled

    def synchronize(self):
        self.torch.cuda.synchronize()

    def loss(self, network, dtype, weights, tokens, labels):
        torch, nn = self.torch, self.torch.nn.functional
        w = (weight.to(dtype) for weight in weights)
        depth = network.width // network.heads

        def normalized(x):
            return nn.layer_norm(x, (network.width,), next(w), next(w), EPSILON)

        def attend(x):
            q, k, v = ((x @ next(w)).unflatten(-1, (-1, depth)).transpose(1, 2) for _ in range(3))
            heads = nn.scaled_dot_product_attention(q, k, v, is_causal=True)
            return heads.transpose(1, 2).flatten(2) @ next(w)

        def think(x):
            return nn.gelu(x @ next(w) + next(w)) @ next(w) + next(w)

        embedding = next(w)
        x = embedding[tokens] + next(w)
        for _ in range(network.blocks):
            x = x + attend(normalized(x))
            x = x + think(normalized(x))
        logits = (normalized(x) @ embedding.T).float()
        return nn.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def training(self, network, dtype):
        torch = self.torch
        weights = [torch.nn.Parameter(torch.from_numpy(w).cuda()) for w in initial_weights(network)]
        tokens, labels = (
            torch.from_numpy(a.copy()).cuda() for a in (network.x, network.labels)
        )
        optimizer = torch.optim.AdamW(weights, fused=True, **ADAMW)
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
        fn = functools.partial(self.loss, network, dtype)
        if self.is_compiled:
            fn = torch.compile(fn)
        losses = []

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = fn(weights, tokens, labels)
            loss.backward()
            optimizer.step()
            losses[:] = [loss.detach()]

        return step, lambda: losses[0].item()

    def small(self):
        torch = self.torch
        x, y = (torch.from_numpy(noise(seed, (1, 256))).cuda() for seed in (1, 2))
        sums = [None]

        def add():
            sums[0] = x + y

        if self.is_compiled:
            add = torch.compile(add)
        return add, lambda: sums[0][0, 0].item()


class Jax:
    def __init__(self):
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        import jax

        self.jax, self.jnp = jax, jax.numpy
        jax.config.update("jax_default_matmul_precision", "highest")  # no tf32, as the others
        self.last = None

    def synchronize(self):
        self.jax.block_until_ready(self.last)

    def loss(self, network, dtype, weights, tokens, labels):
        jax, jnp = self.jax, self.jnp
        w = (weight.astype(dtype) for weight in weights)

        def normalized(x):
            y = x.astype(jnp.float32)
            mean = jnp.mean(y, -1, keepdims=True)
            variance = jnp.mean(jnp.square(y - mean), -1, keepdims=True)
            return ((y - mean) / jnp.sqrt(variance + EPSILON)).astype(dtype) * next(w) + next(w)

        def attend(x):
            split = (*x.shape[:2], network.heads, network.width // network.heads)
            q, k, v = ((x @ next(w)).reshape(split) for _ in range(3))
            fast = "cudnn" if dtype == jnp.bfloat16 else "xla"
            heads = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=fast)
            return heads.reshape(x.shape) @ next(w)

        def think(x):
            return jax.nn.gelu(x @ next(w) + next(w), approximate=False) @ next(w) + next(w)

        embedding = next(w)
        x = embedding[tokens] + next(w)
        for _ in range(network.blocks):
            x = x + attend(normalized(x))
            x = x + think(normalized(x))
        logits = jnp.einsum("btw,vw->btv", normalized(x), embedding).astype(jnp.float32)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
        return -jnp.mean(picked)

    def training(self, network, dtype):
        jax, jnp = self.jax, self.jnp
        dtype = {"f32": jnp.float32, "bf16": jnp.bfloat16}[dtype]
        weights = [jnp.asarray(w) for w in initial_weights(network)]
        zeros = lambda: [jnp.zeros_like(w) for w in weights]
        tokens, labels = (jnp.asarray(a, jnp.int32) for a in (network.x, network.labels))
        gradient = jax.value_and_grad(functools.partial(self.loss, network, dtype))
        lr, (b1, b2) = ADAMW["lr"], ADAMW["betas"]

        def update(w, g, m, v, t):
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            change = lr * (m / (1 - b1**t)) / (jnp.sqrt(v / (1 - b2**t)) + ADAMW["eps"])
            return w * (1 - lr * ADAMW["weight_decay"]) - change, m, v

        @functools.partial(jax.jit, donate_argnums=(0, 1, 2, 3))
        def jitted(w, m, v, t):
            loss, g = gradient(w, tokens, labels)
            t = t + 1
            w, m, v = map(list, zip(*(update(*each, t) for each in zip(w, g, m, v))))
            return w, m, v, t, loss

        state = [weights, zeros(), zeros(), jnp.float32(0)]

        def step():
            *state[:], self.last = jitted(*state)

        return step, lambda: float(self.last)

    def small(self):
        jax, jnp = self.jax, self.jnp
        x, y = (jnp.asarray(noise(seed, (1, 256))) for seed in (1, 2))
        fn = jax.jit(lambda x, y: x + y)

        def add():
            self.last = fn(x, y)

        return add, lambda: float(self.last[0, 0])


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(name):
    library = Jax() if name == "jax" else Torch(name == "torch.compile")
    step = None
    for line in sys.stdin:
        command, *words = line.split()
        if command == "prepare":
            if words[0] == "small":
                step, value = library.small()
            else:
                sizes = dict(zip(("width", "blocks", "pieces", "context"), words[1:5]))
                step, value = library.training(Transformer(sizes), words[5])
            for _ in range(5):
                step()
            answer = {"value": value()}
        elif command == "trace":
            times = ctypes.CDLL(words[0])
            error = times.kernel_times_begin()
            for _ in range(int(words[2])):
                step()
            library.synchronize()
            answer = {"error": error or times.kernel_times_end(words[1].encode())}
        else:
            count = int(words[0])
            library.synchronize()
            cpu, start = cpu_seconds(), time.perf_counter()
            for _ in range(count):
                step()
            library.synchronize()
            answer = {"ms": 1000 * (time.perf_counter() - start) / count}
            answer["cpu_ms"] = 1000 * (cpu_seconds() - cpu) / count
            start = time.perf_counter()
            for _ in range(count):
                step()
                library.synchronize()
            answer["waited_ms"] = 1000 * (time.perf_counter() - start) / count
        print(json.dumps(answer), flush=True)


main(sys.argv[1])
