"""Patterns and rules: what a rewrite looks for, as data, compiled into Python functions.

In: `Rules([(pattern, function), ...])`. Out: `rules.match(node)`, the first replacement that a rule offers, or None.
A rule's function names what it needs of the pattern as its parameters; two names are given to any of them: `ctx`, the
context of the rewrite, and `old`, the node as it stood before its sources were rewritten.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from aril.dtype import DType
from aril.forks import renewed_in_child
from aril.ops import OpGroup, Ops
from aril.uop import tracking
from aril.uop.node import UOp

RuleFunction = Callable[..., "UOp | None"]
MatchFunction = Callable[[UOp, Any, UOp], "UOp | None"]
_GIVEN = ("ctx", "old")


class Pat:
    """A shape that nodes may have.

    - `op`: an operation, several, or None for any.
    - `src`: a tuple (these sources in this order), a list (in any order), one Pat (every source fits it), None (any).
      With `any_src` more sources may follow those listed.
    - `arg`: a value the argument equals; by default any.
    - `dtype`: a type or several.
    - `name`: how the rule's function refers to the node; one name twice must be one node.
    """

    __slots__ = ("ops", "src", "arg", "dtypes", "name", "any_src")

    def __init__(
        self,
        op: Ops | Iterable[Ops] | None = None,
        src: tuple[Pat, ...] | list[Pat] | Pat | None = None,
        arg: Any = ...,
        dtype: DType | Iterable[DType] | None = None,
        name: str | None = None,
        any_src: bool = False,
    ) -> None:
        self.ops = None if op is None else frozenset((op,) if isinstance(op, Ops) else op)
        self.src = src
        self.arg = arg
        self.dtypes = (
            None
            if dtype is None
            else tuple(sorted({dtype} if isinstance(dtype, DType) else dtype, key=lambda d: d.name))
        )
        self.name = name
        self.any_src = any_src

    def named(self, name: str) -> Pat:
        """The same pattern under a name."""
        return Pat(self.ops, self.src, self.arg, self.dtypes, name, self.any_src)

    def alu(self, op: Ops, *others: Pat | int | float, name: str | None = None) -> Pat:
        """The pattern of `op(self, *others)`; in any order where the operation commutes."""
        src = [self, *[o if isinstance(o, Pat) else C(value=o) for o in others]]
        return Pat(op, src if op in OpGroup.COMMUTATIVE else tuple(src), name=name)

    def __add__(self, other: Pat | int | float) -> Pat:
        return self.alu(Ops.ADD, other)

    def __mul__(self, other: Pat | int | float) -> Pat:
        return self.alu(Ops.MUL, other)

    def __sub__(self, other: Pat | int | float) -> Pat:
        return self.alu(Ops.SUB, other)

    def __floordiv__(self, other: Pat | int | float) -> Pat:
        return self.alu(Ops.FLOORDIV, other)

    def __mod__(self, other: Pat | int | float) -> Pat:
        return self.alu(Ops.FLOORMOD, other)

    def __lt__(self, other: Pat | int | float) -> Pat:
        return self.alu(Ops.CMPLT, other)

    def __and__(self, other: Pat | int | float) -> Pat:
        return self.alu(Ops.AND, other)

    def __or__(self, other: Pat | int | float) -> Pat:
        return self.alu(Ops.OR, other)

    def where(self, yes: Pat, no: Pat) -> Pat:
        """The pattern of `WHERE(self, yes, no)`."""
        return Pat(Ops.WHERE, (self, yes, no))

    def __repr__(self) -> str:
        parts = []
        if self.ops is not None:
            names = sorted(o.name for o in self.ops)
            parts.append(
                names[0] if len(names) == 1 else "{" + ",".join(names[:4]) + (",.." if len(names) > 4 else "") + "}"
            )
        if self.src is not None:
            parts.append(f"src={self.src!r}")
        if self.arg is not ...:
            parts.append(f"arg={self.arg!r}")
        if self.dtypes is not None:
            parts.append("dtype=" + "|".join(d.name for d in self.dtypes))
        if self.name is not None:
            parts.append(f"name={self.name!r}")
        return f"Pat({', '.join(parts)})"


def V(name: str, dtype: DType | Iterable[DType] | None = None) -> Pat:
    """Any node, under a name."""
    return Pat(name=name, dtype=dtype)


def C(name: str | None = None, value: Any = ..., dtype: DType | Iterable[DType] | None = None) -> Pat:
    """A constant, under a name or of a value."""
    return Pat(Ops.CONST, arg=value, dtype=dtype, name=name)


class _Compiler:
    """Writes the Python text of one matcher: nested ifs, cheapest tests first, the rule's function innermost."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.env: dict[str, Any] = {}
        self.count = 0

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def bind(self, value: Any, prefix: str) -> str:
        name = self.fresh(prefix)
        self.env[name] = value
        return name

    def emit(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def rule(self, pat: Pat, fn: RuleFunction, label: str) -> None:
        """A rule for nodes whose operation is known to fit."""
        self.match([("u", pat)], {}, 1, fn, label, known=True)

    def match(
        self,
        todo: list[tuple[str, Pat]],
        names: dict[str, str],
        depth: int,
        fn: RuleFunction,
        label: str,
        known: bool = False,
    ) -> None:
        if not todo:
            self.call(names, depth, fn, label)
            return
        (expr, pat), rest = todo[0], todo[1:]
        tests: list[str] = []
        if pat.ops is not None and not known:
            ops = sorted(pat.ops)
            if len(ops) == 1:
                tests.append(f"{expr}.op is {self.bind(ops[0], 'op')}")
            else:
                tests.append(f"{expr}.op in {self.bind(pat.ops, 'ops')}")
        if pat.name is not None and pat.name in names:
            tests.append(f"{expr} is {names[pat.name]}")
        if pat.dtypes is not None:
            if len(pat.dtypes) == 1:
                tests.append(f"{expr}.dtype is {self.bind(pat.dtypes[0], 'dt')}")
            else:
                tests.append(f"{expr}.dtype in {self.bind(frozenset(pat.dtypes), 'dts')}")
        if pat.arg is not ...:
            tests.append(f"{expr}.arg == {self.bind(pat.arg, 'arg')}")
        fixed = pat.src if isinstance(pat.src, (tuple, list)) else None
        if fixed is not None:
            tests.append(f"len({expr}.src) {'>=' if pat.any_src else '=='} {len(fixed)}")
        if tests:
            self.emit(depth, f"if {' and '.join(tests)}:")
            depth += 1
        if pat.name is not None and pat.name not in names:
            names = {**names, pat.name: expr}
        if isinstance(pat.src, Pat):
            self.every(expr, pat.src, rest, names, depth, fn, label)
            return
        if not fixed:
            if not tests:
                self.emit(depth, "if True:")
                depth += 1
            self.match(rest, names, depth, fn, label)
            return
        parts = [self.fresh("s") for _ in fixed]
        source = f"{expr}.src[:{len(parts)}]" if pat.any_src else f"{expr}.src"
        self.emit(depth, f"{', '.join(parts)}{',' if len(parts) == 1 else ''} = {source}")
        orders = (
            itertools.permutations(range(len(parts))) if isinstance(pat.src, list) else iter([tuple(range(len(parts)))])
        )
        for order in orders:
            pairs = [(parts[i], p) for i, p in zip(order, fixed, strict=True)]
            # constrained sources first: a wildcard always fits
            pairs.sort(key=lambda e: e[1].ops is None and e[1].arg is ... and e[1].src is None)
            self.match(pairs + rest, names, depth, fn, label)

    def every(
        self,
        expr: str,
        pat: Pat,
        rest: list[tuple[str, Pat]],
        names: dict[str, str],
        depth: int,
        fn: RuleFunction,
        label: str,
    ) -> None:
        inner = Rules([(Pat(pat.ops, pat.src, pat.arg, pat.dtypes, "_u", pat.any_src), lambda _u: _u)], name="every")
        self.emit(depth, f"if all({self.bind(inner.match, 'every')}(s) is not None for s in {expr}.src):")
        self.match(rest, names, depth + 1, fn, label)

    def call(self, names: dict[str, str], depth: int, fn: RuleFunction, label: str) -> None:
        values = []
        for p in inspect.signature(fn).parameters.values():
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                continue
            if p.name in _GIVEN:
                values.append(p.name)
            elif p.name in names:
                values.append(names[p.name])
            elif p.default is p.empty:
                raise TypeError(
                    f"rule {label}: parameter {p.name!r} is not a name of its pattern ({', '.join(sorted(names))})"
                )
        self.emit(depth, f"r = {self.bind(fn, 'fn')}({', '.join(values)})")
        self.emit(depth, "if r is not None:")
        self.emit(depth + 1, "return r")

    def function(self, label: str) -> MatchFunction:
        text = "\n".join(["def match(u, ctx, old):", *self.lines, "    return None"])
        space = dict(self.env)
        exec(compile(text, f"<rules {label}>", "exec"), space)
        return space["match"]  # type: ignore[no-any-return]


def _never(u: UOp, ctx: Any, old: UOp) -> None:
    return None


_build_lock = renewed_in_child(sys.modules[__name__], "_build_lock")


class Rules:
    """An ordered table of (pattern, function). The first function that returns a node wins.

    `a + b` tries the rules of `a`, then those of `b`. `ops`: the operations that some rule is for, None for any.
    Rules are compiled when a node that they are for is first seen; operations of the same rules share the function.
    Errors: TypeError for a function with a parameter that its pattern does not name.
    """

    def __init__(self, rules: Iterable[tuple[Pat, RuleFunction]] = (), name: str = "rules") -> None:
        self.rules: tuple[tuple[Pat, RuleFunction], ...] = tuple(rules)
        self.name = name
        kinds = [pat.ops for pat, _ in self.rules]
        self.ops = None if None in kinds else frozenset().union(*[k for k in kinds if k is not None])
        self._table: list[MatchFunction | None] = [None] * (max(Ops) + 1)
        self._compiled: dict[tuple[int, ...], MatchFunction] = {}  # matchers by the numbers of their rules
        for i, (pat, fn) in enumerate(self.rules):
            if pat.ops is not None and not pat.ops:
                raise TypeError(f"rule {self.label(i)}: an empty set of operations matches nothing")
            self._check_names(i, pat, fn)

    def _check_names(self, i: int, pat: Pat, fn: RuleFunction) -> None:
        _Compiler().rule(pat, fn, self.label(i))

    def __add__(self, other: Rules) -> Rules:
        return Rules(self.rules + other.rules, name=f"{self.name}+{other.name}")

    def __len__(self) -> int:
        return len(self.rules)

    def __iter__(self) -> Iterator[tuple[Pat, RuleFunction]]:
        return iter(self.rules)

    def __repr__(self) -> str:
        return f"Rules({self.name!r}, {len(self.rules)} rules)"

    def label(self, i: int) -> str:
        """How rule `i` is called in traces: the table, its function, the line it stands on."""
        fn = self.rules[i][1]
        code = getattr(fn, "__code__", None)
        line = f":{code.co_firstlineno}" if code is not None else ""
        return f"{self.name}[{i}] {getattr(fn, '__name__', '?')}{line}"

    def _matcher(self, numbers: tuple[int, ...]) -> MatchFunction:
        """One function that tries these rules in order."""
        with _build_lock:
            out = self._compiled.get(numbers)
            if out is None:
                compiler = _Compiler()
                for i in numbers:
                    compiler.rule(*self.rules[i], self.label(i))
                out = self._compiled[numbers] = compiler.function(self.name) if numbers else _never
            return out

    def match(self, u: UOp, ctx: Any = None, old: UOp | None = None) -> UOp | None:
        """The replacement the first fitting rule offers for `u`; None where none does."""
        f = self._table[u.op]
        if f is None:
            fitting = tuple([i for i, (pat, _) in enumerate(self.rules) if pat.ops is None or u.op in pat.ops])
            f = self._table[u.op] = self._matcher(fitting)
        return f(u, ctx, u if old is None else old)

    def match_tracked(self, u: UOp, ctx: Any = None, old: UOp | None = None) -> UOp | None:
        """`match`, with every rule tried counted and timed (`tracking`)."""
        found = self.find(u, ctx, old, count=True)
        return None if found is None else found[1]

    def find(self, u: UOp, ctx: Any = None, old: UOp | None = None, count: bool = False) -> tuple[int, UOp] | None:
        """(number of the rule that fires, its replacement); None where none does."""
        old = u if old is None else old
        for i, (pat, _) in enumerate(self.rules):
            if pat.ops is not None and u.op not in pat.ops:
                continue
            f = self._matcher((i,))
            started = time.perf_counter()
            r = f(u, ctx, old)
            if count:
                tracking.count(self.label(i), r is not None, time.perf_counter() - started)
            if r is not None:
                return i, r
        return None
