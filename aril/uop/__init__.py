"""The IR: nodes, what can be derived of them, patterns and rewriting, algebra, verifiers, printing."""

from aril.ops import OpGroup, Ops
from aril.uop.args import AddrSpace, AxisType, Estimates, KernelInfo, ParamArg, RangeArg
from aril.uop.node import UOp, Variable, sint

__all__ = [
    "AddrSpace", "AxisType", "Estimates", "KernelInfo", "OpGroup", "Ops", "ParamArg", "RangeArg", "UOp", "Variable",
    "sint",
]  # fmt: skip
