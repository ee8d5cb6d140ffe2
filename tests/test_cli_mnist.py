"""`aril train mnist`: its last line, the file it leaves, and what an interruption leaves. On a few made-up digits."""

import os
import re

import numpy as np
import pytest

from aril import cli
from aril.nn.datasets import Digits

RNG = np.random.default_rng(5)


def made_up(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of ten kinds: kind k has a bright row at 2k + 4, so that a network learns them at once."""
    labels = RNG.integers(0, 10, count, np.uint8)
    images = RNG.integers(0, 60, (count, 1, 28, 28), np.uint8)
    images[np.arange(count), 0, 2 * labels + 4] = 255
    return images, labels


@pytest.fixture
def digits(monkeypatch, tmp_path) -> Digits:
    from aril import cli_mnist

    made = (*made_up(96), *made_up(40))
    monkeypatch.setattr(cli_mnist, "mnist", lambda as_numpy: made)
    monkeypatch.chdir(tmp_path)
    return made


def train(*options: str) -> int:
    return cli.main(["train", "mnist", "--batch", "16", *options])


def test_it_trains_saves_loads_and_ends_with_the_accuracy(digits, capsys, tmp_path):
    assert train("--steps", "3", "--save", "new/weights.safetensors") == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"test accuracy \d+\.\d% in \d+\.\d s", lines[-1])
    assert os.listdir(tmp_path / "new") == ["weights.safetensors"]


def test_the_saved_file_is_what_safetensors_reads(digits, tmp_path):
    load_file = pytest.importorskip("safetensors.numpy", reason="the format's own package is not installed").load_file
    assert train("--steps", "1") == 0
    shapes = sorted(array.shape for array in load_file(tmp_path / "mnist.safetensors").values() if array.ndim > 1)
    assert shapes == [(10, 576), (32, 1, 5, 5), (32, 32, 5, 5), (64, 32, 3, 3), (64, 64, 3, 3)]


def test_an_epoch_takes_each_image_once():
    from aril.cli_mnist import batches

    steps = batches(96, 16, 12, seed=1)
    for epoch in (steps[:6], steps[6:]):
        assert sorted(np.concatenate(epoch)) == list(range(96))
    assert not np.array_equal(steps[0], steps[6])
    assert [len(step) for step in batches(50, 16, 7, seed=1)] == [16] * 7


def test_the_same_seed_gives_the_same_losses(digits):
    from aril import Tensor, cli_mnist

    def losses() -> list[float]:
        Tensor.manual_seed(3)
        return list(cli_mnist.train(cli_mnist.Net(), *digits[:2], cli_mnist.batches(96, 16, 3, 3), 1e-3))

    assert losses() == losses()


def test_training_lowers_the_loss(digits):
    from aril import Tensor, cli_mnist

    Tensor.manual_seed(0)
    losses = list(cli_mnist.train(cli_mnist.Net(), *digits[:2], cli_mnist.batches(96, 32, 12, 0), 3e-3))
    assert losses[-1] < losses[0] / 2


def test_an_interruption_leaves_no_file(digits, capsys, monkeypatch, tmp_path):
    from aril import cli_mnist

    def stop(*_: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_mnist, "accuracy", stop)
    assert train("--steps", "1") == 130
    assert "stopped" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_a_batch_larger_than_the_data_is_refused(digits, capsys):
    assert cli.main(["train", "mnist", "--batch", "97", "--steps", "1"]) == 1
    assert capsys.readouterr().err == "aril: --batch 97 is more than the 96 training images\n"
