"""Captured programs in files: `jit(f).save(path)`, and `load_captured(path)` in a process that never saw `f`.

The container is a safetensors file. Its tensors are the memory that the program keeps (weights, optimizer state, random
counters) and, as bytes, compiled kernels; its metadata holds the description: the graphs of the kernels, what they are
given, arguments, result. Loading checks every graph (`uop.access`) and compiles it here, through the disk cache; it
runs nothing else. Compiled kernels of the file are machine code, so they are used only where the caller trusts it.
`docs/decisions/0011-captured-programs.md` says why it is so.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import aril
from aril.captured_format import (
    FORMAT,
    Description,
    Memory,
    ProgramError,
    Step,
    pack,
    pack_signature,
    read,
)
from aril.config import JIT
from aril.device import Buffer
from aril.engine.capture import Capture, JitError, local
from aril.engine.compile import Loaded, entry_of, load_kernels, machine_key, make_loaded, unpack_entry
from aril.engine.launch import Launch
from aril.engine.replay import Batch, root_of
from aril.jit import Jit, name_of, realize_assignments, touched
from aril.jit_arguments import name_for
from aril.jit_calls import Captured
from aril.nn.state import PathLike, safe_load_metadata, safe_save
from aril.nn.state_files import open_file
from aril.ops import Ops
from aril.schedule import Item
from aril.schedule.lower import HAND_WRITTEN
from aril.schedule.shard import memory_of
from aril.tensor import Tensor
from aril.uop import UOp
from aril.uop.access import keep_inside
from aril.uop.serial import GraphFormatError, to_rows

KEY = "aril.program"
STATE, CODE = "aril.state.", "aril.code."


# --- saving ---


def save(
    captured: Jit[Any, Any],
    path: PathLike,
    state: Mapping[str, Tensor] | None = None,
    weights: PathLike | None = None,
    compiled: bool = True,
) -> None:
    """See `Jit.save`."""
    c, name = captured.captured, name_of(captured.function)
    if c is None:
        raise ProgramError(f"{name} is not captured yet: call it twice, then save it")
    c = next((one for one in (c, *captured.others) if one.sharing is None), None)
    if c is None:
        raise ProgramError(
            f"{name} was captured with arguments that share memory with each other or with what it reaches: call it "
            "with tensors of their own (clone()), then save it"
        )
    realize_assignments()
    writer = _Writer(c, dict(state or {}), None if weights is None else Path(weights))
    try:
        description, tensors = writer.description(captured), writer.tensors()
    except GraphFormatError as error:
        raise ProgramError(f"{name} cannot be saved: {error}") from error
    if compiled:
        tensors |= writer.code(description)
    text = json.dumps(description, separators=(",", ":"), allow_nan=False)
    try:
        read(json.loads(text))  # what is saved can be loaded
    except ProgramError as error:
        raise ProgramError(f"{name} cannot be saved: {error}") from error
    safe_save(tensors, path, {KEY: text})


class _Writer:
    """One captured batch on its way to a file: its blocks of memory, numbered."""

    def __init__(self, c: Captured, state: dict[str, Tensor], weights: Path | None) -> None:
        self.c, self.weights = c, weights
        self.named: dict[int, tuple[str, tuple[int, ...]]] = {}
        for name, t in state.items():
            if not isinstance(t, Tensor):
                raise TypeError(f"save: state[{name!r}] is a {type(t).__name__}; give tensors by name")
            if name.startswith(CODE):
                raise ProgramError(f"the name {name!r} stands for compiled kernels: call that tensor something else")
            parts = [node.storage for node in memory_of(t.realize().uop)]
            for i, b in enumerate(parts):
                if b is not None:
                    shape = t.shape if len(parts) == 1 and b.size == t.numel() else (b.size,)
                    self.named[id(root_of(b))] = (name if len(parts) == 1 else f"{name}.{i}", shape)
        batch = c.batch
        self.roots: list[Buffer] = []
        self.memories: list[Memory] = []
        self.at: dict[int, int] = {}
        for i, b in enumerate(batch.keep):
            self._add(b, "input" if i < batch.inputs else "result")
        scratch = {id(root_of(b)) for b in batch.plan.values()}
        outside = [node.storage for uop, places in c.outputs for node, p in _places(uop, places) if p is None]
        for b in [*[b for launch in batch.launches for b in launch.buffers], *outside]:
            root = root_of(b)
            if id(root) not in self.at:
                self._add(root, "scratch" if id(root) in scratch else "state")

    def _add(self, b: Buffer, kind: str) -> None:
        name, shape = "", tuple[int, ...]()
        if kind == "state":
            if b.device.partition(":")[0] == "DISK":
                raise ProgramError(f"it reads {b.device} at every call: move that tensor to a device and realize it")
            name, shape = self.named.get(id(b), (f"{STATE}{len(self.memories)}", (b.size,)))
        self.at[id(b)] = len(self.memories)
        self.roots.append(b)
        digest = self._reference(name, shape, b) if kind == "state" and self.weights and id(b) in self.named else ""
        self.memories.append(Memory(kind, b.device, b.size, b.dtype, name, shape, digest))

    def _reference(self, name: str, shape: tuple[int, ...], b: Buffer) -> str:
        """The digest of a tensor that the file of weights holds already. ProgramError where it holds another."""
        assert self.weights is not None
        data = _data_of(self.weights, name, shape, b.dtype.name)
        if bytes(data) != bytes(b.as_memoryview()):
            raise ProgramError(f"{self.weights}: {name} has other values than the program's: save the weights first")
        return _digest(data)

    def _span(self, b: Buffer) -> list[Any]:
        at = self.at.get(id(b))
        if at is not None:
            return [at, 0, b.size, b.dtype.name]
        return [self.at[id(root_of(b))], b.offset_bytes, b.size, b.dtype.name]

    def description(self, captured: Jit[Any, Any]) -> dict[str, Any]:
        """The JSON values of the program."""
        c = self.c
        kernels = list(dict.fromkeys([x.item.kernel for x in c.batch.launches if x.item.kernel is not None]))
        number = {k: i for i, k in enumerate(kernels)}
        variables = list(dict.fromkeys([entry[2] for entry in c.signature if entry[1] == "variable"]))
        views, outputs = [], []
        for uop, places in c.outputs:
            if not all(isinstance(d, int) for d in uop.shape):
                raise ProgramError(
                    f"{name_of(captured.function)} gives a result of the symbolic shape {uop.shape}, which has no "
                    "form in a file: return the whole tensor, and take the part outside"
                )
            names: dict[UOp, UOp] = {}
            spans: list[Any] = []
            for node, place in _places(uop, places):
                names[node] = UOp.param(len(spans), node.dtype, node.arg.size, device=node.arg.device)
                spans.append(self._span(node.storage) if place is None else self._span(c.batch.keep[place]))
            views.append(uop.substitute(names))
            outputs.append(spans)
        bodies = [k if k.tag == HAND_WRITTEN else keep_inside(k) for k in kernels]
        rows, wanted = to_rows([*bodies, *variables, *views])
        signature, names_left = pack_signature(c.signature, captured.names, {v: i for i, v in enumerate(variables)})
        first = len(kernels) + len(variables)
        steps = []
        for x in c.batch.launches:
            if x.item.exchange is not None:
                raise ProgramError(
                    f"{name_of(captured.function)} sends messages between processes, which a file does not hold"
                )
            kernel = None if x.item.kernel is None else number[x.item.kernel]
            device = x.buffers[0].device if x.loaded is None else x.loaded.device
            steps.append([kernel, device, x.item.outputs, [self._span(b) for b in x.buffers]])
        return {
            "format": FORMAT, "aril": aril.__version__, "name": name_of(captured.function), "names": names_left,
            "signature": signature, "layouts": c.layouts and [x and [list(x[0]), x[1], list(x[2])] for x in c.layouts],
            "result": pack(c.template), "nodes": rows, "kernels": wanted[: len(kernels)],
            "variables": wanted[len(kernels) : first],
            "outputs": [[view, spans] for view, spans in zip(wanted[first:], outputs, strict=True)],
            "memories": [_plain_memory(m) for m in self.memories], "steps": steps, "values": c.batch.values,
            "weights": "" if self.weights is None else self.weights.name, "code": {},
        }  # fmt: skip

    def tensors(self) -> dict[str, Tensor]:
        """The state that goes into the container, by name."""
        out: dict[str, Tensor] = {}
        for m, b in zip(self.memories, self.roots, strict=True):
            if m.kind == "state" and not m.digest:
                if m.name in out:
                    raise ProgramError(f"two tensors of the state are called {m.name!r}")
                out[m.name] = Tensor(name_for(b)).reshape(m.shape)
        return out

    def code(self, description: dict[str, Any]) -> dict[str, Tensor]:
        """The compiled kernels as tensors of bytes; notes in the description which machine they are for."""
        out: dict[str, Tensor] = {}
        for x, step in zip(self.c.batch.launches, description["steps"], strict=True):
            entry = None if x.loaded is None else entry_of(x.loaded)
            if entry is not None and x.loaded is not None:
                out[_code_name(step[0], x.loaded.device)] = Tensor(np.frombuffer(entry, np.uint8))
                description["code"][x.loaded.device] = machine_key(x.loaded.device)
        return out


def _plain_memory(m: Memory) -> dict[str, Any]:
    out: dict[str, Any] = {"kind": m.kind, "device": m.device, "size": m.size, "dtype": m.dtype.name}
    return out | ({"name": m.name, "shape": list(m.shape), "digest": m.digest} if m.kind == "state" else {})


def _places(uop: UOp, places: tuple[int | None, ...]) -> list[tuple[UOp, int | None]]:
    return list(zip(memory_of(uop), places, strict=True))


def _code_name(kernel: int, device: str) -> str:
    return f"{CODE}{kernel}.{device}"


def _digest(data: Any) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# --- loading ---


class Program(Jit[Any, Any]):
    """A captured program that was loaded. Call it as the function was called; `state` is the memory that it keeps.

    `state` maps names to tensors: those given to `save`, others by number. They change as the program runs, and may be
    assigned to. Errors: JitError for arguments other than the captured ones, and within another capture.
    """

    def __init__(self, name: str, names: list[str], captured: Captured, state: dict[str, Tensor]) -> None:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise JitError(f"{name} is a loaded program: it has no function to run with JIT=0 or in another capture")

        refuse.__name__ = refuse.__qualname__ = name
        super().__init__(refuse)
        self.names, self.captured, self.state = names, captured, state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if local.capture is not None or not JIT.value:
            return self.function(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def _capture(self, *_: Any) -> Any:
        raise JitError(
            f"{name_of(self.function)}: an argument shares memory that the program writes with another one or with "
            "its state, and it was not saved for that: pass a clone()"
        )

    def reset(self) -> None:
        """There is nothing to capture again. Errors: JitError, always."""
        self.function()

    def __repr__(self) -> str:
        batch = self.captured.batch if self.captured is not None else None
        return f"<captured program {name_of(self.function)}: {len(batch.launches) if batch else 0} kernels>"


def load_captured(path: PathLike, weights: PathLike | None = None, trust: bool = False) -> Program:
    """The program that `jit(f).save(path)` wrote, ready to be called as `f` was.

    `weights` is the safetensors file of weights saved by reference, where it is not the one that was named (a file of
    that name beside the container); its tensors may have other values. Loading compiles the program's kernels here,
    after a check that they stay inside their memory, and runs nothing. `trust=True` uses the machine code in the file
    where it is for this kind of machine and compiler: only for files of your own.

    Errors: FileNotFoundError; FileFormatError for a file that is no safetensors file or cut short; ProgramError for
    one that is no program, one that does not fit this machine, or one that could touch memory that is not its own.

        step = jit(lambda x: net(x).relu())
        step(x), step(x)
        step.save("net.aril")
        aril.load_captured("net.aril")(x)  # in another process
    """
    open_file(path, "what jit's save() wrote").close()
    start, header = safe_load_metadata(path)
    text = header.pop("__metadata__", {}).get(KEY)
    if text is None:
        raise ProgramError(f"{path}: a safetensors file without a captured program (jit's save() writes one)")
    try:
        values = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"{path}: the description is not valid ({error})") from None
    try:
        d = read(values)
        return _build(d, _File(Path(path), start, header), weights, trust)
    except ProgramError as error:
        raise ProgramError(f"{path}: {error}") from error


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


class _File:
    """The tensors of a safetensors file as bytes."""

    def __init__(self, path: Path, start: int, header: dict[str, Any]) -> None:
        self.path, self.header = path, header
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self.bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")[start:]

    def data(self, name: str, shape: tuple[int, ...], dtype: str) -> memoryview:
        """The bytes of a tensor. ProgramError where there is none of this shape and dtype."""
        entry = self.header.get(name)
        if entry is None or (entry["shape"], entry["dtype"].name) != (shape, dtype):
            found = "no such tensor" if entry is None else f"{entry['dtype'].name} of shape {entry['shape']}"
            raise ProgramError(f"{self.path} should hold {name!r}, {dtype} of shape {shape}; there is {found}")
        begin, end = entry["data_offsets"]
        return self.bytes[begin:end]


def _data_of(path: Path, name: str, shape: tuple[int, ...], dtype: str) -> memoryview:
    start, header = safe_load_metadata(path)
    return _File(path, start, header).data(name, shape, dtype)


def _build(d: Description, file: _File, weights: PathLike | None, trust: bool) -> Program:
    """Memory, kernels and the batch of a checked description."""
    beside = _weights_file(d, file.path, weights)
    roots: list[Buffer] = []
    state: dict[str, Tensor] = {}
    for m in d.memories:
        b = Buffer(m.device, m.size, m.dtype)
        roots.append(b)
        if m.kind == "state":
            source = beside if m.digest and beside is not None else file
            data = source.data(m.name, m.shape, m.dtype.name)
            if m.digest and weights is None and _digest(data) != m.digest:
                raise ProgramError(f"{source.path}: {m.name!r} has changed since; name the file to use it (weights=)")
            b.copyin(data)
            state[m.name] = Tensor(name_for(b)).reshape(m.shape)
    views: dict[tuple[int, int, int, str], Buffer] = {}
    spans = {s: _view(roots, s, views) for step in d.steps for s in step.spans}
    spans |= {s: _view(roots, s, views) for _, places in d.outputs for s in places}
    loaded = _kernels(d, file, trust)
    launches = [_launch(step, d, loaded, [spans[s] for s in step.spans]) for step in d.steps]
    inputs = [b for b, m in zip(roots, d.memories, strict=True) if m.kind == "input"]
    results = [b for b, m in zip(roots, d.memories, strict=True) if m.kind == "result"]
    kept = {id(b) for b, m in zip(roots, d.memories, strict=True) if m.kind == "state"}
    kept |= {id(b) for b in views.values() if id(root_of(b)) in kept}
    outputs = []
    for view, places in d.outputs:
        nodes = {}
        for u in view.toposort():
            if u.op is Ops.PARAM:
                b = spans[places[u.arg.slot]]
                nodes[u] = name_for(b) if id(b) in kept else UOp.new_buffer(b.device, b.size, b.dtype)
        view = view.substitute(nodes)
        found = [places[p.arg.slot].memory for p in _leaves(view, nodes)]
        outputs.append((view, tuple([i if i < len(inputs) + len(results) else None for i in found])))
    batch = Batch(Capture(launches, values=d.values), inputs, results, kept)
    c = Captured(d.signature, batch, d.template, outputs, results)
    c.state, c.reached, c.written_inputs, c.used = touched(launches, inputs, kept)
    c.layouts = d.layouts
    return Program(d.name, d.names, c, state)


def _leaves(view: UOp, nodes: dict[UOp, UOp]) -> list[UOp]:
    """The parameters that the memory of a view stood for, in the order of `memory_of`."""
    back = {n: p for p, n in nodes.items()}
    return [back[n] for n in memory_of(view)]


def _weights_file(d: Description, path: Path, weights: PathLike | None) -> _File | None:
    if not any(m.digest for m in d.memories):
        return None
    if weights is None:
        if not d.weights or Path(d.weights).name != d.weights:
            raise ProgramError(f"its weights are in {d.weights!r}, which is no file beside it: name one (weights=)")
        weights = path.parent / d.weights
    start, header = safe_load_metadata(weights)
    return _File(Path(weights), start, header)


def _view(roots: list[Buffer], s: Any, views: dict[tuple[int, int, int, str], Buffer]) -> Buffer:
    root = roots[s.memory]
    if s.offset == 0 and s.size == root.size and s.dtype is root.dtype:
        return root
    key = (s.memory, s.offset, s.size, s.dtype.name)
    if key not in views:
        views[key] = root.view(s.size, s.dtype, s.offset)
    return views[key]


def _kernels(d: Description, file: _File, trust: bool) -> dict[tuple[int, str], Loaded]:
    """Every kernel on every device that runs it: of the file where it is trusted and fits, else made here."""
    wanted = list(dict.fromkeys([(s.kernel, s.device) for s in d.steps if s.kernel is not None]))
    out: dict[tuple[int, str], Loaded] = {}
    fits = {device for device in {w[1] for w in wanted} if trust and d.code_keys.get(device) == machine_key(device)}
    for kernel, device in wanted:
        entry = file.header.get(_code_name(kernel, device)) if device in fits else None
        if entry is not None:
            begin, end = entry["data_offsets"]
            out[kernel, device] = make_loaded(device, *unpack_entry(bytes(file.bytes[begin:end])))
    missing = [w for w in wanted if w not in out]
    try:
        made = load_kernels([(d.kernels[kernel], device) for kernel, device in missing])
    except Exception as error:  # graphs that are well formed and that no compiler takes
        raise ProgramError(f"its kernels cannot be compiled here: {type(error).__name__}: {error}") from error
    return out | dict(zip(missing, made, strict=True))


def _launch(step: Step, d: Description, loaded: dict[tuple[int, str], Loaded], buffers: list[Buffer]) -> Launch:
    kernel = None if step.kernel is None else d.kernels[step.kernel]
    item = Item(kernel, tuple(range(len(buffers))), step.outputs, step.device)
    if step.kernel is None:
        return Launch(None, buffers, [], 1, item)
    found = loaded[step.kernel, step.device]
    # Variables that each call binds have no value yet: their least stands for it until then.
    least = {str(u.arg.name): int(u.vmin) for u in kernel.toposort() if u.is_variable} if kernel is not None else {}
    numbers, chunks = found.launch_values({**least, **d.values})
    return Launch(found, buffers, numbers, chunks, item)
