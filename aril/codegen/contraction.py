"""Register tiles for contractions."""

from __future__ import annotations

from aril.codegen.analysis import Nest
from aril.codegen.plan import Plan


def plan_contraction(plan: Plan, nest: Nest) -> bool:
    """Plan a contraction; False where the nest is none."""
    return False
