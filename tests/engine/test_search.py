"""The search for optimisation steps: right results, memory on disk, resuming, what is refused or left alone."""

from __future__ import annotations

import json

import numpy as np
import pytest

from aril.codegen import attention, heuristics
from aril.codegen.accumulate import separate
from aril.codegen.panels import Stage
from aril.codegen.plan import Plan
from aril.codegen.steps import Chunk, Split, Step, StepError, Unroll, Upcast, Vectorize, loops_of
from aril.config import Context
from aril.device import Device
from aril.dtype import dtypes
from aril.engine import search, trial
from aril.engine.compile import compile_body, make_loaded, renderer_of, unpack_entry
from aril.engine.compile import pack_entry as pack
from aril.jit import jit
from aril.runtime import cache
from aril.schedule import normalize, schedule
from aril.schedule.lower import lower
from aril.tensor import Tensor
from aril.uop import AxisType, UOp

FAST = {"BEAM": 1, "BEAM_TIMEOUT": 1, "BEAM_REPEATS": 1}


@pytest.fixture(autouse=True)
def own_cache(tmp_path):
    with Context(ARIL_CACHE=str(tmp_path)):
        yield


def kernel_of(x: Tensor) -> UOp:
    """The one kernel that computes `x`, in kernel form."""
    normal = normalize([x.uop], ("CPU",))
    (item,) = schedule(normal.graph, len(normal.buffers)).items
    assert item.kernel is not None
    return item.kernel


def load(body: UOp, steps: tuple[Step, ...] | None = None):
    from dataclasses import replace

    if steps is not None:
        body = body.replace(arg=replace(body.arg, opts_to_apply=steps))
    return make_loaded("CPU", *unpack_entry(pack(*compile_body(body, renderer_of("CPU"), Device["CPU"].target))))


def stored(*shape: int, dtype=dtypes.float32) -> Tensor:
    return Tensor(np.zeros(shape), dtype=dtype).realize()


def test_a_searched_kernel_computes_the_same(tmp_path):
    a = np.random.default_rng(0).standard_normal((70, 90)).astype(np.float32)
    x = Tensor(a).realize()
    with Context(**FAST):
        got = (x.exp() * 3).sum(1).numpy()
    np.testing.assert_allclose(got, (np.exp(a.astype(np.float64)) * 3).sum(1), rtol=1e-5)
    assert cache.disk_cache().stats()["search"][0] == 1


def test_what_was_found_is_not_searched_again(monkeypatch):
    body = kernel_of(stored(300, 40).sum(0))
    renderer = renderer_of("CPU")
    with Context(**FAST):
        first = search.tuned(body, "CPU", renderer, "key", ())
    monkeypatch.setattr(search._Search, "run", lambda self: pytest.fail("searched again"))
    with Context(**FAST):
        assert search.tuned(body, "CPU", renderer, "key", ()) is first


def test_an_interrupted_search_goes_on_where_it_was(monkeypatch):
    body = kernel_of(stored(64, 128).sum(0))
    renderer = renderer_of("CPU")
    rounds = []

    def stop(self, number, kept):
        rounds.append(number)
        if len(rounds) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(search._Search, "_say", stop)
    with Context(BEAM=1, BEAM_TIMEOUT=60, BEAM_MIN_PROGRESS=0, BEAM_REPEATS=1), pytest.raises(KeyboardInterrupt):
        monkeypatch.setattr(search, "A_ROUND", 4)
        search.tuned(body, "CPU", renderer, "key", ())
    kept, is_done = search._recall("key")
    assert kept and not is_done
    started = []
    measure = search._Search._measure
    monkeypatch.setattr(search._Search, "_measure", lambda self, lists: started.append(lists) or measure(self, lists))
    with Context(**FAST):
        search.tuned(body, "CPU", renderer, "key", ())
    assert {c.steps for c in kept} <= set(started[0])
    assert search._recall("key")[1]


def test_another_result_is_refused():
    x = stored(40, 30)
    body = kernel_of((x * 2).sum(1))
    check = trial.Trial(lower(body), "CPU", load(body, ()))
    assert check.is_right(load(body))
    assert not check.is_right(load(kernel_of((x * 2.01).sum(1))))
    assert not check.is_right(load(kernel_of((x[:, :29] * 2).sum(1))))


def test_one_element_left_out_of_a_long_sum_is_seen():
    values = np.random.default_rng(0).standard_normal((10, 100_000)).astype(np.float32)
    whole, less = values.sum(1), values[:, 1:].sum(1)
    other_order = values[:, ::-1].sum(1)
    as_bytes = [x.view(np.uint8) for x in (whole, less, other_order)]
    assert trial.same(as_bytes[2], as_bytes[0], dtypes.float32)
    assert not trial.same(as_bytes[1], as_bytes[0], dtypes.float32)


def test_integers_are_compared_exactly_and_nan_as_nan():
    a = np.int32([1, 2, 3])
    assert not trial.same((a + np.int32([0, 0, 1])).view(np.uint8), a.view(np.uint8), dtypes.int32)
    f = np.float32([np.nan, np.inf, 1])
    assert trial.same(f.view(np.uint8), f.copy().view(np.uint8), dtypes.float32)
    assert not trial.same(np.float32([np.nan, -np.inf, 1]).view(np.uint8), f.view(np.uint8), dtypes.float32)
    assert not trial.same(np.float32([0, np.inf, 1]).view(np.uint8), f.view(np.uint8), dtypes.float32)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float64, dtypes.int8, dtypes.bool])
def test_made_up_data_has_the_size_of_its_type(dtype):
    data = trial.made_up(np.random.default_rng(0), 100, dtype, True)
    assert data.nbytes == 100 * dtype.itemsize
    if dtype.kind == "f":
        assert np.isfinite(trial.as_float64(data.view(np.uint8), dtype)).all()


def test_lists_of_steps_come_back_from_disk():
    steps = (Split((0,), 8, "peel"), Vectorize((0, 1)), Chunk(((0, 0), (1,))), Stage(1, ((2,), (0, 1))), Unroll((3,)))
    search.remember("key", [search.Candidate(steps, 12.5)], True)
    assert search._recall("key") == ([search.Candidate(steps, 12.5)], True)


@pytest.mark.parametrize("entry", [b"", b"[1]", b'[true, [[[["os.system", 1]], 1]]]', b"[true, [[[[3]], 1]]]"])
def test_an_entry_of_another_shape_is_searched_again(entry):
    cache.put("search", "key", entry)
    assert search._recall("key") == ([], False)


def test_kernels_that_cannot_be_tried_on_made_up_data_are_left_alone():
    table, index = stored(10, 4), stored(3, dtype=dtypes.int32)
    assert "depends on data" in search.unsearchable(lower(kernel_of(table[index])))
    divided = stored(4, dtype=dtypes.int32) // stored(4, dtype=dtypes.int32).contiguous()
    assert "divides" in search.unsearchable(lower(kernel_of(divided)))
    assert search.unsearchable(lower(kernel_of(table + 1))) == ""


def test_a_deterministic_program_searches_nothing(monkeypatch):
    monkeypatch.setattr(search._Search, "run", lambda self: pytest.fail("searched"))
    body = kernel_of(stored(8, 8) + 1)
    with Context(**FAST, DETERMINISTIC=1):
        assert search.tuned(body, "CPU", renderer_of("CPU"), "key", ()) is body


def test_moves_are_steps_that_fit_or_are_refused():
    sink = lower(kernel_of(stored(24, 36).sum(1)))
    renderer = renderer_of("CPU")
    fits = [s for s in search.additions(sink, 8) if search.apply_steps(sink, s, renderer) is not None]
    assert any(isinstance(s, Vectorize) for one in fits for s in one)
    assert any(isinstance(s, Upcast) for one in fits for s in one)
    assert search.apply_steps(sink, (Split((99,), 2),), renderer) is None
    with pytest.raises(StepError):
        Split((99,), 2).apply(sink)


@pytest.mark.parametrize("pads", [0, 1])
def test_beam_padto_pads_loops(pads):
    sink = lower(kernel_of(stored(13, 11) + 1))
    with Context(BEAM_PADTO=pads):
        found = [s for s in search.additions(sink, 8) if search.apply_steps(sink, s, renderer_of("CPU")) is not None]
    tails = {step.tail for one in found for step in one if isinstance(step, Split)}
    assert ({"masked", "repeat"} <= tails) is bool(pads)
    for one in found:
        if any(isinstance(s, Split) and s.tail in ("masked", "repeat") for s in one):
            check = trial.Trial(sink, "CPU", load(kernel_of(stored(13, 11) + 1), ()))
            assert check.is_right(load(kernel_of(stored(13, 11) + 1), one))


def test_limits_of_copies_and_nodes_bound_what_is_considered():
    body = kernel_of(stored(16, 16) + 1)
    sink = lower(body)
    of = search._Search(body, sink, "CPU", renderer_of("CPU"), "key", (), [])
    copied = search.apply_steps(sink, (Split((0,), 8), Upcast((0, 1))), renderer_of("CPU"))
    assert of._is_small(copied)
    with Context(BEAM_UPCAST_MAX=7):
        assert not of._is_small(copied) and of._is_small(sink)
    nodes = len([u for u in sink.src[0].toposort() if not u.dtype.weak])
    with Context(BEAM_UOPS_MAX=8 * nodes - 1):
        assert not of._is_small(copied) and of._is_small(sink)


def test_beam_debug_shows_rounds_then_candidates(capfd):
    shown = []
    for level in (0, 1, 2):
        with Context(**FAST, BEAM_DEBUG=level):
            search.tuned(kernel_of(stored(64, 32).sum(0)), "CPU", renderer_of("CPU"), f"key {level}", ())
        shown.append(capfd.readouterr().err)
    assert shown[0] == ""
    assert ": round 0, " in shown[1] and " tried, " in shown[1] and " us  (" not in shown[1]
    assert ": round 0, " in shown[2] and " us  (" in shown[2]


def attention_kernel() -> UOp:
    q, k, v = stored(2, 32, 16), stored(2, 32, 16), stored(2, 32, 16)
    return kernel_of(q.scaled_dot_product_attention(k, v))


def test_the_nests_of_attention_are_searched_each_for_itself(monkeypatch):
    body, renderer = attention_kernel(), renderer_of("CPU")
    sink = separate(lower(body))
    assert attention.is_chain(sink) and search.unsearchable(sink) == ""
    plan = Plan(sink, renderer)
    heuristics.choose(plan)
    (now,) = plan.steps
    changed = set()
    for (other,) in search.neighbours(sink, (now,), renderer):
        assert isinstance(other, attention.EachNest)
        different = [i for i, (a, b) in enumerate(zip(now.steps, other.steps, strict=True)) if a != b]
        assert len(different) == 1
        changed.update(different)
    assert changed == set(range(len(sink.src)))
    monkeypatch.setattr(search, "WORTH", 10.0)  # keep what was found even if it is no faster
    with Context(**FAST):
        found = search.tuned(body, "CPU", renderer, "key", ())
    kept, is_done = search._recall("key")
    assert is_done and (not kept or found.arg.opts_to_apply == kept[0].steps)
    check = trial.Trial(sink, "CPU", load(body, ()))
    assert check.is_right(load(found))


def test_steps_of_nests_come_back_from_disk():
    steps = (attention.EachNest(((Split((0,), 8, "peel"), Vectorize((0, 1))), (), (Stage(1, ((2,), (0, 1))),))),)
    search.remember("key", [search.Candidate(steps, 3.0)], False)
    assert search._recall("key") == ([search.Candidate(steps, 3.0)], False)


def test_a_nest_of_a_chain_has_no_chunks_of_its_own():
    sink = separate(lower(attention_kernel()))
    loop = next(r for r in loops_of(attention.nests_alone(sink)[0]).values() if r.arg.kind is AxisType.LOOP)
    lists = ((Chunk((loop.arg.id,)),), *[()] * (len(sink.src) - 1))
    with pytest.raises(StepError, match="share their chunks"):
        attention.EachNest(lists).apply(sink)


def test_a_capture_searches_under_jitbeam(monkeypatch):
    seen = []
    monkeypatch.setattr(search, "tuned", lambda body, *rest: seen.append(body) or body)

    @jit
    def step(x: Tensor) -> Tensor:
        return (x * 3.25 + 1).realize()

    x = Tensor(np.ones(5, np.float32)).realize()
    with Context(JITBEAM=1):
        step(x)
        assert not seen
        assert step(x).tolist() == [4.25] * 5
    assert len(seen) == 1


def test_variables_are_tried_at_two_values():
    from aril.tensor import Variable

    n = Variable("n", 1, 40)
    x = stored(40, 8)[: n.bind(7)]
    body = kernel_of(x + 1)
    check = trial.Trial(lower(body), "CPU", load(body, ()))
    assert {v["n"] for _, v, _ in check.cases} == {20, 40}
    assert check.is_right(load(body))


def test_the_state_on_disk_is_plain_data():
    search.remember("key", [search.Candidate((Split((0,), 4),), 1.0)], False)
    entry = cache.get("search", "key")
    assert entry is not None and json.loads(entry) == [False, [[[["Split", [0], 4, "exact"]], 1.0]]]
