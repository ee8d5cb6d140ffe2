"""Planning memory: what is needed at one time lies apart, what is not shares."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aril.engine.memory import ALIGN, Block, first_fit

STEPS = 12
spans = st.tuples(st.integers(0, STEPS), st.integers(0, STEPS)).map(sorted)
blocks = st.lists(st.builds(lambda n, span: Block(n, *span), st.integers(0, 5000), spans), max_size=12)


def rounded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // ALIGN) * ALIGN


def peak(found: list[Block]) -> int:
    return max(sum(rounded(b.nbytes) for b in found if b.first <= t <= b.last) for t in range(STEPS + 1))


@given(blocks)
def test_blocks_of_one_time_lie_apart_and_inside(found):
    offsets, size = first_fit(found)
    owner: dict[tuple[int, int], int] = {}  # (step, piece of memory) -> block
    for k, (b, at) in enumerate(zip(found, offsets, strict=True)):
        assert at % ALIGN == 0 and at >= 0 and at + rounded(b.nbytes) <= size
        for t in range(b.first, b.last + 1):
            for piece in range(at // ALIGN, (at + rounded(b.nbytes)) // ALIGN):
                assert owner.setdefault((t, piece), k) == k
    assert peak(found) <= size <= sum(rounded(b.nbytes) for b in found)


@given(st.lists(spans, min_size=1, max_size=16))
def test_blocks_of_one_size_take_no_more_than_the_most_at_one_time(found):
    """Colouring intervals in the order of their starts is optimal."""
    same = [Block(1000, *span) for span in found]
    assert first_fit(same)[1] == peak(same)


def test_a_chain_takes_two_blocks():
    chain = [Block(4 * ALIGN, k, k + 1) for k in range(50)]
    assert first_fit(chain)[1] == 2 * 4 * ALIGN
    assert first_fit([]) == ([], 0)
