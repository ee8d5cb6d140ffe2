"""Assignment in place: what is written, who sees it, and who keeps the old values."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from aril import Tensor, dtypes, tensor_memory
from tests.values import both, check


@both
def test_assign(value):
    x = Tensor([1.0, 2.0, 3.0])
    assert x.assign(Tensor([4.0, 5.0, 6.0])) is x
    check(value, x, [4.0, 5.0, 6.0])
    x.assign(0)
    check(value, x, [0.0, 0, 0])
    x.assign(x + 1)
    x.assign(x * 3)
    check(value, x, [3.0, 3, 3])


def test_errors():
    with pytest.raises(ValueError, match="assign"):
        Tensor([1.0, 2.0]).assign(Tensor([1.0, 2.0, 3.0]))
    with pytest.raises(TypeError, match="assign: float32 values for a int32"):
        Tensor([1, 2]).assign(Tensor([1.0, 2.0]))


def test_storage_stays():
    x = Tensor([1.0, 2.0]).realize()
    memory = x.uop.base.storage
    x.assign(x + 1).realize()
    assert x.uop.base.storage is memory and x.tolist() == [2, 3]


def test_what_was_computed_before_keeps_the_old_values():
    x = Tensor([1.0, 2.0])
    y = x + 10
    x.assign(x * 100)
    x.realize()
    assert x.tolist() == [100, 200] and y.tolist() == [11, 12]


def test_many_versions():
    x = Tensor([1.0])
    seen = []
    for i in range(5):
        seen.append(x * 10)
        x.assign(x + i)
    x.realize()
    assert [t.item() for t in seen] == [10, 10, 20, 40, 70] and x.item() == 11


def test_views_see_the_new_values():
    x = Tensor(np.zeros((2, 3), np.float32))
    row, flat = x[0], x.reshape(6)
    x[0, 1] = 5
    assert row.tolist() == [0, 5, 0] and flat.tolist() == [0, 5, 0, 0, 0, 0]
    row.assign(Tensor([7.0, 8.0, 9.0]))
    assert x.tolist() == [[7, 8, 9], [0, 0, 0]]


def test_transposed_and_strided_views_are_written_through():
    x = Tensor(np.zeros((2, 4), np.float32))
    x.T[1:3].assign(Tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert x.tolist() == [[0, 1, 3, 0], [0, 2, 4, 0]]
    x[:, ::2] = 9
    x[:, ::-1][:, 0] = -1
    assert x.tolist() == [[9, 1, 9, -1], [9, 2, 9, -1]]


def test_bitcast_views_are_written_through():
    a = np.arange(8, dtype=np.float32).reshape(2, 4)
    x = Tensor(a).clone()  # not realized yet
    a = a.copy()
    x.bitcast("int32")[:, 1:3].assign(Tensor.full((2, 2), 0x40A00000, dtype="int32"))
    a.view(np.int32)[:, 1:3] = 0x40A00000
    x.T.bitcast("uint32")[0] = 0
    a.T.view(np.uint32)[0] = 0
    x.bitcast("uint8")[1, 6:15:4] = 65
    a.view(np.uint8)[1, 6:15:4] = 65
    x.bitcast("float64").flip(1)[0].assign(x.bitcast("float64")[1] * 2)
    a.view(np.float64)[0, ::-1] = a.view(np.float64)[1] * 2
    np.testing.assert_array_equal(x.numpy(), a)


def test_equal_computations_do_not_share_changes():
    x = Tensor([1.0, 2.0])
    a, b = (x + 1).realize(), (x + 1).realize()
    a[0] = 50
    a.realize()
    assert a.tolist() == [50, 3] and b.tolist() == [2, 3]
    c, d = Tensor.zeros(2).contiguous(), Tensor.zeros(2).contiguous()
    Tensor.realize(c, d)
    c.assign(c + 1).realize()
    assert c.tolist() == [1, 1] and d.tolist() == [0, 0]


def test_a_clone_is_apart():
    x = Tensor([1.0, 2.0])
    y = x.clone()
    x[0] = 9
    assert y.tolist() == [1, 2] and x.tolist() == [9, 2]


def test_unrealized_values_can_be_assigned_to():
    x = Tensor.zeros(3)
    x[1] = 2
    x += 1
    x[0] = Tensor([5.0])
    assert x.tolist() == [5, 3, 1]
    y = Tensor.arange(4) * 2
    y[1:3] = 0
    assert y.tolist() == [0, 0, 0, 6]


def test_overlapping_reads_and_writes():
    x = Tensor([1.0, 2.0, 3.0, 4.0])
    x.assign(x.flip(0))
    assert x.tolist() == [4, 3, 2, 1]
    x[1:] = x[:-1]
    assert x.tolist() == [4, 4, 3, 2]
    x.assign(x + x.sum())
    assert x.tolist() == [17, 17, 16, 15]


def test_swap():
    a, b = Tensor([1.0]), Tensor([2.0])
    old = a + 0
    a.assign(b)
    b.assign(old)
    Tensor.realize(a, b)
    assert (a.item(), b.item()) == (2, 1)


def test_gradients_through_written_values():
    w = Tensor([1.0, 2.0, 3.0])
    x = Tensor.zeros(3)
    x[1:] = w[:2] * 2
    (g,) = (x * Tensor([1.0, 10.0, 100.0])).sum().gradient(w)
    assert g.tolist() == [20, 200, 0]


def test_empty_and_types():
    x = Tensor.empty(2, 2, dtype=dtypes.int16)
    x.assign(Tensor([[1, 2], [3, 4]], dtype="int16"))
    assert x.tolist() == [[1, 2], [3, 4]]


def test_writing_through_a_view_of_a_computed_value():
    x = Tensor([1.0, 2.0, 3.0])
    y, same = (x * 2).realize(), x * 2  # `same` reads what y holds
    part, column = y[1:], y.reshape(3, 1)
    part[0] = 50.0
    assert y.tolist() == [2, 50, 6] and column.tolist() == [[2], [50], [6]] and same.tolist() == [2, 4, 6]
    y.assign(Tensor([7.0, 8.0, 9.0]))
    assert part.tolist() == [8, 9] and column.tolist() == [[7], [8], [9]] and same.tolist() == [2, 4, 6]


def test_what_was_assigned_has_no_history_of_before():
    w = Tensor([1.0, 2.0]).is_param_()
    y = (w * 2).realize()
    y.assign(Tensor([5.0, 6.0]) + 0).realize()
    (y * w).sum().backward()
    assert w.grad.tolist() == [5, 6]


@pytest.mark.parametrize("realized", [False, True])
def test_backward_through_an_assigned_parameter_is_an_error(realized):
    w, other = Tensor([1.0, 2.0]).is_param_(), Tensor([1.0, 2.0]).is_param_()
    loss = (w * w * other).sum()
    w.assign(w - 1)
    if realized:
        w.realize()
    with pytest.raises(RuntimeError, match=r"parameter|backward\(\) before"):
        loss.backward()
    (w * w * other).sum().backward()
    assert w.grad.tolist() == [0, 4]


def test_an_assignment_looks_at_those_who_see_its_memory(monkeypatch):
    """Among a thousand other tensors it takes as many looks as among none."""
    others = [Tensor([1.0, 2.0]) for _ in range(1000)]
    x = Tensor([1.0, 2.0, 3.0, 4.0])
    view = x[1:3]
    x.assign(x * 2)  # files those that are new
    looks = []
    plain = tensor_memory.storage_base
    monkeypatch.setattr(tensor_memory, "storage_base", lambda u: looks.append(u) or plain(u))
    x.assign(x + 1)
    monkeypatch.undo()
    assert len(looks) < 20
    assert view.tolist() == [5.0, 7.0] and len(others) == 1000


def test_a_tensor_that_has_got_another_node_follows_its_new_memory():
    x, y = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0]).realize()
    z = x.reshape(2, 1)
    x.assign(x * 2).realize()
    z.replace(y.reshape(2, 1))
    y.assign(y * 10)
    x.assign(x + 1)
    assert z.tolist() == [[30.0], [40.0]] and x.tolist() == [3.0, 5.0]


def test_nodes_of_tensors_are_set_in_one_place():
    """`set_node` files the tensor: one whose `uop` is set elsewhere would not follow an assignment."""
    root = Path(tensor_memory.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        for n in ast.walk(ast.parse(path.read_text())):
            if isinstance(n, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                targets = n.targets if isinstance(n, ast.Assign) else [n.target]
                flat = [t for target in targets for t in ast.walk(target)]
                if any(isinstance(t, ast.Attribute) and t.attr == "uop" and isinstance(t.ctx, ast.Store) for t in flat):
                    found.append(f"{path.name}:{n.lineno}")
    assert [f.split(":")[0] for f in found] == ["tensor.py", "tensor_alive.py", "tensor_memory.py"], found
