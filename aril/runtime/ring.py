"""How devices of one kind take a batch of launches: as words in memory, written by programs of UOps.

In come the commands of a batch as UOps; out go the words that stand for them, and the call that sets them going. What
writes the words is compiled by the ordinary code generation and runs on this machine's CPU (`engine.program`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from aril.uop.node import UOp

WORD = 8  # bytes


class ChunkTime(NamedTuple):
    """When a chunk ran, by `time.perf_counter_ns`, and a number that stands for who ran it."""

    begin: int
    end: int
    who: int


class Command(NamedTuple):
    """A launch or a copy while it is written: the address of its function, of its arguments, its launch count, the
    word where its first wait goes, and how many waits there are. All are int64 UOps.
    """

    function: UOp
    arguments: UOp
    chunks: UOp
    first_wait: UOp
    waits: UOp


@dataclass(frozen=True)
class Layout:
    """Words of a batch: where each command and each wait goes, what stands at fixed places, how many there are.

    `pointers` are places whose value is the address of a word of the batch, `constants` places with plain numbers.
    """

    commands: list[int]
    waits: list[int]
    pointers: list[tuple[int, int]]
    constants: list[tuple[int, int]]
    size: int


class Ring:
    """Encodes batches for devices of one kind. Subclassed by a runtime, found as `DeviceBase.ring`.

    Each method with UOps gives the words of one command as {word from the command's start: value}. They are called
    once for all commands of a kind, in a loop over tables: the number of commands does not change the program.
    """

    name: ClassVar[str]

    def layout(self, queues: Sequence[tuple[int, bool]], waits: Sequence[int]) -> Layout:
        """Places for commands in program order. `queues[i]`: the device of command i, and whether it belongs into that
        device's queue of copies; `waits[i]`: how many waits it has. Commands of one queue start in order.
        """
        raise NotImplementedError

    def launch(self, command: Command) -> dict[int, UOp]:
        """A kernel."""
        raise NotImplementedError

    def copy(self, command: Command) -> dict[int, UOp]:
        """A copy. Its arguments are three words: to, from, bytes."""
        raise NotImplementedError

    def wait(self, signal: UOp) -> dict[int, UOp]:
        """A wait for the signal at this address."""
        raise NotImplementedError

    def signal(self, command: UOp) -> UOp:
        """The address of the signal that the command at this address gives when it is done."""
        raise NotImplementedError

    def chunks_word(self) -> int:
        """Which word of a launch is its launch count: it changes with the values of variables."""
        raise NotImplementedError

    def rearm(self, chunks: UOp) -> dict[int, UOp]:
        """What a command of so many chunks needs before the batch runs again."""
        raise NotImplementedError

    def submit(self, batch: UOp) -> UOp:
        """The effect that starts the batch at this address and ends when it is done. May use variables."""
        raise NotImplementedError

    def submission(self, scratch_bytes: int) -> tuple[threading.Lock, dict[str, int]]:
        """What a submission holds meanwhile, and the values of the variables in `submit`."""
        raise NotImplementedError

    def timed(
        self, memory: memoryview, commands: Sequence[int], chunks: Sequence[int], run: Callable[[], None]
    ) -> list[list[ChunkTime]]:
        """`run()` a batch with a clock: for each command, whose place and number of chunks are given, its times."""
        raise NotImplementedError

    def copy_function(self, nbytes: int) -> tuple[int, int]:
        """(function, launch count) of a copy, 0 where `copy` needs none."""
        return 0, 1
