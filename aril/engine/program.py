"""A batch as a program: what is written into a device's ring, and what runs at every replay, as UOps.

In: steps with their arguments, queues and waits. Out: a `Submission`, whose `run` is one native call. Both programs
are loops over tables, so they are compiled once for batches of any length and then come from the disk cache; only
launch counts that depend on variables make a program of their own.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from aril.config import Context
from aril.device import host_memory
from aril.dtype import dtypes
from aril.engine.compile import Loaded, evaluate, load_kernels
from aril.runtime.ring import WORD, ChunkTime, Command, Layout, Ring
from aril.schedule.lower import HAND_WRITTEN
from aril.uop import Estimates, KernelInfo, UOp

HOST = "CPU"  # where the programs themselves run
_MOST = 1 << 40  # words of a table, words and rows of a batch: a bound for the types of indices only


@dataclass(frozen=True)
class Slot:
    """An argument that changes from call to call: address `which` of the call, and so many bytes more."""

    which: int
    offset: int


@dataclass
class Step:
    """One command. `arguments` are addresses, values, Slots, or names of variables; `chunks` may be an expression.

    `queue` is the number of a device, and whether it is the queue of that device's copies.
    """

    function: int
    arguments: Sequence[int | Slot | str]
    chunks: Any
    queue: tuple[int, bool]
    waits: Sequence[int]
    is_copy: bool = False


# ------------------------------------------------------------------------------------------------------ the programs


def _count(name: str) -> UOp:
    return UOp.variable(name, 0, _MOST)


def _words(slot: int) -> UOp:
    return UOp.param(slot, dtypes.int64, _MOST)


def _place(word: UOp, more: int = 0) -> UOp:
    """A word that a table names as an index."""
    index = word.cast(dtypes.weakint)
    return index + more if more else index


def _kernel(name: str, *effects: UOp) -> UOp:
    """As written: the order of effects is part of what they mean."""
    return UOp(
        UOp.sink(*effects).op, effects, KernelInfo(name, opts_to_apply=(), estimates=Estimates()), tag=HAND_WRITTEN
    )


@lru_cache(maxsize=8)
def encoding(ring: Ring) -> UOp:
    """The kernel that writes a batch: parameters memory and tables; variables base (the memory's address), kernels,
    copies and waits (rows of the tables, in this order).

    for i in kernels: memory[at[i] + word] = launch(function[i], ..)   # and so for copies
    for j in waits:   memory[at[j] + word] = wait(signal of the command at of[j])
    """
    memory, tables = _words(0), _words(1)
    base = UOp.variable("base", 0, 1 << 62, dtypes.int64)
    kernels, copies, waits = _count("kernels"), _count("copies"), _count("waits")
    effects = []
    start: UOp = UOp.const(dtypes.weakint, 0)
    for k, (count, write) in enumerate(((kernels, ring.launch), (copies, ring.copy))):
        i = UOp.range(count, k)
        row = [tables[start + i * len(COMMAND) + c].load() for c in range(len(COMMAND))]
        command = Command(row[1], base + row[2] * WORD, row[3], base + row[4] * WORD, row[5])
        effects.append(_stores(memory, row[0], write(command)).end(i))
        start = start + count * len(COMMAND)
    j = UOp.range(waits, 2)
    at, of = [tables[start + j * 2 + c].load() for c in range(2)]
    effects.append(_stores(memory, at, ring.wait(ring.signal(base + of * WORD))).end(j))
    return _kernel(f"{ring.name}_encode", *effects)


COMMAND = ("at", "function", "arguments", "chunks", "first wait", "waits")


def _stores(memory: UOp, at: UOp, words: dict[int, UOp]) -> UOp:
    return UOp.group(*[memory[_place(at, w)].store(value) for w, value in words.items()])


@lru_cache(maxsize=256)
def replaying(ring: Ring, computed: tuple[UOp, ...]) -> UOp:
    """The kernel of a replay: parameters memory and tables; variables numbers (where in memory the numbers of the call
    are), fixed (how many of them are given), patches, commands (rows of the tables), and those of the submission.

    numbers[fixed + k] = computed[k]               # launch counts that depend on variables
    for i in patches:  memory[at[i]] = numbers[which[i]] + more[i]
    for i in commands: memory[at[i] + word] = rearm(..)
    submit(memory)

    `computed` are expressions in PARAMs: variable number v of the call is the ALU PARAM named "number v".
    """
    memory, tables = _words(0), _words(1)
    numbers, fixed, patches, commands = _count("numbers"), _count("fixed"), _count("patches"), _count("commands")
    effects: list[UOp] = []
    for k, expression in enumerate(computed):
        given = {u: memory[numbers + int(u.arg.name)].load().cast(dtypes.weakint) for u in _variables(expression)}
        effects.append(memory[numbers + fixed + k].store(expression.substitute(given).cast(dtypes.int64)))
    now = memory.after(*effects)
    i = UOp.range(patches, 0)
    at, which, more = [tables[i * 3 + c].load() for c in range(3)]
    effects.append(now[_place(at)].store(now[numbers + _place(which)].load() + more).end(i))
    now = memory.after(*effects)
    j = UOp.range(commands, 1)
    at = tables[patches * 3 + j].load()
    effects.append(_stores(now, at, ring.rearm(now[_place(at, ring.chunks_word())].load())).end(j))
    effects.append(ring.submit(memory.after(*effects)[0]))
    return _kernel(f"{ring.name}_replay", *effects)


def _variables(expression: UOp) -> list[UOp]:
    return [u for u in expression.toposort() if u.is_variable]


def _load(sink: UOp) -> Loaded:
    # A search would run it on made-up data; its tables are as long as the batch is, which no bound says.
    with Context(BEAM=0, NOOPT=0, EMULATED_DTYPES="", CHECK_OOB=0):
        return load_kernels([(sink, HOST)])[0]


# ------------------------------------------------------------------------------------------------------- submissions


@dataclass
class _Tables:
    """The tables of the two programs and the words of all argument slots, filled step by step.

    The numbers of a call are its addresses, its variables (`number` by name), and from `fixed` on what is computed of
    them: launch counts that depend on variables.
    """

    ring: Ring
    layout: Layout
    number: dict[str, int]
    fixed: int
    slots: list[int] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)  # rows of COMMAND, one after another
    copies: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)  # (word, that of the command it waits for)
    patches: list[int] = field(default_factory=list)  # (word, which number of the call goes there, how much is added)
    computed: dict[UOp, int] = field(default_factory=dict)

    def add(self, step: Step, place: int, waits: Sequence[int]) -> None:
        """A step whose command lies at word `place` and whose waits lie at these."""
        first = waits[0] if waits else 0
        row = (place, step.function, self._next_slot(), self._chunks(step.chunks, place), first, len(waits))
        (self.copies if step.is_copy else self.kernels).extend(row)
        for word, of in zip(waits, step.waits, strict=True):
            self.waits += (word, self.layout.commands[of])
        for a in step.arguments:
            if isinstance(a, Slot):
                self.patches += (self._next_slot(), a.which, a.offset)
            elif isinstance(a, str):
                self.patches += (self._next_slot(), self.number[a], 0)
            self.slots.append(a if isinstance(a, int) else 0)

    def _next_slot(self) -> int:
        return self.layout.size + len(self.slots)

    def _chunks(self, chunks: Any, place: int) -> int:
        """The launch count to write down; 0 where each call computes it."""
        if not isinstance(chunks, UOp):
            return int(chunks)
        numbered = {u: UOp.variable(str(self.number[u.arg.name]), 0, _MOST) for u in _variables(chunks)}
        which = self.computed.setdefault(chunks.substitute(numbered), self.fixed + len(self.computed))
        self.patches += (place + self.ring.chunks_word(), which, 0)
        return 0

    def of_encoding(self) -> tuple[bytes, dict[str, int]]:
        """The table of `encoding`, and how many rows of each kind it has."""
        counts = {"kernels": len(self.kernels) // len(COMMAND), "copies": len(self.copies) // len(COMMAND)}
        return _packed([*self.kernels, *self.copies, *self.waits]), {**counts, "waits": len(self.waits) // 2}

    def of_replay(self) -> tuple[bytes, dict[str, int]]:
        """The table of `replaying`, and how many rows of each kind it has."""
        commands = self.layout.commands
        return _packed([*self.patches, *commands]), {"patches": len(self.patches) // 3, "commands": len(commands)}


def _packed(words: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(words)}q", *words)


class Submission:
    """Steps encoded for a ring, ready to run any number of times.

    `addresses` is how many addresses a call gives, `variables` the names whose values it gives after them.
    """

    def __init__(
        self,
        ring: Ring,
        steps: Sequence[Step],
        addresses: int = 0,
        variables: Sequence[str] = (),
        scratch_bytes: int = 0,
    ) -> None:
        self.ring, self.scratch_bytes = ring, scratch_bytes
        layout = ring.layout([s.queue for s in steps], [len(s.waits) for s in steps])
        self._places, self._chunks = layout.commands, [s.chunks for s in steps]
        fixed = addresses + len(variables)
        tables = _Tables(ring, layout, {name: addresses + k for k, name in enumerate(variables)}, fixed)
        waits = iter(layout.waits)
        for place, step in zip(layout.commands, steps, strict=True):
            tables.add(step, place, [next(waits) for _ in step.waits])
        numbers = layout.size + len(tables.slots)
        self.size = numbers + fixed + len(tables.computed)
        self._numbers_at = numbers * WORD
        self._block = ctypes.create_string_buffer(self.size * WORD + 64)
        self.address = -(-ctypes.addressof(self._block) // 64) * 64
        self._memory = host_memory(self.address, self.size * WORD)
        for where, to in layout.pointers:
            struct.pack_into("<q", self._memory, where * WORD, self.address + to * WORD)
        for where, value in layout.constants:
            struct.pack_into("<q", self._memory, where * WORD, value)
        struct.pack_into(f"<{len(tables.slots)}q", self._memory, layout.size * WORD, *tables.slots)
        rows, counts = tables.of_encoding()
        _prepare(_load(encoding(ring)), self.address, rows, {"base": self.address, **counts})()
        self._replay = _load(replaying(ring, tuple(tables.computed)))
        self._tables, counts = tables.of_replay()
        self._values = {"numbers": numbers, "fixed": fixed, **counts}
        self._pack = struct.Struct(f"<{fixed}q").pack_into
        self._given: dict[str, int] = {}
        self._call: Callable[[], None] = lambda: None

    def run(self, addresses: Sequence[int] = (), values: Sequence[int] = ()) -> None:
        """Do all steps with these addresses and values of variables; returns when they are done."""
        self._pack(self._memory, self._numbers_at, *addresses, *values)
        lock, given = self.ring.submission(self.scratch_bytes)
        if given is not self._given:
            self._call = _prepare(self._replay, self.address, self._tables, {**self._values, **given})
            self._given = given
        with lock:
            self._call()

    def run_timed(
        self, addresses: Sequence[int], values: Sequence[int], known: dict[str, int]
    ) -> list[list[ChunkTime]]:
        """`run` that tells of each step when and by whom its chunks were done; `known` are variables by name."""
        chunks = [evaluate(c, known) for c in self._chunks]
        return self.ring.timed(self._memory, self._places, chunks, lambda: self.run(addresses, values))


def _prepare(loaded: Loaded, memory: int, tables: bytes, values: dict[str, int]) -> Callable[[], None]:
    """The native call of a program. What it names stays alive with it."""
    where = ctypes.cast(ctypes.c_char_p(tables), ctypes.c_void_p).value or 0
    return loaded.program.bound([memory, where], [values[n] for n in loaded.variables], keep=tables)  # type: ignore[attr-defined,no-any-return]
