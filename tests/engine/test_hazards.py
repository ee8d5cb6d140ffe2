"""Waits between the steps of a batch: exactly what byte ranges demand, compared with all pairs looked at one by one."""

from __future__ import annotations

import random

import pytest

from aril.engine.hazards import Area, Span, waits, written_twice


def meets(a: Span, b: Span) -> bool:
    return a.memory == b.memory and bool(set(range(a.start, a.end)) & set(range(b.start, b.end)))


def conflict(a, b) -> bool:
    """Whether two steps may not change places, by the definition."""
    (reads, writes), (later_reads, later_writes) = a, b
    pairs = [(x, y) for x in writes for y in [*later_reads, *later_writes]] + [
        (x, y) for x in reads for y in later_writes
    ]
    return any(meets(x, y) for x, y in pairs)


def reached(edges: list[tuple[int, ...]]) -> list[set[int]]:
    """All steps that are done when each step may start."""
    out: list[set[int]] = []
    for mine in edges:
        out.append(set(mine).union(*[out[w] for w in mine]))
    return out


def random_steps(rng: random.Random, count: int):
    def span() -> Span:
        start = rng.randrange(0, 60)
        return Span(rng.choice("mn"), start, start + rng.choice([0, 1, 4, 8, 30]))

    return [
        ([span() for _ in range(rng.randrange(3))], [span() for _ in range(rng.randrange(1, 3))]) for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(40))
def test_what_is_waited_for_is_what_conflicts_and_what_that_waited_for(seed):
    steps = random_steps(random.Random(seed), 40)
    # brute force: the order that all conflicting pairs demand, closed under "and then"
    pairs = [tuple([j for j in range(i) if conflict(steps[j], steps[i])]) for i in range(len(steps))]
    found = waits(steps)
    assert reached(found) == reached(pairs)


@pytest.mark.parametrize("seed", range(10))
def test_no_wait_can_be_left_out(seed):
    found = waits(random_steps(random.Random(seed), 30))
    whole = reached(found)
    for i, mine in enumerate(found):
        for w in mine:
            less = [tuple([x for x in m if (k, x) != (i, w)]) for k, m in enumerate(found)]
            assert reached(less) != whole


@pytest.mark.parametrize(
    ("first", "second", "wait"),
    [
        (([], [Span("m", 0, 8)]), ([Span("m", 7, 9)], []), (0,)),  # read after write
        (([Span("m", 0, 8)], []), ([], [Span("m", 7, 9)]), (0,)),  # write after read
        (([], [Span("m", 0, 8)]), ([], [Span("m", 7, 9)]), (0,)),  # write after write
        (([Span("m", 0, 8)], []), ([Span("m", 0, 8)], []), ()),  # two readers
        (([], [Span("m", 0, 8)]), ([], [Span("m", 8, 16)]), ()),  # neighbours
        (([], [Span("m", 0, 8)]), ([], [Span("n", 0, 8)]), ()),  # another memory
    ],
)
def test_each_kind_of_conflict(first, second, wait):
    assert waits([first, second]) == [(), wait]


def test_a_step_that_reads_and_writes_one_place_waits_for_others_only():
    a = Span("m", 0, 8)
    assert waits([([a], [a])] * 3) == [(), (0,), (1,)]


def test_many_readers_of_one_place_cost_no_more_than_they_are():
    a, b = Span("m", 0, 8), Span("m", 8, 16)
    found = waits([([], [a]), *[([a], [Span("n", 8 * i, 8 * i + 8)]) for i in range(500)], ([b], [a])])
    assert found[1:-1] == [(0,)] * 500
    assert found[-1] == tuple(range(1, 501))


@pytest.mark.parametrize("seed", range(20))
def test_bytes_written_by_two_names_are_found(seed):
    rng = random.Random(seed)
    for _ in range(50):
        spans = {k: Span(rng.choice("mn"), s, s + rng.randrange(12)) for k, s in enumerate(rng.sample(range(200), 12))}
        written = {k for k in spans if rng.random() < 0.3}
        pairs = [(a, b) for a in spans for b in spans if a < b and {a, b} & written and meets(spans[a], spans[b])]
        assert (written_twice(spans, written) is None) == (not pairs)
        area = Area([spans[k] for k in written])
        for s in spans.values():
            assert area.meets(s) == any(meets(s, spans[k]) for k in written)
