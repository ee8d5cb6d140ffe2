"""Each process says its number and stays; a deaf one ignores what would end it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from aril import distributed

distributed.init()
if sys.argv[2]:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
(Path(sys.argv[1]) / str(os.getpid())).touch()
time.sleep(600)
