"""One step of a schedule as it runs: a kernel or a transfer with its buffers, and what is checked and told of it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from aril.config import NO_COLOR
from aril.device import Buffer
from aril.engine.compile import Loaded
from aril.engine.transfer import transfer_name
from aril.schedule import Item


@dataclass(eq=False, slots=True)
class Launch:
    """One step as it ran: what a capture records. `loaded` is None for a transfer (buffers[0] from buffers[1])."""

    loaded: Loaded | None
    buffers: list[Buffer]
    values: list[int]
    chunks: int
    item: Item

    @property
    def name(self) -> str:
        """What to call it in reports."""
        return self.loaded.name if self.loaded is not None else transfer_name(self.item, self.buffers)

    @property
    def device(self) -> str:
        """The device whose counters it is counted in."""
        return self.buffers[0].device if self.loaded is None else self.loaded.device

    def cost(self, values: dict[str, int]) -> tuple[int, int]:
        """(operations, bytes) for these values of variables."""
        return (0, self.buffers[0].nbytes) if self.loaded is None else self.loaded.cost(values)


class NotFinite(ArithmeticError):
    """NAN_CHECK=1: a kernel wrote a NaN or an infinity."""


def check_numbers(launch: Launch, buffers: list[Buffer]) -> None:
    """NotFinite names the kernel, the element and the user's line where a result that was just written is no finite
    number.
    """
    import numpy as np

    for b in buffers[: launch.item.outputs]:
        if b.dtype.kind != "f" or b.dtype.fmt is None or not b.nbytes:
            continue
        values = np.frombuffer(b.as_memoryview(), np.dtype(b.dtype.fmt))
        bad = np.flatnonzero(~np.isfinite(values))
        if not bad.size:
            continue
        was_bad = [
            f"argument {k}"
            for k, r in enumerate(buffers[launch.item.outputs :])
            if r.dtype.kind == "f" and r.dtype.fmt and r.nbytes
            and not np.isfinite(np.frombuffer(r.as_memoryview(), np.dtype(r.dtype.fmt))).all()
        ]  # fmt: skip
        raise NotFinite(
            f"kernel {launch.name} wrote {values[bad[0]]} "
            f"as element {bad[0]} of {b.size} "
            f"({bad.size} are not finite)"
            + (f"; {', '.join(was_bad)} had such numbers before" if was_bad else "; all it read was finite")
            + f"; built at {launch.item.origin or 'a line that NAN_CHECK=1 in the environment shows'}"
        )


def report(launch: Launch, ops: int, size: int, seconds: float) -> None:
    """The line of DEBUG=2: name, arguments, operations, bytes, time, rates, the user's line."""
    seconds = max(seconds, 1e-9)
    shapes = " ".join(f"{b.size}{b.dtype.fmt or b.dtype.name}" for b in launch.buffers[:4])
    more = f" +{len(launch.buffers) - 4}" if len(launch.buffers) > 4 else ""
    line = (
        f"*** {launch.buffers[0].device if launch.buffers else '':6s} {bold(f'{launch.name:28s}')} {shapes + more:36s} "
        f"{ops / 1e6:10.2f} Mop {size / 1e6:9.2f} MB {seconds * 1e6:10.1f} us {ops / seconds / 1e9:8.2f} GFLOPS "
        f"{size / seconds / 1e9:7.2f} GB/s  x{launch.chunks}  {launch.item.origin or ''}"
    )
    print(line, file=sys.stderr)


def bold(text: str) -> str:
    """`text` in bold on a terminal, as it is elsewhere."""
    return f"\x1b[1m{text}\x1b[0m" if sys.stderr.isatty() and not NO_COLOR.value else text
