"""In-place changes and values computed before them: what was computed from old contents is never taken for the new."""

from __future__ import annotations

import numpy as np

from aril import Tensor, jit


def test_the_same_expression_after_an_assignment_is_computed_again():
    x = Tensor([1.0, 2.0])
    before = (x * 2).realize()
    x.assign(x + 1).realize()
    after = x * 2
    np.testing.assert_array_equal(before.numpy(), [2.0, 4.0])
    np.testing.assert_array_equal(after.numpy(), [4.0, 6.0])


def test_the_same_assignment_again_is_done_again():
    x = Tensor([1.0])
    kept = []
    for _ in range(4):
        x.assign(x * 2)
        kept.append(x + 0)  # its graph keeps the assignment's node alive
        x.realize()
    assert x.item() == 16.0
    assert [k.item() for k in kept] == [2.0, 4.0, 8.0, 16.0]


def test_views_and_pending_readers_see_the_values_of_their_time():
    x = Tensor([1.0, 2.0])
    view, product = x[1:], x * 5
    x.assign(x + 1).realize()
    np.testing.assert_array_equal(product.numpy(), [5.0, 10.0])
    np.testing.assert_array_equal(view.numpy(), [3.0])
    x.assign(x * 2)
    x.assign(x + 1)
    pending = x * 3
    x.assign(x * x)
    np.testing.assert_array_equal(pending.numpy(), [15.0, 21.0])
    np.testing.assert_array_equal(x.numpy(), [25.0, 49.0])
    np.testing.assert_array_equal(view.numpy(), [49.0])


def test_a_replay_renews_what_was_computed_from_the_state_it_writes():
    w, probe = Tensor([1.0, 2.0]).realize(), Tensor([10.0, 10.0]).realize()

    @jit
    def step(amount):
        w.assign(w + amount)
        return w

    one, kept = Tensor([1.0, 1.0]).realize(), []
    for n in range(1, 6):
        out = step(one)
        kept.append((w * probe).realize())
        np.testing.assert_array_equal(kept[-1].numpy(), [10.0 * (1 + n), 10.0 * (2 + n)])
        np.testing.assert_array_equal((out * probe).numpy(), kept[-1].numpy())


def test_a_replay_that_writes_its_input_renews_it_too():
    z = Tensor([3.0]).realize()

    @jit
    def double(t):
        t.assign(t * 2)
        return t

    kept = []
    for n in range(1, 6):
        double(z)
        kept.append((z * 10).realize())
        assert kept[-1].item() == 30.0 * 2**n


def test_only_memory_has_views():
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    y = x * 2
    apart, alike = y.T, (x * 2).T  # one node: neither is what `y` is assigned to
    y[0] = 7.0
    for t in (apart, alike):
        np.testing.assert_array_equal(t.numpy(), [[2.0, 6.0], [4.0, 8.0]])
    z = (x * 2).realize()
    view = z.T
    z[0] = 7.0
    np.testing.assert_array_equal(view.numpy(), [[7.0, 6.0], [7.0, 8.0]])
    view[0] = 9.0
    np.testing.assert_array_equal(z.numpy(), [[9.0, 7.0], [9.0, 8.0]])
