"""The libraries that are compared, behind one interface: what each is called, why it is absent, how it captures.

In come rows and arrays; out go steps to time and results as NumPy arrays. Peers are extras: an absent one says why.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.row import Array, Row

Step = Callable[[], Any]


class Peer:
    """A library, or a way to use it. `library` is the key of its ways in a row; `module` is what they are given."""

    name = "?"
    library = "?"
    has_networks = False
    nn: Any = None  # layers, for programs

    def __init__(self) -> None:
        self.module: Any = None

    def start(self, threads: int) -> None:
        """Import and set it up. ImportError or RuntimeError says why it cannot take part."""
        raise NotImplementedError

    @property
    def version(self) -> str:
        """As the library says."""
        return str(getattr(self.module, "__version__", "?"))

    def takes(self, row: Row) -> bool:
        """Whether it has a way for `row`."""
        return self.has_networks if row.program is not None else row.way(self.library) is not None

    def tensor(self, array: Array, dtype: str | None = None) -> Any:
        """Its own array with these values, computed and stored."""
        raise NotImplementedError

    def captured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as it is fastest: compiled, or as it is."""
        return function

    def results(self, out: Any) -> list[Array]:
        """The results of a step as NumPy arrays."""
        return [self.array(x) for x in (out if isinstance(out, tuple | list) else (out,))]

    def array(self, x: Any) -> Array:
        """One result as a NumPy array."""
        return np.asarray(x)

    def context(self, row: Row) -> contextlib.AbstractContextManager[Any]:
        """What holds while a row is prepared and timed."""
        return contextlib.nullcontext()

    def training(self) -> contextlib.AbstractContextManager[Any]:
        """What a step of training runs in."""
        return contextlib.nullcontext()

    def inference(self) -> contextlib.AbstractContextManager[Any]:
        """What inference runs in."""
        return contextlib.nullcontext()

    # --- layers' libraries: what their names do not have in common. These are aril's and tinygrad's.

    captures_training = True  # whether `captured` takes a whole training step, or the forward pass only

    def set_parameter(self, parameter: Any, values: Array) -> None:
        """Give a weight its values."""
        parameter.assign(self.tensor(values)).realize()

    def train(self, layers: list[Any], flag: bool) -> None:
        """Training or evaluation mode, where layers hold it."""

    def adam(self, parameters: list[Any], lr: float) -> Any:
        """The library's Adam."""
        return self.nn.optim.Adam(parameters, lr=lr)

    def max_pool(self, x: Any, size: int, stride: int | None = None, padding: int = 0) -> Any:
        """Maxima of square windows."""
        return x.max_pool2d(kernel_size=(size, size), stride=stride or size, padding=padding)

    def cross_entropy(self, x: Any, y: Any) -> Any:
        """The mean over rows, of logits and class numbers."""
        return x.sparse_categorical_crossentropy(y)

    def attention(self, q: Any, k: Any, v: Any, causal: bool = True) -> Any:
        """Attention, of each row to the columns up to its own or to all."""
        return q.scaled_dot_product_attention(k, v, is_causal=causal)

    def position(self, n: int, most: int) -> Any:
        """`n` as a place along an axis that another call may have elsewhere, up to `most`, without compiling again."""
        return n

    def gelu(self, x: Any) -> Any:
        """With tanh, as GPT-2 has it."""
        return x.gelu()

    def prepare(self, row: Row, arrays: list[Array]) -> Step:
        """A call without arguments that computes the row once."""
        if row.program is not None:
            return row.program(self, arrays)
        way, module = row.way(self.library), self.module
        assert way is not None
        stored = [self.tensor(a, i.dtype) for a, i in zip(arrays, row.inputs, strict=True)]
        function = self.captured(lambda *memory: way(module, *row.views(list(memory))))
        return lambda: function(*stored)


class Aril(Peer):
    """This package, captured by `jit` and replayed."""

    name = library = "aril"
    has_networks = True

    def start(self, threads: int) -> None:
        self.module = importlib.import_module("aril")
        self.nn = importlib.import_module("aril.nn")

    def tensor(self, array: Array, dtype: str | None = None) -> Any:
        t = self.module.Tensor(np.ascontiguousarray(array))
        return (t if dtype is None else t.cast(dtype)).realize()

    def captured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.module.jit(function)  # type: ignore[no-any-return]

    def gelu(self, x: Any) -> Any:
        return x.gelu("tanh")

    def position(self, n: int, most: int) -> Any:
        return self.module.Variable("position", 0, most).bind(n)

    def array(self, x: Any) -> Array:
        return x.numpy()  # type: ignore[no-any-return]

    def training(self) -> contextlib.AbstractContextManager[Any]:
        return self.module.Context(TRAINING=1)  # type: ignore[no-any-return]


class ArilEager(Aril):
    """This package without capture: the graph is built, scheduled (by the cache) and launched at every call."""

    name = "aril eager"

    def takes(self, row: Row) -> bool:
        return row.eager and row.program is None and super().takes(row)

    def captured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            out = function(*args)
            results = out if isinstance(out, tuple) else (out,)
            results[0].realize(*results[1:])
            return out

        return run


class Numpy(Peer):
    """NumPy, which has no fused operations, convolutions or gradients."""

    name = library = "numpy"

    def start(self, threads: int) -> None:
        self.module = np
        with contextlib.suppress(ImportError):
            importlib.import_module("threadpoolctl").threadpool_limits(threads)

    def tensor(self, array: Array, dtype: str | None = None) -> Any:
        return array


class Torch(Peer):
    """PyTorch, eager."""

    name = library = "torch"
    has_networks = True

    def start(self, threads: int) -> None:
        self.module = importlib.import_module("torch")
        self.module.set_num_threads(threads)
        self.nn = self.module.nn

    def tensor(self, array: Array, dtype: str | None = None) -> Any:
        # A copy: memory of the library's own alignment.
        t = self.module.from_numpy(np.ascontiguousarray(array)).clone()
        return t if dtype is None else t.to(getattr(self.module, dtype))

    def array(self, x: Any) -> Array:
        x = x.detach()
        return (x.float() if x.dtype is self.module.bfloat16 else x).numpy()  # type: ignore[no-any-return]

    def context(self, row: Row) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if row.program is not None else self.inference()

    def inference(self) -> contextlib.AbstractContextManager[Any]:
        return self.module.inference_mode()  # type: ignore[no-any-return]

    captures_training = False

    def set_parameter(self, parameter: Any, values: Array) -> None:
        parameter.data.copy_(self.module.from_numpy(values))

    def train(self, layers: list[Any], flag: bool) -> None:
        for layer in layers:
            layer.train(flag)

    def adam(self, parameters: list[Any], lr: float) -> Any:
        return self.module.optim.Adam(parameters, lr=lr)

    def max_pool(self, x: Any, size: int, stride: int | None = None, padding: int = 0) -> Any:
        return self.nn.functional.max_pool2d(x, size, stride, padding)

    def cross_entropy(self, x: Any, y: Any) -> Any:
        return self.nn.functional.cross_entropy(x, y)

    def attention(self, q: Any, k: Any, v: Any, causal: bool = True) -> Any:
        return self.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def gelu(self, x: Any) -> Any:
        return self.nn.functional.gelu(x, approximate="tanh")


class TorchCompiled(Torch):
    """PyTorch through `torch.compile`, where there is a C++ compiler."""

    name = "torch.compile"

    def start(self, threads: int) -> None:
        super().start(threads)
        if not (shutil.which("g++") or shutil.which("clang++")):
            raise RuntimeError("no C++ compiler (g++ or clang++)")

    def captured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.module._dynamo.reset()
        return self.module.compile(function, dynamic=False)  # type: ignore[no-any-return]


class Jax(Peer):
    """JAX on its CPU backend, under `jax.jit`."""

    name = library = "jax"

    def start(self, threads: int) -> None:
        self.module = importlib.import_module("jax")
        self.module.config.update("jax_platforms", "cpu")
        self.module.devices()
        importlib.import_module("jax.numpy")

    def tensor(self, array: Array, dtype: str | None = None) -> Any:
        numpy = self.module.numpy
        return numpy.array(array, dtype=None if dtype is None else getattr(numpy, dtype)).block_until_ready()

    def captured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        run, wait = self.module.jit(function), self.module.block_until_ready
        return lambda *args: wait(run(*args))

    def context(self, row: Row) -> contextlib.AbstractContextManager[Any]:
        wide = any(i.dtype in ("float64", "int64") for i in row.inputs)
        # Where it is depends on the version.
        holder = self.module if hasattr(self.module, "enable_x64") else importlib.import_module("jax.experimental")
        return holder.enable_x64(wide)  # type: ignore[no-any-return]


class Tinygrad(Peer):
    """tinygrad on its CPU backend with clang, under `TinyJit`."""

    name = library = "tinygrad"
    has_networks = True

    def takes(self, row: Row) -> bool:
        # Version 0.14 reads a step's loss after the step, so that it cannot be compared, and computes it twice.
        return super().takes(row) and not (row.program is not None and row.calls_compared > 1)

    def start(self, threads: int) -> None:
        if shutil.which("clang") is None:
            raise RuntimeError("it needs clang on the path")
        self.module = importlib.import_module("tinygrad")
        self.nn = importlib.import_module("tinygrad.nn")
        importlib.import_module("tinygrad.nn.optim")
        importlib.import_module("tinygrad.helpers").DEV.value = "CPU"

    @property
    def version(self) -> str:
        return importlib.import_module("importlib.metadata").version("tinygrad")  # type: ignore[no-any-return]

    def tensor(self, array: Array, dtype: str | None = None) -> Any:
        t = self.module.Tensor(np.ascontiguousarray(array))
        return (t if dtype is None else t.cast(getattr(self.module.dtypes, dtype))).contiguous().realize()

    def captured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def realized(*args: Any) -> Any:
            out = function(*args)
            results = out if isinstance(out, tuple) else (out,)
            results[0].realize(*results[1:])
            return out

        run, device = self.module.TinyJit(realized), self.module.Device["CPU"]

        def wait(*args: Any) -> Any:
            out = run(*args)
            device.synchronize()
            return out

        return wait

    def array(self, x: Any) -> Array:
        return x.numpy()  # type: ignore[no-any-return]

    def training(self) -> contextlib.AbstractContextManager[Any]:
        return self.module.Context(TRAINING=1)  # type: ignore[no-any-return]


class Preallocated(Peer):
    """A library that writes into a result it is given. It stands beside the one that allocates at each call."""

    has_networks = False

    def __init__(self, plain: Peer) -> None:
        self.plain = plain
        self.name, self.library = f"{plain.name} out=", f"{plain.library} out"

    def start(self, threads: int) -> None:
        self.module = self.plain.module

    def array(self, x: Any) -> Array:
        return self.plain.array(x)

    def context(self, row: Row) -> contextlib.AbstractContextManager[Any]:
        return self.plain.context(row)

    def prepare(self, row: Row, arrays: list[Array]) -> Step:
        way, module = row.way(self.library), self.module
        assert way is not None
        out = self.plain.prepare(row, arrays)()
        stored = [self.plain.tensor(a, i.dtype) for a, i in zip(arrays, row.inputs, strict=True)]
        views = row.views(stored)
        return lambda: way(module, out, *views)


PEERS = ("numpy", "torch", "torch.compile", "jax", "tinygrad")


def start_peers(wanted: Sequence[str], threads: int) -> tuple[list[Peer], dict[str, str]]:
    """aril and the wanted peers that are usable, ready; and the reasons of those that are not."""
    aril = Aril()
    aril.start(threads)
    eager = ArilEager()
    eager.start(threads)
    ready: list[Peer] = [aril, eager]
    absent: dict[str, str] = {}
    for kind in (Numpy, Torch, TorchCompiled, Jax, Tinygrad):
        if kind.name not in wanted:
            continue
        peer = kind()
        try:
            peer.start(threads)
        except (ImportError, RuntimeError, OSError, AttributeError) as error:
            absent[kind.name] = str(error).partition("\n")[0] or type(error).__name__
            continue
        ready.append(peer)
        if kind in (Numpy, Torch):
            beside = Preallocated(peer)
            beside.start(threads)
            ready.append(beside)
    return ready, absent
