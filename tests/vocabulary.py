"""The vocabulary of tensors: every name users may count on, and where each is compared with an outside reference.

A name has rows in the table of operations (`tests/operations.py`), or is listed in `ELSEWHERE` with the file that tests
it. `python -m tests.vocabulary` counts them.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.operations import TABLE

_TEXT = """
T abs acos acosh add all allclose alu any arange argmax argmin argsort as_param asin asinh assign atan atanh
avg_pool2d backward batchnorm bfloat16 binary_crossentropy binary_crossentropy_logits bitcast bitwise_and bitwise_not
bitwise_or bitwise_xor bool call callify cast cat ceil celu chunk clamp clip clone const const_like contiguous
contiguous_backward conv2d conv_transpose2d copysign cos cosh cross_entropy cummax cummin cumprod cumsum custom_kernel
data detach device diag diagonal div dot double dropout dtype einsum element_size elu empty empty_like eq erf exp exp2
expand eye flatten flip float floor fmod from_blob from_url full full_like gather gelu glorot_uniform grad gradient
half hardsigmoid hardswish hardtanh hash image_conv2d image_dot int interpolate invalids is_floating_point is_param
is_param_ isclose isfinite isinf isnan item kaiming_normal kaiming_uniform keccak layernorm leaky_relu lerp linear
linear_with_vars linspace log log10 log2 log_softmax logaddexp logcumsumexp logical_not logsigmoid logsumexp long
lshift manual_seed masked_fill masked_select matmul max max_numel max_pool2d max_shape max_unpool2d maximum mean
meshgrid min minimum mish mod mul multinomial nbytes ndim ne neg newton_schulz nll_loss nonzero normal normalize numel
numpy one_hot ones ones_like pad pad_to permute pow prod qr quick_gelu rand rand_like randint randn randn_like
random_bits randperm realize rearrange reciprocal relu relu6 repeat repeat_interleave replace reshape roll round
rshift rsqrt scaled_dot_product_attention scaled_uniform scatter scatter_reduce schedule_linear selu sequential shape
shard shard_ shard_like short shrink shrink_to sigmoid sign silu sin sinh size softmax softmin softplus softsign sort
sparse_categorical_crossentropy split sqrt square squeeze stack std std_mean sub sum svd swish tan tanh threefry to
to_ tolist topk transpose tril triu trunc ufix unflatten unfold uniform unsqueeze uop uprod usum var var_mean view
where zeros zeros_like
"""
NAMES = _TEXT.split()

ELSEWHERE = {
    "test_autograd.py": "gradient",
    "test_interop.py": "from_blob numpy data",
    "test_fetch.py": "from_url",
    "tensor/test_calls.py": "as_param call callify linear_with_vars schedule_linear",
    "tensor/test_custom_kernel.py": "custom_kernel",
    "tensor/test_creation.py": "arange eye full linspace ones zeros dtype item tolist shape realize to",
    "tensor/test_assign.py": "assign",
    "tensor/test_habits.py": "backward grad is_param_ is_param",
    "tensor/test_getitem.py": "masked_select nonzero",
    "tensor/test_hash.py": "hash keccak",
    "tensor/test_invalid.py": "invalids",
    "tensor/test_linalg.py": "qr svd",
    "tensor/test_random.py": "glorot_uniform kaiming_normal kaiming_uniform manual_seed multinomial normal rand"
    " rand_like randint randn random_bits randperm scaled_uniform threefry uniform",
    "tensor/test_shard.py": "shard shard_ shard_like",
    "mixin/test_elementwise.py": "bitcast cast div",
    "mixin/test_layers.py": "batchnorm newton_schulz one_hot",
    "mixin/test_contract.py": "max_unpool2d",
    "mixin/test_vocabulary.py": "alu bfloat16 bool const const_like double element_size float half int"
    " is_floating_point long device empty empty_like max_numel max_shape nbytes ndim numel"
    " randn_like short replace size to_ ufix uop",
}


def in_table() -> set[str]:
    """Names with a row."""
    return {row.name for row in TABLE}


def elsewhere() -> dict[str, str]:
    """Name -> the file that tests it, where that is not the table."""
    return {name: file for file, names in ELSEWHERE.items() for name in names.split()}


def untested() -> list[str]:
    """Names that have no row and whose file does not use them."""
    texts = {file: (Path(__file__).parent / file).read_text() for file in ELSEWHERE}
    rows, files = in_table(), elsewhere()

    def used(name: str) -> bool:
        return name in files and re.search(rf"\b{name}\b", texts[files[name]]) is not None

    return [n for n in NAMES if n not in rows and not used(n)]


def main() -> None:
    """Print the counts."""
    from aril import Tensor

    rows, missing = in_table(), untested()
    present = [n for n in NAMES if hasattr(Tensor, n)]
    own = [n for n in NAMES if n in rows]
    print(
        f"{len(NAMES)} listed, {len(present)} present, {len(NAMES) - len(missing)} tested against an outside reference "
        f"({len(own)} by the table of {len(TABLE)} rows, {len(NAMES) - len(missing) - len(own)} elsewhere)"
    )
    if missing:
        print("untested:", *missing)


if __name__ == "__main__":
    main()
