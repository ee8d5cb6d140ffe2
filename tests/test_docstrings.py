"""Every public function has a docstring; those of Tensor have an example, which runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pathlib
import pkgutil

import numpy as np
import pytest

import aril
from aril import Tensor
from aril.ops import Ops
from aril.uop import UOp

METHODS = """
T abs acos acosh add all allclose alu any arange argmax argmin argsort as_param asin asinh assign atan atanh
avg_pool2d backward batchnorm bfloat16 binary_crossentropy binary_crossentropy_logits bitcast bitwise_and
bitwise_not bitwise_or bitwise_xor bool call callify cast cat ceil celu chunk clamp clip clone const const_like
contiguous contiguous_backward conv2d conv_transpose2d copysign cos cosh cross_entropy cummax cummin cumprod
cumsum custom_kernel data detach device diag diagonal div dot double dropout dtype einsum element_size elu empty
empty_like eq erf exp exp2 expand eye flatten flip float floor fmod from_blob from_url full full_like gather
gelu glorot_uniform gradient half hardsigmoid hardswish hardtanh hash int interpolate invalids is_floating_point
is_param is_param_ isclose isfinite isinf isnan item kaiming_normal kaiming_uniform keccak layernorm leaky_relu
lerp linear linear_with_vars linspace log log10 log2 log_softmax logaddexp logcumsumexp logical_not logsigmoid
logsumexp long lshift manual_seed masked_fill masked_select matmul max max_numel max_pool2d max_shape
max_unpool2d maximum mean meshgrid min minimum mish mod mul multinomial nbytes ndim ne neg newton_schulz
nll_loss nonzero normal normalize numel numpy one_hot ones ones_like pad pad_to permute pow prod qr quick_gelu
rand rand_like randint randn randn_like random_bits randperm realize rearrange reciprocal relu relu6 repeat
repeat_interleave replace reshape roll round rshift rsqrt scaled_dot_product_attention scaled_uniform scatter
scatter_reduce schedule_linear selu sequential shape shard shard_ shard_like short shrink shrink_to sigmoid sign
silu sin sinh size softmax softmin softplus softsign sort sparse_categorical_crossentropy split sqrt square
squeeze stack std std_mean sub sum svd swish tan tanh threefry to to_ tolist topk transpose tril triu trunc ufix
unflatten unfold uniform unsqueeze uprod usum var var_mean view where zeros zeros_like
"""
OTHERS = {
    "aril.nn": """Linear Conv1d Conv2d ConvTranspose1d ConvTranspose2d BatchNorm BatchNorm2d BatchNorm3d LayerNorm
    LayerNorm2d GroupNorm InstanceNorm RMSNorm Embedding LSTMCell""",
    "aril.nn.optim": "SGD Adam AdamW LAMB LARS Muon OptimizerGroup clip_grad_norm",
    "aril.nn.schedules": "step_decay cosine warm_up one_cycle",
    "aril.nn.state": "get_state_dict get_parameters load_state_dict safe_load safe_save safe_load_metadata",
    "aril.nn.state_archives": "npy_load npz_load npy_save npz_save",
    "aril.nn.precision": "lowered",
    "aril.nn.recompute": "recompute",
    "aril.nn.loader": "DataLoader",
    "aril.nn.collate": "collate",
    "aril.transforms": "vmap vjp jvp jacobian hessian",
    "aril.function": "function",
    "aril.jit": "jit",
    "aril.dtype": "promote to_dtype",
    "aril.config": "Context setting",
}


def modules() -> list[str]:
    """The modules whose docstrings hold examples."""
    found = []
    for info in pkgutil.walk_packages(aril.__path__, "aril."):
        spec = info.module_finder.find_spec(info.name, None)  # type: ignore[call-arg]
        if spec is not None and spec.origin and ">>> " in pathlib.Path(spec.origin).read_text():
            found.append(info.name)
    return found


@pytest.mark.parametrize("name", modules())
def test_the_examples_of_a_module(name, tmp_path):
    module = importlib.import_module(name)
    names = {n: getattr(aril, n) for n in aril.__all__}
    seed = Tensor.random_state()
    more = {"np": np, "Ops": Ops, "UOp": UOp, "folder": tmp_path}
    failed, tried = doctest.testmod(module, extraglobs={**names, **more})
    Tensor.load_random_state(seed)
    assert tried
    assert not failed


def text(thing: object, name: str) -> str:
    found = inspect.getattr_static(thing, name) if inspect.isclass(thing) else getattr(thing, name)
    return inspect.getdoc(found.__func__ if isinstance(found, (classmethod, staticmethod)) else found) or ""


@pytest.mark.parametrize("name", METHODS.split())
def test_a_method_of_tensor_says_what_it_does_and_shows_it(name):
    first, _, rest = text(Tensor, name).partition("\n")
    assert first
    assert ">>> " in rest, f"Tensor.{name} has no example"


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in OTHERS.items() for n in names.split()])
def test_a_function_or_class_says_what_it_does_and_shows_it(module, name):
    first, _, rest = text(importlib.import_module(module), name).partition("\n")
    assert first
    assert ">>> " in rest, f"{module}.{name} has no example"
