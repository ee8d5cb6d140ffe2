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
from tests.vocabulary import NAMES

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


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("grad", "uop")])
def test_a_method_of_tensor_says_what_it_does_and_shows_it(name):
    first, _, rest = text(Tensor, name).partition("\n")
    assert first
    assert ">>> " in rest, f"Tensor.{name} has no example"


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in OTHERS.items() for n in names.split()])
def test_a_function_or_class_says_what_it_does_and_shows_it(module, name):
    first, _, rest = text(importlib.import_module(module), name).partition("\n")
    assert first
    assert ">>> " in rest, f"{module}.{name} has no example"
