"""Running schedules: lazy graphs in, buffers with values out.

`realize_uops` is what Tensor calls. Kernels run in the schedule's order; on the CPU a launch returns when its work is
done.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aril.config import DEBUG, NAN_CHECK, NO_COLOR, PROFILE, VALIDATE_WITH_CPU
from aril.counters import GlobalCounters
from aril.device import Buffer, Device, readable_size
from aril.engine import profile
from aril.engine.compile import SETTINGS, Loaded, evaluate, foresee, load_kernels
from aril.engine.lock import locked, noted
from aril.engine.transfer import transfer, transfer_name
from aril.ops import OpGroup, Ops
from aril.schedule import Item, Normalized, Schedule, normalize, schedule
from aril.schedule.limits import Limit
from aril.schedule.shard import is_sharded_storage, memory_of
from aril.uop import UOp
from aril.uop.node import live_nodes


class JitError(RuntimeError):
    """A call that does not fit what was captured, or a function that cannot be captured."""


@dataclass(eq=False, slots=True)
class Executable:
    """A schedule with its kernels loaded, for one choice of the device that constants fall to."""

    schedule: Schedule
    loaded: list[Loaded | None]
    together: Any = False  # its batch (`together.py`); None: to be made; False: its steps follow each other


@dataclass(eq=False, slots=True)
class Launch:
    """One step as it ran: what a capture records. `loaded` is None for a transfer (buffers[0] from buffers[1])."""

    loaded: Loaded | None
    buffers: list[Buffer]
    values: list[int]
    chunks: int
    item: Item


@dataclass(eq=False, slots=True)
class Capture:
    """The launches of one captured run, in order, the buffers made on the way, and bound variables."""

    launches: list[Launch] = field(default_factory=list)
    made: list[Buffer] = field(default_factory=list)
    nodes: list[tuple[weakref.ref[UOp], Buffer]] = field(default_factory=list)
    limits: dict[Limit, None] = field(default_factory=dict)  # of the variables' values
    values: dict[str, int] = field(default_factory=dict)
    graphs: list[UOp] = field(default_factory=list)  # what was realized
    before: dict[int, UOp] = field(default_factory=dict)  # the graph of each tensor (its identity) alive at the start

    def stands(self, u: UOp) -> bool:
        """Whether the value of `u` that lies in memory is of this run. One from before is what its graph gave then; a
        replay has to compute it from what there is by then."""
        if u.op is Ops.BUFFER or u.storage is None:
            return True
        return all(any(b.storage is m for m in self.made) for b in memory_of(u.storage))

    def is_from_before(self, t: Any) -> bool:
        """Whether what a tensor stands for was there when the capture began."""
        return self.before.get(id(t)) is t.uop

    def held(self) -> set[int]:
        """Ids of the buffers made here that some graph outside still names."""
        live_nodes()  # sweeps the dead
        return {id(b) for node, b in self.nodes if node() is not None}


class _Local(threading.local):
    capture: Capture | None = None
    fresh: frozenset[UOp] = frozenset()  # the nodes of memory that the last run made for results

    def __init__(self) -> None:
        self.written: list[UOp] = []  # states of memory that assignments made, now computed, until tensors take note

    @contextlib.contextmanager
    def not_capturing(self) -> Iterator[None]:
        """What runs in here is no part of the capture that is going on."""
        held = self.capture, noted.assignments
        self.capture = noted.assignments = None
        try:
            yield
        finally:
            self.capture, noted.assignments = held


local = _Local()


class Runs:
    """How often values were computed and kept at their nodes."""

    count = 0


Compute = Callable[[Normalized, Schedule], "list[Buffer | None]"]
_by_identity: dict[int, tuple[Schedule, dict[tuple[Any, ...], Executable]]] = {}


def is_realized(u: UOp) -> bool:
    """Whether `u` is memory that holds its value: a buffer (or one on each device) seen through movement operations
    and DETACH."""
    while u.op in OpGroup.MOVEMENT or u.op is Ops.DETACH:
        if u.op is Ops.PAD:
            return False
        u = u.src[0]
    return u.op is Ops.BUFFER or is_sharded_storage(u)


def realized_view(u: UOp) -> UOp:
    """`u`, or the view of memory that stands for it since it was realized."""
    return u.storage if u.op is not Ops.BUFFER and u.storage is not None else u


def check_host_read() -> None:
    """JitError while a function is being captured: a replay would not come by here again to read the new value."""
    if local.capture is not None:
        frame = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "aril":
            frame = frame.f_back  # type: ignore[assignment]
        where = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}: "
        raise JitError(
            f"{where}a captured function reads a tensor's value on the host, which replays cannot follow; "
            "return the tensor and read it outside, or compute with where() instead of a Python branch"
        )


def storage_of(u: UOp) -> Buffer:
    """The device buffer behind a BUFFER node (made, not allocated, at first use)."""
    if u.storage is None:
        u.storage = Buffer(u.arg.device, u.arg.size, u.dtype)
        if local.capture is not None:  # each replay has its own, unless it outlives the function
            local.capture.made.append(u.storage)
            local.capture.nodes.append((weakref.ref(u), u.storage))
    return u.storage  # type: ignore[no-any-return]


@locked
def realize_uops(uops: list[UOp], devices: list[str | None] | None = None, compute: Compute | None = None) -> list[UOp]:
    """Compute every graph in `uops`; returns for each a view of memory with its value.

    `devices[i]` is where a graph of constants only is put (default: the default device). Assignments inside the
    graphs happen once. `compute` stands in for running the schedule: it gives the memory of its parameters and
    temporaries. Errors: what building, compiling and running raise; nothing is marked realized then.
    """
    capture = local.capture
    stands = (lambda u: True) if capture is None else capture.stands
    out = list(uops)
    pending: dict[UOp, Any] = {}
    for i, u in enumerate(uops):
        hint: Any = ""
        if u.device is None and u.op is not Ops.CONST:  # constants have memory of their own on each device
            hint = (devices[i] if devices is not None else None) or Device.DEFAULT
            u = UOp(Ops.CONTIGUOUS, (u,), tag=hint)
        out[i] = u = realized_view(u) if u.op is Ops.AFTER or stands(u) else u
        if u.op is not Ops.CONST and not is_realized(u):  # a number needs no memory
            pending.setdefault(u, hint)
    if not pending:
        return out
    roots = list(pending)
    if local.capture is not None:
        local.capture.graphs += roots
    began = profile.now() if PROFILE.value else 0
    normal = normalize(roots, tuple(pending.values()), stands)
    steps = schedule(normal.graph, len(normal.buffers), foresee)
    if began:
        profile.record("schedule", f"schedule of {len(roots)}", "", began, profile.now())
    if compute is not None:
        made = compute(normal, steps)
    else:
        buffers: list[Buffer | None] = [storage_of(b) for b in normal.buffers]
        made = run(executable(steps, Device.DEFAULT), buffers, normal.values)
    Runs.count += 1
    local.written += normal.effects
    nodes: dict[UOp, UOp] = {}
    # What was written goes on under a new node over the same memory: nodes over the old one that hold a computed value
    # (`x * 2`, still alive) are never found for the new contents.
    fresh: dict[UOp, UOp] = {}
    new: set[UOp] = set()
    for effect in normal.effects:
        if effect.storage is None:
            view = _resolve(effect.src[0])
            for memory in memory_of(view):
                if memory not in fresh and memory not in new:
                    fresh[memory] = alias(memory)
                    new.add(fresh[memory])
            effect.storage = view.substitute(fresh)
    for memory in fresh:
        forget_values(memory)
    values = {}
    for root, result in zip(roots, steps.results, strict=True):
        view = _restore(result, normal.buffers, made, steps, nodes)
        values[root] = view.substitute(fresh) if fresh else view
    given = set(normal.buffers)
    local.fresh = frozenset([n for n in nodes.values() if n.op is Ops.BUFFER and n not in given])
    for root, view in values.items():
        if root.op is Ops.CONTIGUOUS and root.tag is not None:
            continue  # made for this run: the graph of no tensor
        own = memory_of(view)
        if all(b in local.fresh for b in own):  # what shows other memory is that memory's value only till it is written
            root.storage = view
            for b in own:
                b.came_from = [*getattr(b, "came_from", ()), weakref.ref(root)]
    return [values.get(u) or realized_view(u) for u in out]


def forget_values(memory: UOp) -> None:
    """What was computed into the memory of a BUFFER node does not lie there any more."""
    for ref in getattr(memory, "came_from", ()):
        node = ref()
        if node is not None:
            node.storage = None
    memory.came_from = []


def alias(buffer: UOp) -> UOp:
    """Another node over the memory of a BUFFER node."""
    memory = storage_of(buffer)
    node = UOp.new_buffer(buffer.arg.device, buffer.arg.size, buffer.dtype)
    node.storage = memory
    if local.capture is not None and any(memory is b for b in local.capture.made):
        local.capture.nodes.append((weakref.ref(node), memory))
    return node


def _resolve(view: UOp) -> UOp:
    """A target view with the assignments below it resolved to the memory they wrote."""
    done = {n: n.storage for n in view.toposort(lambda n: n.op is not Ops.AFTER) if n.op is Ops.AFTER}
    return view.substitute(done)


def _restore(result: UOp, inputs: list[UOp], made: list[Buffer | None], steps: Schedule, nodes: dict[UOp, UOp]) -> UOp:
    """The view `result` of a parameter as a view of the memory behind it."""
    views, whole = [], result
    while result.op is not Ops.PARAM and result.op is not Ops.MSTACK:
        if not result.src:
            return whole  # a constant is its own value
        views.append(result)
        result = result.src[0]
    node = nodes.get(result)
    if node is None and result.op is Ops.MSTACK:
        node = nodes[result] = result.with_src(tuple([_restore(p, inputs, made, steps, nodes) for p in result.src]))
    if node is None:
        slot = result.arg.slot
        if slot < steps.params:
            node = inputs[slot]
        else:
            buffer = made[slot]
            assert buffer is not None
            node = UOp.new_buffer(buffer.device, buffer.size, buffer.dtype)
            node.storage = buffer
            if local.capture is not None:
                local.capture.nodes.append((weakref.ref(node), buffer))
        nodes[result] = node
    for v in reversed(views):
        node = v.with_src((node, *v.src[1:]))
    return node


def executable(steps: Schedule, default_device: str) -> Executable:
    """The schedule with loaded kernels (kept as long as the schedule is)."""
    kept = _by_identity.get(id(steps))
    if kept is None or kept[0] is not steps:
        kept = _by_identity[id(steps)] = (steps, {})
        if len(_by_identity) > 8192:
            _by_identity.pop(next(iter(_by_identity)))
    key = (default_device, *[s.value for s in SETTINGS])
    found = kept[1].get(key)
    if found is None:
        start = time.perf_counter()
        kernels = [(i.kernel, i.device or default_device) for i in steps.items if i.kernel is not None]
        loaded = iter(load_kernels(kernels))  # type: ignore[arg-type]
        several = len({device for _, device in kernels}) > 1
        found = Executable(
            steps, [next(loaded) if i.kernel is not None else None for i in steps.items], None if several else False
        )
        kept[1][key] = found
        if DEBUG.value >= 2:
            ready = f"{len(kernels)} kernel{'s' if len(kernels) != 1 else ''} ready"
            print(
                f"*** {ready} in {time.perf_counter() - start:.3f} s; planned peak "
                f"{readable_size(planned_peak(steps))} beside what they are given",
                file=sys.stderr,
            )
    return found


def planned_peak(steps: Schedule) -> int:
    """The most bytes that temporaries and results hold at one time."""
    size = {steps.params + k: t.size * t.dtype.itemsize for k, t in enumerate(steps.temps)}
    held = {slot for slot in size if steps.temps[slot - steps.params].is_result}
    peak = 0
    for item in steps.items:
        held.update([a for a in item.args if a in size])
        peak = max(peak, sum([size[a] for a in held]))
        held.difference_update(item.frees)
    return peak


def run(exe: Executable, buffers: list[Buffer | None], values: dict[str, int]) -> list[Buffer | None]:
    """Launch every step; `buffers` holds the parameters and is extended by the temporaries that are results."""
    steps = exe.schedule
    default = Device.DEFAULT
    capture = local.capture
    for limit in steps.limits:
        limit.check(values, evaluate)
    if (
        exe.together is not False
        and capture is None
        and not (DEBUG.value >= 2 or NAN_CHECK.value or VALIDATE_WITH_CPU.value)
    ):
        from aril.engine.together import run_together

        done = run_together(exe, buffers, values)
        if done is not None:
            return done
    debug, checked, profiled = DEBUG.value >= 2, NAN_CHECK.value, PROFILE.value
    if capture is None and not (debug or checked or profiled or VALIDATE_WITH_CPU.value):
        return _run_unseen(exe, buffers, values, default)
    buffers = [*buffers, *[None] * len(steps.temps)]
    timed, began, ended = debug or bool(profiled), 0, 0
    if capture is not None:
        capture.values.update(values)
        capture.limits.update(dict.fromkeys(steps.limits))

    def make(slot: int) -> Buffer:
        temp = steps.temps[slot - steps.params]
        b = buffers[slot] = Buffer(temp.device or default, temp.size, temp.dtype)
        if capture is not None:
            capture.made.append(b)
        return b

    for k, temp in enumerate(steps.temps):
        if temp.is_result:
            make(steps.params + k)
    for item, loaded in zip(steps.items, exe.loaded, strict=True):
        args = []
        for slot in item.args:
            args.append(buffers[slot] or make(slot))
        if loaded is None:
            began = profile.now()
            seconds = transfer(item, args)
            GlobalCounters.record(args[0].device, 0, args[0].nbytes, seconds)
            launch = Launch(None, args, [], 1, item)
            if profiled:
                name = transfer_name(item, args)
                profile.record("copy", name, args[0].device, began, profile.now(), 0, args[0].nbytes)
            if debug:
                _report(transfer_name(item, args), launch, 0, args[0].nbytes, seconds)
        else:
            numbers, chunks = loaded.launch_values(values)
            launch = Launch(loaded, args, numbers, chunks, item)
            if VALIDATE_WITH_CPU.value:
                from aril.engine.validate import expect

                check = expect(item.kernel, loaded.name, loaded.device, args, item.outputs, values)
                elapsed = loaded.program([b.opaque for b in args], numbers, chunks, timed)
                check()
            elif profiled:
                addresses, began = [b.opaque for b in args], profile.now()
                elapsed = loaded.program(addresses, numbers, chunks, True)
                ended = profile.now()
            else:
                elapsed = loaded.program([b.opaque for b in args], numbers, chunks, timed)
            ops, size = loaded.estimates.ops, loaded.estimates.bytes
            ops, size = (
                (ops, size)
                if isinstance(ops, int) and isinstance(size, int)
                else (evaluate(ops, values), evaluate(size, values))
            )
            GlobalCounters.record(loaded.device, ops, size, elapsed or 0.0)
            if ended:
                profile.record("kernel", loaded.name, loaded.device, began, ended, ops, size)
            if debug:
                _report(loaded.name, launch, ops, size, elapsed or 0.0)
        if checked:
            check_numbers(launch, args)
        if capture is not None:
            capture.launches.append(launch)
        for slot in item.frees:
            buffers[slot] = None
    return buffers


def _run_unseen(
    exe: Executable, buffers: list[Buffer | None], values: dict[str, int], default: str
) -> list[Buffer | None]:
    """What `run` does where nobody captures, prints, times or checks it."""
    steps = exe.schedule
    params = steps.params
    out = [*buffers, *[Buffer(t.device or default, t.size, t.dtype) if t.is_result else None for t in steps.temps]]
    for item, loaded in zip(steps.items, exe.loaded, strict=True):
        args = []
        for slot in item.args:
            b = out[slot]
            if b is None:
                t = steps.temps[slot - params]
                b = out[slot] = Buffer(t.device or default, t.size, t.dtype)
            args.append(b)
        if loaded is None:
            seconds = transfer(item, args)
            GlobalCounters.record(args[0].device, 0, args[0].nbytes, seconds)
        else:
            numbers, chunks = loaded.launch_values(values)
            loaded.program([b.opaque if b._opaque is None else b._opaque for b in args], numbers, chunks)
            ops, size = loaded.estimates.ops, loaded.estimates.bytes
            if ops.__class__ is not int or size.__class__ is not int:
                ops, size = evaluate(ops, values), evaluate(size, values)
            GlobalCounters.record(loaded.device, ops, size)
        for slot in item.frees:
            out[slot] = None
    return out


class NotFinite(ArithmeticError):
    """NAN_CHECK=1: a kernel wrote a NaN or an infinity."""


def check_numbers(launch: Launch, buffers: list[Buffer]) -> None:
    """NotFinite names the kernel, the element and the user's line where a result that was just written is no finite
    number.
    """
    import numpy as np

    for b in buffers[: launch.item.outputs]:
        if b.dtype.kind != "f" or b.dtype.fmt is None or not b.nbytes:
            continue
        values = np.frombuffer(b.as_memoryview(), np.dtype(b.dtype.fmt))
        bad = np.flatnonzero(~np.isfinite(values))
        if not bad.size:
            continue
        was_bad = [
            f"argument {k}"
            for k, r in enumerate(buffers[launch.item.outputs :])
            if r.dtype.kind == "f" and r.dtype.fmt and r.nbytes
            and not np.isfinite(np.frombuffer(r.as_memoryview(), np.dtype(r.dtype.fmt))).all()
        ]  # fmt: skip
        raise NotFinite(
            f"kernel {launch.loaded.name if launch.loaded else 'copy'} wrote {values[bad[0]]} "
            f"as element {bad[0]} of {b.size} "
            f"({bad.size} are not finite)"
            + (f"; {', '.join(was_bad)} had such numbers before" if was_bad else "; all it read was finite")
            + f"; built at {launch.item.origin or 'a line that NAN_CHECK=1 in the environment shows'}"
        )


def _report(name: str, launch: Launch, ops: int, size: int, seconds: float) -> None:
    """The line of DEBUG=2: name, arguments, operations, bytes, time, rates, the user's line."""

    seconds = max(seconds, 1e-9)
    shapes = " ".join(f"{b.size}{b.dtype.fmt or b.dtype.name}" for b in launch.buffers[:4])
    more = f" +{len(launch.buffers) - 4}" if len(launch.buffers) > 4 else ""
    line = (
        f"*** {launch.buffers[0].device if launch.buffers else '':6s} {bold(f'{name:28s}')} {shapes + more:36s} "
        f"{ops / 1e6:10.2f} Mop {size / 1e6:9.2f} MB {seconds * 1e6:10.1f} us {ops / seconds / 1e9:8.2f} GFLOPS "
        f"{size / seconds / 1e9:7.2f} GB/s  x{launch.chunks}  {launch.item.origin or ''}"
    )
    print(line, file=sys.stderr)


def bold(text: str) -> str:
    """`text` in bold on a terminal, as it is elsewhere."""
    return f"\x1b[1m{text}\x1b[0m" if sys.stderr.isatty() and not NO_COLOR.value else text
