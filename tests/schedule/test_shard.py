"""What sharded graphs become: how many kernels and copies run, and where. For values see tests/tensor/test_shard.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from aril import Tensor
from aril.config import Context
from aril.engine import realize as engine
from aril.engine.run import Executable
from aril.ops import Ops
from aril.schedule import Item, collective
from aril.schedule.shard import Layout, layout_of

TWO = ("CPU", "CPU:1")
FOUR = ("CPU", "CPU:1", "CPU:2", "CPU:3")


@contextmanager
def steps_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Item]]:
    seen: list[Item] = []
    run = engine.run

    def noting(exe: Executable, *rest: object) -> object:
        seen.extend(exe.schedule.items)
        return run(exe, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(engine, "run", noting)
        yield seen


def counts(monkeypatch: pytest.MonkeyPatch, *tensors: Tensor) -> tuple[int, int]:
    """(kernels, copies) of realizing `tensors`. Each kernel has all it reads and writes on its own device."""
    with steps_run(monkeypatch) as seen:
        tensors[0].realize(*tensors[1:])
    return sum(i.kernel is not None for i in seen), sum(i.kernel is None for i in seen)


def matrix(axis: int | None, devices: tuple[str, ...] = FOUR) -> Tensor:
    return Tensor(np.arange(64 * 8, dtype=np.float32).reshape(64, 8)).shard(devices, axis).realize()


def square(axis: int | None) -> Tensor:
    return Tensor(np.arange(64, dtype=np.float32).reshape(8, 8)).shard(FOUR, axis).realize()


STAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "elementwise": lambda x: (x * 2 + 1).exp(),
    "reduction over another axis": lambda x: (x * 2).sum(1),
    "softmax over another axis": lambda x: (x * 2).max(1),
    "split of the axis": lambda x: x.reshape(16, 4, 8) * 2,
    "merge of other axes": lambda x: x.reshape(64, 2, 4).reshape(64, 8) * 2,
    "permute": lambda x: x.T * 2,
    "padding of another axis": lambda x: x.pad(((0, 0), (1, 1))) * 2,
    "padding of the axis": lambda x: x.pad(((1, 1), (0, 0))) * 2,
    "flip of another axis": lambda x: x.flip(1) * 2,
    "matrix product by whole copies": lambda x: x @ square(None),
}


@pytest.mark.parametrize("name", STAYS)
def test_stays_on_its_devices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = STAYS[name](matrix(0))
    assert counts(monkeypatch, x) == (4, 0)
    assert x.device == FOUR and layout_of(x.uop) is not None


def test_views_of_shards_need_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counts(monkeypatch, matrix(0).T.reshape(8, 16, 4)) == (0, 0)


def test_a_kernel_touches_one_device_only(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = matrix(0), matrix(1)
    with steps_run(monkeypatch) as seen, Context(ALLREDUCE="ring"):
        ((x + y).sum() * x).realize()
    assert {i.device for i in seen if i.kernel is not None} == set(FOUR)


@pytest.mark.parametrize(
    ("way", "copies"),
    [("naive", 4 * 3), ("all2all", 2 * 4 * 3), ("ring", 2 * 4 * 3)],
)
def test_copies_of_an_allreduce(way: str, copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(ALLREDUCE=way):
        assert counts(monkeypatch, (matrix(0) * 2).sum(0))[1] == copies


@pytest.mark.parametrize(("way", "share"), [("naive", 4 * 3 * 8), ("all2all", 2 * 3 * 8), ("ring", 2 * 3 * 8)])
def test_bytes_of_an_allreduce(way: str, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = matrix(0)
    with steps_run(monkeypatch) as seen, Context(ALLREDUCE=way):
        (x * 2).sum(0).realize()
    exe_temps = _copied_elements(seen, (x * 2).sum(0), way)
    assert exe_temps == share


def _copied_elements(seen: list[Item], again: Tensor, way: str) -> int:
    from aril.schedule import normalize, schedule

    with Context(ALLREDUCE=way):
        normal = normalize([again.uop])
        plan = schedule(normal.graph, len(normal.buffers))
    assert [i.kernel is None for i in plan.items] == [i.kernel is None for i in seen]
    return sum(plan.temps[i.args[0] - plan.params].size for i in plan.items if i.kernel is None)


def test_the_way_is_chosen_by_size() -> None:
    assert collective.choose(100, 4) == "naive"
    assert collective.choose(1 << 30, 2) == "naive"  # the whole to the one other device: nothing is gained by chunks
    assert collective.choose(1 << 20, 4) == "all2all"
    assert collective.choose(1 << 26, 4) == "ring"
    assert collective.choose(None, 4) == "naive"


@pytest.mark.parametrize("way", ["naive", "all2all", "ring"])
def test_traffic_is_cast_where_asked(way: str) -> None:
    a = np.random.default_rng(0).normal(size=(4, 100)).astype(np.float32)
    with Context(ALLREDUCE=way, ALLREDUCE_CAST="bfloat16"):
        x = (Tensor(a).shard(FOUR, 0).realize() * 1).sum(0).realize()
    found = x.numpy()
    assert 0 < np.abs(found - a.sum(0, dtype=np.float64)).max() < 0.08
    assert (
        len({p.base.storage.as_memoryview().tobytes() for p in x.uop.base.src[0].src}) == 1
    )  # the same on every device


def test_gathering_copies_what_the_device_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = matrix(0)
    assert counts(monkeypatch, x.to("CPU:2")) == (1, 3)
    assert counts(monkeypatch, matrix(None).to("CPU:2")) == (0, 0)
    assert counts(monkeypatch, x[20:30].to("CPU:1"))[1] == 0  # rows 20 to 29 lie there


def test_a_sum_wanted_on_one_device_goes_there_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counts(monkeypatch, (matrix(0) * 2).sum(0).to("CPU:1"))[1] == 3


def test_a_sum_wanted_in_parts_is_scattered(monkeypatch: pytest.MonkeyPatch) -> None:
    x = (matrix(0) * 2).sum(0).shard_like(square(0)[0].shard(FOUR, 0))
    with steps_run(monkeypatch) as seen:
        x.realize()
    assert sum(i.kernel is None for i in seen) == 4 * 3  # each a quarter of the sum
    assert (x.numpy() == matrix(0).numpy().sum(0) * 2).all()
    assert layout_of(x.uop) == Layout(FOUR, 0, (2, 2, 2, 2))


def test_several_views_of_a_sum_cost_one_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    total = (matrix(0) * 2).sum(0)
    out = total.reshape(2, 4) + 1, total.flip(0) * 3, total.reshape(4, 2).T.exp2()
    assert counts(monkeypatch, *out)[1] == 4 * 3


def test_rows_of_one_device_are_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counts(monkeypatch, matrix(0)[16:32] * 2) == (1, 0)


# --- borders ---


def image(axis: int, devices: tuple[str, ...] = TWO) -> Tensor:
    return Tensor(np.ones((2, 3, 8, 10), np.float32)).shard(devices, axis).realize()


def sent(monkeypatch: pytest.MonkeyPatch, *tensors: Tensor) -> list[int]:
    """The elements of each copy that realizing `tensors` makes."""
    found: list[int] = []
    run = engine.run

    def noting(exe: Executable, *rest: object) -> object:
        plan = exe.schedule
        found.extend([plan.temps[i.args[0] - plan.params].size for i in plan.items if i.kernel is None])
        return run(exe, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(engine, "run", noting)
        tensors[0].realize(*tensors[1:])
    return sorted(found)


ROW = 2 * 3 * 10  # elements of a row of all images and channels

BORDERS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], list[int]]] = {
    "3x3 convolution": (lambda x, w: x.conv2d(w), [ROW, ROW]),
    "the same, padded": (lambda x, w: x.conv2d(w, padding=1), [ROW, ROW]),
    "with gaps": (lambda x, w: x.conv2d(w, dilation=2), [2 * ROW, 2 * ROW]),
    "every second": (lambda x, w: x.conv2d(w, padding=1, stride=2), [ROW, ROW]),
    "of what is computed": (lambda x, w: (x.exp() + 1).conv2d(w, padding=1), [ROW, ROW]),
    "windows that end where the parts do": (lambda x, w: x.max_pool2d(2), []),
    "windows beyond the parts": (lambda x, w: x.max_pool2d(3, 2), [2 * ROW]),
    "a running sum": (lambda x, w: x.cumsum(2), [4 * ROW]),
    "a reshape that moves the cut": (lambda x, w: x.permute(2, 0, 1, 3).reshape(5, 96) * 2, [48]),
}


@pytest.mark.parametrize("name", BORDERS)
def test_devices_send_borders_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compute, elements = BORDERS[name]
    w = Tensor.ones(4, 3, 3, 3).shard(TWO).realize()
    out = compute(image(2), w)
    assert sent(monkeypatch, out) == elements
    assert layout_of(out.uop).axis in (0, 2)  # type: ignore[union-attr]


def test_the_gradient_of_a_convolution_sends_borders_and_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = image(2), Tensor.ones(4, 3, 3, 3).shard(TWO).realize()
    y = x.conv2d(w, padding=1)
    gradients = (y * y).sum().gradient(x, w)
    # a row of x, then one of the gradient of y (4 channels), each way; and the partial sums of the weights' gradient
    assert sent(monkeypatch, *gradients) == [ROW, ROW, 2 * 4 * 10, 2 * 4 * 10, w.numel(), w.numel()]


def test_merging_a_split_axis_into_one_before_it_sends_each_element_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(np.arange(96, dtype=np.float32).reshape(4, 6, 4)).shard(TWO, 2).realize()
    out = x.reshape(4, 24) * 1
    assert sent(monkeypatch, out) == [24, 24]  # half of each part
    assert (out.numpy() == np.arange(96).reshape(4, 24)).all()


def test_parts_are_cut_as_evenly_as_they_go() -> None:
    x = Tensor.ones(10, 3).shard(FOUR, 0)
    assert layout_of(x.uop) == Layout(FOUR, 0, (3, 3, 2, 2))
    assert layout_of(Tensor.ones(2, 3).shard(FOUR, 0).uop) == Layout(FOUR, 0, (1, 1, 0, 0))


def test_storage_is_one_buffer_a_device() -> None:
    x = matrix(1, TWO)
    assert x.uop.op is Ops.UNSHARD
    assert [(p.base.arg.device, p.base.arg.size) for p in x.uop.src[0].src] == [("CPU", 256), ("CPU:1", 256)]


def test_the_larger_operand_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    # fully sharded weights meet a sharded batch: the weights are gathered, the result lies as the batch does
    x = matrix(0) @ square(0)
    assert layout_of(x.uop) == Layout(FOUR, 0, (16, 16, 16, 16))
    assert counts(monkeypatch, x)[1] == 4 * 3


def test_a_schedule_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from aril import schedule as room

    (matrix(0) + 3).realize()
    built: list[int] = []
    build = room.kernels.build
    monkeypatch.setattr(room.kernels, "build", lambda *a: built.append(1) or build(*a))
    (matrix(0) + 3).realize()
    assert not built
