"""Reading of the two notations users write as text: einsum's and that of `rearrange`."""

from __future__ import annotations

import re
from typing import Any

from aril.mixin.base import dim_prod, same, shown


def parse_einsum(formula: str, shapes: list[tuple[Any, ...]]) -> tuple[list[str], str, str]:
    """(the indices of each operand, those of the output, all in order: output first), `...` replaced by capital letters
    the formula does not use. Errors: ValueError for what is no formula, or does not fit the shapes."""
    if not isinstance(formula, str):
        raise TypeError(f"einsum: the formula is text such as 'ij,jk->ik', not {shown(formula)}")
    text = formula.replace(" ", "")
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(shapes):
        raise ValueError(f"einsum: {formula!r} names {len(inputs)} operands, {len(shapes)} came")
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in text]
    ranks = [len(s) - len(names.replace("...", "")) for names, s in zip(inputs, shapes, strict=True)]
    widest = max([r for names, r in zip(inputs, ranks, strict=True) if "..." in names], default=0)
    stars = "".join(free[:widest])
    inputs = [
        names.replace("...", stars[widest - r :] if r > 0 else "") for names, r in zip(inputs, ranks, strict=True)
    ]
    if not arrow:
        once = sorted({c for c in left if c.isalpha() and left.count(c) == 1})
        right = ("..." if "..." in left else "") + "".join(once)
    output = right.replace("...", stars)
    sizes: dict[str, Any] = {}
    for names, shape in zip(inputs, shapes, strict=True):
        if len(names) != len(shape) or not all(c.isalpha() for c in names):
            raise ValueError(f"einsum: {names!r} in {formula!r} does not name the axes of shape {shape}")
        for i, (c, d) in enumerate(zip(names, shape, strict=True)):
            fits = c not in sizes or same(sizes[c], d) or c not in names[:i] and (same(d, 1) or same(sizes[c], 1))
            if not fits:
                raise ValueError(
                    f"einsum: index {c!r} of {formula!r} has {sizes[c]} and {d} elements (shapes {shapes})"
                )
            if c not in sizes or same(sizes[c], 1):
                sizes[c] = d
    if len(set(output)) != len(output) or any(c not in sizes for c in output):
        raise ValueError(
            f"einsum: the output {right!r} of {formula!r} repeats an index or names one that no operand has"
        )
    return inputs, output, output + "".join([c for c in sizes if c not in output])


def parse_rearrange(
    formula: str, shape: tuple[Any, ...], sizes: dict[str, int]
) -> tuple[tuple[Any, ...], tuple[int, ...], tuple[Any, ...], list[str]]:
    """(shape with every name an axis, their order in the result, the final shape, the names)."""
    if not isinstance(formula, str):
        raise TypeError(f"rearrange: the formula is text such as 'b (h w) -> b h w', not {shown(formula)}")
    left, arrow, right = formula.partition("->")
    if not arrow:
        raise ValueError(f"rearrange: {formula!r} has no '->'")
    token_form = r"\([^()]*\)|\.\.\.|\w+"
    tokens = [re.findall(token_form, side) for side in (left, right)]
    for text in (left, right):
        if rest := re.sub(token_form, "", text).strip():
            raise ValueError(
                f"rearrange: {rest!r} in {formula!r} is no part of a formula; axes are names, 1, '...' "
                "or (groups of them)"
            )
    if tokens[0].count("...") > 1 or tokens[1].count("...") > 1:
        raise ValueError(f"rearrange: '...' can stand once on a side of {formula!r}")
    if unused := [name for name in sizes if not re.search(rf"\b{re.escape(name)}\b", left)]:
        raise ValueError(f"rearrange: sizes are given for {unused}, which {formula!r} does not name on its left")
    stars = [f"...{i}" for i in range(len(shape) - len(tokens[0]) + 1)] if "..." in tokens[0] else []
    sides: list[list[list[str]]] = []
    for side in tokens:
        groups: list[list[str]] = []
        for token in side:
            if token == "...":
                groups += [[star] for star in stars]
            else:
                names = token[1:-1].split() if token.startswith("(") else [token]
                groups.append([n for name in names for n in (stars if name == "..." else [name])])
        sides.append(groups)
    inner, outer = sides
    if len(inner) != len(shape):
        raise ValueError(f"rearrange: {formula!r} names {len(inner)} axes, shape {shape} has {len(shape)}")
    known: dict[str, Any] = dict(sizes)
    for group, d in zip(inner, shape, strict=True):
        unknown = [g for g in group if g not in known and g != "1"]
        have = dim_prod([known[g] for g in group if g in known])
        if len(unknown) > 1 or (
            isinstance(d, int) and isinstance(have, int) and (d % max(have, 1) or (not unknown and have != d))
        ):
            raise ValueError(
                f"rearrange: an axis of {d} elements does not split into {group} with {sizes} in {formula!r}"
            )
        if unknown:
            known[unknown[0]] = d // have
    names = [g for group in inner for g in group if g != "1"]
    wanted = [g for group in outer for g in group if g != "1"]
    if sorted(names) != sorted(wanted):
        raise ValueError(f"rearrange: {formula!r} has other names on its two sides: {names} and {wanted}")
    final = tuple([dim_prod([known[g] for g in group if g != "1"]) for group in outer])
    return tuple([known[g] for g in names]), tuple([names.index(g) for g in wanted]), final, names
