"""What tests of batches share."""

import pytest

from aril.runtime import pool_ring
from aril.runtime.pool import Pool


@pytest.fixture(params=[1, 2, 3, 5])
def threads(request, monkeypatch):
    """A pool of so many threads in place of the one that all share."""
    pool = Pool(request.param)
    monkeypatch.setattr(pool_ring, "shared_pool", lambda: pool)
    yield request.param
    pool.close()
