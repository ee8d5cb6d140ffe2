"""Tasks for the tests of compile workers; they run in worker processes."""

import os
import time


def upper(payload: bytes) -> bytes:
    print("this goes to stderr, not into the answers")
    return payload.upper()


def fail(payload: bytes) -> bytes:
    raise ValueError(f"no {payload.decode()} today")


def die(payload: bytes) -> bytes:
    os.kill(os.getpid(), int(payload))
    return b""


def pid(payload: bytes) -> bytes:
    time.sleep(float(payload or b"0"))
    return str(os.getpid()).encode()
