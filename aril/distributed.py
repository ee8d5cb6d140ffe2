"""Training in several processes, on one machine or many: each runs the same program on its share of the data.

In come tensors of this process; out go tensors of all of them. The messages are part of the graph: they run when the
result is asked for, in `jit` too. Started by `aril launch -n 4 train.py`, or MPI's own `mpiexec -n 4 python train.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aril.dtype import DType, DTypeLike, dtypes, to_dtype
from aril.ops import Ops
from aril.runtime.processes import ProcessError, World, join
from aril.schedule.collective import allreduce_between, traffic_type
from aril.tensor import Tensor
from aril.uop import UOp
from aril.uop.exchange import Exchange, exchange

BUCKET_BYTES = 32 << 20

_OPS = {"sum": Ops.ADD, "mean": Ops.ADD, "max": Ops.MAX}


def init() -> World:
    """Join the other processes; at once, later calls change nothing. The result has `rank` and `size`.

    Alone where no launcher started several. Processes of one machine divide its cores. An error that nobody catches,
    or a process that ends before the others, ends all of them. Errors: ProcessError where MPI is missing.
    """
    return join()


def allreduce(x: Tensor, op: str = "sum", cast: DTypeLike | None = None) -> Tensor:
    """The "sum", "mean" or "max" of `x` over all processes, in each of them, with the same bits.

    cast: the type in which floats travel, such as "bfloat16" (default: ALLREDUCE_CAST, else their own). The gradient is
    that of the sum of what all processes differentiate.
    Errors: ValueError for another `op`; TypeError for a mean of integers; ProcessError, when it runs, where another
    process does something else.
    """
    if op not in _OPS:
        raise ValueError(f"allreduce: op={op!r}; there are {', '.join(_OPS)}")
    x = _one_device(x, "allreduce")
    if op == "mean" and x.dtype.kind != "f":
        raise TypeError(f"allreduce: a mean of {x.dtype.name} is no {x.dtype.name}; cast it to a float type first")
    if op != "max" and x.dtype is dtypes.bool:
        raise TypeError("allreduce: a sum of bool counts; cast it to an integer type first")
    among = _among()
    out = x.replace_uop(allreduce_between(x.uop, _OPS[op], among, _travels_as(cast, x.dtype)))
    return out / among.ranks if op == "mean" and among.ranks > 1 else out


def gather(x: Tensor) -> Tensor:
    """The values of all processes along a new axis 0, in the order of their ranks: shape `(size, *x.shape)`."""
    x = _one_device(x, "gather")
    return x.replace_uop(exchange(_stored(x), "gather", _among()))


def broadcast(x: Tensor, root: int = 0) -> Tensor:
    """The value that `x` has in process `root`. Errors: ValueError where there is no such process."""
    among = _among()
    if not 0 <= root < among.ranks:
        raise ValueError(f"broadcast: root={root}; there are processes 0 to {among.ranks - 1}")
    x = _one_device(x, "broadcast")
    return x.replace_uop(exchange(_stored(x), "broadcast", among._replace(root=root)))


def barrier() -> None:
    """Return when all processes are here."""
    join().barrier()


def same_everywhere(tensors: Iterable[Tensor], root: int = 0) -> None:
    """Give every process the values that `tensors` (parameters, the state of an optimizer) have in process `root`."""
    todo = list(tensors)
    for t in todo:
        t.assign(broadcast(t, root))
    if todo:
        todo[0].realize(*todo[1:])


def reduce_gradients(
    parameters: Sequence[Tensor], op: str = "mean", cast: DTypeLike | None = None, bucket_bytes: int = BUCKET_BYTES
) -> None:
    """Replace each `.grad` by its mean (or "sum") over all processes: between `backward()` and the optimizer's step.

    Gradients go together in messages of about `bucket_bytes`. A parameter without a gradient has none in any process.
    """
    ranks = join().size
    if ranks == 1:
        return
    for bucket in _buckets([p for p in parameters if p.grad is not None], bucket_bytes):
        grads = [p.grad for p in bucket if p.grad is not None]
        # Each gradient is computed right where it goes in the message, and the result is written to the same place: it
        # is there for whoever looks at `.grad` later, without a second message.
        size = sum([int(g.numel()) for g in grads])
        whole = -(-size // ranks) * ranks  # chunks of one length
        flat, start = Tensor.empty(whole, dtype=grads[0].dtype, device=grads[0].device), 0
        if whole > size:
            flat[size:] = 0
        places = []
        for g in grads:
            places.append((start, start + int(g.numel())))
            start = places[-1][1]
            flat[slice(*places[-1])].reshape(g.shape).assign(g)
        flat.assign(allreduce(flat, op, cast))
        for p, g, place in zip(bucket, grads, places, strict=True):
            p.grad = flat[slice(*place)].reshape(g.shape)


def _buckets(parameters: Sequence[Tensor], limit: int) -> Iterable[list[Tensor]]:
    """Neighbours of one dtype, together up to `limit` bytes."""
    waiting: dict[DType, tuple[list[Tensor], int]] = {}
    for p in parameters:
        size = int(p.numel()) * p.dtype.itemsize
        bucket, held = waiting.get(p.dtype, ([], 0))
        if bucket and held + size > limit:
            yield bucket
            bucket, held = [], 0
        waiting[p.dtype] = ([*bucket, p], held + size)
    yield from [bucket for bucket, _ in waiting.values()]


def _among() -> Exchange:
    found = join()
    return Exchange("", found.rank, found.size)


def _one_device(x: Tensor, what: str) -> Tensor:
    if isinstance(x.device, tuple):
        raise NotImplementedError(f"{what}: a tensor on the devices {x.device}; bring it to one with to()")
    if any(not isinstance(d, int) for d in x.shape):
        raise ValueError(f"{what}: all processes must send the same shape, which {x.shape} leaves open")
    return x.cast_default()


def _stored(x: Tensor) -> UOp:
    return UOp(Ops.CONTIGUOUS, (x.uop,))


def _travels_as(cast: DTypeLike | None, dtype: DType) -> DType:
    if cast is None or dtype.kind != "f":
        return traffic_type(dtype)
    narrow = to_dtype(cast)
    if narrow.kind != "f":
        raise TypeError(f"allreduce: cast={narrow.name} is no float type")
    return narrow if narrow.itemsize < dtype.itemsize else dtype


__all__ = [
    "ProcessError", "World", "allreduce", "barrier", "broadcast", "gather", "init", "reduce_gradients",
    "same_everywhere",
]  # fmt: skip
