"""docs/operations.md: every operation of a Tensor, from the table of operations and the docstrings.

`python -m tests.operations_page` writes the page; `tests/test_docs.py` compares it.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

from aril import Tensor
from tests.operations import TABLE

PAGE = Path(__file__).parent.parent / "docs" / "operations.md"
KINDS = {"b": "bool", "u": "unsigned", "i": "signed", "f": "float"}
GIVES = {
    "same": "the same type",
    "bool": "bool",
    "float": "float",
    "int": "the default integer",
    "number": "the same; bool gives the default integer",
    "sum": "the same; small integers wider",
}

HEAD = """# Operations

<!-- Written by `python -m tests.operations_page`; change the docstrings, tests/operations.py or tests/operations_page.py, not this page. -->

Methods of `Tensor`; the elementwise, movement and reducing ones work on IR nodes (`UOp`) too. All are lazy. Signatures, errors and an
example of each are in the [reference](reference.md), the meaning of types and the accuracy of functions in [element types](dtypes.md). *Takes* and
*gives* are those of the table that the tests go through (`tests/operations.py`): another type is a TypeError; "float" means that integers and bool
become the default float.

Shapes broadcast as in NumPy. Axes count from the end where they are negative. Zero-size, 0-d, expanded, flipped and sliced tensors are taken
everywhere.

## Where this differs from PyTorch or NumPy by choice

| topic | here | elsewhere |
|---|---|---|
| default integer | `int32`: `Tensor([1])`, `argmax`, the positions of `sort`, `topk`, `nonzero` (`DEFAULT_INT` changes it) | `int64` |
| sums of integers | `int32` stays `int32` and wraps (`sum(dtype="int64")` does not); smaller ones are carried and given in 32 bits | PyTorch and NumPy give `int64` |
| promotion | an integer beside a float takes the float's type: `int64` with `float32` is `float32` | as PyTorch; NumPy gives `float64` |
| casts out of range | the nearest value of the integer type; NaN is 0 | undefined |
| integer division by 0 | 0 | PyTorch raises an error, NumPy warns |
| `max`, `min` over an axis | the values; `argmax` and `argmin` give positions | PyTorch gives both |
| gradient of `max` with ties | shared evenly | PyTorch's `max(dim)` picks one |
| `var`, `std` | divide by n - 1 (`correction=1`) | as PyTorch; NumPy divides by n |
| `cumsum`, `cumprod`, `cummax`, .. | axis 0 unless given | PyTorch wants it named, NumPy flattens |
| `softmax`, `log_softmax` | the last axis unless given | PyTorch wants it named |
| `sort`, `argsort` | always stable, both ways | on request |
| positions in tensors beyond an axis | reading takes the nearest element; `scatter` leaves them out (a list or array of positions is checked: IndexError) | IndexError, which needs the values |
| negative positions | count from the end everywhere, in `gather` and `scatter` too | PyTorch's `gather` refuses them |
| several writes to one place | the last counts, in assignment and `scatter`; sums, products and extremes are taken in order: the same bits every time | PyTorch: any order |
| sums by position (`scatter_reduce`, gradients of indexing) | one after the other, small floats in `float32` | the same, small floats as they are |
| `sparse_categorical_crossentropy` | leaves out class -1 unless `ignore_index` says another | PyTorch, and `cross_entropy` and `nll_loss` here, leave out class -100 |
| `max_unpool2d` | of several values for one place the last stays | any |
| `dropout`, batch statistics | under `Context(TRAINING=1)` | `module.train()` |
| random numbers | Threefry, the same on every device and number of devices | other numbers for the same seed |
| `nonzero`, `masked_select`, `x[mask]` | compute the mask at once: their shape depends on it | the same |
| complex numbers | none | there |

## Views

{views}, `bitcast`, `detach`, `movedim` and slices show the memory of their operand: what is assigned to one shows in the other. `to`, `cast` and its
short forms give the tensor itself where it is there, or has that type, already. The result of every other operation keeps its value, whatever is
assigned to the operand later. A slice with a step is a view where its last step ends within the axis (`x[::2]` of an even length).
Only memory has views: of a value that is not computed yet (`y = x * 2; v = y.T`) a movement gives another value. `y.realize()` before `v` gives `y` memory.
"""  # noqa: E501


_TITLES = {
    "aril.mixin.base": "Shape and type",
    "aril.mixin.functions": "Functions of analysis",
    "aril.mixin.activations": "Activations",
    "aril.mixin.arrangement": "Stacks, grids and formulas",
    "aril.mixin.image": "Products in the layout of images",
    "aril.tensor_indexing": "Indexing by values",
    "aril.tensor_interop": "Values for others",
    "aril.tensor": "Tensors",
}


def takes(name: str) -> tuple[str, str]:
    """(what types the operation takes, what it gives), empty where the table has no row."""
    row = next((r for r in TABLE if r.name == name), None)
    if row is None:
        return "", ""
    kinds = "any" if set(row.takes) == set("buif") else ", ".join([KINDS[k] for k in row.takes])
    return kinds, GIVES[row.gives]


def says(thing: object) -> str:
    """The first sentence of a docstring, on one line of a table."""
    doc = inspect.getdoc(thing) or ""
    paragraph = " ".join(doc.split("\n\n")[0].split())
    first = re.split(r"(?<=[.:]) (?=[A-Z`\"])", paragraph)[0]
    return first.replace("|", "\\|")


def groups() -> dict[str, list[str]]:
    """The public methods by the file they are written in, in its order."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name in dir(Tensor):
        if name.startswith("_"):
            continue
        thing = inspect.getattr_static(Tensor, name)
        f = getattr(thing, "__func__", getattr(thing, "fget", thing))
        f = inspect.unwrap(f) if callable(f) else f
        module = inspect.getmodule(f)
        if isinstance(module, ModuleType) and hasattr(f, "__code__"):
            title = _TITLES.get(module.__name__) or (module.__doc__ or "").split("\n")[0].split(". ")[0].split(":")[
                0
            ].rstrip(".")
            found.setdefault(f"{module.__name__}|{title}", []).append((f.__code__.co_firstlineno, name))
    order = sorted(found, key=lambda k: (".mixin." not in k, k))
    return {k: [name for _, name in sorted(found[k])] for k in order}


def page() -> str:
    """The whole page."""
    shown = [f"`{name}`" for name in sorted({r.name for r in TABLE if r.view} - {"step"}, key=str.lower)]
    out = [HEAD.format(views=", ".join(shown))]
    for key, names in groups().items():
        title = key.partition("|")[2]
        out.append(f"## {title}\n\n| operation | takes | gives | meaning |\n|---|---|---|---|")
        for name in names:
            thing = inspect.getattr_static(Tensor, name)
            thing = getattr(thing, "__func__", thing)
            kinds, result = takes(name)
            out.append(f"| `{name}` | {kinds} | {result} | {says(thing)} |")
        out.append("")
    return "\n".join(out).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
