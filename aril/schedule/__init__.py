"""Scheduling: a tensor graph in, kernels in order out.

The passes, in order:

1. `normalize`: storage becomes numbered parameters; the result is the key of the schedule cache.
2. `inline` (`uop.function`), `split_bitcasts` (`prepare`), `distribute` (`shard`: from here on a node is on one
   device), `drop_marks`, `empty_reductions`, `read_masks_from_results`, `scatter_into_targets` (`prepare`),
   `split_phases` (`phases`), `merge_sums`, `give_pads_to_operands` (`contractions`), `store_before_cuts`
   (`phases`), `sum_known_products`, `compute_scores_again` (`again`), `divide_after_sums`, `split_with_maximum`
   (`online`), `split_long_reductions`, `lay_out_operands` (`operands`): tensor form to tensor form.
3. `choose_stored` (`fuse`): the cost rule says which values are stored.
4. `build` (`kernels`): bodies, dependencies, the order of stored images in memory (`layout`), merging (`merge`), chains
   such as attention (`chain`), joins part by part (`joins`), order.
5. `lower` (per kernel, on a miss of the kernel cache): tensor-form body to kernel form (then `pairs`, `rows`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from aril.config import EMULATED_DTYPES, NAN_CHECK, SPEC
from aril.schedule import collective, kernels, shard
from aril.schedule.again import compute_scores_again, sum_known_products
from aril.schedule.contractions import give_pads_to_operands, merge_sums
from aril.schedule.kernels import Item, Schedule, Temp
from aril.schedule.limits import limits
from aril.schedule.lower import lower
from aril.schedule.normalize import Normalized, normalize
from aril.schedule.online import divide_after_sums, split_with_maximum
from aril.schedule.operands import lay_out_operands
from aril.schedule.phases import split_phases, store_before_cuts
from aril.schedule.prepare import (
    drop_marks,
    empty_reductions,
    read_masks_from_results,
    scatter_into_targets,
    split_bitcasts,
    split_long_reductions,
)
from aril.uop import UOp
from aril.uop.function import inline
from aril.uop.passes import run_passes
from aril.uop.verify import check

# Sums are merged before pads move: the pads of a gradient stand between the sums. Long reductions are split last, as
# their parts must not be merged again.
PASSES = (
    drop_marks,
    empty_reductions,
    read_masks_from_results,
    scatter_into_targets,
    split_phases,
    merge_sums,
    give_pads_to_operands,
    store_before_cuts,
    sum_known_products,
    compute_scores_again,
    divide_after_sums,
    split_with_maximum,
    split_long_reductions,
    lay_out_operands,
)

_CACHE: dict[tuple[Any, ...], Schedule] = {}
CACHE_LIMIT = 4096


def schedule(graph: UOp, params: int, on_miss: Callable[[UOp], None] | None = None) -> Schedule:
    """The schedule of a normalised graph, from the cache where its structure has been seen; where it has not,
    `on_miss(graph)` is called first.

    Errors: SpecError with SPEC=1 where the graph is not of tensor form, with SPEC=2 where it is not after some pass.
    """
    if SPEC.value:
        check(graph, "tensor")
    key = (graph, *collective.settings(), EMULATED_DTYPES.value)
    found = None if NAN_CHECK.value else _CACHE.get(key)  # the lines of this graph, not of one like it
    if found is None:
        if on_miss is not None:
            on_miss(graph)
        with _no_collection():
            found = _made(graph, params)
        if len(_CACHE) >= CACHE_LIMIT:
            _CACHE.pop(next(iter(_CACHE)))
        _CACHE[key] = found
    return found


@contextmanager
def _no_collection() -> Iterator[None]:
    """Nodes are made and dropped by the ten thousand and hold no cycles: looking for some takes a tenth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _made(graph: UOp, params: int) -> Schedule:
    whole = inline(graph)
    sink, plan = shard.distribute(split_bitcasts(whole))
    sink = run_passes(sink, [(one.__name__, one) for one in PASSES], "scheduling", "tensor")
    out = replace(kernels.build(sink, params), limits=limits(whole))
    return replace(out, results=shard.join_results(out.results, plan)) if plan else out


__all__ = ["Item", "Normalized", "Schedule", "Temp", "lower", "normalize", "schedule"]
