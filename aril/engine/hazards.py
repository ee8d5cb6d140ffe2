"""Which steps of a batch must wait for which: conflicts of the bytes they read and write.

In: for each step, in order, the spans of memory it reads and writes. Out: for each step the earlier ones it waits for,
without those that others among them have waited for already.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """Bytes start..end-1 of one memory. Spans of different memories never meet."""

    memory: Hashable
    start: int
    end: int


class Area:
    """Bytes of several memories, asked whether a span meets them."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.of: dict[Hashable, tuple[list[int], list[int]]] = {}
        for s in sorted([s for s in spans if s.start < s.end], key=lambda s: s.start):
            starts, ends = self.of.setdefault(s.memory, ([], []))
            starts.append(s.start)
            ends.append(max(s.end, ends[-1]) if ends else s.end)  # the furthest so far

    def meets(self, s: Span) -> bool:
        """Whether `s` has a byte in common with it."""
        starts, ends = self.of.get(s.memory, ((), ()))
        k = bisect_left(starts, s.end)
        return k > 0 and s.start < s.end and ends[k - 1] > s.start


def written_twice(spans: dict[int, Span], written: set[int]) -> int | None:
    """The number of a span with a byte that another one has too, where at least one of the two is written."""
    ends: dict[Hashable, tuple[int, int]] = {}  # the furthest end of all spans so far, and of those written
    for k, s in sorted([(k, s) for k, s in spans.items() if s.start < s.end], key=lambda one: one[1].start):
        end, end_written = ends.get(s.memory, (s.start, s.start))
        if s.start < (end if k in written else end_written):
            return k
        ends[s.memory] = max(end, s.end), max(end_written, s.end) if k in written else end_written
    return None


class _Bytes:
    """Who wrote and who has read since, for each stretch of one memory: stretches follow each other without gaps."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.writers: list[int] = []  # -1: nobody yet
        self.readers: list[list[int]] = []

    def cut(self, at: int) -> None:
        """Make sure that a stretch starts at `at`."""
        k = bisect_right(self.starts, at)
        if k and self.starts[k - 1] == at:
            return
        self.starts.insert(k, at)
        self.writers.insert(k, self.writers[k - 1] if k else -1)
        self.readers.insert(k, list(self.readers[k - 1]) if k else [])

    def stretches(self, start: int, end: int) -> range:
        self.cut(start)
        self.cut(end)
        return range(bisect_left(self.starts, start), bisect_left(self.starts, end))


def waits(steps: Sequence[tuple[Iterable[Span], Iterable[Span]]]) -> list[tuple[int, ...]]:
    """For each (reads, writes) the steps before it that it waits for.

    A step waits for those that wrote what it reads or writes (RAW, WAW) and those that read what it writes (WAR).
    Left out are those that one of its other waits implies. Example:

    >>> a, b = Span("m", 0, 8), Span("m", 8, 16)
    >>> waits([([], [a]), ([], [b]), ([a], [b]), ([b], [a])])
    [(), (), (0, 1), (2,)]
    """
    memories: dict[Hashable, _Bytes] = {}
    behind: list[int] = []  # of each step, as bits: all that is done when it is done
    out: list[tuple[int, ...]] = []
    for i, (reads, writes) in enumerate(steps):
        need: set[int] = set()
        for s, is_write in [(s, False) for s in reads] + [(s, True) for s in writes]:
            if s.start >= s.end:
                continue
            seen = memories.setdefault(s.memory, _Bytes())
            for k in seen.stretches(s.start, s.end):
                if seen.writers[k] >= 0:
                    need.add(seen.writers[k])
                if is_write:
                    need.update(seen.readers[k])
                    seen.writers[k], seen.readers[k] = i, []
                elif i not in seen.readers[k][-1:]:
                    seen.readers[k].append(i)
        need.discard(i)
        done, mine = 0, []
        for w in sorted(need, reverse=True):
            if not done >> w & 1:
                mine.append(w)
                done |= behind[w] | 1 << w
        behind.append(done)
        out.append(tuple(reversed(mine)))
    return out
