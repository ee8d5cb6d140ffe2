"""Patterns match what they describe, and rules receive what they name."""

import pytest

from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop import UOp, tracking
from aril.uop.pattern import C, Pat, Rules, V

x, y = UOp.variable("x", 0, 9), UOp.variable("y", 0, 9)
two = UOp.lift(2)


def add(a, b):
    return UOp(Ops.ADD, (a, b))


def mul(a, b):
    return UOp(Ops.MUL, (a, b))


def test_the_first_rule_that_returns_a_node_wins():
    rules = Rules(
        [(V("a") + V("b"), lambda a, b: None), (V("a") + V("b"), lambda a, b: a), (V("a") + V("b"), lambda b: b)]
    )
    assert rules.match(add(x, y)) is x
    assert rules.match(mul(x, y)) is None


def test_a_commutative_operation_matches_in_both_orders():
    rules = Rules([(V("a") + C("c"), lambda a, c: mul(a, c))])
    assert rules.match(add(x, two)) is mul(x, two)
    assert rules.match(add(two, x)) is mul(x, two)


def test_a_tuple_of_sources_keeps_the_order_and_a_list_does_not():
    ordered = Rules([(Pat(Ops.ADD, (V("a"), C("c"))), lambda a: a)])
    free = Rules([(Pat(Ops.ADD, [V("a"), C("c")]), lambda a: a)])
    assert ordered.match(add(two, x)) is None
    assert free.match(add(two, x)) is x


def test_the_same_name_is_the_same_node():
    rules = Rules([(V("a") + V("a"), lambda a: mul(a, two))])
    assert rules.match(add(x, x)) is mul(x, two)
    assert rules.match(add(x, y)) is None


def test_a_name_met_again_in_another_branch():
    rules = Rules([((V("a") // C("c")) * C("c") + V("a") % C("c"), lambda a: a)])
    whole = add(mul(UOp(Ops.FLOORDIV, (x, two)), two), UOp(Ops.FLOORMOD, (x, two)))
    assert rules.match(whole) is x
    assert rules.match(add(whole.src[1], whole.src[0])) is x
    other = add(mul(UOp(Ops.FLOORDIV, (x, two)), two), UOp(Ops.FLOORMOD, (y, two)))
    assert rules.match(other) is None


def test_arguments_types_and_operations_restrict():
    rules = Rules([(Pat({Ops.ADD, Ops.MUL}, (V("a"), C(value=2)), dtype=dtypes.weakint), lambda a: a)])
    assert rules.match(add(x, two)) is x
    assert rules.match(mul(x, two)) is x
    assert rules.match(mul(x, UOp.lift(3))) is None
    f = UOp.param(0, dtypes.float32)
    assert rules.match(mul(f, UOp.lift(2.0))) is None


def test_any_number_of_sources():
    sink = UOp.sink(x, y, two)
    assert Rules([(Pat(Ops.SINK, (V("a"),), any_src=True), lambda a: a)]).match(sink) is x
    assert Rules([(Pat(Ops.SINK, (V("a"),)), lambda a: a)]).match(sink) is None
    assert Rules([(Pat(Ops.SINK, name="s"), lambda s: s.src[1])]).match(sink) is y


def test_one_pattern_for_every_source():
    rules = Rules([(Pat(Ops.ADD, Pat(Ops.CONST)), lambda: two)])
    assert rules.match(add(two, two)) is two
    assert rules.match(add(two, x)) is None


def test_a_pattern_of_any_operation():
    rules = Rules([(Pat(name="u"), lambda ctx, u: ctx.get(u))])
    assert rules.match(x, {x: y}) is y
    assert rules.match(y, {x: y}) is None


def test_the_context_is_passed_where_it_is_asked_for():
    seen = []
    rules = Rules([(V("a") + V("b"), lambda ctx, a: ctx.append(a))])
    assert rules.match(add(x, y), seen) is None
    assert seen == [x, y]  # both orders were offered


def test_a_function_with_an_unknown_name_is_refused_at_once():
    with pytest.raises(TypeError, match="'z' is not a name of its pattern"):
        Rules([(V("a") + V("b"), lambda z: z)])


def test_tables_add_up_in_order():
    first = Rules([(V("a") + V("b"), lambda a: a)], name="first")
    second = Rules([(V("a") + V("b"), lambda b: b), (V("a") * V("b"), lambda b: b)], name="second")
    assert (first + second).match(add(x, y)) is x
    assert (second + first).match(add(x, y)) is y
    assert (first + second).match(mul(x, y)) is y


def test_statistics_count_tries_and_matches():
    rules = Rules([(V("a") + C("c"), lambda a: a), (V("a") * V("b"), lambda a: a)], name="stats")
    for u in (add(x, y), add(x, two), mul(x, y)):
        rules.match_tracked(u)
    first, second = (tracking.counted.pop(rules.label(i)) for i in range(2))
    assert (first.tried, first.fired) == (2, 1) and (second.tried, second.fired) == (1, 1)
