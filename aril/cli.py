"""The `aril` command: what is usable here, settings, the cache, a check-up, training runs, several processes.

In come arguments; out go lines a person reads and an exit status. Each command imports only what it needs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import aril
from aril import config
from aril.config import CACHE_LIMIT, DEBUG, SettingError, cache_dir


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command given by `arguments` (by default the process's); returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as in `aril settings | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (SettingError, ValueError, OSError, RuntimeError, MemoryError) as error:
        if not isinstance(error, SettingError) and DEBUG >= 1:
            raise
        print(f"aril: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("aril", description="A deep-learning stack that compiles to machine code.")
    parser.add_argument("--version", action="version", version=f"aril {aril.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    devices = commands.add_parser("devices", help="what is usable here, and why the rest is not")
    devices.set_defaults(run=show_devices)

    settings = commands.add_parser("settings", help="every setting: value, default, meaning")
    settings.add_argument("--markdown", action="store_true", help="as the table of the documentation")
    settings.set_defaults(run=show_settings)

    cache = commands.add_parser("cache", help="what the disk cache holds; clear or bound it")
    cache.add_argument("action", nargs="?", choices=("show", "clear", "bound"), default="show")
    cache.add_argument("size", nargs="?", help="for `bound`: what may stay, such as 512M (default: CACHE_LIMIT)")
    cache.set_defaults(run=manage_cache)

    doctor = commands.add_parser("doctor", help="check this machine and installation")
    doctor.set_defaults(run=examine)

    train = commands.add_parser("train", help="train an example network")
    networks = train.add_subparsers(required=True, metavar="{mnist}")
    mnist = networks.add_parser("mnist", help="a small convolutional network on the MNIST digits")
    length = mnist.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=_positive, help="times through the 60,000 training images")
    length.add_argument("--steps", type=_positive, default=100, help="training steps (default: %(default)s)")
    mnist.add_argument("--batch", type=_positive, default=512, help="images a step (default: %(default)s)")
    mnist.add_argument("--lr", type=float, default=3e-3, help="highest learning rate of Adam (default: %(default)s)")
    mnist.add_argument("--seed", type=int, default=0, help="of weights and order (default: %(default)s)")
    mnist.add_argument(
        "--save", type=Path, default=Path("mnist.safetensors"), metavar="PATH", help="the weights' file (%(default)s)"
    )
    mnist.set_defaults(run=train_mnist)

    launch = commands.add_parser("launch", help="run a program in several processes that train together, through MPI")
    launch.add_argument("-n", type=_positive, required=True, metavar="COUNT", help="how many processes")
    launch.add_argument(
        "--mpi", action="append", default=[], metavar="OPTION", help="an option for mpiexec, such as --mpi=--hosts=a,b"
    )
    launch.add_argument("program", help="a Python file")
    launch.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    launch.set_defaults(run=launch_processes)

    # Its options are its own: with this prefix they all look like arguments here.
    bench = commands.add_parser(
        "bench", help="the benchmark (in a clone); --help names its options", prefix_chars="\0", add_help=False
    )
    bench.add_argument("options", nargs="*")
    bench.set_defaults(run=run_bench)
    return parser


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return number


def show_devices(_: argparse.Namespace) -> int:
    """A line a device: its name, whether it is the default, what it is or why it is not usable."""
    from aril.device import Device

    default = Device.DEFAULT
    for name in Device:
        reason = Device.why_not(name)
        mark = "default" if name == default.partition(":")[0] else "usable" if reason is None else "no"
        print(f"{name:<10} {mark:<8} {_describe(name) if reason is None else reason}")
    return 0


def _describe(name: str) -> str:
    from aril.device import Device

    try:
        device = Device[name]
        target = device.target
    except Exception as error:  # one device that does not start must not hide the others
        return f"{type(error).__name__}: {error}"
    text = f"{type(device).__doc__ or ''}".strip().partition("\n")[0]
    return f"{text} Usable cores: {target.cores}." if name == "CPU" else text


def show_settings(options: argparse.Namespace) -> int:
    """Settings as a table for a terminal, or with --markdown as the page docs/settings.md."""
    if options.markdown:
        print(settings_page(), end="")
        return 0
    for name, meant in config.misspelt().items():
        print(f"!! {name} in the environment is no setting; did you mean {meant}?")
    for one in config.settings():
        try:
            value = repr(one.value)
        except SettingError as error:
            value = f"!! {error}"
        mark = "" if value == repr(one.default) else f"   (default {one.default!r})"
        print(f"{one.name} = {value}{mark}\n    {one.meaning} Accepts {one.accepts}.")
    return 0


def settings_page() -> str:
    """docs/settings.md: every setting with its type, default and meaning."""
    rows = [
        "# Settings",
        "",
        "<!-- Written by `aril settings --markdown`; change aril/config.py, not this page. -->",
        "",
        "Each is an environment variable, read once when it is first needed, and a name for `Context`, which changes it"
        " in one thread for a block or a function:",
        "",
        "```python",
        "from aril import Context, Tensor",
        "",
        "with Context(DEBUG=2):",
        "    Tensor([1, 2, 3]).sum().item()",
        "```",
        "",
        "A value that a setting does not accept is an error which names it; a variable whose name is one slip away from"
        " that of a setting, such as `DEUBG`, is warned of. `aril settings` shows what is in force.",
        "",
        "| name | type | default | meaning | accepts |",
        "|---|---|---|---|---|",
    ]
    for one in config.settings():
        shown = f"{one.default >> 30}G" if one.kind == "size" and one.default % (1 << 30) == 0 else one.default
        default = "" if one.default == "" else f"`{shown}`"
        cells = (f"`{one.name}`", one.kind, default, one.meaning, one.accepts)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def manage_cache(options: argparse.Namespace) -> int:
    """Show, clear or bound the disk cache."""
    from aril.runtime.cache import disk_cache

    cache = disk_cache()
    if options.size is not None and options.action != "bound":
        raise ValueError(f"`aril cache {options.action}` takes no size; `aril cache bound SIZE` does")
    if options.action == "clear":
        freed = cache.clear()
        for file in _data_sets():
            freed += file.stat().st_size
            file.unlink()
        print(f"removed {readable(freed)} from {cache_dir()}")
    elif options.action == "bound":
        limit = CACHE_LIMIT.value if options.size is None else CACHE_LIMIT.parse(options.size, "size for ")
        freed = cache.trim(limit)
        print(f"removed {readable(freed)}; compiled code is at most {readable(limit)} of {cache_dir()}")
    else:
        print(f"{cache_dir()}, at most {readable(CACHE_LIMIT.value)}")
        for kind, (count, size) in sorted(cache.stats().items()):
            print(f"  {kind:<12} {count:>6} entries  {readable(size):>10}")
        for file in _data_sets():
            print(f"  {'data set':<12} {file.stem:>14}  {readable(file.stat().st_size):>10}")
    return 0


def _data_sets() -> list[Path]:
    return sorted((cache_dir() / "datasets").glob("*.bin"))


def readable(size: float) -> str:
    """A number of bytes for people: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def examine(_: argparse.Namespace) -> int:
    """Run every check of `aril.cli_doctor`; 1 if one fails."""
    from aril.cli_doctor import examine as run

    return run()


def train_mnist(options: argparse.Namespace) -> int:
    """Train the network of `aril.cli_mnist`."""
    from aril.cli_mnist import main as run

    return run(options)


def launch_processes(options: argparse.Namespace) -> int:
    """Run a program in several processes."""
    from aril.cli_launch import launch

    return launch(options.n, options.program, options.arguments, options.mpi)


def run_bench(options: argparse.Namespace) -> int:
    """Run the benchmark in a new process: it sets the number of threads, which libraries read when they start."""
    places = (Path(aril.__file__).parent.parent, Path.cwd())  # of an editable installation, of a clone
    root = next((p for p in places if (p / "bench" / "__main__.py").exists() and (p / "aril").exists()), None)
    if root is None:
        raise ValueError(f"the benchmark is not installed with the package, and not in {places[1]}: run it in a clone")
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH", ""))))
    os.execve(sys.executable, [sys.executable, "-m", "bench", *options.options], {**os.environ, "PYTHONPATH": path})


if __name__ == "__main__":
    sys.exit(main())
