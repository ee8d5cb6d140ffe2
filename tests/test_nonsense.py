"""Arguments that make no sense: every public method of a tensor answers with a message of its own, not of Python's."""

from __future__ import annotations

import inspect
import re

import pytest

from aril import Tensor
from tests.vocabulary import NAMES

# Of what Python says where a value of another type came too far.
BARE = re.compile(
    r"' object|unsupported operand|not supported between|has no (attribute|len)|bad operand|cannot unpack|unhashable"
    r"|(not enough|too many) values|invalid literal|could not convert|(float|int)\(\) argument|index out of range"
    r"|must be str|recursion"
)
NONSENSE = ["a", None, -7, 1.5, [None], (1, 2, 3), {}, 1j, object(), int]
VALUES = {
    "weight": Tensor.ones(2, 3, 1), "index": Tensor([[[0]]]), "Y": Tensor([[0, 1]]), "mask": Tensor([True] * 3),
    "indices": Tensor([[[0]]]), "mean": Tensor.ones(3), "invstd": Tensor.ones(3), "formula": "ijk->kji",
    "sizes": (1, -1), "reduce": "sum", "key": Tensor.ones(1, 2, 3), "value": Tensor.ones(1, 2, 3),
    "w": Tensor.ones(3, 2),
}  # fmt: skip
APART = {
    "from_blob",
    "from_url",
    "custom_kernel",
    "callify",
    "to_",
    "replace",
    "shard_",
    "manual_seed",
    "schedule_linear",
}


def calls(name):
    method = getattr(Tensor.ones(1, 2, 3), name)
    parameters = inspect.signature(method).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    for p in parameters:
        for value in NONSENSE:
            if p.kind is p.VAR_POSITIONAL:
                yield (
                    f"*{p.name}={value!r}",
                    lambda value=value: method(*[VALUES.get(n.name, 1) for n in needed], value),
                )
            elif p.kind is not p.VAR_KEYWORD:
                given = {n.name: VALUES.get(n.name, 1) for n in needed} | {p.name: value}
                yield f"{p.name}={value!r}", lambda given=given: method(**given)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in APART and callable(getattr(Tensor.ones(1), n))])
def test_what_makes_no_sense_is_named(name):
    for what, call in calls(name):
        try:
            call()
        except Exception as error:
            own = isinstance(error, (TypeError, ValueError, IndexError, RuntimeError, NotImplementedError))
            text = str(error).replace(repr(object), "").replace("1j", "")
            assert own and not BARE.search(re.sub(r"<object object at \w+>", "", text)), (what, error)
