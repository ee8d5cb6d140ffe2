"""Assignments while other threads compute what is pending."""

from __future__ import annotations

import threading

from aril import Tensor, tensor_inplace
from aril.tensor_alive import storage_base


def test_what_another_thread_computes_during_an_assignment_does_not_leave_the_tensor_behind(monkeypatch):
    w = Tensor.zeros(4).contiguous().realize()
    w[0].assign(1.0)
    other = threading.Thread(target=w.realize)

    def meanwhile(u):
        out = storage_base(u)
        if not other.ident:
            other.start()
        other.join(0.2)  # it waits for the assignment to be done
        return out

    monkeypatch.setattr(tensor_inplace, "storage_base", meanwhile)
    w[1].assign(2.0)
    other.join()
    assert w.tolist() == [1.0, 2.0, 0.0, 0.0]
