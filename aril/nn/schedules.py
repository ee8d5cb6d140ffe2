"""Learning-rate schedules: an optimizer in, its rate changed in place by every `step()`.

A rate is a tensor of one element, so a captured training step sees each change without being captured again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from aril.mixin.base import as_int, as_number, shown
from aril.nn.optim import Optimizer
from aril.tensor import Tensor


class Schedule:
    """`rate(t)` as the learning rate at step t = 0, 1, 2, ...; step 0 counts from when the schedule is made."""

    def __init__(self, optimizer: Optimizer, rate: Callable[[int], float]) -> None:
        if not isinstance(optimizer, Optimizer) or not callable(rate):
            raise TypeError(
                f"Schedule takes an optimizer and a function of the step, such as cosine(0.1, 1000), not "
                f"{shown(optimizer)} and {shown(rate)}"
            )
        self.optimizer, self.rate, self.t = optimizer, rate, 0
        self._set()

    def step(self) -> None:
        """Move on to the next rate."""
        self.t += 1
        self._set()

    def get_lr(self) -> float:
        """The rate in force."""
        return self.rate(self.t)

    def _set(self) -> None:
        lr = self.optimizer.lr
        lr.assign(Tensor([self.rate(self.t)], dtype=lr.dtype, device=lr.device)).realize()


def step_decay(lr: float, every: int, factor: float = 0.1) -> Callable[[int], float]:
    """`lr`, times `factor` after each `every` steps.

    >>> [step_decay(1.0, 2, 0.5)(i) for i in range(4)]
    [1.0, 1.0, 0.5, 0.5]
    """
    every = as_int("step_decay: every", every, 1)
    lr, factor = as_number("step_decay: lr", lr, 0), as_number("step_decay: factor", factor, 0)
    return lambda t: lr * factor ** (t // every)


def cosine(lr: float, steps: int, final: float = 0.0) -> Callable[[int], float]:
    """Half a cosine from `lr` to `final` over `steps`, then `final` (Loshchilov and Hutter, 2017).

    >>> [round(cosine(1.0, 4)(i), 4) for i in range(5)]
    [1.0, 0.8536, 0.5, 0.1464, 0.0]
    """
    steps = as_int("cosine: steps", steps, 1)
    lr, final = as_number("cosine: lr", lr, 0), as_number("cosine: final", final, 0)
    return lambda t: final + (lr - final) * 0.5 * (1.0 + math.cos(math.pi * min(t, steps) / steps))


def warm_up(steps: int, then: Callable[[int], float]) -> Callable[[int], float]:
    """A line from 0 to where `then` starts over `steps`, then `then`.

    >>> [warm_up(2, lambda i: 1.0)(i) for i in range(4)]
    [0.0, 0.5, 1.0, 1.0]
    """
    steps = as_int("warm_up: steps", steps, 0)
    if not callable(then):
        raise TypeError(f"warm_up: then is a function of the step, such as cosine(0.1, 1000), not {shown(then)}")
    return lambda t: then(0) * t / steps if t < steps else then(t - steps)


def one_cycle(
    peak: float, steps: int, rise: float = 0.3, start: float = 25.0, end: float = 1e4
) -> Callable[[int], float]:
    """From `peak/start` up to `peak` in the first `rise` of the `steps`, then down to `peak/start/end`, both by half a
    cosine (Smith and Topin, 2019).

    >>> [round(one_cycle(1.0, 4)(i), 4) for i in range(5)]
    [0.04, 0.8117, 0.2831, 0.0, 0.0]
    """
    peak, steps = as_number("one_cycle: peak", peak, 0), as_int("one_cycle: steps", steps, 2)
    rise = as_number("one_cycle: rise", rise, 0, 1)
    start, end = as_number("one_cycle: start", start, 1), as_number("one_cycle: end", end, 1)
    first, low = peak / start, peak / start / end
    top = rise * steps - 1.0

    def rate(t: int) -> float:
        if t <= top:
            return first + (peak - first) * 0.5 * (1.0 - math.cos(math.pi * t / top)) if top > 0 else peak
        at = min((t - top) / (steps - 1.0 - top), 1.0)
        return low + (peak - low) * 0.5 * (1.0 + math.cos(math.pi * at))

    return rate
