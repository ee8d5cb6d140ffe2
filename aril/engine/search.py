"""BEAM=n: lists of optimisation steps are tried on a kernel, timed on this machine, and the best one is kept on disk.

In: a kernel's body and a device. Out: the body with the steps to apply, or as it is where the default choice is best.
The search starts at the default steps and at none, and keeps the n fastest lists of each round. A candidate counts only
if it computes what the kernel without any step computes. Searched steps may add up a reduction in another order, so
results can differ from the default's within rounding; `DETERMINISTIC=1` therefore searches nothing.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from aril import config
from aril.codegen import attention, contraction, heuristics, panels, steps
from aril.codegen.accumulate import separate
from aril.codegen.estimate import estimate
from aril.codegen.plan import Plan
from aril.codegen.steps import Chunk, Split, Step, StepError, Swap, Unroll, Upcast, Vectorize, loops_of
from aril.device import Device
from aril.engine import profile
from aril.engine.trial import Trial, time_all
from aril.ops import Ops
from aril.runtime import cache
from aril.uop import AxisType, UOp

LARGEST = 2 * 10**10  # operations beyond which the kernel without steps would take too long to compare with
MOST_BYTES = 256 << 20  # of arguments, of which a trial holds several copies
ROUNDS = 12
TILES = 12  # register tiles tried, for each list kept
A_ROUND = 32  # candidates compiled in one round, for each list kept
WORTH = 0.97  # a found list replaces the default one if it takes at most this share of its time

StepList = tuple[Step, ...]


@dataclass(frozen=True)
class Candidate:
    """A list of steps and its time in nanoseconds (0: not timed)."""

    steps: StepList
    ns: float = 0.0


def tuned(body: UOp, device: str, renderer: Any, key: str, settings: Any) -> UOp:
    """The body with the best steps found (or known from before) in its KernelInfo.

    `key` names the kernel, the device and everything else the result depends on; `settings` go to the compile workers.
    """
    if config.DETERMINISTIC.value or (body.arg is not None and body.arg.opts_to_apply is not None):
        return body
    known, is_done = _recall(key)
    if not is_done:
        from aril.schedule.lower import lower

        sink = separate(lower(body))
        why = unsearchable(sink)
        if why:
            if config.BEAM_DEBUG.value:
                print(f"search {body.arg.name}: not searched, {why}", file=sys.stderr)
            return body
        plan = Plan(sink, renderer)
        heuristics.choose(plan)
        if apply_steps(sink, tuple(plan.steps), renderer) is not plan.sink:
            return body  # the default choice is more than a list of steps
        with profile.timed("search", body.arg.name):
            known = _Search(body, sink, device, renderer, key, settings, known).run()
    best = known[0].steps if known else None
    return body if best is None else body.replace(arg=replace(body.arg, opts_to_apply=best))


def unsearchable(sink: UOp) -> str:
    """Why a kernel cannot be tried on made-up data; empty where it can."""
    nodes = sink.toposort()
    if any(u.op is Ops.INDEX and any(n.op is Ops.LOAD for n in u.src[1].toposort()) for u in nodes):
        return "where it reads or writes depends on data"
    divides = (Ops.CDIV, Ops.CMOD, Ops.FLOORDIV, Ops.FLOORMOD)
    if any(u.op in divides and not u.dtype.weak and u.src[1].op is not Ops.CONST for u in nodes):
        return "it divides integers by data"
    if any(u.op in (Ops.CUSTOM, Ops.CUSTOMI, Ops.INS, Ops.ATOMIC, Ops.BARRIER) for u in nodes):
        return "it holds hand-written control"
    size = sum([u.arg.size * u.dtype.itemsize for u in nodes if u.op is Ops.PARAM and not u.is_variable])
    if size > MOST_BYTES:
        return f"its arguments take {size} bytes"
    operations = estimate(sink).ops
    if not isinstance(operations, int):
        operations = int(operations.vmax)
    return f"it has {operations:.1e} operations" if operations > LARGEST else ""


class _Search:
    """One search under way."""

    def __init__(
        self, body: UOp, sink: UOp, device: str, renderer: Any, key: str, settings: Any, known: list[Candidate]
    ) -> None:
        self.body, self.sink, self.device, self.renderer = body, sink, device, renderer
        self.key, self.settings = key, settings
        self.known = known  # of an interrupted search
        self.width = max(1, config.BEAM.value)
        self.deadline = time.perf_counter() + config.BEAM_TIMEOUT.value * min(self.width, 8)
        self.seen: set[UOp] = set()
        self.trial: Trial | None = None
        self.tried = self.wrong = 0

    def run(self) -> list[Candidate]:
        """The lists kept at the end, the best first; none where the default steps stay."""
        reference = self._compile([()])
        if not reference or reference[0][1] is None:
            return []
        self.trial = Trial(self.sink, self.device, reference[0][1])
        default = Candidate(tuple(self._default()))
        starts = [default, Candidate(()), *self.known]
        kept = self._measure([*[c.steps for c in starts], *tile_lists(self.sink, self.renderer, TILES * self.width)])
        baseline = next((c for c in kept if c.steps == default.steps), None)
        if baseline is None:  # the default itself failed the comparison: say so, it is our mistake
            print(f"search {self._name}: the default steps compute something else than none", file=sys.stderr)
        for number in range(ROUNDS):
            best = kept[0].ns if kept else 0.0
            lists = [s for c in kept[: self.width] for s in neighbours(self.sink, c.steps, self.renderer)]
            found = self._measure(lists)
            kept = sorted([*kept, *found], key=lambda c: c.ns)[: max(self.width, 2)]
            self._say(number, kept)
            remember(self.key, kept, False)
            if not found or time.perf_counter() > self.deadline:
                break
            if best - kept[0].ns < config.BEAM_MIN_PROGRESS.value:
                break
        kept = self._final(kept, default.steps)
        remember(self.key, kept, True)
        if config.BEAM_DEBUG.value:
            what = f"{kept[0].ns / 1e3:.1f} us by {kept[0].steps}" if kept else "the default steps stay"
            print(
                f"search {self._name}: {what}; {self.tried} tried, {self.wrong} computed something else",
                file=sys.stderr,
            )
        return kept

    @property
    def _name(self) -> str:
        return str(self.body.arg.name)

    def _say(self, number: int, kept: list[Candidate]) -> None:
        if config.BEAM_DEBUG.value and kept:
            best = f"best {kept[0].ns / 1e3:.1f} us"
            print(f"search {self._name}: round {number}, {self.tried} tried, {best}", file=sys.stderr)

    def _default(self) -> list[Step]:
        plan = Plan(self.sink, self.renderer)
        heuristics.choose(plan)
        return plan.steps

    def _final(self, kept: list[Candidate], default: StepList) -> list[Candidate]:
        """The best, timed again beside the default, if it is worth it."""
        lists = [c.steps for c in kept[:3] if c.steps != default]
        again = self._compile([default, *lists])
        good = [(s, loaded) for s, loaded in again if loaded is not None]
        assert self.trial is not None
        times = time_all(self.trial, [loaded for _, loaded in good], 4 * config.BEAM_REPEATS.value)
        ranked = sorted([Candidate(s, ns) for (s, _), ns in zip(good, times, strict=True)], key=lambda c: c.ns)
        usual = next((c.ns for c in ranked if c.steps == default), None)
        if not ranked or ranked[0].steps == default or (usual is not None and ranked[0].ns > usual * WORTH):
            return []
        return ranked[:1]

    # --- trying ---

    def _measure(self, lists: list[StepList]) -> list[Candidate]:
        """The lists that fit, are right and could be compiled in time, with their times, the fastest first."""
        new: list[StepList] = []
        for one in lists:
            sink = apply_steps(self.sink, one, self.renderer)
            if sink is not None and sink not in self.seen and self._is_small(sink):
                self.seen.add(sink)
                new.append(one)
        new = new[: A_ROUND * self.width]
        good: list[tuple[StepList, Any]] = []
        for start in range(0, len(new), 8):
            if good and time.perf_counter() > self.deadline:
                break
            for one, loaded in self._compile(new[start : start + 8]):
                if loaded is None:
                    continue
                self.tried += 1
                assert self.trial is not None
                if self.trial.is_right(loaded):
                    good.append((one, loaded))
                else:
                    self.wrong += 1
                    if config.BEAM_DEBUG.value:
                        print(f"search {self._name}: another result by {one}", file=sys.stderr)
        assert self.trial is not None
        times = time_all(self.trial, [loaded for _, loaded in good], config.BEAM_REPEATS.value)
        out = [Candidate(one, ns) for (one, _), ns in zip(good, times, strict=True)]
        if config.BEAM_DEBUG.value >= 2:
            for c in out:
                print(f"  {c.ns / 1e3:10.1f} us  {c.steps}", file=sys.stderr)
        return sorted(out, key=lambda c: c.ns)

    def _is_small(self, sink: UOp) -> bool:
        """Whether a kernel stays within the settings: copies of each nest's body, nodes after copying."""
        for nest in sink.src:
            copies = 1
            for r in loops_of(UOp.sink(nest)).values():
                if r.arg.kind in (AxisType.UPCAST, AxisType.UNROLL):
                    copies *= int(r.src[0].arg)
            nodes = len([u for u in nest.toposort() if not u.dtype.weak])
            if copies > config.BEAM_UPCAST_MAX.value or nodes * copies > config.BEAM_UOPS_MAX.value:
                return False
        return True

    def _compile(self, lists: list[StepList]) -> list[tuple[StepList, Any]]:
        """Each list with its loaded kernel, None where it could not be compiled."""
        from aril.engine.compile import make_loaded, unpack_entry
        from aril.runtime import workers

        target = Device[self.device].target
        futures: list[tuple[StepList, Future[bytes]]] = []
        for one in lists:
            body = self.body.replace(arg=replace(self.body.arg, opts_to_apply=one))
            payload = pickle.dumps((body, self.renderer, target, self.settings))
            futures.append((one, workers.submit("aril.engine.compile:compile_task", payload, self._name)))
        out: list[tuple[StepList, Any]] = []
        for one, future in futures:
            try:
                loaded = make_loaded(self.device, *unpack_entry(future.result(config.BEAM_TIMEOUT.value)))
            except (workers.WorkerError, FutureTimeout) as error:
                future.cancel()
                if config.BEAM_DEBUG.value >= 2:
                    print(f"search {self._name}: no kernel by {one}: {error}", file=sys.stderr)
                loaded = None
            out.append((one, loaded))
        return out


def neighbours(sink: UOp, now: StepList, renderer: Any) -> Iterator[StepList]:
    """The lists that differ from `now` in one thing. In a chain of nests, each with a list of its own: in one nest."""
    if not attention.is_chain(sink):
        yield from _neighbours(sink, now, renderer)
        return
    lists = now[0].steps if now and isinstance(now[0], attention.EachNest) else ((),) * len(sink.src)
    nests = attention.nests_alone(sink)
    turns = [_neighbours(nest, one, renderer) for nest, one in zip(nests, lists, strict=True)]
    for found in zip_longest(*turns):
        for i, one in enumerate(found):
            if one is not None:
                yield (attention.EachNest((*lists[:i], one, *lists[i + 1 :])),)


def _neighbours(sink: UOp, now: StepList, renderer: Any) -> Iterator[StepList]:
    """Other factors, a step fewer, a move more."""
    for i, step in enumerate(now):
        for other in variants(step):
            yield (*now[:i], other, *now[i + 1 :])
    for i, step in enumerate(now):
        if isinstance(step, (Unroll, Chunk, panels.Stage)):
            yield (*now[:i], *now[i + 1 :])
    after = apply_steps(sink, now, renderer)
    if after is not None:
        for more in additions(after, max(2, renderer.vector_bytes // 4)):
            yield (*now, *more)


def tile_lists(sink: UOp, renderer: Any, most: int) -> Iterator[StepList]:
    """The register tiles of a matrix product or convolution that the estimate finds best, for the clock to judge."""
    for rank in range(most):
        plan = Plan(sink, renderer)
        try:
            heuristics.merge_loops(plan)
            if len(plan.sink.src) != 1 or not contraction.plan_tile(plan, rank):
                return
        except StepError:
            continue
        yield tuple(plan.steps)


def variants(step: Step) -> Iterator[Step]:
    """The same step with another number, the nearest first."""
    if not isinstance(step, Split):
        return
    f = step.factor
    others = dict.fromkeys([f * 2, f // 2, f + 1, f - 1, f + 2, f - 2, f * 4, f // 4, f * 3, f * 3 // 2])
    for n in others:
        if n > 0 and n != f:
            yield replace(step, factor=n)
            for tail in ("overlap", "peel"):
                if tail != step.tail:
                    yield replace(step, factor=n, tail=tail)


def additions(sink: UOp, width: int) -> Iterator[StepList]:
    """Moves on the loops that are still loops: lanes, copies, chunks, another order."""
    loops = [r for r in loops_of(sink).values() if r.arg.kind in (AxisType.LOOP, AxisType.REDUCE)]
    reductions = steps.reduce_loops(sink)
    has_lanes = any(r.arg.kind is AxisType.VECTOR for r in loops_of(sink).values())
    has_chunks = any(r.arg.kind is AxisType.GLOBAL for r in loops_of(sink).values())
    for r in loops:
        id = r.arg.id
        n = int(r.src[0].arg) if r.src[0].op is Ops.CONST else None
        is_reduction = r in reductions
        tails = ("exact",) if n is not None and n % width == 0 else ("peel",) if is_reduction else ("overlap", "peel")
        padded = n if config.BEAM_PADTO.value and not is_reduction else None
        if not has_lanes and padded is not None and padded % width:
            yield (Split(id, width, "masked"), Vectorize((*id, 1)))
        if not has_lanes and (n is None or n >= width):
            for tail in tails:
                yield (Split(id, width, tail), Vectorize((*id, 1)))
                for copies in (2, 4):
                    more = (Split((*id, 1), width), Upcast((*id, 1, 0)), Vectorize((*id, 1, 1)))
                    yield (Split(id, width * copies, tail), *more)
        if not has_chunks and not is_reduction and n is not None:
            if n <= 64:
                yield (Chunk((id,)),)
            for parts in (4, 16, 64):
                if n >= 2 * parts:
                    yield (Split(id, -(-n // parts), "exact" if n % parts == 0 else "ragged"), Chunk(((*id, 0),)))
        for f in (2, 3, 4, 6, 8):
            if n is None or n > f:
                tail = "exact" if n is not None and n % f == 0 else "peel"
                yield (Split(id, f, tail), (Unroll if is_reduction else Upcast)((*id, 1)))
                if padded is not None and padded % f:
                    yield (Split(id, f, "repeat"), Upcast((*id, 1)))
        if n is not None and n <= 8:
            yield ((Unroll if is_reduction else Upcast)(id),)
    same = [(a, b) for i, a in enumerate(loops) for b in loops[i + 1 :] if a.arg.kind is b.arg.kind]
    for a, b in same[:6]:
        yield (Swap(a.arg.id, b.arg.id),)


def apply_steps(sink: UOp, wanted: StepList, renderer: Any) -> UOp | None:
    """The kernel after the steps, None where one does not fit."""
    plan = Plan(sink, renderer)
    try:
        for step in wanted:
            plan.do(step)
    except (StepError, KeyError, ValueError, IndexError):
        return None
    return plan.sink


# --- on disk ---


def remember(key: str, kept: list[Candidate], is_done: bool) -> None:
    """Keep the state of a search: its best lists, and whether it has ended."""
    rows = [[[_row(s) for s in c.steps], c.ns] for c in kept]
    cache.put("search", key, json.dumps([is_done, rows]).encode())


def _recall(key: str) -> tuple[list[Candidate], bool]:
    entry = cache.get("search", key)
    if entry is None:
        return [], False
    try:
        is_done, rows = json.loads(entry)
        return [Candidate(tuple([_step(s) for s in one]), float(ns)) for one, ns in rows], bool(is_done)
    except (ValueError, TypeError, KeyError, AttributeError):
        return [], False  # an entry of another shape: searched again


def _row(step: Step) -> list[Any]:
    return [type(step).__name__, *[_plain(getattr(step, f.name)) for f in dataclasses.fields(step)]]


def _plain(x: Any) -> Any:
    """A field of a step as JSON has it; a step in it (of a nest) as {name: fields}."""
    if isinstance(x, Step):
        return {type(x).__name__: _row(x)[1:]}
    return [_plain(y) for y in x] if isinstance(x, tuple) else x


def _step(row: list[Any]) -> Step:
    kinds = {**vars(steps), **vars(panels), **vars(attention)}
    kind = kinds[row[0]]
    if not (isinstance(kind, type) and issubclass(kind, Step)):
        raise ValueError(f"{row[0]} is no step")
    return kind(*[_tuples(x) for x in row[1:]])


def _tuples(x: Any) -> Any:
    if isinstance(x, dict):
        ((name, fields),) = x.items()
        return _step([name, *fields])
    return tuple([_tuples(y) for y in x]) if isinstance(x, list) else x
