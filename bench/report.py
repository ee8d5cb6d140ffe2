"""The table for people and for programs: lines as rows end, then Markdown, JSON and a plot.

In come `Measured` rows, overheads, limits and the machine; out go text and files.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import Measured
from bench.limits import Limits
from bench.overheads import Overhead, readable, readable_s


def rate(found: Measured, seconds: float) -> str:
    """GFLOPS or GB/s, by what limits the row."""
    if found.limit_kind == "fma":
        return f"{found.row.flops / seconds / 1e9:.3g} GFLOPS"
    return f"{found.row.moved / seconds / 1e9:.3g} GB/s" if found.limit_kind else ""


def line(found: Measured) -> str:
    """The row on a line of a terminal; contenders that failed on lines below."""
    parts = [f"{found.row.name:<46}"]
    if found.ok:
        t = found.times["aril"]
        parts.append(f"aril {readable_s(t.median):>8} +-{_spread(t):.0%} {rate(found, t.median):>12}")
        if found.of_limit:
            parts.append(f"{found.of_limit:4.0%} of {found.limit_kind}")
    else:
        parts.append("aril FAILED")
    best = found.best_peer
    for name, t in found.times.items():
        if name == "aril":
            continue
        ratio = found.ratio(name)
        mark = "*" if name == best else ""
        parts.append(f"{name}{mark} {readable_s(t.median)}" + ("" if ratio is None else f" ({ratio:.2f}x)"))
    text = "  ".join(parts)
    for name, why in found.failures.items():
        text += f"\n    {name}: {why}"
    return text


def _spread(t: Any) -> float:
    """Half the distance between the quartiles, of the median."""
    return (t.high - t.low) / 2 / t.median if t.median else 0.0


def summary(rows: Sequence[Measured]) -> list[str]:
    """What the figures of the project ask: how many rows are as fast as the best peer, and how far the others are."""
    ratios = {f.row.name: f.ratio(f.best_peer) for f in rows if f.best_peer is not None}
    known = {name: r for name, r in ratios.items() if r is not None}
    failed = [f.row.name for f in rows if not f.ok]
    out = []
    if known:
        values = sorted(known.values())
        out.append(
            f"{len(known)} rows with a peer: {sum(v >= 1 for v in values)} at 1.0 or more of the best peer's speed, "
            f"{sum(v >= 1.2 for v in values)} at 1.2 or more, {sum(v < 0.7 for v in values)} under 0.7; "
            f"geometric mean {math.exp(statistics.fmean(map(math.log, values))):.2f}, least {values[0]:.2f}"
        )
        slow = sorted((r, name) for name, r in known.items() if r < 1)
        if slow:
            out.append("slower than the best peer: " + "; ".join(f"{name} {r:.2f}" for r, name in slow))
    if failed:
        out.append("failed: " + "; ".join(failed))
    return out


def to_json(
    machine: dict[str, Any],
    limits: Limits,
    rows: Sequence[Measured],
    overheads: Sequence[Overhead],
    absent: dict[str, str],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    return {
        "machine": machine,
        "options": options,
        "absent": absent,
        "limits": dataclasses.asdict(limits),
        "rows": [
            {
                "name": f.row.name,
                "group": f.row.group,
                "flops": f.row.flops,
                "bytes": f.row.moved,
                "limit_s": f.limit_s,
                "limit": f.limit_kind,
                "kernels": f.kernels,
                "reference": f.reference,
                "tolerance": f.row.tolerance,
                "times_s": {name: dataclasses.asdict(t) for name, t in f.times.items()},
                "errors": f.errors,
                "failures": f.failures,
                "best_peer": f.best_peer,
                "ratios": {name: f.ratio(name) for name in f.times if name != "aril"},
                "of_limit": f.of_limit,
            }
            for f in rows
        ],
        "overheads": [dataclasses.asdict(o) | {"met": o.met} for o in overheads],
    }


def to_markdown(data: dict[str, Any]) -> str:
    """The page, of what `to_json` gave."""
    m, limits = data["machine"], data["limits"]
    versions = ", ".join(f"{name} {v}" for name, v in m["versions"].items())
    bandwidth = "; ".join(
        f"{what} " + ", ".join(f"{rate:.1f} GB/s ({size})" for size, rate in limits[key].items())
        for what, key in (("copy", "copy_gbs"), ("read", "read_gbs"))
    )
    lines = [
        f"# Benchmark of {m['time']}"
        + (f", {target} instructions" if (target := data["options"].get("target")) else ""),
        "",
        f"{m['cpu']}, {m['threads']} threads, {m['system']}, Python {m['python']}; {versions}; revision "
        f"{m['revision'] or 'unknown'}; load before {m['load_before'][0]:.2f}.",
        "",
        f"Limits: multiply-adds {limits['float32_gflops']:.1f} GFLOPS (float64 {limits['float64_gflops']:.1f}); "
        f"{bandwidth}.",
        "",
        *(f"- {name} did not take part: {why}" for name, why in data["absent"].items()),
        "",
    ]
    names = [n for n in _names(data["rows"]) if n != "aril"]
    if data["rows"]:
        lines += [
            "Medians, with half the distance between the quartiles; in brackets how many times faster aril is. "
            "The fastest peer is bold.",
            "",
            "| row | aril | of limit | kernels | best peer / aril | " + " | ".join(names) + " |",
            "|---|---|---|---|---|" + "---|" * len(names),
        ]
    for row in data["rows"]:
        t = row["times_s"].get("aril")
        own = row["failures"].get("aril", "failed") if t is None else _cell(t)
        limit = "" if row["of_limit"] is None else f"{row['of_limit']:.0%} ({row['limit']})"
        best = row["best_peer"]
        ratio = row["ratios"].get(best) if best else None
        cells = [row["name"], own, limit, str(row["kernels"] or ""), "" if ratio is None else f"{ratio:.2f}"]
        for name in names:
            other = row["times_s"].get(name)
            if other is None:
                cells.append(row["failures"].get(name, "").partition(":")[0])
                continue
            r = row["ratios"][name]
            text = _cell(other) + ("" if r is None else f" ({r:.2f})")
            cells.append(f"**{text}**" if name == best else text)
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    if data["overheads"]:
        who = list(dict.fromkeys(name for o in data["overheads"] for name in o["values"]))
        lines += ["", "| overhead | figure | " + " | ".join(who) + " |", "|---|---|" + "---|" * len(who)]
        for o in data["overheads"]:
            values = o["values"]
            cells = [readable(values[n], o["unit"]) if n in values else o["notes"].get(n, "") for n in who]
            lines.append(f"| {o['name']} | {readable(o['target'], o['unit'])} | " + " | ".join(cells) + " |")
    few = [f"{r['name']} ({n}: {t['rounds']})" for r in data["rows"] for n, t in r["times_s"].items()
           if t["rounds"] < data["options"]["rounds"]]  # fmt: skip
    lines += ["", f"Rounds: {data['options']['rounds']}" + (f"; fewer for {'; '.join(few)}" if few else "") + "."]
    failed = [f"- {r['name']}, {n}: {why}" for r in data["rows"] for n, why in r["failures"].items()]
    if failed:
        lines += ["", "Without a time:", "", *failed]
    return "\n".join(lines) + "\n"


def _names(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in (*row["times_s"], *row["failures"])))


def _cell(t: dict[str, float]) -> str:
    return f"{readable_s(t['median'])} ±{(t['high'] - t['low']) / 2 / t['median']:.0%}"


def plot(data: dict[str, Any], path: Path) -> None:
    """The ratios to each peer, a line a row, as SVG or PNG. ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    rows = [r for r in data["rows"] if "aril" in r["times_s"]][::-1]
    names = [n for n in _names(rows) if n != "aril"]
    figure, axes = pyplot.subplots(figsize=(9, 1.5 + 0.24 * len(rows)), layout="constrained")
    markers = "os^Dv<>P*X"
    for index, name in enumerate(names):
        points = [(r["ratios"][name], y) for y, r in enumerate(rows) if r["ratios"].get(name)]
        if points:
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, markers[index % len(markers)], label=name, markersize=5, alpha=0.8)
    limits = [(r["of_limit"], y) for y, r in enumerate(rows) if r["of_limit"]]
    if limits:
        xs, ys = zip(*limits, strict=True)
        axes.plot(xs, ys, "k|", label="the machine's limit", markersize=9)
    axes.axvline(1, color="black", linewidth=1)
    axes.axvline(0.7, color="grey", linewidth=0.7, linestyle=":")
    axes.axvline(1.2, color="grey", linewidth=0.7, linestyle=":")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.set_yticks(range(len(rows)), [r["name"] for r in rows], fontsize=7)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.grid(axis="x", which="both", linewidth=0.3)
    axes.set_xlabel("time of the other / time of aril (right of 1: aril is faster)")
    axes.set_title(
        f"{data['machine']['cpu']}, {data['machine']['threads']} threads, {data['machine']['time'][:10]}", fontsize=9
    )
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.06 - 1.2 / (1.5 + 0.24 * len(rows))), ncols=5)
    figure.savefig(path)
    pyplot.close(figure)
