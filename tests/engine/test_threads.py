"""Several Python threads build, compile and realize at once; a process forked afterwards computes too; errors leave
caches sane.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest

from aril import Tensor, jit
from aril.engine import compile as compiler


def test_threads_at_once() -> None:
    shared = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4)).realize()
    errors: list[BaseException] = []
    start = threading.Barrier(6)

    def work(k: int) -> None:
        try:
            start.wait()
            own = Tensor(np.full((3, 4), k, np.float32))
            f = jit(lambda x: (x + shared).sum(0) * 2)
            for i in range(6):
                y = ((own + shared) * (k + 2)).sum(1)
                np.testing.assert_allclose(y.numpy(), ((k + np.arange(12).reshape(3, 4)) * (k + 2)).sum(1))
                own.assign(own + 1).realize()
                own.assign(own - 1)
                assert own.numpy().tolist() == [[k] * 4] * 3
                out = f(Tensor(np.full((3, 4), i, np.float32)))
                np.testing.assert_allclose(out.numpy(), (i + np.arange(12).reshape(3, 4)).sum(0) * 2)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not errors


def test_one_lazy_value_realized_by_many_threads() -> None:
    x = Tensor(np.arange(1000, dtype=np.float32)).realize()
    for _ in range(5):
        y = (x * 3 + 1).sum()
        found: list[Any] = []
        threads = [threading.Thread(target=lambda y=y, found=found: found.append(y.item())) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert found == [999 * 1000 / 2 * 3 + 1000] * 4


def test_a_forked_process_computes() -> None:
    x = Tensor(np.arange(100_000, dtype=np.float32)).realize()
    expected = (x * 2).sum().item()
    pid = os.fork()
    if pid == 0:
        try:
            ok = (x * 2).sum().item() == expected and (x + 5).max().item() == 100_004
            os._exit(0 if ok else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert (x * 2).sum().item() == expected


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_an_error_while_compiling_leaves_everything_usable(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    x = Tensor(np.arange(7, dtype=np.float32)).realize()
    y = (x * 1.25 + (0.5 if isinstance(error, RuntimeError) else 0.75)).sum()

    def fail(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as m:
        m.setattr(compiler, "compile_body", fail)
        m.setattr(compiler.cache, "get", lambda *_: None)
        with pytest.raises(type(error)):
            y.realize()
    assert y.item() == pytest.approx(26.25 + 7 * (0.5 if isinstance(error, RuntimeError) else 0.75))
