"""The data loader: what an epoch holds, that its order is decided by the seed, and that it resumes in the middle."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from aril.nn.collate import collate
from aril.nn.loader import DataLoader

X, Y = np.arange(20).reshape(10, 2), np.arange(10)


def labels(loader, epochs=1):
    return [y.tolist() for _ in range(epochs) for _, y in loader]


def test_an_epoch_has_every_sample_once_with_its_label():
    loader = DataLoader(X, Y, batch_size=5)
    seen = []
    for x, y in loader:
        np.testing.assert_array_equal(x[:, 0], y * 2)
        seen += y.tolist()
    assert sorted(seen) == list(range(10)) and len(loader) == 2


def test_the_seed_decides_the_order_and_epochs_differ():
    one, two = DataLoader(X, Y, batch_size=5, seed=3), DataLoader(X, Y, batch_size=5, seed=3, prefetch=0)
    first = labels(one, 2)
    assert first == labels(two, 2) and first[:2] != first[2:]
    assert labels(DataLoader(X, Y, batch_size=5, seed=4), 2) != first


def test_without_shuffle_and_with_the_incomplete_end():
    assert labels(DataLoader(X, Y, batch_size=4, shuffle=False, drop_last=False)) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    assert labels(DataLoader(X, Y, batch_size=4, shuffle=False)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("prefetch", [0, 3])
def test_it_resumes_with_the_batches_that_would_have_come(prefetch):
    loader = DataLoader(X, Y, batch_size=2, prefetch=prefetch)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = loader.state()
    rest = [y.tolist() for _, y in batches] + labels(loader)
    again = DataLoader(X, Y, batch_size=2, prefetch=prefetch)
    again.load_state(state)
    assert labels(again, 2) == rest


def test_an_error_in_the_transform_reaches_the_loop():
    def fail(x, y):
        raise RuntimeError("bad sample")

    with pytest.raises(RuntimeError, match="bad sample"):
        list(DataLoader(X, Y, batch_size=2, transform=fail))


def test_leaving_the_loop_ends_the_thread():
    before = threading.active_count()
    batches = iter(DataLoader(X, Y, batch_size=1))
    next(batches)
    batches.close()
    assert threading.active_count() == before


def test_what_gives_no_batch_is_refused():
    with pytest.raises(ValueError, match=r"\[10, 3\] samples"):
        DataLoader(X, Y[:3], batch_size=2)
    with pytest.raises(ValueError, match="batch_size=11"):
        DataLoader(X, Y, batch_size=11)


def test_a_dict_of_arrays_gives_dicts_and_lists_of_samples_are_collated():
    (batch,) = DataLoader({"x": X, "more": {"y": Y}}, batch_size=10, shuffle=False)
    assert list(batch) == ["x", "more"] and batch["more"]["y"].tolist() == list(range(10))
    (batch,) = DataLoader([(1, "a", {"p": 0.5, "q": b""}), (2, "b", {"q": b"", "p": 1})], batch_size=2, shuffle=False)
    assert type(batch) is tuple and batch[0].tolist() == [1, 2] and batch[1] == ["a", "b"]
    assert batch[2]["p"].tolist() == [0.5, 1] and batch[2]["p"].dtype == np.float32


@pytest.mark.parametrize(
    ("samples", "error", "said"),
    [
        ([np.zeros(2), np.zeros(3)], ValueError, r"shape \(2,\).*float64 in sample 0 and .*\(3,\).* in sample 1"),
        ([{"a": 1}, {"b": 1}], ValueError, r"dict of \['a'\] in sample 0 and dict of \['b'\] in sample 1"),
        ([(1, ("x",)), (1, (2,))], ValueError, r"sample\[1\]\[0\] is str in sample 0 and int in sample 1"),
        ([{"a": object()}], TypeError, r"sample\['a'\] is object: .*collate="),
        ([], ValueError, "no samples"),
    ],
)
def test_samples_that_make_no_batch_are_refused(samples, error, said):
    with pytest.raises(error, match=said):
        collate(samples)


def test_what_no_loader_takes_is_refused():
    with pytest.raises(TypeError, match="takes arrays, or one data set, not ndarray, list"):
        DataLoader(X, [1, 2], batch_size=1)
    with pytest.raises(TypeError, match="starts anew each epoch"):
        DataLoader(iter([1, 2]), batch_size=1)
    with pytest.raises(TypeError, match="holds a list|holds a int"):
        DataLoader({"x": [1, 2]}, batch_size=1)
    with pytest.raises(ValueError, match="state is of batches of 3 samples"):
        DataLoader(X, batch_size=2).load_state(DataLoader(X, batch_size=3).state())
