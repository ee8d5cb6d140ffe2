"""Optimizers: parameters and their gradients in, parameters changed in place out.

Every update is an assignment, and what changes from step to step (rates, counters) lives in tensors, so that a captured
step replays correctly. The formulas follow PyTorch's optimizers of the same names, step for step. New state and the new
parameter are expressions over the old ones, so that one pass over memory can compute and store them together.
"""

from __future__ import annotations

from collections.abc import Iterable

from aril.dtype import DType, accumulator, dtypes, promote
from aril.mixin.base import as_int, as_number, as_tuple, need_tensors
from aril.mixin.layers import NEWTON_STEPS
from aril.tensor import Tensor


class Optimizer:
    """What optimizers share. `params` may hold other tensors too (running statistics): those are realized with the
    updates, and trained only if they are parameters with a gradient.

    Errors: ValueError without any parameter, TypeError for one that is not a float tensor, and for a model itself.
    """

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        lr = self._number("lr", lr)
        several = list(params) if isinstance(params, Iterable) and not isinstance(params, Tensor) else None
        wrong = [type(t).__name__ for t in several or () if not isinstance(t, Tensor)]
        if several is None or wrong:
            found = f"{type(params).__name__}" + (f" with a {wrong[0]} in it" if wrong else "")
            raise TypeError(
                f"{type(self).__name__} takes a list of tensors, not a {found}; "
                "of a model: nn.state.get_parameters(model)"
            )
        tensors = list({id(t): t for t in several}.values())
        self.params = [t for t in tensors if _trainable(t)]
        self.buffers = [t for t in tensors if not _trainable(t)]
        if not self.params:
            raise ValueError(f"{type(self).__name__}: no parameters to train among {len(tensors)} tensors")
        for t in self.params:
            if t.dtype.kind != "f":
                raise TypeError(
                    f"{type(self).__name__}: a parameter of dtype {t.dtype.name} has no gradient; use floats"
                )
        self.device = self.params[0].device
        # what all parameters share is as exact as the most exact of them
        self.dtype = accumulator(promote(*[t.dtype for t in self.params]))
        self.lr = self._scalar(lr)
        # Initial values still to be computed are computed now, so that no step is compiled or captured with them.
        Tensor.realize(*tensors)

    def _number(self, name: str, value: float, most: float | None = None) -> float:
        """An argument that is a number from 0 on (up to `most`). Errors: TypeError, ValueError."""
        return as_number(f"{type(self).__name__}: {name}", value, 0, most)

    def _scalar(self, value: float, dtype: DType | None = None) -> Tensor:
        """A number that changes between steps: one element on the device."""
        return Tensor([value], dtype=dtype or self.dtype, device=self.device)

    def _like_params(self) -> list[Tensor]:
        """State of zeros for each parameter, in memory from the start: the first step is then like all others."""
        return [
            Tensor(bytes(p.numel() * p.dtype.itemsize), dtype=p.dtype, device=_home(p)).reshape(p.shape).shard_like(p)
            for p in self.params
        ]

    def zero_grad(self) -> None:
        """Forget the gradients; the next `backward` starts from nothing."""
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient, and compute the updates.

        Errors: RuntimeError when no parameter has one.
        """
        # Last layers first, the order in which gradients come: what an update has used is then free for the next.
        Tensor.realize(*reversed(self.schedule_step()))

    def schedule_step(self) -> list[Tensor]:
        """The update without computing it: the tensors to realize."""
        due = [(i, p, p.grad) for i, p in enumerate(self.params) if p.grad is not None]
        if not due:
            raise RuntimeError(
                f"{type(self).__name__}.step: no parameter has a gradient; call backward() on a loss first"
            )
        changed = self._advance()
        for i, p, g in due:
            # where a parameter is split, each device needs the gradient of its own part only
            changed += self._update(i, p, _laid_out(g.detach(), p))
        return [*changed, *self.buffers]

    def _advance(self) -> list[Tensor]:
        """Move what is counted once a step; the tensors changed."""
        return []

    def _update(self, i: int, p: Tensor, g: Tensor) -> list[Tensor]:
        """Update parameter number `i` by gradient `g`; the tensors changed."""
        raise NotImplementedError


def _laid_out(g: Tensor, p: Tensor) -> Tensor:
    return g.shard_like(p) if isinstance(p.device, tuple) else g


def _home(t: Tensor) -> str:
    return t.device[0] if isinstance(t.device, tuple) else t.device


def _trainable(t: Tensor) -> bool:
    return t.is_param is not False


class OptimizerGroup(Optimizer):
    """Several optimizers stepped as one: their updates are scheduled together.

    >>> a, b = (Tensor([1.0]).is_param_() for _ in range(2))
    >>> len(OptimizerGroup(SGD([a], lr=0.1), Adam([b])).params)
    2
    """

    def __init__(self, *optimizers: Optimizer) -> None:
        if not optimizers:
            raise ValueError("OptimizerGroup: give it at least one optimizer")
        for o in optimizers:
            if not isinstance(o, Optimizer):
                raise TypeError(f"OptimizerGroup takes optimizers, one after the other, not a {type(o).__name__}")
        self.optimizers = optimizers
        self.params = [p for o in optimizers for p in o.params]
        self.buffers = [b for o in optimizers for b in o.buffers]

    def schedule_step(self) -> list[Tensor]:
        """The updates of all of them."""
        return [t for o in self.optimizers for t in o.schedule_step()]


class SGD(Optimizer):
    """Stochastic gradient descent: `p -= lr * g`, with momentum `b = momentum*b + g` in place of `g` where asked.

    `nesterov` looks one step ahead (`g + momentum*b`); `weight_decay` adds `weight_decay*p` to the gradient.

    >>> w = Tensor([1.0, 2.0]).is_param_()
    >>> _ = (w * w).sum().backward()
    >>> SGD([w], lr=0.1).step()
    >>> [round(v, 4) for v in w.tolist()]
    [0.8, 1.6]
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        momentum, weight_decay = self._number("momentum", momentum), self._number("weight_decay", weight_decay)
        super().__init__(params, lr)
        if nesterov and not momentum:
            raise ValueError("SGD: nesterov needs a momentum above 0")
        self.momentum, self.weight_decay, self.nesterov = momentum, weight_decay, nesterov
        self.b = self._like_params() if momentum else []

    def _update(self, i: int, p: Tensor, g: Tensor) -> list[Tensor]:
        old = p.detach()
        if self.weight_decay:
            g = g + self.weight_decay * old
        if not self.momentum:
            return [p.assign(old - self.lr.cast(p.dtype) * g)]
        b = self.momentum * self.b[i] + g
        step = g + self.momentum * b if self.nesterov else b
        return [self.b[i].assign(b), p.assign(old - self.lr.cast(p.dtype) * step)]


class LARS(SGD):
    """SGD whose rate is scaled for each parameter by `trust * |p| / (|g| + weight_decay*|p|)` (You, Gitman and
    Ginsburg, "Large Batch Training of Convolutional Networks", 2017). Parameters of one axis or none (biases) keep the
    plain rate.

    >>> w = Tensor([1.0, 2.0]).is_param_()
    >>> _ = (w * w).sum().backward()
    >>> LARS([w], lr=0.1).step()
    >>> w.shape
    (2,)
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        nesterov: bool = False,
        trust: float = 1e-3,
    ) -> None:
        self.trust = self._number("trust", trust)
        super().__init__(params, lr, momentum, weight_decay, nesterov)

    def _update(self, i: int, p: Tensor, g: Tensor) -> list[Tensor]:
        old = p.detach()
        scale: Tensor | float = 1.0
        if p.ndim > 1:
            size, slope = _norm(old), _norm(g)
            ratio = self.trust * size / (slope + self.weight_decay * size)
            scale = ((size > 0) & (slope > 0)).where(ratio, 1.0)
        # the momentum carries the scaled steps, as in the paper: b = momentum*b + lr*scale*(g + weight_decay*p)
        step = self.lr.cast(p.dtype) * scale * (g + self.weight_decay * old)
        if not self.momentum:
            return [p.assign(old - step)]
        b = self.momentum * self.b[i] + step
        return [self.b[i].assign(b), p.assign(old - (step + self.momentum * b if self.nesterov else b))]


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015): running means `m` of the gradient and `v` of its square, both corrected for their
    start at zero, and `p -= lr * m / (sqrt(v) + eps)`. `weight_decay` adds `weight_decay*p` to the gradient.

    The powers of the betas are kept in float64: `1 - 0.999**t` loses four digits in float32.

    >>> w = Tensor([1.0, 2.0]).is_param_()
    >>> _ = (w * w).sum().backward()
    >>> Adam([w], lr=0.1).step()
    >>> [round(v, 4) for v in w.tolist()]
    [0.9, 1.9]
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        one, two = self._betas(betas)
        self.eps, self.weight_decay = self._number("eps", eps), self._number("weight_decay", weight_decay)
        super().__init__(params, lr)
        self.betas = one, two
        self.powers = [self._scalar(1.0, dtypes.float64) for _ in betas]
        self.m, self.v = self._like_params(), self._like_params()
        self.corrections = [self._scalar(1.0) for _ in betas]  # follow from the powers

    def _betas(self, betas: tuple[float, float]) -> tuple[float, float]:
        pair = as_tuple(f"{type(self).__name__}: betas", betas)
        if len(pair) != 2:
            raise ValueError(f"{type(self).__name__}: betas are two numbers in [0, 1), not {betas!r}")
        one, two = [self._number("each of the betas", beta) for beta in pair]
        if not (one < 1.0 and two < 1.0):
            raise ValueError(f"{type(self).__name__}: betas={betas}; each lies in [0, 1)")
        return one, two

    def _advance(self) -> list[Tensor]:
        for power, beta in zip(self.powers, self.betas, strict=True):
            power.assign(power * beta)
        one, two = [1.0 - power for power in self.powers]
        # stored once: every element of every parameter reads them
        self.corrections = [(1.0 / x).cast(self.dtype).contiguous() for x in (one, two.sqrt())]
        return [*self.powers]

    def _update(self, i: int, p: Tensor, g: Tensor) -> list[Tensor]:
        old = p.detach()
        moments, step = self._moments(i, old, g)
        return [*moments, p.assign(old - self.lr.cast(p.dtype) * step)]

    def _moments(self, i: int, p: Tensor, g: Tensor) -> tuple[list[Tensor], Tensor]:
        """The moments, updated by this gradient, and the step they ask for, weight decay included."""
        return self._moments_of(i, p, g + self.weight_decay * p if self.weight_decay else g)

    def _moments_of(self, i: int, p: Tensor, g: Tensor) -> tuple[list[Tensor], Tensor]:
        (beta1, beta2), (one, two) = self.betas, self.corrections
        m = beta1 * self.m[i] + (1.0 - beta1) * g
        v = beta2 * self.v[i] + (1.0 - beta2) * (g * g)
        step = (m * one.cast(p.dtype)) / (v.sqrt() * two.cast(p.dtype) + self.eps)
        return [self.m[i].assign(m), self.v[i].assign(v)], step


class AdamW(Adam):
    """Adam whose weight decay does not pass through the moments: `p -= lr * weight_decay * p` (Loshchilov and Hutter,
    2019).

    >>> w = Tensor([1.0, 2.0]).is_param_()
    >>> _ = (w * w).sum().backward()
    >>> AdamW([w], lr=0.1, weight_decay=0.0).step()
    >>> [round(v, 4) for v in w.tolist()]
    [0.9, 1.9]
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)

    def _moments(self, i: int, p: Tensor, g: Tensor) -> tuple[list[Tensor], Tensor]:
        moments, step = self._moments_of(i, p, g)
        return moments, step + self.weight_decay * p


class LAMB(AdamW):
    """AdamW whose step is scaled for each parameter to `|p|` (You et al., "Large Batch Optimization for Deep Learning",
    2020): `p -= lr * |p| / |u| * u` with `u` the step of AdamW.

    >>> w = Tensor([1.0, 2.0]).is_param_()
    >>> _ = (w * w).sum().backward()
    >>> LAMB([w], lr=0.1).step()
    >>> w.shape
    (2,)
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)

    def _moments(self, i: int, p: Tensor, g: Tensor) -> tuple[list[Tensor], Tensor]:
        moments, step = super()._moments(i, p, g)
        size, length = _norm(p), _norm(step)
        return moments, ((size > 0) & (length > 0)).where(size / length, 1.0) * step


class Muon(Optimizer):
    """Momentum whose step is made orthogonal by Newton-Schulz iterations (Jordan et al., "Muon", 2024), for matrices.

    `b += (1 - momentum) * (g - b)`, then `p -= lr * sqrt(max(1, rows/columns)) * orthogonal(step)` where `step` is `b`,
    or with `nesterov` `g + momentum * (b - g)`; weight decay as in AdamW. Axes from the third on are flattened into the
    columns. Errors: ValueError for a parameter with fewer than two axes.

    >>> w = Tensor([[1.0, 2.0], [3.0, 4.0]]).is_param_()
    >>> _ = (w * w).sum().backward()
    >>> Muon([w], lr=0.1).step()
    >>> w.shape
    (2, 2)
    """

    COEFFICIENTS = (3.4445, -4.7750, 2.0315)

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        nesterov: bool = True,
        steps: int = 5,
        eps: float = 1e-7,
    ) -> None:
        momentum, weight_decay = self._number("momentum", momentum), self._number("weight_decay", weight_decay)
        steps, eps = as_int("Muon: steps", steps, 0, NEWTON_STEPS), self._number("eps", eps)
        super().__init__(params, lr)
        for p in self.params:
            if p.ndim < 2:
                raise ValueError(f"Muon: a parameter of shape {p.shape} is no matrix; give it to another optimizer")
        self.momentum, self.weight_decay, self.nesterov, self.steps, self.eps = (
            momentum,
            weight_decay,
            nesterov,
            steps,
            eps,
        )
        self.b = self._like_params()

    def _update(self, i: int, p: Tensor, g: Tensor) -> list[Tensor]:
        old, keep = p.detach(), self.momentum
        b = keep * self.b[i] + (1.0 - keep) * g
        step = keep * b + (1.0 - keep) * g if self.nesterov else b
        matrix = step.flatten(1).newton_schulz(self.steps, self.COEFFICIENTS, self.eps)
        rows, columns = matrix.shape
        step = matrix.reshape(p.shape) * max(1.0, rows / columns) ** 0.5
        return [self.b[i].assign(b), p.assign(old - self.lr.cast(p.dtype) * (step + self.weight_decay * old))]


def _norm(x: Tensor) -> Tensor:
    return (x * x).sum().sqrt()


def clip_grad_norm(params: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients by one number so that their joint length is at most `max_norm`; gives the length before.

    >>> w = Tensor([1.0]).is_param_()
    >>> _ = (w * 5.0).sum().backward()
    >>> norm = clip_grad_norm([w], 1.0)
    >>> norm.item(), round(w.grad.item(), 4)
    (5.0, 1.0)
    """
    max_norm, params = as_number("clip_grad_norm: max_norm", max_norm, 0), as_tuple("clip_grad_norm: params", params)
    for p in params:
        need_tensors("clip_grad_norm", params=p)
    pairs = [(p, p.grad) for p in params if p.grad is not None]
    if not pairs:
        raise RuntimeError("clip_grad_norm: no parameter has a gradient; call backward() on a loss first")
    squares = [g.cast(accumulator(g.dtype)).square().sum() for _, g in pairs]
    total = squares[0].usum(*squares[1:]).sqrt()
    scale = (max_norm / (total + 1e-6)).minimum(1.0)
    for p, g in pairs:
        p.grad = g * scale.cast(g.dtype)
    return total
