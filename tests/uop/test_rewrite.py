"""Rewriting reaches a fixpoint, in either direction, at any depth, and says so when it cannot."""

import pytest

from aril.config import Context
from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop import UOp, tracking
from aril.uop.pattern import C, Pat, Rules, V
from aril.uop.rewrite import RewriteError, add_hook, rewrite

x, y = UOp.variable("x", 0, 9), UOp.variable("y", 0, 9)


def add(a, b):
    return UOp(Ops.ADD, (a, b))


def mul(a, b):
    return UOp(Ops.MUL, (a, b))


PLUS_ZERO = Rules([(V("a") + 0, lambda a: a)], name="plus zero")


def test_replacements_are_rewritten_in_turn():
    rules = Rules([(V("a") * 2, lambda a: add(a, a)), (V("a") + V("a"), lambda a: UOp(Ops.SHL, (a, UOp.lift(1))))])
    assert rewrite(mul(x, UOp.lift(2)), rules) is UOp(Ops.SHL, (x, UOp.lift(1)))


def test_a_graph_no_rule_touches_comes_back_itself():
    u = mul(add(x, y), add(y, x))
    assert rewrite(u, PLUS_ZERO) is u
    assert rewrite(u, PLUS_ZERO, top_down=True) is u


def test_bottom_up_sees_final_sources():
    zero = UOp.lift(0)
    seen = []
    rules = PLUS_ZERO + Rules([(Pat(Ops.MUL, name="u"), lambda ctx, u: ctx.append(u))])
    rewrite(mul(add(x, zero), add(add(y, zero), zero)), rules, seen)
    assert seen == [mul(x, y)]


def test_top_down_sees_a_node_before_its_sources():
    order = []
    rules = Rules([(Pat(name="u"), lambda ctx, u: ctx.append(u.op))])
    rewrite(mul(add(x, y), x), rules, order, top_down=True)
    assert order == [Ops.MUL, Ops.ADD, Ops.PARAM, Ops.PARAM]
    order.clear()
    rewrite(mul(add(x, y), x), rules, order)
    assert order == [Ops.PARAM, Ops.PARAM, Ops.ADD, Ops.MUL]


def test_top_down_visits_the_sources_of_a_replacement():
    rules = Rules([(V("a") * V("b"), lambda a, b: add(a, b)), (V("a") + 0, lambda a: a)])
    assert rewrite(mul(mul(x, UOp.lift(0)), y), rules, top_down=True) is add(x, y)


def test_once_leaves_replacements_as_they_are():
    rules = Rules([(V("a") + V("b"), lambda a, b: add(b, add(a, b)))])
    assert rewrite(add(x, y), rules, once=True) is add(y, add(x, y))
    inner = add(y, add(x, y))
    assert rewrite(add(add(x, y), x), rules, once=True) is add(x, add(inner, x))


def test_once_gives_rules_the_node_as_it_was_and_what_others_have_become():
    zero, done = UOp.lift(0), {}
    inner, seen = add(x, zero), []
    rules = PLUS_ZERO + Rules([(Pat(Ops.MUL, name="u"), lambda ctx, u, old: ctx.append((u, old, done[inner])))])
    assert rewrite(mul(inner, y), rules, seen, once=True, done=done) is mul(x, y)
    assert seen == [(mul(x, y), mul(inner, y), x)]


def test_once_does_not_search_what_is_known():
    inner = add(x, UOp.lift(0))
    rules = PLUS_ZERO + Rules([(Pat(Ops.MUL, name="u"), lambda u: u.src[0])])
    assert rewrite(mul(inner, y), rules, once=True, done={inner: y}) is y


def test_a_graph_without_operations_of_the_rules_is_not_walked():
    assert PLUS_ZERO.ops == {Ops.ADD} and Rules([(V("a"), lambda a: None)]).ops is None
    done = {}
    assert rewrite(mul(x, y), PLUS_ZERO, once=True, done=done) is mul(x, y)
    assert not done


def test_a_shared_node_is_matched_once():
    count = []
    shared = add(x, y)
    rules = Rules([(Pat(Ops.ADD, name="u"), lambda ctx, u: ctx.append(u))])
    rewrite(mul(mul(shared, shared), add(shared, shared)), rules, count)
    assert len(count) == 2


@pytest.mark.parametrize("top_down", [False, True])
def test_rules_that_undo_each_other_are_named(top_down):
    def to_mul(a, b):
        return mul(a, b)

    def to_add(a, b):
        return add(a, b)

    rules = Rules([(V("a") + V("b"), to_mul), (V("a") * V("b"), to_add)], name="back and forth")
    with pytest.raises(RewriteError, match="does not end") as e:
        rewrite(mul(add(x, y), y), rules, top_down=top_down, name="a pass")
    assert "to_mul" in str(e.value) and "to_add" in str(e.value) and "'a pass'" in str(e.value)


@pytest.mark.parametrize("top_down", [False, True])
def test_rules_that_grow_what_they_match_are_reported(top_down):
    rules = Rules([(V("a") + C("c"), lambda a, c: add(add(a, c), UOp.lift(int(c.arg) + 1)))], name="growing")
    with pytest.raises(RewriteError, match="growing"):
        rewrite(add(x, UOp.lift(1)), rules, top_down=top_down)


@pytest.mark.parametrize("order", [{}, {"top_down": True}, {"once": True}])
def test_ten_thousand_nodes_deep(order):
    u = x
    for _ in range(10_000):
        u = add(u, UOp.lift(0))
    assert rewrite(u, PLUS_ZERO, **order) is x
    u = v = x
    for i in range(10_000):
        u, v = mul(add(u, UOp.lift(0)), UOp.lift(i)), mul(v, UOp.lift(i))
    assert rewrite(u, PLUS_ZERO, **order) is v


def test_hooks_see_every_pass():
    seen = []
    remove = add_hook(lambda name, before, after: seen.append((name, before, after)))
    try:
        rewrite(add(x, UOp.lift(0)), PLUS_ZERO, name="tidy")
    finally:
        remove()
    rewrite(add(y, UOp.lift(0)), PLUS_ZERO)
    assert seen == [("tidy", add(x, UOp.lift(0)), x)]


def test_statistics_are_kept_where_they_are_asked_for():
    rules = Rules([(V("a") + 0, lambda a: a)], name="counted")
    label = rules.label(0)
    rewrite(add(x, UOp.lift(0)), rules)
    assert label not in tracking.counted
    kept = len(tracking.graphs)
    with Context(TRACK_REWRITES=1):
        rewrite(add(x, UOp.lift(0)), rules)
    assert tracking.counted[label].fired == 1
    with Context(TRACK_REWRITES=2):
        rewrite(add(x, UOp.lift(0)), rules, name="tidy")
    assert tracking.counted[label].fired == 2 and label in tracking.report(10**6)
    assert tracking.graphs[kept:] == [("tidy", add(x, UOp.lift(0)), x)]
    del tracking.counted[label], tracking.graphs[kept:]


@pytest.mark.parametrize("top_down", [False, True])
def test_the_limit_of_replacements_is_a_setting(top_down):
    def more(a, c):
        return add(a, UOp.lift(int(c.arg) + 1)) if c.arg < 500 else None

    rules = Rules([(V("a") + C("c"), more)], name="many")
    assert rewrite(add(x, UOp.lift(1)), rules, top_down=top_down) is add(x, UOp.lift(500))
    with Context(REWRITE_STACK_LIMIT=50), pytest.raises(RewriteError, match="after 5[0-2] replacements"):
        rewrite(add(x, UOp.lift(1)), rules, top_down=top_down)


def test_chosen_types_survive_new_sources():
    u = add(x, UOp.lift(0)).cast(dtypes.float32)
    assert rewrite(u, PLUS_ZERO) is x.cast(dtypes.float32)
