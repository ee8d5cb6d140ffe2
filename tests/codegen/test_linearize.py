"""The linearizer: where nodes and loops come to lie, and that the program computes what the kernel says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from aril.codegen import compile_kernel
from aril.codegen.linearize import LinearizeError, linearize
from aril.codegen.steps import Split, Upcast, Vectorize
from aril.codegen.typing import assign_types, fuse_mulacc
from aril.dtype import dtypes
from aril.ops import Ops
from aril.renderer.llvm import LLVMRenderer
from aril.runtime.llvm import compile_ir_to_asm
from aril.runtime.target import HostTarget
from aril.uop.args import AddrSpace, AxisType, KernelInfo
from aril.uop.node import UOp
from tests.renderer.run_llvm import HOST, run

F32, REDUCE = dtypes.float32, AxisType.REDUCE


def num(value: int) -> UOp:
    return UOp.const(dtypes.weakint, value)


def flt(value: float) -> UOp:
    return UOp.const(F32, value)


def add(*terms: UOp) -> UOp:
    out = terms[0]
    for t in terms[1:]:
        out = UOp(Ops.ADD, (out, t))
    return out


def mul(a: UOp, b: int | UOp) -> UOp:
    return UOp(Ops.MUL, (a, num(b) if isinstance(b, int) else b))


def place(memory: UOp, at: UOp, lanes: int = 1) -> UOp:
    return memory.index(at) if lanes == 1 else UOp(Ops.SHRINK, (memory, at), (None, lanes))


def program(sink: UOp) -> list[UOp]:
    return list(linearize(fuse_mulacc(assign_types(sink), HOST)).src)


def reduced(
    slot: int, op: Ops, start: float, x: UOp, outer: tuple[UOp, ...], *loops: UOp, explicit: bool = True
) -> UOp:
    """x combined over `loops` in a register; `explicit`: the start says which loops it lies in."""
    acc = UOp.buffer(slot, F32, 1, AddrSpace.REG)
    first = place(acc.after(*outer) if explicit else acc, num(0)).store(flt(start))
    inside = place(acc.after(first, *loops) if explicit else acc.after(first), num(0))
    return place(acc.after(inside.store(UOp(op, (inside.load(), x))).end(*loops)), num(0)).load()


def shape_of(uops: list[UOp]) -> str:
    """The program's effects and loops as text: `[` opens a loop, `]` closes it, S is a store, L a load."""
    letters = {Ops.RANGE: "[", Ops.END: "]", Ops.STORE: "S", Ops.LOAD: "L"}
    return "".join([letters.get(u.op, "") for u in uops])


def test_nodes_come_after_their_sources() -> None:
    uops = program(tile(2, 16, 8, 12, 3))
    position = {}
    for i, u in enumerate(uops):
        assert all(s in position or s.op is Ops.NOOP for s in u.src), u
        position.setdefault(u, i)


def test_what_a_loop_does_not_change_is_computed_before_it() -> None:
    i, j = UOp.range(5, 0), UOp.range(7, 1)
    x = place(UOp.param(1, F32, 5), i).load()
    store = place(UOp.param(0, F32, 35), add(mul(i, 7), j)).store(UOp(Ops.MUL, (x, flt(2.0)))).end(i, j)
    uops = program(UOp.sink(store))
    assert shape_of(uops) == "[L[S]]"
    inner = [k for k, u in enumerate(uops) if u.op is Ops.RANGE][1]
    assert next(k for k, u in enumerate(uops) if u.op is Ops.MUL and u.dtype is F32) < inner


@pytest.mark.parametrize("explicit", [True, False])
def test_a_row_with_three_loops_one_after_the_other(explicit: bool) -> None:
    rows, cols = 13, 57
    row, a, b, c = UOp.range(rows, 0), UOp.range(cols, 1, REDUCE), UOp.range(cols, 2, REDUCE), UOp.range(cols, 3)
    read = lambda k: place(UOp.param(1, F32, rows * cols), add(mul(row, cols), k)).load()  # noqa: E731
    peak = reduced(0, Ops.MAX, -np.inf, read(a), (row,), a, explicit=explicit)
    square = lambda k: UOp(Ops.MUL, (UOp(Ops.SUB, (read(k), peak)), UOp(Ops.SUB, (read(k), peak))))  # noqa: E731
    total = reduced(1, Ops.ADD, 0.0, square(b), (row,), b, explicit=explicit)
    out = place(UOp.param(0, F32, rows * cols), add(mul(row, cols), c))
    uops = program(UOp.sink(out.store(UOp(Ops.FDIV, (square(c), total))).end(row, c)))
    assert re.fullmatch(r"\[S\[L+S\]L*S\[L+S\]L*\[L+S\]\]", shape_of(uops))
    x, got = (
        np.random.default_rng(0).standard_normal((rows, cols)).astype(np.float32),
        np.zeros((rows, cols), np.float32),
    )
    run(uops, got, x)
    ref = (x.astype(np.float64) - x.max(1, keepdims=True)) ** 2
    np.testing.assert_allclose(got, ref / ref.sum(1, keepdims=True), rtol=1e-5)


def tile(rows: int, cols: int, lanes: int, k: int, grid: int) -> UOp:
    """A matrix product of (rows*grid, k) and (k, cols*grid) with a tile of register accumulators."""
    m, n = rows * grid, cols * grid
    out, a, b = (UOp.param(s, F32, size) for s, size in enumerate((m * n, m * k, k * n)))
    i, j, r = UOp.range(grid, 0), UOp.range(grid, 1), UOp.range(k, 2, REDUCE)
    updates, accs = [], []
    for row in range(rows):
        x = place(a, add(mul(i, rows * k), num(row * k), r)).load()
        for v in range(0, cols, lanes):
            acc = UOp.buffer(len(accs), F32, lanes, AddrSpace.REG)
            first = place(acc.after(i, j), num(0), lanes).store(UOp.vector(*[flt(0.0)] * lanes))
            inside = place(acc.after(first, r), num(0), lanes)
            y = place(b, add(mul(r, n), mul(j, cols), num(v)), lanes).load()
            updates.append(inside.store(add(inside.load(), UOp(Ops.MUL, (x, y)))))
            accs.append((acc, add(mul(i, rows * n), mul(j, cols), num(row * n + v))))
    end = UOp.group(*updates).end(r)
    stores = [place(out, at, lanes).store(place(acc.after(end), num(0), lanes).load()) for acc, at in accs]
    return UOp.sink(UOp.group(*stores).end(i, j))


@pytest.mark.parametrize(("rows", "cols", "lanes"), [(6, 16, 8), (14, 32, 16), (3, 8, 4)])
def test_a_tile_of_accumulators(rows: int, cols: int, lanes: int) -> None:
    k, grid = 40, 3
    uops = program(tile(rows, cols, lanes, k, grid))
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((rows * grid, k), (k, cols * grid)))
    out = np.zeros((rows * grid, cols * grid), np.float32)
    run(uops, out, x, y)
    bound = 4 * np.finfo(np.float32).eps * (1 + np.log2(k)) * (abs(x).astype(np.float64) @ abs(y))
    assert (abs(out - x.astype(np.float64) @ y) <= bound).all()


AVX2 = HostTarget(cpu="haswell", vector_bytes=32, vector_registers=16)
AVX512 = HostTarget(cpu="skylake-avx512", vector_bytes=64, vector_registers=32)


@pytest.mark.parametrize(
    ("target", "rows", "cols", "lanes"),
    [(AVX2, 6, 16, 8), (AVX2, 6, 16, 16), (AVX2, 4, 24, 8), (AVX512, 14, 32, 16), (AVX512, 12, 32, 16)],
)
def test_the_inner_loop_of_a_tile_is_loads_and_multiply_adds(
    target: HostTarget, rows: int, cols: int, lanes: int
) -> None:
    renderer = LLVMRenderer(vector_bytes=target.vector_bytes, vector_registers=target.vector_registers)
    body = innermost(compile_ir_to_asm(renderer.render("tile", program(tile(rows, cols, lanes, 40, 3))), target))
    width = target.vector_bytes // 4
    assert len(re.findall(r"\bvfmadd\w*ps\b", body)) == rows * cols // width
    assert len(re.findall(r"\bvbroadcastss\b", body)) == rows
    assert "rsp" not in body and "rbp" not in body, "spilled to the stack"
    assert body.count("\n") <= rows * cols // width + rows + cols // width + 4


@pytest.mark.parametrize(("target", "rows"), [(AVX2, 4), (AVX2, 5), (AVX512, 14)])
def test_rows_that_follow_their_vectors_do_not_spill(target: HostTarget, rows: int) -> None:
    """A tile of 2 vectors by `rows` of `x[k, j] * y[k, i]`, the loop of the lanes outside that of the rows."""
    width = target.vector_bytes // 4
    renderer = LLVMRenderer(vector_bytes=target.vector_bytes, vector_registers=target.vector_registers)
    n, m, depth = 4 * width, 5 * rows, 50
    j, i, k = UOp.range(n, 0), UOp.range(m, 1), UOp.range(depth, 2, REDUCE)
    out, x, y = (UOp.param(s, F32, size) for s, size in enumerate((m * n, depth * n, depth * m)))
    times = lambda r, by: UOp(Ops.MUL, (r, num(by)))  # noqa: E731
    factors = x.index(add(times(k, n), j)).load(), y.index(add(times(k, m), i)).load()
    total = UOp(Ops.REDUCE, (UOp(Ops.MUL, factors), k), (Ops.ADD, ()))
    lanes = (Split((0,), 2 * width), Split((0, 1), width), Upcast((0, 1, 0)), Vectorize((0, 1, 1)))
    steps = (*lanes, Split((1,), rows), Upcast((1, 1)))
    sink = UOp.sink(out.index(add(times(i, n), j)).store(total).end(j, i), arg=KernelInfo("k", opts_to_apply=steps))
    body = innermost(compile_ir_to_asm(compile_kernel(sink, renderer).source, target))
    assert len(re.findall(r"\bvfmadd\w*ps\b", body)) == 2 * rows
    assert "rsp" not in body and "rbp" not in body, "spilled to the stack"


def innermost(asm: str, work: str = "vfmadd") -> str:
    """The loop with most multiply-adds (`work`): from the label a backward jump goes to, up to the jump."""
    lines = asm.splitlines()
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    loops = []
    for i, line in enumerate(lines):
        jump = re.match(r"\tj\w+\t(\S+)$", line)
        if jump and labels.get(jump[1], i) < i:
            loops.append("\n".join(lines[labels[jump[1]] : i]))
    return max(sorted(loops, key=len), key=lambda body: body.count(work) / (1 + body.count("\n")))


def test_nests_run_in_order_even_over_one_range() -> None:
    n = 9
    r = UOp.range(n, 0)
    p, q, x = (UOp.param(s, F32, n) for s in range(3))
    first = place(p, r).store(add(place(x, r).load(), flt(1.0))).end(r)
    back = add(num(n - 1), UOp(Ops.MUL, (r, num(-1))))
    second = place(q, r).store(UOp(Ops.MUL, (place(p, back).load(), flt(2.0)))).end(r)
    uops = program(UOp.sink(first, second))
    assert shape_of(uops) == "[LS][LS]"
    data, a, b = np.arange(n, dtype=np.float32), np.zeros(n, np.float32), np.zeros(n, np.float32)
    run(uops, a, b, data)
    np.testing.assert_array_equal(a, data + 1)
    np.testing.assert_array_equal(b, 2 * (data + 1)[::-1])


def test_a_panel_is_filled_before_the_loops_that_read_it() -> None:
    n, width, blocks = 6, 4, 5
    x, out = UOp.param(1, F32, width * blocks), UOp.param(0, F32, n * blocks)
    outer, fill = UOp.range(blocks, 0), UOp.range(width, 5)
    i, k = UOp.range(n, 1), UOp.range(width, 2, REDUCE)
    panel = UOp.buffer(0, F32, width, AddrSpace.LOCAL)
    copy = place(panel, fill).store(place(x, add(mul(outer, width), fill)).load()).end(fill)
    total = reduced(1, Ops.ADD, 0.0, UOp(Ops.MUL, (place(panel.after(copy), k).load(), i.cast(F32))), (outer, i), k)
    uops = program(UOp.sink(place(out, add(mul(outer, n), i)).store(total).end(outer, i)))
    assert shape_of(uops).startswith("[[LS][S[") and shape_of(uops).endswith("]]")
    data, got = np.arange(width * blocks, dtype=np.float32), np.zeros((blocks, n), np.float32)
    run(uops, got, data)
    np.testing.assert_array_equal(got, data.reshape(blocks, width).sum(1)[:, None] * np.arange(n))


def test_a_loop_that_repeats_while_its_condition_holds() -> None:
    """Collatz steps of each number: a loop with a register counter."""
    n = 12
    i, turn = UOp.range(n, 0), UOp.range(1000, 1, REDUCE)
    i32 = dtypes.int32
    value, steps = (UOp.buffer(s, i32, 1, AddrSpace.REG) for s in range(2))
    zero, one = UOp.const(i32, 0), UOp.const(i32, 1)
    start = place(value.after(i), num(0)).store(UOp(Ops.ADD, (i.cast(i32), one)))
    begin = place(steps.after(i), num(0)).store(zero)
    v = place(value.after(start, turn), num(0)).load()
    s = place(steps.after(begin, turn), num(0)).load()
    odd = UOp(Ops.CMPNE, (UOp(Ops.AND, (v, one)), zero))
    triple = UOp(Ops.ADD, (UOp(Ops.MUL, (v, UOp.const(i32, 3))), one))
    done = UOp(Ops.CMPEQ, (v, one))
    half = UOp(Ops.SHR, (v, one))
    following = UOp(Ops.WHERE, (done, v, UOp(Ops.WHERE, (odd, triple, half))))
    set_v = place(value.after(start, turn), num(0)).store(following)
    set_s = place(steps.after(begin, turn), num(0)).store(UOp(Ops.ADD, (s, UOp(Ops.WHERE, (done, zero, one)))))
    more = UOp(Ops.CMPNE, (place(value.after(set_v), num(0)).load(), one))
    end = UOp.group(set_v, set_s).end(turn, condition=more)
    out = place(UOp.param(0, i32, n), i).store(place(steps.after(end), num(0)).load()).end(i)
    got = np.zeros(n, np.int32)
    run(program(UOp.sink(out)), got)
    np.testing.assert_array_equal(got, [0, 1, 7, 2, 5, 8, 16, 3, 19, 6, 14, 9])


def test_two_accumulators_of_one_loop_see_each_other_as_they_were() -> None:
    """argmax: the index's update needs the maximum of before this turn, whichever store comes first."""
    n = 50
    k = UOp.range(n, 0, REDUCE)
    best, where = UOp.buffer(0, F32, 1, AddrSpace.REG), UOp.buffer(1, dtypes.int32, 1, AddrSpace.REG)
    a = place(best, num(0)).store(flt(-np.inf))
    b = place(where, num(0)).store(UOp.const(dtypes.int32, -1))
    x = place(UOp.param(1, F32, n), k).load()
    old = place(best.after(a, k), num(0)).load()
    better = UOp(Ops.CMPLT, (old, x))
    index = UOp(Ops.WHERE, (better, k.cast(dtypes.int32), place(where.after(b, k), num(0)).load()))
    updates = [
        place(best.after(a, k), num(0)).store(UOp(Ops.MAX, (x, x))),
        place(where.after(b, k), num(0)).store(index),
    ]
    updates[0] = place(best.after(a, k), num(0)).store(UOp(Ops.WHERE, (better, x, old)))
    data = np.random.default_rng(2).standard_normal(n).astype(np.float32)
    for order in (updates, updates[::-1]):
        end = UOp.group(*order).end(k)
        got = np.zeros(1, np.int32)
        run(
            program(
                UOp.sink(place(UOp.param(0, dtypes.int32, 1), num(0)).store(place(where.after(end), num(0)).load()))
            ),
            got,
            data,
        )
        assert got[0] == data.argmax()


def test_in_place_outputs_read_what_was_there_before() -> None:
    n = 8
    r = UOp.range(n, 0)
    p, q = UOp.param(0, F32, n), UOp.param(1, F32, n)
    old = place(p, r).load()
    stores = UOp.group(place(p, r).store(flt(7.0)), place(q, r).store(UOp(Ops.MUL, (old, flt(2.0)))))
    a, b = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    run(program(UOp.sink(stores.end(r))), a, b)
    np.testing.assert_array_equal(a, np.full(n, 7))
    np.testing.assert_array_equal(b, 2 * np.arange(n))


def test_a_store_that_does_not_depend_on_its_loop_is_done_in_every_turn() -> None:
    k = UOp.range(10, 0, REDUCE)
    count = UOp.buffer(0, dtypes.int32, 1, AddrSpace.REG)
    start = place(count, num(0)).store(UOp.const(dtypes.int32, 0))
    inside = place(count.after(start), num(0))
    end = inside.store(UOp(Ops.ADD, (inside.load(), UOp.const(dtypes.int32, 3)))).end(k)
    got = np.zeros(1, np.int32)
    run(
        program(UOp.sink(place(UOp.param(0, dtypes.int32, 1), num(0)).store(place(count.after(end), num(0)).load()))),
        got,
    )
    assert got[0] == 30


def test_a_value_cannot_leave_its_loop() -> None:
    r = UOp.range(4, 0)
    x = place(UOp.param(1, F32, 4), r).load()
    with pytest.raises(LinearizeError, match="outside the loop"):
        linearize(
            UOp.sink(place(UOp.param(0, F32, 1), num(0)).store(x.after(place(UOp.param(2, F32, 4), r).store(x).end(r))))
        )


def test_loops_that_need_one_another_have_no_order() -> None:
    i, j = UOp.range(4, 0), UOp.range(4, 1)
    value = place(UOp.param(1, F32, 16), add(mul(i, 4), j)).load()
    p, q = (place(UOp.param(s, F32, 16), add(mul(i, 4), j)) for s in (0, 2))
    one = p.store(value).end(i)
    two = q.store(value).end(j)
    with pytest.raises(LinearizeError, match="no nesting order"):
        linearize(UOp.sink(UOp.group(one, two)))


def test_ten_thousand_nodes_take_well_under_a_second() -> None:
    n = 2000
    r = UOp.range(10, 0)
    stores = []
    for i in range(n):
        at = add(mul(r, n), num(i))
        stores.append(
            place(UOp.param(0, F32, 10 * n), at).store(
                UOp(Ops.MUL, (place(UOp.param(1, F32, 10 * n), at).load(), flt(2.0)))
            )
        )
    sink = UOp.sink(UOp.group(*stores).end(r))
    start = time.process_time()
    uops = linearize(sink).src
    assert len(uops) > 10_000 and time.process_time() - start < 1.5


def test_deep_chains_do_not_recurse() -> None:
    r = UOp.range(10, 0)
    x = place(UOp.param(1, F32, 10), r).load()
    for _ in range(10_000):
        x = UOp(Ops.ADD, (x, flt(1.0)))
    assert len(program(UOp.sink(place(UOp.param(0, F32, 10), r).store(x).end(r)))) > 10_000


def test_the_same_kernel_gives_the_same_program_in_every_process() -> None:
    code = (
        "from tests.codegen.test_linearize import tile, program;"
        "from aril.uop.node import UOp;"
        "from aril.ops import Ops;"
        "print(UOp(Ops.LINEAR, tuple(program(tile(3, 8, 4, 6, 2)))).digest.hex())"
    )
    seen = set()
    for seed in ("0", "1", "99"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."}
        seen.add(
            subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
        )
    assert len(seen) == 1


def chains(copies: int, length: int, results: int = 1) -> list[int]:
    """Which of `copies` chains each multiplication and addition of a program belongs to, in its order."""
    i, q = UOp.range(1000, 0), UOp.param(1, F32, 1000 * copies)
    effects = []
    for k in range(copies):
        x = y = place(q, add(mul(i, copies), num(k))).load()
        for n in range(length):
            y = UOp(Ops.ADD, (y, flt(n + 0.5))) if n % 2 else UOp(Ops.MUL, (y, x))
        memory = UOp.param(0, F32, 1000 * copies) if results else UOp.buffer(0, F32, copies, AddrSpace.LOCAL)
        effects.append(place(memory, add(mul(i, copies), num(k)) if results else num(k)).store(y))
    order = program(UOp.sink(UOp.group(*effects).end(i)))
    owner: dict[UOp, int] = {}
    found = []
    for u in order:
        if u.op is Ops.LOAD:
            owner[u] = len(owner)
        elif u.dtype is F32 and u.op in (Ops.ADD, Ops.MUL, Ops.MULACC):
            owner[u] = next(owner[s] for s in u.src if s in owner)
            found.append(owner[u])
    return found


def test_long_chains_of_a_few_copies_stand_side_by_side() -> None:
    """A core that looks ahead over two chains, one behind the other, has two operations to choose from; here four."""
    found = chains(4, 24)
    assert [sorted(found[k : k + 4]) for k in range(0, len(found), 4)] == [[0, 1, 2, 3]] * (len(found) // 4)


@pytest.mark.parametrize(("copies", "length", "results"), [(4, 6, 1), (8, 24, 1), (4, 24, 0)])
def test_other_copies_come_one_after_the_other(copies: int, length: int, results: int) -> None:
    """Short ones, those that have no registers side by side, and those of sums in registers or scratch."""
    found = chains(copies, length, results)
    assert found == sorted(found)
