"""Mixed precision: parameters kept in float32, computed with in bfloat16 or float16; losses scaled so that small
gradients do not vanish.

In come parameters, a loss, an optimizer; the parameters and the state of the optimizer stay in their own type
(Micikevicius et al., "Mixed precision training", 2018).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from aril.dtype import DTypeLike, dtypes, to_dtype
from aril.mixin.base import as_int, as_number, shown
from aril.nn.optim import Optimizer
from aril.tensor import Tensor
from aril.tensor_alive import set_node

__all__ = ["LossScaler", "lowered"]


@contextmanager
def lowered(params: Iterable[Tensor], dtype: DTypeLike = dtypes.bfloat16) -> Iterator[None]:
    """Inside of the block the float parameters read as `dtype`; gradients reach the originals, in their own type.

    Build the loss inside, call `backward` and the optimizer outside. Cast inputs to `dtype` too; normalisations
    and sums are carried in float32 anyway.
    Errors: TypeError for a type that is no float.

    >>> w = Tensor([1.0]).is_param_()
    >>> with lowered([w]):
    ...     print(w.dtype)
    dtypes.bfloat16
    >>> w.dtype
    dtypes.float32
    """
    kind = to_dtype(dtype)
    if kind.kind != "f":
        raise TypeError(f"lowered: parameters are computed with in a float type, not {kind.name}")
    held = [(t, t.uop) for t in params if t.dtype.kind == "f" and t.is_param is not False]
    for t, u in held:
        set_node(t, u.cast(kind))
    try:
        yield
    finally:
        for t, u in held:
            set_node(t, u)


class LossScaler:
    """A factor on the loss that grows while gradients stay finite and is cut when they do not.

    `scale(loss).backward()`, then `step(optimizer)`: gradients are divided by the factor again; where one is not
    finite, parameters and the optimizer's state stay as they were and the factor is multiplied by `backoff`; after
    `interval` good steps it is multiplied by `growth`. All of it is in the graph, so it works in captured functions.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        init: float = 65536.0,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"LossScaler: optimizer is one of nn.optim, not {shown(optimizer)}")
        init, growth = as_number("LossScaler: init", init), as_number("LossScaler: growth", growth)
        backoff, interval = as_number("LossScaler: backoff", backoff), as_int("LossScaler: interval", interval)
        if not (init > 0 and growth >= 1 and 0 < backoff <= 1 and interval >= 1):
            raise ValueError(
                f"LossScaler: init {init} is above 0, growth {growth} at least 1, backoff {backoff} within 0 and 1, "
                f"interval {interval} at least 1"
            )
        self.growth, self.backoff, self.interval = growth, backoff, interval
        self.factor = Tensor([init], dtype=dtypes.float32, device=optimizer.device).is_param_(False).realize()
        self.good = Tensor([0], dtype=dtypes.int32, device=optimizer.device).is_param_(False).realize()

    def scale(self, loss: Tensor) -> Tensor:
        """The loss, in float32, times the factor."""
        return loss.float() * self.factor.reshape(())

    def step(self, optimizer: Optimizer) -> None:
        """Undo the scaling, update where all gradients are finite, and move the factor.

        Errors: RuntimeError when no parameter has a gradient.
        """
        Tensor.realize(*reversed(self.schedule_step(optimizer)))

    def schedule_step(self, optimizer: Optimizer) -> list[Tensor]:
        """The update without computing it: the tensors to realize."""
        factor = self.factor.reshape(())
        finite: Tensor | None = None
        for p in optimizer.params:
            if p.grad is not None:
                p.grad = (p.grad.float() / factor).cast(p.dtype).contiguous()
                fine = p.grad.isfinite().all()
                finite = fine if finite is None else finite & fine
        if finite is None:
            raise RuntimeError("LossScaler.step: no parameter has a gradient; call scale(loss).backward() first")
        finite = finite.contiguous()
        state = {id(t): t for t in _tensors_of(optimizer)}
        old = {key: t.uop for key, t in state.items()}  # nodes, not tensors: those would follow the assignments
        changed = optimizer.schedule_step()
        buffers = {id(b) for b in optimizer.buffers}
        for t in {id(t): t for t in changed}.values():
            if id(t) in old and id(t) not in buffers:
                t.assign(finite.where(t, t._like(old[id(t)])))
        good = finite.where(self.good + 1, 0)
        grown = (good >= self.interval).where(self.factor * self.growth, self.factor)
        self.factor.assign(finite.where(grown, self.factor * self.backoff))
        self.good.assign((good >= self.interval).where(0, good))
        return [self.factor, self.good, *changed]


def _tensors_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """The parameters of an optimizer and all of its state."""
    for part in getattr(optimizer, "optimizers", (optimizer,)):
        for value in vars(part).values():
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, (list, tuple)):
                yield from [t for t in value if isinstance(t, Tensor)]
