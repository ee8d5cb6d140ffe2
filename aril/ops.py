"""The vocabulary of operations: one enum for every node of the IR, from the tensor graph to the last instruction.

It lies below the mixins so that Tensor and UOp name operations alike. Meaning and form of each: `docs/ir.md`.
"""

from __future__ import annotations

from aril.numbered import Numbered, auto


class Ops(Numbered):
    """What a node does. The groups below are those of the IR's description."""

    # storage
    PARAM = auto()
    BUFFER = auto()
    # constants and launch
    CONST = auto()
    Invalid = auto()
    SPECIAL = auto()
    BIND = auto()
    # arithmetic, one source
    CAST = auto()
    BITCAST = auto()
    EXP2 = auto()
    LOG2 = auto()
    SIN = auto()
    SQRT = auto()
    RECIPROCAL = auto()
    NEG = auto()
    TRUNC = auto()
    # arithmetic, two sources
    ADD = auto()
    SUB = auto()
    MUL = auto()
    FDIV = auto()
    MAX = auto()
    POW = auto()
    CDIV = auto()
    CMOD = auto()
    FLOORDIV = auto()
    FLOORMOD = auto()
    SHL = auto()
    SHR = auto()
    AND = auto()
    OR = auto()
    XOR = auto()
    CMPLT = auto()
    CMPNE = auto()
    CMPEQ = auto()
    THREEFRY = auto()
    # arithmetic, three sources
    WHERE = auto()
    MULACC = auto()
    WMMA = auto()
    # vectors
    STACK = auto()
    INDEX = auto()
    # memory
    LOAD = auto()
    STORE = auto()
    ATOMIC = auto()
    SHUFFLE = auto()
    BARRIER = auto()
    WAIT = auto()
    # control
    RANGE = auto()
    END = auto()
    IF = auto()
    ENDIF = auto()
    AFTER = auto()
    GROUP = auto()
    SINK = auto()
    NOOP = auto()
    # inline source
    CUSTOM = auto()
    CUSTOMI = auto()
    INS = auto()
    # graph
    RESHAPE = auto()
    EXPAND = auto()
    PERMUTE = auto()
    PAD = auto()
    SHRINK = auto()
    FLIP = auto()
    SHEAR = auto()
    REDUCE = auto()
    SCATTER = auto()
    COLLECTIVE = auto()
    STAGE = auto()
    COPY = auto()
    MSTACK = auto()
    MSELECT = auto()
    UNSHARD = auto()
    CONTIGUOUS = auto()
    CONTIGUOUS_BACKWARD = auto()
    DETACH = auto()
    # functions
    FUNCTION = auto()
    CALL = auto()
    TUPLE = auto()
    GETTUPLE = auto()
    CUSTOM_FUNCTION = auto()
    # programs
    PROGRAM = auto()
    LINEAR = auto()
    SOURCE = auto()
    BINARY = auto()
    GETADDR = auto()

    def __repr__(self) -> str:
        return f"Ops.{self.name}"

    __str__ = __repr__


class OpGroup:
    """Sets of operations that rules speak of together."""

    UNARY = frozenset({Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.SQRT, Ops.RECIPROCAL, Ops.NEG, Ops.TRUNC})
    BINARY = frozenset(
        {Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.MAX, Ops.POW, Ops.CDIV, Ops.CMOD, Ops.FLOORDIV, Ops.FLOORMOD, Ops.SHL,
         Ops.SHR, Ops.AND, Ops.OR, Ops.XOR, Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ, Ops.THREEFRY}
    )  # fmt: skip
    TERNARY = frozenset({Ops.WHERE, Ops.MULACC})
    ALU = UNARY | BINARY | TERNARY
    ELEMENTWISE = ALU | {Ops.CAST, Ops.BITCAST}
    COMPARISON = frozenset({Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ})
    COMMUTATIVE = frozenset({Ops.ADD, Ops.MUL, Ops.MAX, Ops.AND, Ops.OR, Ops.XOR, Ops.CMPNE, Ops.CMPEQ})
    MOVEMENT = frozenset({Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.PAD, Ops.SHRINK, Ops.FLIP, Ops.SHEAR})
    STORAGE = frozenset({Ops.PARAM, Ops.BUFFER})
    TRANSFER = frozenset({Ops.COPY, Ops.COLLECTIVE})  # whole storage moved, by no kernel
    VOID = frozenset(
        {Ops.STORE, Ops.BARRIER, Ops.WAIT, Ops.END, Ops.IF, Ops.ENDIF, Ops.GROUP, Ops.SINK, Ops.LINEAR, Ops.PROGRAM,
         Ops.SOURCE, Ops.BINARY, Ops.TUPLE, Ops.FUNCTION}
    )  # fmt: skip
