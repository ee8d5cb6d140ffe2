"""Rows of whole networks: the MNIST step, ResNet-18, a block of GPT-2 small and a token decoded by all of it. Each is
written once for all libraries.

In comes a peer with layers of the same names (`Conv2d`, `BatchNorm2d`, `Linear`, `LayerNorm`); out goes a step to time.
All start from the same weights and see the same data, so that their first losses agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.peers import Peer, Step
from bench.row import Array, Input, Row


class Network:
    """Layers in the order they were made, and a forward pass by `peer`'s operations."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.layers: list[Any] = []

    def add(self, kind: str, *args: Any, **options: Any) -> Any:
        """A layer of the library, remembered."""
        layer = getattr(self.peer.nn, kind)(*args, **options)
        self.layers.append(layer)
        return layer

    def start(self, seed: int = 1) -> None:
        """Set all weights: the same for every library."""
        rng = np.random.default_rng(seed)
        for layer in self.layers:
            shape = tuple(layer.weight.shape)
            if len(shape) > 1:
                values = rng.standard_normal(shape, np.float32) * np.float32(1 / np.prod(shape[1:]) ** 0.5)
                self.peer.set_parameter(layer.weight, values)
            if getattr(layer, "bias", None) is not None:
                self.peer.set_parameter(layer.bias, np.zeros(tuple(layer.bias.shape), np.float32))

    def parameters(self) -> list[Any]:
        """Weights and biases."""
        return [p for layer in self.layers for p in (layer.weight, getattr(layer, "bias", None)) if p is not None]

    def __call__(self, x: Any) -> Any:
        raise NotImplementedError


class Mnist(Network):
    """The network of `aril train mnist`: images of bytes (N, 1, 28, 28) to logits (N, 10)."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self.convs = [self.add("Conv2d", *sizes) for sizes in ((1, 32, 5), (32, 32, 5), (32, 64, 3), (64, 64, 3))]
        self.norms = [self.add("BatchNorm2d", 32), self.add("BatchNorm2d", 64)]
        self.head = self.add("Linear", 576, 10)

    def __call__(self, x: Any) -> Any:
        x = x.float() / 255
        for index, norm in enumerate(self.norms):
            for conv in self.convs[2 * index : 2 * index + 2]:
                x = conv(x).relu()
            x = self.peer.max_pool(norm(x), 2)
        return self.head(x.flatten(1))


class ResNet18(Network):
    """He et al., 2015: images (N, 3, 224, 224) to logits (N, 1000)."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self.stem = self._conv(3, 64, 7, 2, 3)
        self.blocks: list[tuple[Any, Any, Any]] = []
        cin = 64
        for cout, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            for s in (stride, 1):
                skip = self._conv(cin, cout, 1, s, 0) if s != 1 or cin != cout else None
                self.blocks.append((self._conv(cin, cout, 3, s, 1), self._conv(cout, cout, 3, 1, 1), skip))
                cin = cout
        self.head = self.add("Linear", 512, 1000)

    def _conv(self, cin: int, cout: int, k: int, stride: int, pad: int) -> tuple[Any, Any]:
        return (
            self.add("Conv2d", cin, cout, k, stride=stride, padding=pad, bias=False),
            self.add("BatchNorm2d", cout),
        )

    def __call__(self, x: Any) -> Any:
        def run(pair: tuple[Any, Any], x: Any) -> Any:
            return pair[1](pair[0](x))

        x = self.peer.max_pool(run(self.stem, x).relu(), 3, 2, 1)
        for first, second, skip in self.blocks:
            y = run(second, run(first, x).relu())
            x = (y + (x if skip is None else run(skip, x))).relu()
        return self.head(x.mean((2, 3)))


class Gpt2Block(Network):
    """Radford et al., 2019: (N, T, 768) to the same, 12 heads, normalisation first."""

    width, heads = 768, 12

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        d = self.width
        self.norms = [self.add("LayerNorm", d), self.add("LayerNorm", d)]
        self.qkv, self.out = self.add("Linear", d, 3 * d), self.add("Linear", d, d)
        self.up, self.down = self.add("Linear", d, 4 * d), self.add("Linear", 4 * d, d)

    def __call__(self, x: Any, cache: Any = None, at: Any = None) -> Any:
        """With a `cache` of keys and values (2, heads, length, 64), x is one token: number `at` of those in the cache,
        which gets its key and value and is attended to up to it."""
        n, t, d = x.shape
        qkv = self.qkv(self.norms[0](x))
        parts = [qkv[..., i * d : (i + 1) * d].reshape(n, t, self.heads, d // self.heads) for i in range(3)]
        q, k, v = (part.transpose(1, 2) for part in parts)
        if cache is None:
            seen = self.peer.attention(q, k, v)
        else:
            cache[0, :, at : at + 1], cache[1, :, at : at + 1] = k[0], v[0]
            k, v = cache[0:1, :, : at + 1], cache[1:2, :, : at + 1]
            seen = self.peer.attention(q, k, v, causal=False)
        x = x + self.out(seen.transpose(1, 2).reshape(n, t, d))
        return x + self.down(self.peer.gelu(self.up(self.norms[1](x))))


class Gpt2Decoder(Network):
    """GPT-2 small without its embedding: one token (1, 1, 768) to logits (1, 1, 50257), keys and values of those
    before it in a cache."""

    depth, words, length = 12, 50257, 1024

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self.blocks = [Gpt2Block(peer) for _ in range(self.depth)]
        self.layers = [layer for block in self.blocks for layer in block.layers]
        self.norm = self.add("LayerNorm", Gpt2Block.width)
        self.head = self.add("Linear", Gpt2Block.width, self.words, bias=False)

    def __call__(self, x: Any, caches: Any = (), at: Any = None) -> Any:
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache, at)
        return self.head(self.norm(x))


class Gpt2(Network):
    """All of GPT-2 small: positions of 50,257 tokens (N, T) to logits (N * T, 50257)."""

    tokens, context, blocks = 50257, 1024, 12

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        d = Gpt2Block.width
        self.embeddings = [self.add("Embedding", n, d) for n in (self.tokens, self.context)]
        self.body = [Gpt2Block(peer) for _ in range(self.blocks)]
        self.layers += [layer for block in self.body for layer in block.layers]
        self.norm = self.add("LayerNorm", d)
        self.head = self.add("Linear", d, self.tokens, bias=False)

    def __call__(self, x: Any) -> Any:
        n, t = x.shape
        words, places = self.embeddings
        h = words(x) + places.weight[:t]
        for block in self.body:
            h = block(h)
        return self.head(self.norm(h)).reshape(n * t, self.tokens)


def token_loss(network: Network, x: Any, y: Any) -> Any:
    """Cross-entropy of every token."""
    return network.peer.cross_entropy(network(x), y.reshape(-1))


def class_loss(network: Network, x: Any, y: Any) -> Any:
    """Cross-entropy of the logits."""
    return network.peer.cross_entropy(network(x), y)


def square_loss(network: Network, x: Any, y: Any) -> Any:
    """The mean square of what is left."""
    rest = network(x) - y
    return (rest * rest).mean()


def training(
    make: Callable[[Peer], Network], loss_of: Callable[[Network, Any, Any], Any], lr: float
) -> Callable[[Peer, list[Array]], Step]:
    """A step of Adam; its result is the loss."""

    def build(peer: Peer, arrays: list[Array]) -> Step:
        with peer.training():
            network = make(peer)
            network.start()
            peer.train(network.layers, True)
            optimizer = peer.adam(network.parameters(), lr)
            inputs = [peer.tensor(a) for a in arrays]
            # Some libraries capture the whole step, some the forward pass.
            forward = lambda x, y: loss_of(network, x, y)  # noqa: E731
            forward = forward if peer.captures_training else peer.captured(forward)

            def step(x: Any, y: Any) -> Any:
                optimizer.zero_grad()
                loss = forward(x, y)
                loss.backward()
                optimizer.step()
                return loss

            run = peer.captured(step) if peer.captures_training else step

        def once() -> Any:
            with peer.training():
                return run(*inputs)

        return once

    return build


def inference(make: Callable[[Peer], Network]) -> Callable[[Peer, list[Array]], Step]:
    """The forward pass in evaluation mode; its result is the logits."""

    def build(peer: Peer, arrays: list[Array]) -> Step:
        with peer.inference():
            network = make(peer)
            network.start()
            peer.train(network.layers, False)
            run = peer.captured(network.__call__)
            inputs = [peer.tensor(a) for a in arrays]

        def once() -> Any:
            with peer.inference():
                return run(*inputs)

        return once

    return build


def decoding(peer: Peer, arrays: list[Array]) -> Step:
    """One token after the first `TOKENS`; its result is the logits. The place in the cache may be another at each call,
    so it is no part of what a library compiles."""
    with peer.inference():
        network = Gpt2Decoder(peer)
        network.start()
        peer.train(network.layers, False)
        x, *caches = [peer.tensor(a) for a in (arrays[0], *arrays[1])]
        run = peer.captured(lambda x, at: network(x, caches, at))

    def once() -> Any:
        with peer.inference():
            return run(x, peer.position(TOKENS, Gpt2Decoder.length - 1))

    return once


MNIST_IMAGES = Input((512, 1, 28, 28), "uint8", "index", 256)
MNIST_FLOPS = 2.0 * 512 * (32 * 24**2 * 25 + 32 * 20**2 * 800 + 64 * 8**2 * 288 + 64 * 6**2 * 576 + 5760)
RESNET_FLOPS = 2 * 1.814e9  # an image
TOKENS = 512  # in the cache when the next is decoded
DECODER_CACHE = Input((Gpt2Decoder.depth, 2, Gpt2Block.heads, Gpt2Decoder.length, 64))
DECODER_WEIGHTS = 12 * 12 * 768**2 + 768 * Gpt2Decoder.words  # besides biases and normalisation
DECODER_BYTES = 4.0 * DECODER_WEIGHTS + DECODER_CACHE.nbytes * TOKENS / Gpt2Decoder.length
GPT2_FLOPS = 2.0 * 4 * 256 * (12 * 768**2 + 256 * 768)


def _images(n: int) -> Input:
    return Input((n, 3, 224, 224))


ROWS: tuple[Row, ...] = (
    Row(
        "MNIST step, batch 512",
        "networks",
        (MNIST_IMAGES, Input((512,), "int64", "index", 10)),
        program=training(Mnist, class_loss, 1e-3),
        calls_compared=3,
        tolerance=2e-2,
        flops=3 * MNIST_FLOPS,
        quick=True,
    ),
    *(
        Row(
            f"ResNet-18 inference, {n} of 224",
            "networks",
            (_images(n),),
            program=inference(ResNet18),
            tolerance=1e-3,
            flops=RESNET_FLOPS * n,
        )
        for n in (1, 16)
    ),
    Row(
        "ResNet-18 training step, 8 of 224",
        "networks",
        (_images(8), Input((8,), "int64", "index", 1000)),
        program=training(ResNet18, class_loss, 1e-4),
        calls_compared=2,
        tolerance=2e-2,
        flops=3 * RESNET_FLOPS * 8,
    ),
    Row(
        "GPT-2 small block training step, 4 of 256 tokens",
        "networks",
        (Input((4, 256, 768)), Input((4, 256, 768))),
        program=training(Gpt2Block, square_loss, 1e-4),
        calls_compared=3,
        tolerance=1e-3,
        flops=3 * GPT2_FLOPS,
    ),
    Row(
        "GPT-2 small decode, one token after 512",
        "networks",
        (Input((1, 1, 768)), DECODER_CACHE),
        program=decoding,
        tolerance=1e-3,
        flops=2.0 * DECODER_WEIGHTS,
        moved=DECODER_BYTES,
    ),
)

# No row: what its first step takes is an overhead.
GPT2_STEP = Row(
    "GPT-2 small training step, 256 tokens",
    "networks",
    tuple([Input((1, 256), "int64", "index", Gpt2.tokens)] * 2),
    program=training(Gpt2, token_loss, 1e-4),
)
