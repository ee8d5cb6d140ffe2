"""`python -m bench`, `aril bench`: measure the rows, print the table, keep it under bench/results/.

In come options; out go lines as rows end, files, and status 1 when aril failed a row or gave a wrong result.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

QUICK_ROWS_S, QUICK_END_S = 110.0, 150.0  # --quick starts no row, and no overhead, later: it ends within three minutes
# How each library is told to leave AVX-512 alone. tinygrad and torch.compile compile for the machine they run on; JAX
# does as it is told but in products of bfloat16.
TARGETS = {
    "x86-64-v3": {
        "CPU_TARGET": "x86-64-v3",
        "OPENBLAS_CORETYPE": "Zen",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    }
}
RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `--help`."""
    options = _parser().parse_args(arguments)
    _set_threads(options.threads)
    os.environ |= TARGETS.get(options.target, {})
    begin = time.perf_counter()
    # Only now: these import NumPy, which reads the number of threads when it is imported.
    from bench import harness, limits, machine, overheads, peers, report

    rows = _rows(options)
    if options.list:
        print("\n".join(f"{row.group:<18} {row.name}" for row in rows))
        return 0
    rounds = options.rounds or (harness.QUICK_ROUNDS if options.quick else harness.ROUNDS)
    wanted = options.peers.split(",") if options.peers is not None else list(peers.PEERS)
    if options.target and options.peers is None:
        wanted = [p for p in wanted if p not in ("torch.compile", "tinygrad")]  # these cannot be told
    if options.quick and options.peers is None:
        wanted = [p for p in wanted if p not in ("torch.compile", "tinygrad")]  # these compile for long
    unknown = [p for p in wanted if p and p not in peers.PEERS]
    if unknown:
        raise SystemExit(f"bench: --peers knows {', '.join(peers.PEERS)}, not {', '.join(unknown)}")
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ready, absent = peers.start_peers(wanted, threads)
    for name, why in absent.items():
        print(f"skipped: {name} ({why})")
    versions = {"numpy": sys.modules["numpy"].__version__} | {
        p.library: p.version for p in ready if " " not in p.library
    }
    described = machine.describe(versions, threads)
    if described["load_before"][0] > 0.5:
        print(
            f"warning: the load is {described['load_before'][0]:.1f}; others use this machine, do not trust the times"
        )
    # Limits are small kernels at their best: they are not what --quick saves on.
    found_limits = limits.measure_limits(5 if options.quick else limits.ROUNDS)
    print(
        f"limits: {found_limits.float32_gflops:.1f} GFLOPS (float64 {found_limits.float64_gflops:.1f}), "
        f"copy {found_limits.copy / 1e9:.1f} GB/s, read {found_limits.read / 1e9:.1f} GB/s",
        flush=True,
    )
    print("each row: medians; in brackets, how many times aril's time the others take; * the best peer", flush=True)
    done: list[harness.Measured] = []
    found_overheads: list[overheads.Overhead] = []
    interrupted = False
    try:
        for row in rows:
            if options.quick and time.perf_counter() - begin > QUICK_ROWS_S:
                print(f"skipped: {row.name} (--quick is over)")
                continue
            budget = options.budget or (2.0 if options.quick else 60.0)
            ready_s = options.ready_limit or (30.0 if options.quick else 600.0)
            found = harness.measure(row, ready, found_limits, rounds, budget, ready_s)
            done.append(found)
            print(report.line(found), flush=True)
        if not options.no_overheads and (not options.rows or any("overhead" in p for p in options.rows)):
            end = begin + QUICK_END_S if options.quick else float("inf")
            found_overheads = overheads.measure_overheads(ready, rounds, lambda text: print(text, flush=True), end)
    except KeyboardInterrupt:
        interrupted = True
        print("\nstopped; what was measured until now:", file=sys.stderr)
    if done and not interrupted:  # once more: the first time something else may have run
        found_limits = found_limits.merged(limits.measure_limits(3))
        for found in done:
            found.limit_s, found.limit_kind = found_limits.of(found.row)
    for text in report.summary(done):
        print(text)
    shown: dict[str, Any] = {
        "rounds": rounds,
        "quick": options.quick,
        "shapes": options.shapes,
        "seed": options.seed,
        "target": options.target,
    }
    data = report.to_json(described, found_limits, done, found_overheads, absent, shown)
    _write(options, data)
    return 130 if interrupted else 1 if any(not f.ok for f in done) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("bench", description="aril beside its peers and the machine's limits.")
    parser.add_argument("--quick", action="store_true", help="under three minutes: fewer rows, peers and rounds")
    rows_help = "only rows whose name or group holds PATTERN (a glob, with * or ?, matches all of it); may be repeated"
    parser.add_argument("--rows", action="append", metavar="PATTERN", help=rows_help)
    parser.add_argument("--shapes", choices=("fixed", "random"), default="fixed", help="the table, or drawn shapes")
    parser.add_argument("--seed", type=int, default=None, help="of the drawn shapes (default: another at each run)")
    parser.add_argument("--peers", help="comma-separated: numpy,torch,torch.compile,jax,tinygrad (default: all)")
    parser.add_argument("--rounds", type=int, help="turns of each contender (default: 15; quick: 5)")
    parser.add_argument("--budget", type=float, help="seconds a row may be timed; slow contenders get fewer rounds")
    parser.add_argument(
        "--ready-limit", type=float, help="seconds a contender may take until it is warm (default: 600; quick: 30)"
    )
    parser.add_argument("--threads", type=int, help="threads of every contender (default: all usable)")
    parser.add_argument(
        "--target",
        choices=tuple(TARGETS),
        help="the instruction set of every contender (default: all this machine has)",
    )
    parser.add_argument("--no-overheads", action="store_true", help="leave out the overheads (as with --rows)")
    parser.add_argument("--list", action="store_true", help="only name the rows")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results as JSON")
    parser.add_argument("--md", type=Path, metavar="PATH", help="write them as Markdown")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="draw the ratios (.svg or .png; needs matplotlib)")
    parser.add_argument("--save", nargs="?", const="", metavar="NAME", help=f"all three under {RESULTS.name}/NAME")
    return parser


def _set_threads(threads: int | None) -> None:
    """The same processors for everybody: libraries count those they may run on when they start."""
    if threads is not None:
        if threads < 1:
            raise SystemExit(f"bench: --threads takes 1 or more, not {threads}")
        if hasattr(os, "sched_getaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "CPU_COUNT"):
        os.environ[name] = str(count)


def _rows(options: argparse.Namespace) -> list[Any]:
    from bench import rows_conv, rows_dense, rows_networks, shapes

    if options.shapes == "random":
        if options.seed is None:
            options.seed = int(time.time()) % 100_000
        print(f"shapes drawn with --seed {options.seed}")
        rows: list[Any] = list(shapes.random_rows(options.seed))
    else:
        rows = [*rows_dense.ROWS, *rows_conv.ROWS, *rows_networks.ROWS]
        if options.quick and not options.rows:
            rows = [row for row in rows if row.quick]
    if options.rows:
        patterns = [p if any(c in p for c in "*?[") else f"*{p}*" for p in options.rows]
        rows = [r for r in rows if any(fnmatch.fnmatch(t, p) for p in patterns for t in (r.name, r.group))]
        if not rows and not any("overhead" in p for p in options.rows):
            raise SystemExit(f"bench: no row matches {', '.join(options.rows)}; --list names them")
    return rows


def _write(options: argparse.Namespace, data: dict[str, Any]) -> None:
    from bench import report

    paths = {"json": options.json, "md": options.md, "svg": options.plot}
    if options.save is not None:
        name = options.save or f"{data['machine']['time'][:10]}-{'random' if options.shapes == 'random' else 'fixed'}"
        RESULTS.mkdir(exist_ok=True)
        paths = {kind: path or RESULTS / f"{name}.{kind}" for kind, path in paths.items()}
    if paths["json"]:
        paths["json"].write_text(json.dumps(data, indent=1) + "\n")
    if paths["md"]:
        paths["md"].write_text(report.to_markdown(data))
    if paths["svg"] and data["rows"]:
        try:
            report.plot(data, paths["svg"])
        except ImportError:
            paths["svg"] = None
            print("skipped: the plot (it needs matplotlib: pip install -e '.[bench]')")
    for path in paths.values():
        if path:
            print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
