"""The rewriting engine: applies rules over a whole graph, sources first or uses first, until nothing changes or once.

In: a root, `Rules`, a context they may use. Out: the rewritten root. Iterative, each node once; cycles are reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from aril.config import REWRITE_STACK_LIMIT, TRACK_REWRITES
from aril.uop import tracking
from aril.uop.node import UOp
from aril.uop.pattern import MatchFunction, Rules

# called as hook(pass name, root before, root after) after every rewrite, by what traces or draws them
_hooks: list[Callable[[str, UOp, UOp], None]] = []


class RewriteError(RuntimeError):
    """Rules that never end; says which rules and nodes repeat. `node` is the one that was rewritten last."""

    def __init__(self, node: UOp, text: str) -> None:
        super().__init__(text)
        self.node = node


def add_hook(hook: Callable[[str, UOp, UOp], None]) -> Callable[[], None]:
    """Call `hook(pass name, before, after)` after every rewrite. Returns the function that takes it away again."""
    _hooks.append(hook)
    return lambda: _hooks.remove(hook)


def rewrite(
    root: UOp,
    rules: Rules,
    ctx: Any = None,
    *,
    top_down: bool = False,
    once: bool = False,
    done: dict[UOp, UOp] | None = None,
    name: str = "",
) -> UOp:
    """`root` with `rules` applied to every node.

    Bottom-up (default): a node is matched once its sources are final; a replacement is rewritten in turn. `once`: the
    same, but a replacement is final, for rules whose result they would match again; `done` then holds what nodes have
    become, for rules that ask, and those in it from the start are not searched. `top_down`: a node is matched as it
    stands until nothing fires, then its sources are visited; the node over them is final.
    Errors: RewriteError where rules undo each other.
    """
    match = rules.match_tracked if TRACK_REWRITES.value else rules.match
    label = name or rules.name
    if once:
        out = _once(root, rules, match, ctx, {} if done is None else done)
    else:
        out = (_top_down if top_down else _bottom_up)(root, rules, match, ctx, label)
    if TRACK_REWRITES.value >= 2:
        tracking.keep(label, root, out)
    for hook in tuple(_hooks):
        hook(label, root, out)
    return out


def _once(root: UOp, rules: Rules, match: MatchFunction, ctx: Any, done: dict[UOp, UOp]) -> UOp:
    order, ops = root.toposort((lambda n: n not in done) if done else None), rules.ops
    if not done and ops is not None and ops.isdisjoint([u.op for u in order]):
        return root
    for u in order:
        if u in done:
            continue
        v = u.with_src(tuple([done[s] for s in u.src])) if u.src else u
        r = match(v, ctx, u) if ops is None or v.op in ops else None
        done[u] = v if r is None else r
    return done[root]


def _bottom_up(root: UOp, rules: Rules, match: MatchFunction, ctx: Any, name: str) -> UOp:
    done: dict[UOp, UOp] = {}
    becomes: dict[UOp, UOp] = {}  # nodes replaced by a node that is not final yet, in the order of replacement
    limit = REWRITE_STACK_LIMIT.value
    order, ops = root.toposort(), rules.ops
    if ops is not None and ops.isdisjoint([u.op for u in order]):
        return root
    stack = [*reversed(order)]
    while stack:
        u = stack[-1]
        if u in done:
            stack.pop()
            continue
        if u in becomes:
            final = done.get(becomes[u])
            if final is None:
                raise _cycle(u, becomes, rules, ctx, name)
            done[u] = final
            del becomes[u]
            stack.pop()
            continue
        try:
            src = tuple([done[s] for s in u.src])
        except KeyError:  # of a replacement
            stack.extend([s for s in reversed(u.src) if s not in done])
            continue
        v = u.with_src(src) if src else u
        if v in done:
            done[u] = done[v]
            stack.pop()
            continue
        if v in becomes:
            raise _cycle(v, becomes, rules, ctx, name)
        r = match(v, ctx, u) if ops is None or v.op in ops else None
        if r is None or r is v:
            done[u] = done[v] = v
            stack.pop()
        elif r in done:
            done[u] = done[v] = done[r]
            stack.pop()
        else:
            if r is u or r in becomes or len(becomes) > limit:
                becomes[v] = r
                raise _cycle(v, becomes, rules, ctx, name)
            becomes[u] = r
            if v is not u:
                becomes[v] = r
                stack.append(v)
            stack.append(r)
    return done[root]


def _top_down(root: UOp, rules: Rules, match: MatchFunction, ctx: Any, name: str) -> UOp:
    done: dict[UOp, UOp] = {}
    settled: dict[UOp, UOp] = {}  # what a node has become itself; its sources are being visited
    ops = rules.ops
    stack = [root]
    while stack:
        u = stack[-1]
        if u in done:
            stack.pop()
            continue
        v = settled.pop(u, None)
        first = v is None
        if v is None:
            v = _settle(u, rules, match, ctx, name) if ops is None or u.op in ops else u
        if v is not u and v in done:
            done[u] = done[v]
            stack.pop()
            continue
        todo = [s for s in v.src if s not in done]
        if todo:
            settled[u] = v
            if not first:  # it waits for a source that waits for it
                raise _cycle(u, settled, rules, ctx, name)
            stack.extend(reversed(todo))
            continue
        done[u] = v.with_src(tuple([done[s] for s in v.src])) if v.src else v
        stack.pop()
    return done[root]


def _settle(u: UOp, rules: Rules, match: MatchFunction, ctx: Any, name: str) -> UOp:
    """What `u` becomes by rules alone, its sources untouched."""
    chain: dict[UOp, UOp] = {}
    limit = REWRITE_STACK_LIMIT.value
    while (r := match(u, ctx, u)) is not None and r is not u:
        chain[u] = r
        if r in chain or len(chain) > limit:
            raise _cycle(u, chain, rules, ctx, name)
        u = r
    return u


def _cycle(u: UOp, becomes: dict[UOp, UOp], rules: Rules, ctx: Any, name: str) -> RewriteError:
    """The error for rules that do not end: the last replacements, with the rule that made each."""
    chain = list(itertools.islice(reversed(becomes), 6))
    lines = []
    for n in reversed(chain):
        found = rules.find(n, ctx)
        what = "sources changed" if found is None else rules.label(found[0])
        lines.append(f"  {what}: {_brief(n)} -> {_brief(becomes[n])}")
    return RewriteError(
        u,
        f"rewrite {name!r} does not end after {len(becomes)} replacements; the last ones were\n"
        + "\n".join(lines)
        + "\n"
        "Two rules undo each other, or one grows what it matches: give one of them a condition.",
    )


def _brief(u: UOp) -> str:
    return f"{u.op.name}({', '.join(s.op.name for s in u.src)}, arg={u.arg!r}, {u.dtype.name})"[:160]
