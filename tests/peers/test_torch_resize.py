"""Interpolation equals PyTorch's in every mode."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aril import Tensor

RNG = np.random.default_rng(0)
MODES = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest", "nearest-exact": "nearest-exact"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(3, 4), (9, 11), (5, 7), (1, 13)])
@pytest.mark.parametrize("option", ["plain", "aligned", "antialias"])
def test_interpolation(mode, size, option):
    if option != "plain" and mode.startswith("nearest"):
        pytest.skip("the nearest modes have no such option")
    x = RNG.normal(size=(2, 3, 5, 7))
    more = {"plain": {}, "aligned": {"align_corners": True}, "antialias": {"antialias": True}}[option]
    want = torch.nn.functional.interpolate(torch.from_numpy(x), size=size, mode=MODES[mode], **more)
    np.testing.assert_allclose(Tensor(x).interpolate(size, mode, **more).numpy(), want.numpy(), atol=1e-12)
