"""Process 1 does what it is told to, between two messages that all take part in."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

how = sys.argv[1]
if how == "raise before joining" and os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    raise RuntimeError("no first message")

from aril import Tensor, distributed  # noqa: E402

world = distributed.init()
x = Tensor(np.ones(4, np.float32))
assert distributed.allreduce(x).tolist() == [2.0] * 4
if world.rank == 1:
    if how.startswith("os._exit"):
        os._exit(int(how.split()[1]))
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "SIGSEGV":
        ctypes.string_at(8)
    if how == "raise":
        raise RuntimeError("one of two")
    if how == "sys.exit":
        sys.exit(0)
    if how == "another shape":
        x = Tensor(np.ones(5, np.float32))
    if how == "another message":
        distributed.broadcast(x).realize()
    if how == "sleep":
        time.sleep(60)
    if how == "fork":
        child = os.fork()
        if child == 0:
            try:
                distributed.allreduce(x).realize()
            except distributed.ProcessError as error:
                sys.exit(0 if "a forked child" in str(error) else 2)
            sys.exit(3)
        assert os.waitpid(child, 0)[1] == 0
(Path(os.environ["RESULTS"]) / str(world.rank)).write_text(str(distributed.allreduce(x).tolist()))
