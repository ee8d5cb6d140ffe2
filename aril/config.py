"""The lowest room: every setting of aril, declared once with its name, type, default and meaning.

In come environment variables and `Context` blocks; out go typed values that hot paths read in tens of nanoseconds.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T", int, str)

_REGISTRY: dict[str, Setting[Any]] = {}
_FROM_ENVIRONMENT: dict[str, Any] = {}

_WORDS = {"true": 1, "yes": 1, "on": 1, "false": 0, "no": 0, "off": 0}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTS = ("int8", "int16", "int32", "int64")


class SettingError(ValueError):
    """A setting that does not exist, or a value it does not accept."""


class Setting(threading.local, Generic[T]):
    """One setting. `.value` is its value in the calling thread; the object itself compares and tests as that value.

    It is a `threading.local` so that `.value` is one attribute read (no lookup, no call) and a `Context` in one thread
    is not seen in another.
    """

    name: str
    default: T
    kind: str
    accepts: str
    meaning: str
    _parse: Callable[[Any], T]

    def __init__(self, name: str, default: T, kind: str, accepts: str, meaning: str, parse: Callable[[Any], T]) -> None:
        # Python runs this again, with the same arguments, on the first use in each further thread.
        self.name, self.default, self.kind, self.accepts, self.meaning = name, default, kind, accepts, meaning
        self._parse = parse
        _REGISTRY.setdefault(name, self)

    @functools.cached_property
    def value(self) -> T:
        """This setting in the calling thread. Computed once in each; a `Context` lays its own value over it."""
        if self.name not in _FROM_ENVIRONMENT:
            text = os.environ.get(self.name, "")
            _FROM_ENVIRONMENT[self.name] = self.parse(text, "environment variable ") if text.strip() else self.default
        base: T = _FROM_ENVIRONMENT[self.name]
        return base

    def parse(self, raw: object, where: str = "") -> T:
        """Turn `raw` (text or a value) into this setting's type; SettingError names the setting and what it accepts."""
        try:
            return self._parse(raw)
        except (ValueError, TypeError, AttributeError):
            raise SettingError(f"{where}{self.name}={raw!r} is not valid; it accepts {self.accepts}") from None

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        if isinstance(self.value, int):
            return self.value
        raise TypeError(f"setting {self.name} holds text, not an integer")

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return f"{self.name}={self.value!r}"

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, Setting) else other))

    def __hash__(self) -> int:
        return id(self)

    def __lt__(self, other: T) -> bool:
        return self.value < other

    def __le__(self, other: T) -> bool:
        return self.value <= other

    def __gt__(self, other: T) -> bool:
        return self.value > other

    def __ge__(self, other: T) -> bool:
        return self.value >= other


class Context(contextlib.ContextDecorator):
    """Change settings for a block (`with Context(DEBUG=2):`) or a function (`@Context(BEAM=4)`), in this thread only.

    Blocks nest, and the values of before come back however the block ends. An unknown name or a value that a setting
    does not accept raises SettingError here, before anything has changed.

    >>> with Context(TRAINING=1):
    ...     print(Tensor([1.0, 1.0]).dropout(1.0).tolist())
    [0.0, 0.0]
    """

    def __init__(self, **changes: object) -> None:
        self._raw = changes
        self._changes = [(setting(name), setting(name).parse(value)) for name, value in changes.items()]
        self._saved: list[list[tuple[Setting[Any], Any]]] = []

    def _recreate_cm(self) -> Context:
        # A decorated function may run in several threads and call itself: each call keeps its own saved values.
        return Context(**self._raw)

    def __enter__(self) -> Context:
        self._saved.append([(one, one.value) for one, _ in self._changes])
        for one, value in self._changes:
            _set(one, value)
        return self

    def __exit__(self, *exc: object) -> None:
        for one, value in self._saved.pop():
            _set(one, value)


def _set(one: Setting[T], value: T) -> None:
    one.value = value
    unwatched.__dict__.pop("value", None)


def setting(name: str) -> Setting[Any]:
    """The setting called `name`; SettingError with the closest names if there is none.

    >>> setting("DEBUG").value
    0
    """
    if name in _REGISTRY:
        return _REGISTRY[name]
    import difflib  # only an error pays for it

    close = difflib.get_close_matches(name.upper(), _REGISTRY, n=2)
    hint = f"did you mean {' or '.join(close)}?" if close else "`aril settings` lists all of them"
    raise SettingError(f"there is no setting called {name!r}; {hint}")


def settings() -> list[Setting[Any]]:
    """Every setting, in the order of declaration."""
    return list(_REGISTRY.values())


def misspelt() -> dict[str, str]:
    """Environment variables that are no setting, but one slip away from one, with what was meant; and those that begin
    with ARIL_, which no setting but ARIL_CACHE does. Names of fewer than five letters are left alone: other programs
    have such names, too, and so has NOCOLOR."""
    found = {}
    for name in os.environ:
        if name in _REGISTRY or name in ("NOCOLOR", "ARIL_VENV"):
            continue
        if name.startswith("ARIL_") and name[5:] in _REGISTRY:
            found[name] = name[5:]
        elif len(name) >= 5 and name.isupper():
            near = [s for s in _REGISTRY if abs(len(s) - len(name)) <= 1 and len(s) >= 5 and _one_slip(name, s)]
            found |= {name: near[0]} if near else {}
    return found


def _one_slip(a: str, b: str) -> bool:
    """Whether `b` is `a` with one letter more, less or other, or with two neighbours swapped."""
    i = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    swapped = a[i : i + 2] == b[i : i + 2][::-1] and a[i + 2 :] == b[i + 2 :]
    return swapped or a[i + 1 :] in (b[i:], b[i + 1 :]) or a[i:] == b[i + 1 :]


def warn_of_misspelt() -> None:
    """A warning for each of `misspelt()`, once a process."""
    for name, meant in misspelt().items():
        import warnings

        warnings.warn(f"{name} in the environment is no setting of aril; did you mean {meant}?", stacklevel=2)


def changed() -> dict[str, int | str]:
    """The settings that differ from their default in this thread: what a worker thread or process needs to be given."""
    return {one.name: one.value for one in settings() if one.value != one.default}


def adopt(one: Setting[T], value: T) -> None:
    """Take `value` for the whole process where no `Context` says otherwise, in threads that have not read it yet."""
    _FROM_ENVIRONMENT[one.name] = value = one.parse(value)
    _set(one, value)


def cache_dir() -> Path:
    """Where files live between runs: ARIL_CACHE, else $XDG_CACHE_HOME/aril, else ~/.cache/aril. May not exist yet."""
    from pathlib import Path  # 10 ms that `import aril` does not need

    if ARIL_CACHE.value:
        return Path(ARIL_CACHE.value).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "aril"


def _integer(name: str, default: int, meaning: str, low: int = 0, high: int | None = None) -> Setting[int]:
    def parse(raw: Any) -> int:
        if isinstance(raw, str):
            number = _WORDS.get(raw.strip().lower())
            number = int(raw, 0) if number is None else number
        else:
            number = int(raw.__index__())
        if number < low or (high is not None and number > high):
            raise ValueError(number)
        return number

    accepts = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    return Setting(name, default, "integer", accepts, meaning, parse)


def _flag(name: str, default: int, meaning: str) -> Setting[int]:
    def parse(raw: Any) -> int:
        number = _WORDS.get(raw.strip().lower(), raw) if isinstance(raw, str) else raw
        if int(number) not in (0, 1):
            raise ValueError(raw)
        return int(number)

    return Setting(name, default, "flag", "0 or 1 (also false/true, no/yes, off/on)", meaning, parse)


def _presence(name: str, meaning: str) -> Setting[int]:
    """A flag by the no-color.org convention: any non-empty text in the environment means yes."""

    def parse(raw: Any) -> int:
        return int(bool(raw))

    return Setting(name, 0, "flag", "anything: non-empty is yes", meaning, parse)


def _size(name: str, default: int, meaning: str) -> Setting[int]:
    def parse(raw: Any) -> int:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", str(raw).strip(), re.IGNORECASE)
        if match is None:
            raise ValueError(raw)
        unit = _UNITS[match[2].upper()]
        return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit

    accepts = "bytes, or a number with K, M, G or T (powers of 1024), such as 512M"
    return Setting(name, default, "size", accepts, meaning, parse)


def _text(name: str, default: str, accepts: str, meaning: str, pattern: str = r"[^\0]*") -> Setting[str]:
    def parse(raw: Any) -> str:
        text = os.fspath(raw).strip()
        if not isinstance(text, str) or re.fullmatch(pattern, text) is None:
            raise ValueError(raw)
        return text

    return Setting(name, default, "text", accepts, meaning, parse)


def _choice(name: str, default: str, choices: tuple[str, ...], meaning: str) -> Setting[str]:
    def parse(raw: Any) -> str:
        # A DType is accepted by its name, so that Context(DEFAULT_FLOAT=dtypes.float16) reads well.
        text = raw.strip().lower() if isinstance(raw, str) else str(getattr(raw, "name", raw))
        if text not in choices:
            raise ValueError(raw)
        return text

    return Setting(name, default, "choice", "one of " + ", ".join([c or "nothing" for c in choices]), meaning, parse)


# Where things run
DEV = _text(
    "DEV",
    "",
    "a device, or device:renderer, such as CPU, CPU:LLVM or PYTHON (see `aril devices`)",
    "The default device; empty means the best one that is usable here.",
    r"[A-Za-z0-9_+]*(:[A-Za-z0-9_]*)*",
)
NUM_CPU_THREADS = _integer(
    "NUM_CPU_THREADS", 0, "Most threads a CPU kernel uses; 0 means as many as affinity and cgroup quota allow.", 0, 4096
)
CPU_TARGET = _choice(
    "CPU_TARGET",
    "",
    ("", "x86-64-v2", "x86-64-v3"),
    "The most of the x86-64 instruction set that kernels use (v2: SSE4.2, v3: AVX2 and FMA); empty: all there is. Read "
    "once in a process.",
)
ALLOC_CACHE_LIMIT = _size(
    "ALLOC_CACHE_LIMIT", 1 << 30, "Bytes of freed device memory kept for reuse, a device; 0 gives memory back at once."
)

# Several devices
ALLREDUCE = _choice(
    "ALLREDUCE",
    "auto",
    ("auto", "naive", "all2all", "ring"),
    "How partial results of several devices are combined; auto chooses by size.",
)
ALLREDUCE_CAST = _choice(
    "ALLREDUCE_CAST",
    "",
    ("", "bfloat16", "float16"),
    "The type in which wider floats travel when they are combined; empty sends them as they are.",
)

# Several processes
COLLECTIVE_TIMEOUT = _integer(
    "COLLECTIVE_TIMEOUT", 600, "Seconds a process waits for the others before the job ends with an error; 0: for ever."
)

# What is shown
DEBUG = _integer(
    "DEBUG",
    0,
    "1 devices and reasons for compiling again; 2 a line a kernel; 3 chosen optimisation steps; 4 source; 5 IR; "
    "6 linear IR; 7 assembly.",
    0,
    7,
)
PROFILE = _flag("PROFILE", 0, "Record when each kernel, copy and compilation ran.")
TRACK_REWRITES = _integer(
    "TRACK_REWRITES",
    0,
    "1 counts and times rewrite rules, with a table when the program ends; 2 also keeps the graphs of each pass "
    "(aril.uop.tracking).",
    0,
    2,
)
NO_COLOR = _presence("NO_COLOR", "No colours, even on a terminal (no-color.org).")

# What is checked
SPEC = _integer(
    "SPEC", 0, "1 verifies the tensor, kernel and program forms between stages; 2 also after every pass.", 0, 2
)
CHECK_OOB = _integer(
    "CHECK_OOB",
    0,
    "1 proves of each kernel that it stays inside its buffers, from bounds, by z3 (pip install z3-solver) where they "
    "do not say; 2 asks z3 of every access.",
    0,
    2,
)
CHECK_POSITIONS = _flag(
    "CHECK_POSITIONS",
    0,
    "Positions in tensors are computed and checked where they are used: IndexError instead of the nearest element.",
)
NAN_CHECK = _flag("NAN_CHECK", 0, "Stop with an error at the first kernel that writes a NaN or an infinity.")
VALIDATE_WITH_CPU = _integer(
    "VALIDATE_WITH_CPU",
    0,
    "1 runs each kernel by a reference too and compares: the CPU's on PYTHON, others on the CPU (2: on PYTHON).",
    0,
    2,
)
DETERMINISTIC = _flag(
    "DETERMINISTIC", 0, "The same bits in every run and with every number of threads: no order that depends on timing."
)

# Numbers
DEFAULT_FLOAT = _choice("DEFAULT_FLOAT", "float32", _FLOATS, "The dtype of Python floats and of new float tensors.")
DEFAULT_INT = _choice("DEFAULT_INT", "int32", _INTS, "The dtype of Python integers and of new integer tensors.")
EMULATED_DTYPES = _text(
    "EMULATED_DTYPES",
    "",
    "dtype names with commas between, such as bfloat16,fp8e4m3",
    "Dtypes computed through a wider one even where the device has them.",
    r"[a-z0-9_]*(\s*,\s*[a-z0-9_]+)*",
)
FLOAT16 = _flag("FLOAT16", 0, "`image_dot` and `image_conv2d` store their operands and results as float16.")
SEED = _integer(
    "SEED", -1, "Seed of the random numbers when manual_seed is not called; -1 takes one from the system.", -1
)

# Training
TRAINING = _flag("TRAINING", 0, "Layers behave as in training: dropout drops, batch norm uses the batch's statistics.")
GRAD = _flag("GRAD", 1, "Results remember how they were computed, so that backward can run; 0 for inference.")

# Optimisation of kernels and search
NOOPT = _flag("NOOPT", 0, "No optimisation steps: each kernel as scheduled.")
BEAM = _integer("BEAM", 0, "Width of the search for optimisation steps; 0 uses the heuristics.", 0, 1024)
JITBEAM = _integer("JITBEAM", 0, "BEAM while jit captures; 0 means the same as BEAM.", 0, 1024)
BEAM_TIMEOUT = _integer("BEAM_TIMEOUT", 10, "Seconds that compiling and timing one candidate may take.", 1)
BEAM_UOPS_MAX = _integer(
    "BEAM_UOPS_MAX", 12_000, "Largest loop body that the search considers: IR nodes times the copies made of them.", 1
)
BEAM_UPCAST_MAX = _integer("BEAM_UPCAST_MAX", 256, "Most copies of a loop's body that the search considers.", 1)
BEAM_PADTO = _flag("BEAM_PADTO", 1, "The search may pad loops: lanes masked, copies repeated past the end.")
BEAM_MIN_PROGRESS = _integer("BEAM_MIN_PROGRESS", 10, "Nanoseconds a round must gain for the search to go on.")
BEAM_REPEATS = _integer("BEAM_REPEATS", 3, "Timed runs of a candidate; the least counts.", 1, 1000)
BEAM_DEBUG = _integer("BEAM_DEBUG", 0, "1 shows each round of the search; 2 each candidate.", 0, 2)

# Capture and replay
JIT = _integer(
    "JIT", 1, "0 runs jitted functions as written; 1 captures and batches; 2 captures without batching.", 0, 2
)

# Caches and compilation
ARIL_CACHE = _text(
    "ARIL_CACHE", "", "a folder", "Where caches live; empty means $XDG_CACHE_HOME/aril, else ~/.cache/aril."
)
CACHE_LIMIT = _size("CACHE_LIMIT", 2 << 30, "Bytes the disk cache may hold; the entries unused longest go first.")
CACHELEVEL = _integer("CACHELEVEL", 2, "0 no caches; 1 in memory; 2 also on disk.", 0, 2)
NOCACHE = _flag("NOCACHE", 0, "Neither read nor write the disk cache; the caches in memory stay.")
COMPILE_WORKERS = _integer(
    "COMPILE_WORKERS",
    -1,
    "Processes that compile kernels; 0 compiles in this one, -1 takes one a usable core.",
    -1,
    1024,
)
REWRITE_STACK_LIMIT = _integer(
    "REWRITE_STACK_LIMIT", 50_000, "Replacements under way at which a rewrite reports rules that do not end.", 1
)

# Names that programs know from this field: taken and checked, though nothing here is for them to change
VIZ = _integer(
    "VIZ", 0, "1 records what the visualizer shows; 2 also opens it. Without effect: there is no visualizer yet.", 0, 2
)
IMAGE = _integer(
    "IMAGE",
    0,
    "1 keeps convolution operands in GPU image objects; 2 also matrix products. Without effect: no device here has "
    "images.",
    0,
    2,
)
NOLOCALS = _flag("NOLOCALS", 0, "No workgroups and no shared memory. Without effect: no device here has any.")
BEAM_LOCAL_MAX = _integer(
    "BEAM_LOCAL_MAX", 1024, "Largest workgroup the search considers. Without effect: no device here has workgroups.", 1
)
JIT_BATCH_SIZE = _integer(
    "JIT_BATCH_SIZE",
    32,
    "Kernels in the first batch of a replay. Without effect: a replay is one call, however long.",
    1,
)


class _Unwatched(threading.local):
    """Whether the calling thread's launches are neither printed, timed nor checked, and captured as usual: the
    settings that each call would ask for, in one."""

    @functools.cached_property
    def value(self) -> bool:
        return DEBUG.value < 2 and not NAN_CHECK.value and not PROFILE.value and JIT.value == 1


unwatched = _Unwatched()
