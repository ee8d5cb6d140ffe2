"""From a kernel's body to a loaded program, through the memory cache, the disk cache and the compile workers.

In: tensor-form bodies (`schedule.Item.kernel`) and a device. Out: `Loaded` kernels, ready to launch.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from aril import config
from aril.device import CompiledKernel, Device, Program
from aril.dtype import wrap
from aril.engine import profile
from aril.forks import renewed_in_child
from aril.ops import Ops
from aril.runtime import cache
from aril.uop import Estimates, UOp
from aril.uop.alu import exec_alu
from aril.uop.serial import from_rows, to_rows

# Settings that change the code a kernel becomes; they are part of every key and are handed to the compile workers.
CODE_SETTINGS = (
    "NOOPT",
    "EMULATED_DTYPES",
    "BEAM",
    "DETERMINISTIC",
    "SPEC",
    "CHECK_OOB",
    "DEFAULT_FLOAT",
    "DEFAULT_INT",
)
SETTINGS = tuple([getattr(config, n) for n in CODE_SETTINGS])
KERNEL_ABI = 1  # how kernels are called (docs/ir.md); a change of that changes the number
PARALLEL_FROM = 3  # below this many misses a worker's start costs more than it saves
LARGE_GRAPH = 256  # nodes from which a graph surely has that many kernels


@dataclass(frozen=True)
class Loaded:
    """A kernel ready to launch. `chunks` and the estimates are ints, or expressions in `variables` (in argument
    order).
    """

    name: str
    program: Program
    variables: tuple[str, ...]
    chunks: Any
    estimates: Estimates
    device: str

    def launch_values(self, values: dict[str, int]) -> tuple[list[int], int]:
        """(variable arguments, launch count) for bound variables. Errors: ValueError for one without a value."""
        if not self.variables:
            return [], self.chunks
        try:
            numbers = [values[n] for n in self.variables]
        except KeyError as error:
            raise ValueError(f"variable {error} has no value: bind it") from None
        if self.chunks.__class__ is int:
            return numbers, self.chunks
        return numbers, _counted(self.chunks, self.variables, tuple(numbers))

    def cost(self, values: dict[str, int]) -> tuple[int, int]:
        """(operations, bytes) for bound variables."""
        ops, size = self.estimates.ops, self.estimates.bytes
        if ops.__class__ is int and size.__class__ is int:
            return ops, size  # type: ignore[return-value]
        return evaluate(ops, values), evaluate(size, values)


@lru_cache(4096)  # most calls have the values of an earlier one
def _counted(chunks: UOp, names: tuple[str, ...], values: tuple[int, ...]) -> int:
    return evaluate(chunks, dict(zip(names, values, strict=True)))


def evaluate(expression: Any, values: dict[str, int]) -> int:
    """An int, or an expression in variables with these values. Errors: ValueError for a variable without one."""
    if not isinstance(expression, UOp):
        return int(expression)
    known: dict[UOp, Any] = {}
    for u in expression.toposort():
        if u.is_variable:
            if u.arg.name not in values:
                raise ValueError(f"variable {u.arg.name!r} has no value: bind it")
            known[u] = values[u.arg.name]
        elif u.op is Ops.CONST:
            known[u] = u.arg
        else:
            operands = tuple([known[s] for s in u.src])
            known[u] = wrap(operands[0], u.dtype) if u.op is Ops.CAST else exec_alu(u.op, u.dtype, operands)
            if known[u] is None:
                raise ValueError(f"{expression} is no integer for {values}")
    return int(known[expression])


_loaded: dict[tuple[UOp, str, str], Loaded] = {}
_lock = renewed_in_child(sys.modules[__name__], "_lock")
SHOWN_FROM = 3  # DEBUG from which the stages of a kernel are printed as it is compiled
stats = {"memory": 0, "disk": 0, "compiled": 0}


@lru_cache(maxsize=1)
def code_version() -> str:
    """Names the state of the files that turn bodies into code: a changed compiler never finds old objects."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parts = []
    for room in ("", "uop", "mixin", "codegen", "renderer", "schedule", "runtime", "engine"):
        folder = os.path.join(root, room)
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            if entry.name.endswith(".py"):
                info = entry.stat()
                parts.append(f"{room}/{entry.name}:{info.st_size}:{info.st_mtime_ns}")
    return "|".join(parts)


@lru_cache(maxsize=64)
def renderer_of(device: str) -> Any:
    """The renderer instance that makes this device's kernels."""
    opened = Device[device]
    return opened.renderer(opened.target)


def settings_key() -> tuple[tuple[str, Any], ...]:
    return tuple([(s.name, s.value) for s in SETTINGS])


def compile_body(body: UOp, renderer: Any, target: Any) -> tuple[bytes, dict[str, Any]]:
    """The device's binary of one kernel and what launching it needs, as JSON values."""
    from aril.codegen import compile_kernel
    from aril.schedule.lower import lower

    # What simplifies away (x * 0) leaves a buffer unused that the launch still passes.
    nbufs = 1 + max([u.arg.slot for u in body.toposort() if u.op is Ops.PARAM and not u.is_variable], default=-1)
    program = compile_kernel(lower(body), renderer, nbufs)
    if config.DEBUG.value >= 7 and not hasattr(renderer, "compile"):
        from aril.runtime.llvm import compile_ir_to_asm

        print(compile_ir_to_asm(program.source, target), file=sys.stderr)
    binary = renderer.compile(program) if hasattr(renderer, "compile") else _compile_source(program.source, target)
    facts = {
        "name": program.name, "nbufs": program.nbufs, "variables": [v.arg.name for v in program.variables],
        "scratch": program.scratch_bytes, "chunks": encode(program.chunks), "ops": encode(program.estimates.ops),
        "bytes": encode(program.estimates.bytes), "applied": [str(s) for s in program.applied],
    }  # fmt: skip
    return binary, facts


def _compile_source(source: str, target: Any) -> bytes:
    from aril.runtime.llvm import compile_ir

    return compile_ir(source, target)


def compile_task(payload: bytes) -> bytes:
    """What a compile worker does: a pickled (body, renderer, target, settings) from its parent; the entry for the
    cache.
    """
    body, renderer, target, settings = pickle.loads(payload)
    with config.Context(**dict(settings)):
        return pack_entry(*compile_body(body, renderer, target))


def pack_entry(binary: bytes, facts: dict[str, Any]) -> bytes:
    head = json.dumps(facts, sort_keys=True).encode()
    return len(head).to_bytes(4, "little") + head + binary


def unpack_entry(entry: bytes) -> tuple[bytes, dict[str, Any]]:
    """Inverse of `pack_entry`. Errors: ValueError for anything else."""
    size = int.from_bytes(entry[:4], "little")
    facts = json.loads(entry[4 : 4 + size])
    if not isinstance(facts, dict):
        raise ValueError("not an entry of the kernel cache")
    return entry[4 + size :], facts


def encode(x: Any) -> Any:
    """An int as it is; an expression in variables as rows of plain values."""
    return to_rows([x])[0] if isinstance(x, UOp) else int(x)


def decode(rows: Any) -> Any:
    """Inverse of `encode`. Errors: GraphFormatError for anything it does not make."""
    return rows if isinstance(rows, int) else from_rows(rows, [len(rows) - 1])[0]


def load_kernels(wanted: list[tuple[UOp, str]]) -> list[Loaded]:
    """The loaded kernel of each (body, device). What no cache has is compiled, in workers where there are several."""
    settings = settings_key()
    tag = repr(settings)
    out: list[Loaded | None] = []
    missing: dict[tuple[UOp, str, str], str | None] = {}
    for body, device in wanted:
        key = (body, device, tag)
        found = _loaded.get(key)
        out.append(found)
        if found is None and key not in missing:
            missing[key] = None
    if missing:
        with _lock:
            _load_missing(missing, settings, tag)
            while _foreseen:
                cache.put("graph", _foreseen.pop(), b"compiled")
        out = [_loaded[(body, device, tag)] for body, device in wanted]
    return out  # type: ignore[return-value]


_foreseen: list[str] = []  # graphs that are being scheduled and have not been compiled with this disk cache


def foresee(graph: UOp) -> None:
    """Where a large graph, about to be scheduled, has not been compiled with this disk cache, start the workers: they
    are up when its kernels are known. A graph is told by its operations and what it reads; a wrong guess costs a
    process that waits, or one that starts late."""
    order = graph.toposort()
    if len(order) < LARGE_GRAPH or _is_watched() or config.BEAM.value:
        return
    leaves = repr([u.arg for u in order if not u.src]).encode()
    name = hashlib.blake2b(bytes([u.op for u in order]) + leaves, digest_size=16).hexdigest()
    target = Device[Device.DEFAULT].target
    key = f"{code_version()}|{getattr(target, 'key', target)}|{settings_key()}|{name}"
    if cache.get("graph", key) is None:
        from aril.runtime import workers

        _foreseen.append(key)
        workers.get_ready("aril.engine.compile:import_compiler")


def import_compiler(payload: bytes) -> bytes:
    """What a worker does while there is nothing to compile yet. It opens no device: that would start threads."""
    from aril.codegen import decompose, estimate, linearize, typing  # noqa: F401
    from aril.runtime.llvm import host_features
    from aril.schedule import rows  # noqa: F401

    host_features()
    return payload


def _load_missing(missing: dict[tuple[UOp, str, str], str | None], settings: Any, tag: str) -> None:
    version = code_version()
    todo = []
    for key in missing:
        if key in _loaded:
            continue
        body, device, _ = key
        opened = Device[device]
        if not opened.renderers:
            raise RuntimeError(f"{device} runs no kernels")
        target = opened.target
        cores = getattr(target, "cores", 1)
        where = f"{version}|{opened.renderer_name}|{getattr(target, 'key', target)}|{cores}|{tag}|{body.digest.hex()}"
        entry = None if _is_watched() else cache.get("kernel", where)
        if entry is not None:
            try:
                _loaded[key] = make_loaded(device, *unpack_entry(entry))
                stats["disk"] += 1
                continue
            except (ValueError, KeyError, TypeError, IndexError):
                pass  # an entry of another shape: made again below
        todo.append((key, where, key[0]))
    if not todo:
        return
    for (body, device, _), _where, _ in todo:
        stats["compiled"] += 1
        _explain(body, device, settings)
    if config.BEAM.value:
        todo = [(key, where, _searched(key, where, settings)) for key, where, _ in todo]
    if len(todo) >= PARALLEL_FROM and not _is_watched():
        _compile_in_workers(todo, settings)
        return
    for key, where, body in todo:
        device = key[1]
        with profile.timed("compile", _name_of(body)):
            entry = pack_entry(*compile_body(body, renderer_of(device), Device[device].target))
        cache.put("kernel", where, entry)
        _loaded[key] = make_loaded(device, *unpack_entry(entry))


def _is_watched() -> bool:
    """Whether somebody looks at how kernels come about: they are compiled in this process, even if a cache has them."""
    return config.DEBUG.value >= SHOWN_FROM or config.TRACK_REWRITES.value > 0


# What has been compiled: by body, and by operations without sizes. They say why a kernel is compiled again.
_bodies: dict[bytes, tuple[str, Any]] = {}
_kinds: dict[tuple[str, ...], str] = {}
KINDS = 4096


def _explain(body: UOp, device: str, settings: Any) -> None:
    """DEBUG=1: the number of this compile and what it differs in from those before."""
    name = _name_of(body)
    kind = tuple([u.op.name for u in body.toposort()])
    before = _bodies.get(body.digest)
    if before is not None and before[0] != device:
        reason = f"seen before on {before[0]}"
    elif before is not None:
        changed = [f"{n} {dict(before[1])[n]} -> {v}" for n, v in settings if dict(before[1])[n] != v]
        reason = f"settings changed: {', '.join(changed)}" if changed else "it is no longer loaded"
    elif kind in _kinds:
        reason = f"the operations of {_kinds[kind]} with other sizes, dtypes or numbers"
    else:
        reason = "first of its kind"
    if len(_bodies) >= KINDS:
        _bodies.clear()
        _kinds.clear()
    _bodies[body.digest] = (device, settings)
    _kinds.setdefault(kind, name)
    if config.DEBUG.value >= 1:
        print(f"*** compile {stats['compiled']}: {name} for {device}: {reason}", file=sys.stderr)


def _name_of(body: UOp) -> str:
    return body.arg.name if body.arg is not None else "kernel"


def _searched(key: tuple[UOp, str, str], where: str, settings: Any) -> UOp:
    """BEAM: the body with the steps that a search finds best on this machine."""
    body, device, _ = key
    if not Device[device].allocator.host_visible:
        return body
    from aril.engine.search import tuned

    plain = tuple([(n, 0 if n == "BEAM" else v) for n, v in settings])
    return tuned(body, device, renderer_of(device), where, plain)


def _compile_in_workers(todo: list[tuple[Any, str, UOp]], settings: Any) -> None:
    from aril.runtime import workers

    futures = []
    began = profile.now()
    for key, where, body in sorted(todo, key=lambda item: -len(item[2].toposort())):  # the longest first
        device = key[1]
        payload = pickle.dumps((body, renderer_of(device), Device[device].target, settings))
        label = _name_of(body)
        futures.append((key, where, workers.submit("aril.engine.compile:compile_task", payload, label)))
    for key, where, future in futures:
        entry = future.result()
        if config.PROFILE.value:  # when it was there for this process: the workers' own times stay with them
            profile.record("compile", f"{_name_of(key[0])} (in a worker)", "", began, profile.now())
            began = profile.now()
        cache.put("kernel", where, entry)
        _loaded[key] = make_loaded(key[1], *unpack_entry(entry))


def make_loaded(device: str, binary: bytes, facts: dict[str, Any]) -> Loaded:
    """A kernel of the cache's entry, ready to launch."""
    chunks = decode(facts["chunks"])
    names = tuple(facts["variables"])
    kernel = CompiledKernel(
        facts["name"], binary, facts["nbufs"], len(names), facts["scratch"], chunks if isinstance(chunks, int) else 1
    )
    estimates = Estimates(decode(facts["ops"]), decode(facts["bytes"]))
    return Loaded(facts["name"], Device[device].load(kernel), names, chunks, estimates, device)


def entry_of(loaded: Loaded) -> bytes | None:
    """The entry of a loaded kernel as `make_loaded` takes it apart; None for one that is no bytes."""
    kernel = getattr(loaded.program, "kernel", None)
    if not isinstance(kernel, CompiledKernel):
        return None
    facts = {
        "name": loaded.name, "nbufs": kernel.nbufs, "variables": list(loaded.variables),
        "scratch": kernel.scratch_bytes, "chunks": encode(loaded.chunks), "ops": encode(loaded.estimates.ops),
        "bytes": encode(loaded.estimates.bytes),
    }  # fmt: skip
    return pack_entry(kernel.binary, facts)


def machine_key(device: str) -> str:
    """What must be the same for one machine's compiled kernels to run on another: instructions, compiler, how kernels
    are called."""
    from importlib.metadata import version

    opened = Device[device]
    target = opened.target
    parts = (KERNEL_ABI, opened.renderer_name, getattr(target, "key", target), version("llvmlite"), settings_key())
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


__all__ = ["Loaded", "entry_of", "evaluate", "load_kernels", "machine_key", "make_loaded", "stats"]
