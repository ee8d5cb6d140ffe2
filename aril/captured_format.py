"""The description of a captured program in its container: plain values out of it, checked values into it.

`describe` turns a batch and what a call of it expects into JSON values. `read` turns such values into `Description`,
which holds nodes, numbers and names that have been checked against each other, so that what is built of it touches no
memory but its own. Nothing that a description says is run or imported.
"""

from __future__ import annotations

import collections
import keyword
import math
from dataclasses import dataclass, field
from typing import Any

from aril.device import Device, canonical
from aril.dtype import DType
from aril.jit_arguments import value_key
from aril.nested import tensors
from aril.ops import OpGroup, Ops
from aril.schedule.lower import HAND_WRITTEN
from aril.schedule.shard import Layout
from aril.tensor import Tensor
from aril.uop import UOp
from aril.uop.access import AccessError, check_accesses, check_view, written
from aril.uop.serial import NAME, GraphFormatError, dtype_named, from_rows
from aril.uop.verify import SpecError

FORMAT = 1
KINDS = ("input", "result", "scratch", "state")
MOST = 1 << 47  # bytes of one memory: more than any machine has
DEPTH = 64  # of nested containers


class ProgramError(ValueError):
    """A file that is no captured program, or one that cannot run here; the message says why."""


@dataclass(frozen=True)
class Memory:
    """One block: an input or result of a call (they come first, in order), scratch, or state that stays."""

    kind: str
    device: str
    size: int
    dtype: DType
    name: str = ""  # of state: the tensor in the container, or in the file of weights
    shape: tuple[int, ...] = ()
    digest: str = ""  # of state that lies in a file of weights

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class Span:
    """`size` elements of `dtype` in memory number `memory`, from byte `offset` on."""

    memory: int
    offset: int
    size: int
    dtype: DType


@dataclass(frozen=True)
class Step:
    """A launch of kernel number `kernel` (None: a copy of spans[1] to spans[0]); the first `outputs` are written."""

    kernel: int | None
    device: str
    outputs: int
    spans: tuple[Span, ...]


@dataclass
class Description:
    """A captured program without memory."""

    name: str
    names: list[str]  # of the parameters
    signature: tuple[Any, ...]
    layouts: list[Layout | None] | None
    template: Any  # of the result, some tensor wherever one stands
    outputs: list[tuple[UOp, list[Span]]]  # a view of PARAMs each, which stand for its spans
    memories: list[Memory]
    kernels: list[UOp]
    steps: list[Step]
    values: dict[str, int]  # of variables that were bound where the function reached them
    weights: str = ""  # the name of the file that holds state by reference
    code_keys: dict[str, str] = field(default_factory=dict)  # device -> the machine its compiled kernels are for


_SCALARS = (bool, int, float, str, type(None))


# --- containers ---


def pack(thing: Any) -> Any:
    """A result (of tensors only their places) or argument as a JSON value. ProgramError names what has none."""
    if isinstance(thing, Tensor):
        return ["T"]
    if isinstance(thing, float) and not math.isfinite(thing):
        return ["f", str(thing)]
    if type(thing) in _SCALARS:
        return ["v", thing]
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return ["n", type(thing).__name__, list(thing._fields), [pack(x) for x in thing]]
    if type(thing) in (list, tuple):
        return ["l" if isinstance(thing, list) else "t", [pack(x) for x in thing]]
    if type(thing) is dict:
        return ["d", [[pack(k), pack(x)] for k, x in thing.items()]]
    raise ProgramError(
        f"a {type(thing).__name__} cannot be saved with a captured program: it takes and gives tensors, numbers, "
        "strings, None, and lists, tuples and dicts of them"
    )


def unpack(value: Any, depth: int = 0) -> Any:
    """Inverse of `pack`: some tensor where one stood; a named tuple gets a class of its own."""
    if depth > DEPTH:
        raise ProgramError(f"containers are nested deeper than {DEPTH}")
    kind, *rest = value
    if kind == "T":
        return Tensor(0)
    if kind == "f":
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[rest[0]]
    if kind == "v" and type(rest[0]) in _SCALARS:
        return rest[0]
    if kind in ("l", "t"):
        parts = [unpack(x, depth + 1) for x in rest[0]]
        return parts if kind == "l" else tuple(parts)
    if kind == "d":
        return {unpack(k, depth + 1): unpack(x, depth + 1) for k, x in rest[0]}
    if kind == "n":
        name, fields, parts = rest
        fine = all(isinstance(n, str) and NAME.fullmatch(n) and not keyword.iskeyword(n) for n in (name, *fields))
        _need(fine and len(fields) <= 256, "a named tuple has names as Python has them")
        return collections.namedtuple(name, fields, rename=True)(*[unpack(x, depth + 1) for x in parts])
    raise ProgramError(f"a value of the unknown kind {kind!r:.40}")


def pack_signature(key: tuple[Any, ...], names: list[str], number: dict[UOp, int]) -> tuple[list[Any], list[str]]:
    """(the key of a call as JSON values, the names of its parameters). Objects that are whole arguments (`self`, a
    model) are left out: what they hold is part of the program. `number` is the row of each variable."""
    rows: list[Any] = []
    left_out = set()
    for path, kind, *rest in key:
        if kind == "tensor":
            shape, dtype, device = rest
            if not all(isinstance(d, int) for d in shape):
                raise ProgramError(f"{path} has a symbolic shape {shape}: pass the whole tensor and a bound variable")
            rows.append([path, kind, list(shape), dtype.name, list(device) if isinstance(device, tuple) else device])
        elif kind == "variable":
            rows.append([path, kind, number[rest[0]]])
        elif kind == "value":
            rows.append([path, kind, pack(rest[1])])
        elif kind == "object":
            if path not in names:
                raise ProgramError(
                    f"{path} is an object that is neither a tensor nor a plain value: a saved program takes none. "
                    "Pass it as an argument of its own, or reach it from the function"
                )
            left_out.add(path)
        elif kind == "dict":
            rows.append([path, kind, [pack(k) for k in rest[0]]])
        else:
            rows.append([path, kind, rest[0]])
    return rows, [n for n in names if n not in left_out]


def _read_signature(rows: Any, variables: list[UOp]) -> tuple[Any, ...]:
    out: list[tuple[Any, ...]] = []
    for path, kind, *rest in rows:
        _need(isinstance(path, str) and isinstance(kind, str), "an argument has a name and a kind")
        if kind == "tensor":
            shape, dtype, device = rest
            device = tuple([_device(d) for d in device]) if isinstance(device, list) else _device(device)
            out.append((path, kind, tuple([_natural(d) for d in shape]), dtype_named(dtype), device))
        elif kind == "variable":
            out.append((path, kind, variables[_natural(rest[0])]))
        elif kind == "value":
            out.append(value_key(path, unpack(rest[0])))
        elif kind == "dict":
            out.append((path, kind, tuple([unpack(k) for k in rest[0]])))
        else:
            out.append((path, kind, _natural(rest[0])))
    return tuple(out)


# --- reading ---


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise ProgramError(f"it is not so that {what}")


def _natural(x: Any, most: int = MOST) -> int:
    if type(x) is not int or not 0 <= x <= most:
        raise ProgramError(f"{x!r:.40} is no number from 0 to {most}")
    return x


def _device(name: Any) -> str:
    """A device that is there and holds memory of this process (a file is none)."""
    if not isinstance(name, str) or canonical(name) != name or name.partition(":")[0] == "DISK":
        raise ProgramError(f"{name!r:.60} is no device for a program")
    reason = Device.why_not(name)
    if reason is not None:
        raise ProgramError(f"the program is for {name}, which is not usable here: {reason}")
    return name


def read(d: Any) -> Description:
    """The checked form of the JSON values of a description. Errors: ProgramError."""
    try:
        return _read(d)
    except (AccessError, GraphFormatError, SpecError) as error:
        raise ProgramError(f"a kernel of it is refused: {error}") from error
    except ProgramError:
        raise
    except Exception as error:  # parts that are missing or of other types
        raise ProgramError(f"its description is not one of format {FORMAT} ({type(error).__name__}: {error})") from None


def _read(d: Any) -> Description:
    if d["format"] != FORMAT:
        raise ProgramError(f"it is of format {d['format']!r:.20}, this version reads {FORMAT}: save it again")
    wanted = [*d["kernels"], *d["variables"], *[view for view, _ in d["outputs"]]]
    nodes = from_rows(d["nodes"], wanted)
    kernels = nodes[: len(d["kernels"])]
    variables = nodes[len(kernels) : len(kernels) + len(d["variables"])]
    views = nodes[len(kernels) + len(variables) :]
    memories = [_memory(m) for m in d["memories"]]
    order = [KINDS.index(m.kind) for m in memories if m.kind in KINDS[:2]]
    _need(order == sorted(order) == [KINDS.index(m.kind) for m in memories[: len(order)]], "inputs come first")
    steps = [_step(s, kernels, memories) for s in d["steps"]]
    for k in kernels:
        check_accesses(k, "kernel" if k.tag == HAND_WRITTEN else "tensor")
    values = {str(k): v for k, v in d["values"].items() if type(v) is int}
    signature = _read_signature(d["signature"], variables)
    layouts = None if d["layouts"] is None else [_layout(x) for x in d["layouts"]]
    _check_variables(kernels, [e[2] for e in signature if e[1] == "variable"], values)
    _check_inputs(signature, layouts, memories)
    outputs = []
    for view, (_, spans) in zip(views, d["outputs"], strict=True):
        outputs.append((view, [_span(s, memories) for s in spans]))
        _check_output(*outputs[-1])
    template = unpack(d["result"])
    _need(sum(1 for _ in tensors(template)) == len(outputs), "every tensor of the result has a place")
    names = [str(n) for n in d["names"]]
    keys = {str(k): str(v) for k, v in d["code"].items()}
    return Description(
        str(d["name"])[:200], names, signature, layouts, template, outputs, memories, kernels, steps, values,
        str(d["weights"]), keys,
    )  # fmt: skip


def _memory(m: Any) -> Memory:
    out = Memory(
        str(m["kind"]), _device(m["device"]), _natural(m["size"]), dtype_named(m["dtype"]), str(m.get("name", "")),
        tuple([_natural(n) for n in m.get("shape", ())]), str(m.get("digest", "")),
    )  # fmt: skip
    _need(out.kind in KINDS, f"memory is one of {', '.join(KINDS)}")
    _need(not out.dtype.weak and out.dtype.itemsize > 0 and out.nbytes <= MOST, "memory has a size")
    _need(out.kind != "state" or math.prod(out.shape) == out.size, "state has a shape of its size")
    return out


def _span(s: Any, memories: list[Memory]) -> Span:
    at, offset, size, dtype = s
    out = Span(_natural(at, len(memories) - 1), _natural(offset), _natural(size), dtype_named(dtype))
    nbytes, itemsize = out.size * out.dtype.itemsize, out.dtype.itemsize
    _need(not out.dtype.weak and itemsize > 0 and out.offset % itemsize == 0, "a span begins at an element")
    _need(out.offset + nbytes <= memories[out.memory].nbytes, "a span lies inside of its memory")
    whole = out.offset == 0 and out.size == memories[out.memory].size and out.dtype is memories[out.memory].dtype
    _need(whole or memories[out.memory].kind in ("scratch", "state"), "inputs and results are passed whole")
    return out


def _step(s: Any, kernels: list[UOp], memories: list[Memory]) -> Step:
    kernel, device, outputs, spans = s
    out = Step(kernel, _device(device), _natural(outputs), tuple([_span(x, memories) for x in spans]))
    if out.kernel is None:
        sizes = {x.size * x.dtype.itemsize for x in out.spans}
        _need(len(out.spans) == 2 and len(sizes) == 1 and out.outputs == 1, "a copy has two spans of one size")
        return out
    body = kernels[_natural(out.kernel, len(kernels) - 1)]
    params = {u.arg.slot: u for u in body.toposort() if u.op is Ops.PARAM and not u.is_variable}
    _need(max(params, default=-1) + 1 == len(out.spans), "a kernel is given as much memory as it takes")
    for slot, p in params.items():
        span = out.spans[slot] if slot >= 0 else None
        _need(span is not None and p.dtype is span.dtype and p.arg.size <= span.size, "memory fits the parameter")
    _need(all(memories[x.memory].device == out.device for x in out.spans), "a kernel's memory is on its device")
    fits = out.outputs <= len(out.spans) and all(0 <= slot < out.outputs for slot in written(body))
    _need(fits, "what is written comes first")
    return out


def _layout(x: Any) -> Layout | None:
    if x is None:
        return None
    devices, axis, lengths = x
    return Layout(tuple([_device(d) for d in devices]), axis, tuple([_natural(n) for n in lengths]))


def _check_variables(kernels: list[UOp], passed: list[UOp], values: dict[str, int]) -> None:
    """One variable a name, and a value within its bounds for each that no call binds."""
    known: dict[str, tuple[int, int]] = {}
    for u in passed:
        _need(u.is_variable, "a variable of the arguments is one")
        known[u.arg.name] = u.arg.vmin_vmax
    bound = set(known)
    for k in kernels:
        for u in k.toposort():
            if u.is_variable:
                name, bounds = u.arg.name, u.arg.vmin_vmax
                _need(known.setdefault(name, bounds) == bounds, f"variable {name} has the same bounds everywhere")
                fine = name in bound or bounds[0] <= values.get(name, bounds[1] + 1) <= bounds[1]
                _need(fine, f"variable {name} has a value within its bounds")
    for name, value in values.items():
        low, high = known.get(name, (value, value))
        _need(low <= value <= high, f"variable {name} has a value within its bounds")


def _check_inputs(signature: tuple[Any, ...], layouts: list[Layout | None] | None, memories: list[Memory]) -> None:
    """The tensors of a call are the memories that the kernels are given."""
    expected: list[tuple[str, int, DType]] = []
    expected_of = [entry for entry in signature if entry[1] == "tensor"]
    for i, (_, _, shape, dtype, device) in enumerate(expected_of):
        if isinstance(device, str):
            expected.append((device, math.prod(shape), dtype))
            continue
        layout = layouts[i] if layouts is not None and len(layouts) == len(expected_of) else None
        if layout is None or layout.devices != device or len(layout.lengths) != len(device):
            raise ProgramError("an argument on several devices says how it is split over them")
        for place, length in zip(device, layout.lengths, strict=True):
            part = list(shape)
            if layout.axis is not None:
                part[_natural(layout.axis, len(shape) - 1)] = length
            expected.append((place, math.prod(part), dtype))
    found = [(m.device, m.size, m.dtype) for m in memories if m.kind == "input"]
    _need(expected == found, "the arguments have the sizes of the inputs")


def _check_output(view: UOp, spans: list[Span]) -> None:
    check_view(view)
    params = [u for u in view.toposort() if u.op in OpGroup.STORAGE]
    for u in params:
        fits = u.op is Ops.PARAM and not u.is_variable and 0 <= u.arg.slot < len(spans)
        span = spans[u.arg.slot] if fits else None
        _need(span is not None and (u.arg.size, u.dtype) == (span.size, span.dtype), "a result is a view of memory")
