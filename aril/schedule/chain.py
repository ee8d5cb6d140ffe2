"""A product, a reduction over its rows and a product of the result become one kernel: attention's three steps.

In: drafts of kernels; out: fewer. The values between the three live in scratch memory of the worker, a tile of rows at
a time, so they never reach memory: `softmax(q k^T) v` needs no storage for the scores.
`rows` is the part in kernel form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aril.ops import Ops
from aril.schedule.fuse import numel
from aril.schedule.merge import Draft, reach, topological
from aril.uop import UOp

MOST_NESTS = 8
SHORT = 8  # times that a row is longer than what is found of it


def chain(drafts: list[Draft], kept: Iterable[UOp], lowers: Callable[[Draft], bool]) -> list[Draft]:
    """Drafts from a contraction over reductions of its rows to another contraction joined, where nobody else reads
    what they hand on and `lowers` says that the joint one can be made. `kept` are values that others see.
    """
    if sum([_is_product(d) for d in drafts]) < 2:
        return drafts
    roots = set(kept)
    links = _Links(drafts)
    for last in reversed(links.order):
        if last not in links.place or not _is_plain(last):
            continue
        parts = _computed_again(links, last) or _parts(links, last, roots)
        if not parts or _would_circle(drafts, parts):
            continue
        seen = {d for d in parts[:-1] if not _is_plain(d) or d.root in roots or not links.users[d] <= set(parts)}
        joint = _join(parts, seen)
        if not lowers(joint):
            continue
        gone = set(parts)
        drafts = [joint if d is last else d for d in drafts if d is last or d not in gone]
        for d in drafts:
            if d.deps & gone:
                d.deps = (d.deps - gone) | {joint}
        joint.deps -= {joint}
        links = _Links(drafts)
    return drafts


class _Links:
    """Drafts in order, who makes each value, and who reads what a draft makes."""

    def __init__(self, drafts: list[Draft]) -> None:
        self.order = topological(drafts)
        self.place = {d: i for i, d in enumerate(self.order)}
        self.makers = {m: d for d in drafts for m in d.members}
        self.users: dict[Draft, set[Draft]] = {}
        self.sources: dict[Draft, set[Draft]] = {}
        for d in drafts:
            self.sources[d] = {self.makers[n] for n in d.reads if self.makers.get(n, d) is not d}
            for p in self.sources[d]:
                self.users.setdefault(p, set()).add(d)


def _computed_again(links: _Links, last: Draft) -> list[Draft]:
    """What `compute_scores_again` made for `last` alone, in order, and `last`. Empty where there is nothing."""
    found = {last}
    pending = [last]
    while pending:
        for d in links.sources[pending.pop()]:
            if d.root.op is Ops.CONTIGUOUS and d.root.tag is not None and _is_plain(d) and links.users[d] <= found:
                found.add(d)
                pending.append(d)
    return sorted(found, key=links.place.__getitem__) if len(found) > 1 else []


def _parts(links: _Links, last: Draft, roots: set[UOp]) -> list[Draft]:
    """The chain that ends with `last`, in order: two contractions, a reduction between, and what else leads from one to
    the other and to `last`. Empty where there is none. What others read too is a result of the reduction, much smaller
    than what it reduces, and has storage.
    """
    found = {last}
    contractions = [last] if _is_product(last) else []
    pending = set(links.sources[last])
    while pending and len(contractions) < 2 and len(found) < MOST_NESTS:
        d = max(pending, key=links.place.__getitem__)  # the latest: all its readers have been looked at
        pending.remove(d)
        if d.device != last.device or not (
            _is_plain(d) and d.root not in roots and links.users[d] <= found or _is_short(d)
        ):
            continue
        if _is_product(d):
            if not contractions and _wide(d) != _wide(last) or contractions and contractions[0] in links.users[d]:
                return []
            contractions.append(d)
        found.add(d)
        pending |= links.sources[d]
    if len(contractions) < 2:
        return []
    after = {contractions[1]}
    for d in sorted(found, key=links.place.__getitem__):
        if not links.sources[d].isdisjoint(after):
            after.add(d)
    parts = sorted(after, key=links.place.__getitem__)
    between = parts[: parts.index(contractions[0])] if contractions[0] in after else []
    return parts if any(d.has_reduce and not _is_product(d) for d in between) else []


def _is_product(d: Draft) -> bool:
    """Whether a draft is a contraction, or a sum of products of a matrix with one vector, whose elements serve many
    results."""
    if d.has_contraction or not d.has_reduce or not _is_plain(d):
        return d.has_contraction
    sums = [u for u in d.stores[0][0][1].toposort() if u.op is Ops.REDUCE]
    if len(sums) != 1 or sums[0].arg[0] is not Ops.ADD or sums[0].src[0].op is not Ops.MUL:
        return False
    return any(s.op is Ops.EXPAND and numel(s) > numel(s.src[0]) for s in sums[0].src[0].src)


def _wide(d: Draft) -> list[int]:
    return [n for n in d.shape if n != 1]


def _is_plain(d: Draft) -> bool:
    return not d.alone and not d.assigned and len(d.stores) == 1 and len(d.stores[0]) == 1


def _is_short(d: Draft) -> bool:
    """Whether a draft is a reduction whose results are small beside what it reads."""
    if d.alone or d.assigned or len(d.stores) > 1 or not d.has_reduce or _is_product(d):
        return False
    return sum([numel(t) for t, _ in d.stores[0]]) * SHORT <= max([numel(n) for n in d.reads], default=0)


def _join(parts: list[Draft], seen: set[Draft]) -> Draft:
    """One draft; others read what those in `seen` make."""
    last = parts[-1]
    return Draft(
        last.root,
        [m for d in parts for m in d.members],
        [stores for d in parts for stores in d.stores],
        last.shape,
        last.device,
        True,
        True,
        None,
        set().union(*[d.deps for d in parts]) - set(parts),
        reads=set().union(*[d.reads for d in parts]),
        weight=sum([d.weight for d in parts]),
        scratch=tuple([d.stores[0][0][0].base for d in parts[:-1] if d not in seen]),
    )


def _would_circle(drafts: list[Draft], parts: list[Draft]) -> bool:
    """Whether another draft comes after one of the parts and before another."""
    masks = reach(drafts)
    bit = {d: 1 << i for i, d in enumerate(drafts)}
    early = sum([bit[d] for d in parts[:-1]])
    return any(masks[d] & early and any(masks[p] & bit[d] for p in parts) for d in drafts if d not in parts)
