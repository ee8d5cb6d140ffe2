"""What a mistake is answered with: the operation, what was found, and what to do, in one style."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aril import Tensor, Variable, jit, nn

MISTAKES = {
    "matmul": (
        lambda: Tensor.ones(3, 4) @ Tensor.ones(5, 6),
        ValueError,
        "matmul: (3, 4) by (5, 6): the last axis of the left has 4 elements, the second last axis of the right 5; "
        "they must agree",
    ),
    "batches": (
        lambda: Tensor.ones(2, 3, 4) @ Tensor.ones(3, 4, 5),
        ValueError,
        "matmul, axes before the last two: shapes (2,) and (3,) do not broadcast: axis -1 has 2 and 3; sizes must be "
        "equal or 1",
    ),
    "text": (lambda: Tensor("hello"), TypeError, "expected numbers, nested lists, an array or bytes, not 'hello'"),
    "scalars have no elements": (lambda: list(Tensor(3.0)), TypeError, "iteration over a 0-d tensor"),
    "half a dimension": (lambda: Tensor.zeros(2.5), TypeError, "zeros: a dimension is an int, not 2.5"),
    "device": (
        lambda: Tensor([1.0], device="CPUU"),
        RuntimeError,
        "device 'CPUU' is not usable here: there is no such device; did you mean CPU? Usable: CPU",
    ),
    "device of a constant": (
        lambda: Tensor.ones(3, device="CPUU"),
        RuntimeError,
        "device 'CPUU' is not usable here: there is no such device; did you mean CPU? Usable: CPU",
    ),
    "broadcast": (
        lambda: Tensor.ones(3, 4) + Tensor.ones(2, 4),
        ValueError,
        "add: shapes (3, 4) and (2, 4) do not broadcast: axis -2 has 3 and 2; sizes must be equal or 1",
    ),
    "dtype": (lambda: Tensor([1], dtype="flaot32"), (TypeError, ValueError), "flaot32"),
    "devices": (
        lambda: Tensor.ones(2).contiguous().to("CPU").clone() + Tensor([1.0, 2.0], device="PYTHON"),
        ValueError,
        "add: operands lie on CPU and PYTHON; move one with .to(device) first",
    ),
    "axis": (
        lambda: Tensor.ones(3, 4).sum(2),
        IndexError,
        "sum: axis 2 does not exist in shape (3, 4); axes are -2 to 1",
    ),
    "reshape": (
        lambda: Tensor.ones(3, 4).reshape(5, 2),
        ValueError,
        "reshape: shape (3, 4) has 12 elements, (5, 2) would have 10; the numbers must agree",
    ),
    "item": (lambda: Tensor.ones(2, 2).item(), ValueError, "item"),
    "backward": (
        lambda: (Tensor([1.0, 2.0]).is_param_() * 2).backward(),
        ValueError,
        "backward of shape (2,) needs a gradient of that shape; or take sum() or mean() first",
    ),
    "index": (
        lambda: Tensor.ones(3, 4)[:, 4],
        IndexError,
        "indexing: position 4 is outside of axis 1 of length 4 (shape (3, 4))",
    ),
    "too many indices": (lambda: Tensor.ones(3)[0, 0], IndexError, "indexing: 2 indices for the 1 axes of shape (3,)"),
    "truth": (lambda: bool(Tensor.ones(2)), ValueError, "the truth of a tensor of shape (2,) is ambiguous; use any()"),
    "cat": (
        lambda: Tensor.ones(2, 3).cat(Tensor.ones(2, 4)),
        ValueError,
        "cat: shapes [(2, 3), (2, 4)] differ outside of axis 0",
    ),
    "permute": (
        lambda: Tensor.ones(2, 3).permute(0, 0),
        ValueError,
        "permute: (0, 0) is no order of the 2 axes of shape (2, 3)",
    ),
    "bits of floats": (lambda: Tensor([1.0]) & Tensor([2.0]), TypeError, "bitwise and needs integers or bools"),
    "gradient of integers": (
        lambda: Tensor([1]).sum().gradient(Tensor([1])),
        TypeError,
        "gradient: only floats have one, not int32",
    ),
    "assign dtype": (
        lambda: Tensor([1.0]).assign(Tensor([1])),
        TypeError,
        "assign: int32 values for a float32 tensor; cast them first",
    ),
    "mode": (
        lambda: Tensor.ones(1, 1, 2, 2).interpolate((3, 3), "area"),
        ValueError,
        "interpolate: mode is one of nearest, nearest-exact, linear, cubic, not 'area'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_where_it_is_made(name):
    make, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=re.escape(message)):
        make()


IMAGE = Tensor.ones(1, 3, 8, 8)
TAPS = Tensor.ones(4, 3, 3, 3)
NUMBERS = {
    "conv2d: stride is at least 1, not 0": lambda: IMAGE.conv2d(TAPS, stride=0),
    "conv2d: dilation is at least 1, not 0": lambda: IMAGE.conv2d(TAPS, dilation=(1, 0)),
    "conv2d: stride is an int, not 1.5": lambda: IMAGE.conv2d(TAPS, stride=1.5),
    "padding is an int, not 0.5": lambda: IMAGE.conv2d(TAPS, padding=0.5),
    "conv2d: stride is one int or 2 of them, one a spatial axis, not (1, 2, 3)": lambda: IMAGE.conv2d(
        TAPS, stride=(1, 2, 3)
    ),
    "max_pool2d: kernel_size is at least 1, not 0": lambda: IMAGE.max_pool2d(0),
    "max_pool2d: stride is at least 1, not 0": lambda: IMAGE.max_pool2d(2, stride=0),
    "avg_pool2d: a window of (9, 9) (dilation (1, 1)) does not fit into (1, 3, 8, 8) after padding": lambda: (
        IMAGE.avg_pool2d(9)
    ),
    "conv_transpose2d: stride is at least 1, not 0": lambda: IMAGE.conv_transpose2d(Tensor.ones(3, 2, 3, 3), stride=0),
    "reshape: a dimension is an int, not 'a'": lambda: IMAGE.reshape("a"),
    "repeat: a dimension is an int, not 1.5": lambda: Tensor.ones(2).repeat(1.5),
    "repeat_interleave: repeats is at least 0, not -1": lambda: Tensor.ones(2).repeat_interleave(-1),
    "roll: a shift is an int, not 0.5": lambda: Tensor.ones(2).roll(0.5),
    "roll: a shift for each of the axes (0,) is needed, not [1, 2]": lambda: Tensor.ones(2).roll((1, 2), (0,)),
    "split: the size of a part is an int, not 1.5": lambda: Tensor.ones(2).split(1.5),
    "chunk: the number of parts is at least 1, not 0": lambda: Tensor.ones(2).chunk(0),
    "topk: k is an int, not 1.5": lambda: Tensor.ones(2).topk(1.5),
    "pad: a dimension is an int, not 0.5": lambda: Tensor.ones(2).pad((0.5, 1)),
    "pad: [(1,)] is no list of pairs (before, after), one an axis of shape (2,)": lambda: Tensor.ones(2).pad(((1,),)),
    "linspace: the number of steps is an int, not 2.5": lambda: Tensor.linspace(0, 1, 2.5),
    "eye: a dimension is an int, not 1.5": lambda: Tensor.eye(1.5),
    "cat: there are no values to join": lambda: Tensor.cat([]),
    "stack: there are no values to join": lambda: Tensor.stack([]),
    "Tensor: 1099511627776 does not fit int32, the default integer type; give dtype='int64'": lambda: Tensor(
        [1, 2**40]
    ),
    "Variable 'n': a value is an int, not 1.5": lambda: Variable("n", 1, 5).bind(1.5),
    "binary_crossentropy: targets of shape (3, 1) do not fit (3,); their shapes must be equal": lambda: Tensor.rand(
        3
    ).binary_crossentropy(Tensor.ones(3, 1)),
    "batchnorm: mean has shape (4,), axis 1 of (1, 3, 8, 8) wants (1, 3, 1, 1)": lambda: IMAGE.batchnorm(
        None, None, Tensor.ones(4), Tensor.ones(4)
    ),
    "newton_schulz: expected matrices (.., m, n), not shape (2,)": lambda: Tensor.ones(2).newton_schulz(),
    f"newton_schulz: steps is at most 100, not {2**70}": lambda: Tensor.eye(2).newton_schulz(2**70),
    "newton_schulz: steps is at least 0, not -1": lambda: Tensor.eye(2).newton_schulz(-1),
    f"Muon: steps is at most 100, not {2**70}": lambda: nn.optim.Muon([TAPS], steps=2**70),
    "Linear: in_features is at least 0, not -1": lambda: nn.Linear(-1, 2),
    "Linear: out_features is at least 0, not -2": lambda: nn.Linear(2, -2),
    "Embedding: vocab_size is an int, not 'a'": lambda: nn.Embedding("a", 2),
    "LSTMCell: hidden_size is at least 1, not 0": lambda: nn.LSTMCell(3, 0),
    "BatchNorm: momentum lies within 0 and 1, not 2": lambda: nn.BatchNorm(3, momentum=2),
    "LayerNorm: a size is at least 1, not 0": lambda: nn.LayerNorm(0),
    "GroupNorm: num_groups is at least 1, not 0": lambda: nn.GroupNorm(0, 4),
    "RMSNorm: eps is a number, not 'a'": lambda: nn.RMSNorm(3, eps="a"),
    "Linear: x is a tensor, not [1, 2]; Tensor(..) makes one of numbers": lambda: nn.Linear(2, 2)([1, 2]),
    "SGD: lr is a number, not 'a'": lambda: nn.optim.SGD([TAPS], lr="a"),
    "SGD: lr is a finite number, not nan": lambda: nn.optim.SGD([TAPS], lr=float("nan")),
    "SGD: momentum is at least 0, not -0.5": lambda: nn.optim.SGD([TAPS], momentum=-0.5),
    "Adam: betas are two numbers in [0, 1), not (0.9,)": lambda: nn.optim.Adam([TAPS], betas=(0.9,)),
    "AdamW: each of the betas is a number, not 'a'": lambda: nn.optim.AdamW([TAPS], betas=("a", 0.9)),
    "Adam: weight_decay is a number, not None": lambda: nn.optim.Adam([TAPS], weight_decay=None),
    "Muon: steps is an int, not 1.5": lambda: nn.optim.Muon([TAPS], steps=1.5),
    "LARS: trust is at least 0, not -1": lambda: nn.optim.LARS([TAPS], trust=-1),
    "cosine: steps is at least 1, not 0": lambda: nn.schedules.cosine(0.1, 0),
    "Variable 'n': the greatest value is an int, not 'a'": lambda: Variable("n", 1, "a"),
    "Variable: the name is text, not 3": lambda: Variable(3, 1, 2),
    "load_state_dict: state is a dict of tensors by name, not None": lambda: nn.state.load_state_dict([TAPS], None),
    "safe_save: tensors is a dict by name, not 'a'": lambda: nn.state.safe_save("a", "unused"),
    "safe_save: metadata is a dict by name, not 0": lambda: nn.state.safe_save({}, "unused", 0),
    "safe_save: metadata is a dict by name, not []": lambda: nn.state.safe_save({}, "unused", []),
    "get_state_dict: prefix is the text that names begin with, not None": lambda: nn.state.get_state_dict(TAPS, None),
    "DataLoader: batch_size is an int, not 'a'": lambda: nn.loader.DataLoader(np.zeros((4, 2)), batch_size="a"),
    "LossScaler: optimizer is one of nn.optim, not 3": lambda: nn.precision.LossScaler(3),
    "conv2d: weight is a tensor, not 'a'": lambda: IMAGE.conv2d("a"),
    "dropout: the probability is a number, not 'a'": lambda: IMAGE.dropout("a"),
    "sum: an axis is an int, not True": lambda: IMAGE.sum(True),
    "shrink: 3 is no pair (start, end)": lambda: Tensor.ones(2).shrink([3]),
    "Conv2d: groups is at least 1, not 0": lambda: nn.Conv2d(3, 4, 3, groups=0),
    "jit: a function is needed, not 3": lambda: jit(3),
    "call: fxn is a function of tensors or an expression over parameters, not 3": lambda: IMAGE.call(fxn=3),
    "from_blob: no memory lies at address 0": lambda: Tensor.from_blob(0, (3,)),
}


@pytest.mark.parametrize("message", NUMBERS)
def test_numbers_that_make_no_sense(message):
    with pytest.raises((ValueError, TypeError)) as found:
        NUMBERS[message]()
    assert message in str(found.value)


def test_integers_of_numpy_are_integers():
    two, x = np.int64(2), Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    made = [
        x.reshape(np.int64(3), two), x[:, :1].expand(two, two), x.repeat(np.int64(1), two), x.repeat_interleave(two, 0),
        x.roll(two, np.int64(1)), x.split(np.int64(1))[0], x.split(np.array([1, 1]))[0], x.chunk(two)[0],
        x.topk(two)[0], x.pad((two, 1)), x.pad(((two, 0), (0, 0))),
        x.shrink(((np.int64(0), two), None)), x.unfold(1, two, np.int64(1)),
        Tensor.zeros(two, 2), Tensor.full((two,), np.float32(1)), Tensor.rand(two), Tensor.eye(two), Tensor.arange(two),
        Tensor.linspace(0, 1, two), Tensor.randperm(two), Tensor.empty(two), x.view(np.int64(6)), x.interpolate((two,)),
        x.unflatten(0, (two, 1)), IMAGE.conv2d(TAPS, stride=two, padding=np.int64(1)), IMAGE.max_pool2d(two),
        nn.Linear(np.int64(3), two)(x), nn.Conv2d(np.int64(3), two, two)(IMAGE),
    ]  # fmt: skip
    shapes = [
        (3, 2), (2, 2), (2, 6), (4, 3), (2, 3), (1, 3), (1, 3), (1, 3), (2, 2), (2, 6), (4, 3), (2, 3), (2, 2, 2),
        (2, 2), (2,), (2,), (2, 2), (2,), (2,), (2,), (2,), (6,), (2, 2), (2, 1, 3), (1, 4, 4, 4), (1, 3, 4, 4), (2, 2),
        (1, 2, 7, 7),
    ]  # fmt: skip
    assert [t.shape for t in made] == shapes
    assert all(type(d) is int for t in made for d in t.shape)
    assert Variable("n", 1, 5).bind(two).unbind()[1] == 2
