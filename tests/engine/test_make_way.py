"""Who makes way when memory is written, by an assignment or by a replay: values, captures, gradients."""

import numpy as np
import pytest

from aril import Tensor, jit


def tensor(*values):
    return Tensor(np.array(values, np.float32)).realize()


def adder(w):
    """A captured function that adds its argument to `w`, called twice with ones."""

    def add(x):
        w.assign(w + x)
        return x * 1

    f = jit(add)
    for _ in range(2):
        f(tensor(1, 1))
    return f


def test_what_is_still_to_be_computed_has_the_value_before_a_replay():
    w = tensor(1, 2)
    f = adder(w)
    y, z = w + 1, w * w
    total = tensor(0, 0)
    total.assign(w * 100)  # an assignment that waits reads it, too
    f(tensor(1, 1))
    later = w + 1
    f(tensor(1, 1))
    assert y.tolist() == [4, 5] and z.tolist() == [9, 16] and total.tolist() == [300, 400]
    assert later.tolist() == [5, 6] and w.tolist() == [5, 6]


def test_what_is_computed_from_an_argument_has_the_value_before_a_replay_writes_it():
    f = jit(lambda v: v.assign(v * 2).sum())
    w = tensor(1, 2)
    for i in range(5):
        y = w + i  # at the first call, the captured one, replays
        f(w)
        assert y.tolist() == [2**i + i, 2 ** (i + 1) + i]


def test_what_is_computed_when_a_capture_begins_is_no_part_of_it():
    w = tensor(1, 2)

    @jit
    def f(x):
        w.assign(w + x)
        return x * 1

    f(tensor(1, 1))
    y = w + 1
    for _ in range(4):
        f(tensor(1, 1))
        assert y.tolist() == [3, 4]


def test_a_lazy_value_that_a_captured_function_reaches_stays():
    w = tensor(1, 2)
    y = w * 2
    f = jit(lambda x: x + y)
    for _ in range(2):
        f(tensor(0, 0))
    w.assign(tensor(5, 5)).realize()
    assert f(tensor(1, 1)).tolist() == [3, 5]


def test_memory_stays_where_a_capture_found_it():
    a = tensor(1, 2)
    w, keep = (a * 2).realize(), a * 2
    memory = w.uop.base.storage
    f = jit(lambda x: (x * w).sum())
    for _ in range(2):
        assert f(tensor(1, 1)).item() == 6
    again = a * 2
    w.assign(tensor(10, 20)).realize()
    assert w.uop.base.storage is memory and f(tensor(1, 1)).item() == 30
    assert keep.tolist() == again.tolist() == (a * 2).tolist() == [2, 4]


def test_memory_stays_where_others_share_it():
    zeros = [Tensor.zeros(3).contiguous() for _ in range(3)]
    Tensor.realize(*zeros)
    f = jit(lambda x: x + zeros[1])
    for _ in range(2):
        f(tensor(0, 0, 0))
    zeros[0].assign(zeros[0] + 1).realize()
    assert f(tensor(0, 0, 0)).tolist() == [0, 0, 0]
    zeros[1][0] = 5
    zeros[1].realize()
    assert f(tensor(0, 0, 0)).tolist() == [5, 0, 0]
    assert [z.tolist() for z in zeros] == [[1, 1, 1], [5, 0, 0], [0, 0, 0]]


def test_a_value_that_shares_memory_with_an_argument_keeps_it():
    w = tensor(1, 2)
    f = jit(lambda v: v.assign(v + 1).sum())
    for _ in range(3):
        f(w)
    twin = w.contiguous().realize()
    f(twin)
    assert w.tolist() == [4, 5] and twin.tolist() == [5, 6]
    twin = w.contiguous().realize()
    f(w)
    assert w.tolist() == [5, 6] and twin.tolist() == [4, 5]


@pytest.mark.parametrize("realized", [False, True])
@pytest.mark.parametrize("replayed", [False, True])
def test_gradients_through_what_was_overwritten_are_an_error(realized, replayed):
    w, v = tensor(1, 2), tensor(3, 4)
    f = adder(w)
    y = w * v
    if realized:
        y.realize()
    if replayed:
        f(tensor(1, 1))
    else:
        w.assign(tensor(9, 9)).realize()
    assert y.tolist() == [9, 16]
    with pytest.raises(RuntimeError, match="assigned to since"):
        y.sum().gradient(v)
    (g,) = (y * v).sum().gradient(v)  # what does not need it is there
    assert g.tolist() == [9, 16]


def test_gradients_below_a_value_that_was_kept_are_an_error():
    a, b = tensor(1, 2), tensor(3, 4)
    inner = (a * b).realize()
    outer = (inner * inner).realize()
    a.assign(tensor(100, 100)).realize()
    with pytest.raises(RuntimeError, match="assigned to since"):
        outer.sum().gradient(b)


def test_gradients_survive_when_a_value_makes_way():
    a = tensor(1, 2)
    w, keep = (a * a).realize(), a * a
    w.assign(tensor(10, 20)).realize()
    assert keep.tolist() == [1, 4] and keep.sum().gradient(a)[0].tolist() == [2, 4]


def test_a_lazy_argument_that_moves_nothing_is_written_apart():
    w = tensor(1, 2)
    f = jit(lambda v: v.assign(v + 1).sum())
    for _ in range(3):
        f(tensor(0, 0))
    for _ in range(2):
        same = w.contiguous()
        f(same)
        assert w.tolist() == [1, 2] and same.tolist() == [2, 3]


def test_a_lazy_argument_is_written_apart_where_the_first_capture_wrote_none():
    w, s = tensor(1, 2), tensor(3, 4)
    given = [s]

    def add(v):
        v.assign(v + 1)
        return v + given[0]

    f = jit(add)
    f(s)
    f(s)  # captured: the argument is what the function reaches
    f(tensor(0, 0))  # captured again
    same = w.contiguous()
    f(same)
    assert w.tolist() == [1, 2] and same.tolist() == [2, 3]


def test_a_lazy_argument_is_written_apart_from_what_the_function_reaches():
    s = tensor(1, 2)
    given = [s]

    def add(v):
        assert given
        v.assign(v + 1)

    f = jit(add)
    f(tensor(0, 0))
    f(s)  # captured: the argument is what the function reaches
    same = s.contiguous()
    f(same)
    assert s.tolist() == [2, 3] and same.tolist() == [3, 4]


def test_lazy_values_that_move_what_a_lazy_argument_holds_keep_it():
    f = jit(lambda v: v.assign(v + 1).sum())
    for _ in range(3):
        f(tensor(0, 0))
    w = tensor(1, 2)
    computed, assigned = w * 2, tensor(5, 6)
    assigned[0] = 7
    same = computed.contiguous(), assigned.contiguous()
    for x in (computed, assigned, computed, assigned):
        f(x)
    assert [t.tolist() for t in (*same, computed, assigned)] == [[2, 4], [7, 6], [4, 6], [9, 8]]


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("view", [False, True])
def test_what_a_capture_assigned_before_an_error_stays(computed, view):
    fails: list[bool] = []

    def add(v):
        v.assign(v + 1)
        if computed:
            v.realize()
        if fails:
            raise KeyError("the rest is missing")
        return v * 1

    f = jit(add)
    whole = tensor(1, 2, 5, 6)
    x = whole[1:3] if view else whole
    want = whole.numpy().copy()
    f(x)
    before = x + 1
    fails.append(True)
    with pytest.raises(KeyError):
        f(x)  # captured
    want[slice(1, 3) if view else slice(None)] += 2
    assert whole.tolist() == want.tolist() and before.tolist() == x.tolist()
    fails.clear()
    for _ in range(3):
        f(x)
    want[slice(1, 3) if view else slice(None)] += 3
    assert whole.tolist() == want.tolist()
