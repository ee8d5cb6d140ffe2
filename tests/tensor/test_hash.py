"""Digests against `hashlib`."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from aril import Tensor, dtypes

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("size", [0, 1, 135, 136, 300])
def test_sha3_256_is_hashlibs(size):
    data = RNG.integers(0, 256, size).astype(np.uint8)
    assert bytes(Tensor(data).keccak().tolist()) == hashlib.sha3_256(data.tobytes()).digest()


@pytest.mark.parametrize("name", ["sha3_224", "sha3_384", "sha3_512", "shake_128", "shake_256"])
def test_the_other_members_of_the_family(name):
    data = RNG.integers(0, 256, 20).astype(np.uint8)
    reference = hashlib.new(name, data.tobytes())
    sizes = {"shake_128": [16], "shake_256": [32]}.get(name, [])
    assert bytes(Tensor(data).keccak(name).tolist()) == reference.digest(*sizes)


def test_rows_are_hashed_on_their_own():
    data = RNG.integers(0, 256, (3, 2, 7)).astype(np.uint8)
    got = Tensor(data).keccak().numpy()
    for i in np.ndindex(3, 2):
        assert bytes(got[i]) == hashlib.sha3_256(data[i].tobytes()).digest()


def test_the_hash_of_a_tensor_is_that_of_its_bytes():
    x = RNG.normal(size=(9, 13)).astype(np.float32)  # some blocks of 168 bytes, the last one not full
    one = Tensor(x).hash().tolist()
    assert one == Tensor(x.tobytes(), dtype=dtypes.uint8).hash().tolist()
    assert one == Tensor(x.T.copy()).T.hash().tolist()
    x[3, 4] += 1
    assert one != Tensor(x).hash().tolist()
    small = np.arange(5, dtype=np.int32)
    want = hashlib.shake_128(small.tobytes() + (20).to_bytes(8, "little")).digest(16)
    assert bytes(Tensor(small).hash().tolist()) == want


def test_keccak_says_what_it_needs():
    with pytest.raises(TypeError, match="bytes are uint8, not float32"):
        Tensor([1.0]).keccak()
    with pytest.raises(ValueError, match="cfg is one of"):
        Tensor([1], dtype=dtypes.uint8).keccak("md5")
