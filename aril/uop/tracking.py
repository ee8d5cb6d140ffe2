"""TRACK_REWRITES: what the rules of this process did, counted and timed; with 2 also the graphs before and after.

In: a label for each attempt of a rule, a pass and its graphs. Out: `counted`, `graphs`, and a table on stderr at exit.
"""

from __future__ import annotations

import atexit
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aril.uop.node import UOp

SHOWN = 40  # rules in the table at exit, the slowest


@dataclass
class RuleStats:
    """How often a rule was tried, how often it fired, the seconds it took (with the rules it called)."""

    tried: int = 0
    fired: int = 0
    seconds: float = 0.0


counted: dict[str, RuleStats] = {}
graphs: list[tuple[str, UOp, UOp]] = []  # (pass, before, after), in order


def count(label: str, fired: bool, seconds: float) -> None:
    """One attempt of the rule `label`."""
    found = counted.get(label)
    if found is None:
        if not counted:
            atexit.register(_show)
        found = counted[label] = RuleStats()
    found.tried += 1
    found.fired += fired
    found.seconds += seconds


def keep(name: str, before: UOp, after: UOp) -> None:
    """The graphs before and after a pass. They stay in memory: this is for looking at one program."""
    graphs.append((name, before, after))


def report(most: int = SHOWN) -> str:
    """A line a rule: fired/tried, milliseconds, its label; slowest first."""
    rows = sorted(counted.items(), key=lambda e: -e[1].seconds)
    return "\n".join(f"{s.fired:7d} /{s.tried:7d} {s.seconds * 1e3:9.2f} ms  {label}" for label, s in rows[:most])


def _show() -> None:
    if counted:
        print(f"rewrites: {len(counted)} rules tried, {len(graphs)} passes kept\n{report()}", file=sys.stderr)
