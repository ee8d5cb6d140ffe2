"""Index expressions of reshapes, windows, pools and concatenations become the forms a person would write."""

import itertools

import pytest

from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop import UOp
from aril.uop.render import to_expr
from aril.uop.symbolic import simplify
from tests.uop.evaluate import INVALID, evaluate


class E:
    """Python notation for weak integer expressions, without any simplification."""

    def __init__(self, u):
        self.u = u

    def _op(self, op, other, swap=False):
        other = other.u if isinstance(other, E) else UOp.lift(other)
        return E(UOp(op, (other, self.u) if swap else (self.u, other)))

    def __add__(self, o):
        return self._op(Ops.ADD, o)

    def __radd__(self, o):
        return self._op(Ops.ADD, o, True)

    def __sub__(self, o):
        return self._op(Ops.SUB, o)

    def __rsub__(self, o):
        return self._op(Ops.SUB, o, True)

    def __mul__(self, o):
        return self._op(Ops.MUL, o)

    def __rmul__(self, o):
        return self._op(Ops.MUL, o, True)

    def __floordiv__(self, o):
        return self._op(Ops.FLOORDIV, o)

    def __mod__(self, o):
        return self._op(Ops.FLOORMOD, o)

    def __neg__(self):
        return E(UOp(Ops.NEG, (self.u,)))

    def __lt__(self, o):
        return self._op(Ops.CMPLT, o)

    def __gt__(self, o):
        return self._op(Ops.CMPLT, o, True)

    def __ge__(self, o):
        return ~(self < o)

    def __le__(self, o):
        return ~(self > o)

    def __and__(self, o):
        return self._op(Ops.AND, o)

    def __or__(self, o):
        return self._op(Ops.OR, o)

    def __invert__(self):
        return E(UOp(Ops.CMPNE, (self.u, UOp.const(dtypes.bool, True))))

    def eq(self, o):
        return self._op(Ops.CMPEQ, o)

    def ne(self, o):
        return self._op(Ops.CMPNE, o)

    def max(self, o):
        return self._op(Ops.MAX, o)

    def valid(self, gate):
        return E(self.u.valid(gate.u))

    def cdiv(self, o):
        return self._op(Ops.CDIV, o)

    def cmod(self, o): return self._op(Ops.CMOD, o)  # fmt: skip


def r(n, i):
    return E(UOp.range(n.u if isinstance(n, E) else n, i))


def var(name, low, high):
    return E(UOp.variable(name, low, high))


a, b, c, d = r(4, 0), r(8, 1), r(3, 2), r(5, 3)
big = r(1000, 4)
n = var("n", 1, 64)
row = r(n, 5)
v4 = E(UOp(Ops.PARAM, (), UOp.variable("m", 0, 64).arg._replace(multiple_of=4), dtypes.weakint))

CASES = [
    # reshapes: merge and split axes
    ((a * 24 + b * 3 + c) // 3, "((r0*8)+r1)"),
    ((a * 24 + b * 3 + c) % 3, "r2"),
    ((a * 24 + b * 3 + c) // 24, "r0"),
    ((a * 24 + b * 3 + c) // 3 % 8, "r1"),
    ((a * 24 + b * 3 + c) % 24 // 3, "r1"),
    ((a * 24 + b * 3 + c) // 12, "((r0*2)+(r1//4))"),
    ((a * 24 + b * 3 + c) % 12, "(((r1%4)*3)+r2)"),
    ((a * 24 + b * 3 + c) % 12 // 3, "(r1%4)"),
    ((a * 24 + b * 3 + c) // 6 % 4, "(r1//2)"),
    (a * 8 + b - (a * 8 + b) % 8, "(r0*8)"),
    # quotient and remainder find each other again
    (big // 7 * 7 + big % 7, "r4"),
    (big // 7 * 14 + big % 7 * 2, "(r4*2)"),
    (big // 7 % 5 * 7 + big % 7, "(r4%35)"),
    (big // 35 * 35 + big // 7 % 5 * 7 + big % 7, "r4"),
    ((big * 5 + 3) // 4 * 4 + (big * 5 + 3) % 4, "((r4*5)+3)"),
    ((big + 2) // 4 * 4 + (big + 2) % 4, "(r4+2)"),
    # nested divisions and remainders
    (big // 5 // 7, "(r4//35)"),
    ((big // 5 + 3) // 7, "((r4+15)//35)"),
    (big % 12 % 4, "(r4%4)"),
    (big % 12 // 4, "((r4//4)%3)"),
    ((big % 12 + 5) % 4, "((r4+1)%4)"),
    ((b * 3 + c) // 3 // 2, "(r1//2)"),
    # decided by bounds
    (b % 8, "r1"),
    (b // 8, "0"),
    ((b + 8) % 16, "(r1+8)"),
    ((b + 16) // 8, "2"),
    ((b - 8) // 8, "-1"),
    ((b - 8) % 8, "r1"),
    (b.max(0), "r1"),
    (b.max(7), "7"),
    ((b + 1).max(b), "(r1+1)"),
    ((b.max(3)).max(5), "max(r1, 5)"),
    # convolution and its gradient: k*(I+1) + o modulo I
    ((c * 9 + d) % 8, "(r2+r3)"),
    ((c * 9 + d) // 8, "r2"),
    ((c * 7 + d + 2) % 8, "(((r2*-1)+r3)+2)"),
    ((c * 7 + d + 2) // 8, "r2"),
    ((a * 2 + c) // 2, "(r0+(r2//2))"),
    ((a * 2 + c) % 2, "(r2%2)"),
    ((a * 6 + c * 2 + 1) // 2, "((r0*3)+r2)"),
    ((a * 6 + c * 2 + 1) % 2, "1"),
    ((a * 6 + c * 2 + 1) % 6, "((r2*2)+1)"),
    # common factors
    ((a * 4 + b * 8) // 12, "((r0+(r1*2))//3)"),
    ((a * 4 + b * 8) % 12, "(((r0+(r1*2))%3)*4)"),
    ((a * 4 + b * 8 + 3) % 12, "((((r0+(r1*2))%3)*4)+3)"),
    ((big * 4 + a) // 6, "((r0+(r4*4))//6)"),
    ((big * 4 + a) // 8, "(r4//2)"),
    # sums
    (a + b - a, "r1"),
    (a * 3 + b + a * -3 + 4 - 4, "r1"),
    ((a + 1) * 4 + (b - 2) * 2, "((r0*4)+(r1*2))"),
    (-E(UOp(Ops.NEG, (a.u,))), "r0"),
    (3 + b + 5 + a, "((r0+r1)+8)"),
    # conditions
    (b < 8, "True"),
    (b < 0, "False"),
    (b >= 0, "True"),
    (b * 4 + a < 12, "(r1<3)"),
    (b * 4 < 13, "(r1<4)"),
    (b + 3 < a + 3, "(r1<r0)"),
    (b - 1 < 3, "(r1<4)"),
    (~(b < 3), "(2<r1)"),
    (b // 4 < 1, "(r1<4)"),
    (b // 2 >= 2, "(3<r1)"),
    ((b * 2).eq(5), "False"),
    ((b * 2).eq(6), "(r1==3)"),
    ((b - 1).ne(a - 1), "(r0!=r1)"),
    ((b < 5) & (b < 3), "(r1<3)"),
    ((b < 3) & (b >= 3), "False"),
    ((b < 5) & (b < 9), "(r1<5)"),
    ((b < 3) & ((a + b) < 20), "(r1<3)"),
    ((a < 2) & (a + b < 9), "(r0<2)"),
    (((a < 2) & (a + b < 8)) | (b < 8), "True"),
    # under a gate
    ((b % 4).valid(b < 4), "(r1 if (r1<4) else invalid())"),
    (((b - 2) % 4).valid((b >= 2) & (b < 6)), "((r1+-2) if ((1<r1)&(r1<6)) else invalid())"),
    (((a + b - 1) % 8).valid((a + b >= 1) & (a + b < 9)), "(((r0+r1)+-1) if ((0<(r0+r1))&((r0+r1)<9)) else invalid())"),
    (((a + b - 1) // 8).valid((a + b >= 1) & (a + b < 9)), "(0 if ((0<(r0+r1))&((r0+r1)<9)) else invalid())"),
    (b.valid(b < 8), "r1"),
    (b.valid(b < 0), "invalid()"),
    ((b.valid(b < 4) + 1).valid(a < 2), "((r1+1) if ((r0<2)&(r1<4)) else invalid())"),
    (b.max(3).valid(b < 3), "(3 if (r1<3) else invalid())"),
    # variables
    ((a * n + row) // n, "r0"),
    ((a * n + row) % n, "r5"),
    ((a * n * 4 + row * 4 + c) // 4 % n, "r5"),
    ((n * b + row) // n % 8, "r1"),
    (row < n, "True"),
    (row >= n, "False"),
    ((n + 1) * a - a * n, "r0"),
    ((a * (n + 1) + row) // (n + 1), "r0"),
    ((a * (n + 1) + row) % (n + 1), "r5"),
    (v4 % 4, "0"),
    (v4 % 2, "0"),
    ((v4 + a) // 4, "(m//4)"),
    ((v4 + a) % 4, "r0"),
    (v4 * 2 // 8, "(m//4)"),
    # truncating division of what is not negative
    (b.cdiv(3), "(r1//3)"),
    (b.cmod(3), "(r1%3)"),
]  # fmt: skip


@pytest.mark.parametrize(("e", "form"), CASES, ids=[f"{i}" for i in range(len(CASES))])
def test_form(e, form):
    assert to_expr(simplify(e.u)) == form


@pytest.mark.parametrize("e", [e for e, _ in CASES], ids=[f"{i}" for i in range(len(CASES))])
def test_form_keeps_every_value(e):
    s = simplify(e.u)
    leaves = [u for u in e.u.toposort() if u.op in (Ops.RANGE, Ops.PARAM)]
    some = {
        big.u: [0, 1, 2, 5, 6, 7, 11, 12, 34, 35, 36, 71, 998, 999],
        v4.u: range(0, 9, 4),
        n.u: range(1, 5),
        row.u: range(4),
    }
    spans = [some.get(u, range(int(u.vmax) + 1)) for u in leaves]
    for values in itertools.product(*spans):
        env = dict(zip(leaves, values, strict=True))
        if row.u in env and env[row.u] >= env[n.u]:
            continue
        expected = evaluate(e.u, env)
        if expected is not INVALID or s.op is Ops.Invalid:
            assert evaluate(s, env) == expected or (expected is INVALID and s.op is Ops.Invalid)


def test_a_padded_convolution_reshaped_twice_is_one_affine_index():
    n_, c_, h, w = 8, 16, 28, 28
    x = [r(k, j) for j, k in enumerate((n_, c_, h, w, 3, 3))]
    flat = x[0] * (c_ * h * w) + x[1] * (h * w) + x[2] * w + x[3]
    i, j, k, m = flat // (c_ * h * w), flat // (h * w) % c_, flat // w % h, flat % w
    p, q = k + x[4] - 1, m + x[5] - 1
    gate = (p >= 0) & (p < h) & (q >= 0) & (q < w)
    again = i * (c_ * h * w) + j * (h * w) + p * w + q
    at = again // (c_ * h * w) * (c_ * h * w) + again // (h * w) % c_ * (h * w) + again // w % h * w + again % w
    s = simplify(at.valid(gate).u)
    assert to_expr(s.src[1]) == "((((((r0*12544)+(r1*784))+(r2*28))+r3)+(r4*28))+r5)+-29)".replace(
        "((((((", "(((((((", 1
    )


def test_the_order_of_building_does_not_matter():
    forms = {simplify(sum(p[1:], start=p[0]).u) for p in itertools.permutations([a * 8, b, c * 2, E(UOp.lift(3))])}
    assert len(forms) == 1
