"""The command `aril`: what it prints, what it refuses, and that docs/settings.md is what it would write."""

import pathlib
import re
import subprocess
import sys

import pytest

from aril import cli, cli_doctor, config
from aril.config import Context

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture
def cache(tmp_path):
    with Context(ARIL_CACHE=str(tmp_path)):
        yield tmp_path


def test_settings_lists_every_setting_with_its_value(capsys):
    with Context(BEAM=3):
        assert cli.main(["settings"]) == 0
    shown = capsys.readouterr().out
    assert "BEAM = 3   (default 0)\n" in shown
    for one in config.settings():
        assert re.search(rf"^{one.name} = ", shown, re.MULTILINE)


def test_the_settings_page_is_current():
    page = (ROOT / "docs" / "settings.md").read_text()
    assert page == cli.settings_page(), "run: aril settings --markdown > docs/settings.md"


def test_cache_shows_what_it_holds_and_clears_it(cache, capsys):
    from aril.runtime.cache import disk_cache

    disk_cache().put("kernel", "one", b"x" * 2100)
    assert cli.main(["cache"]) == 0
    digits = cache / "datasets" / "mnist.bin"
    digits.parent.mkdir()
    digits.write_bytes(bytes(3072))
    assert cli.main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"kernel +1 entries +2\.\d KiB", shown) and re.search(r"data set +mnist +3\.0 KiB", shown)
    assert cli.main(["cache", "clear"]) == 0
    assert re.search(r"removed 5\.\d KiB", capsys.readouterr().out)
    assert not digits.exists()
    assert disk_cache().get("kernel", "one") is None


def test_cache_is_bounded_to_the_size_asked_for(cache, capsys):
    from aril.runtime.cache import disk_cache

    for name in "abcd":
        disk_cache().put("kernel", name, name.encode() * 3000)
    assert cli.main(["cache", "bound", "8K"]) == 0
    assert "removed 5.9 KiB; compiled code is at most 8.0 KiB" in capsys.readouterr().out
    assert sum(disk_cache().get("kernel", name) is not None for name in "abcd") == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["cache", "bound", "lots"], "CACHE_LIMIT='lots' is not valid; it accepts bytes"),
        (["cache", "clear", "8K"], "`aril cache clear` takes no size"),
    ],
)
def test_a_wrong_argument_is_an_error_of_one_line(cache, capsys, arguments, complaint):
    assert cli.main(arguments) == 1
    shown = capsys.readouterr().err
    assert complaint in shown and shown.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["train"], ["train", "mnist", "--steps", "0"]])
def test_a_wrong_command_shows_the_usage(capsys, arguments):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(arguments)
    assert exit_info.value.code == 2
    assert "usage: aril" in capsys.readouterr().err


def test_devices_says_what_is_usable_and_why_the_rest_is_not(capsys):
    assert cli.main(["devices"]) == 0
    lines = {line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines()}
    assert lines["NULL"] == "usable"
    assert "CPU" in lines and "default" in lines.values()


def test_a_malformed_variable_is_reported_without_a_traceback():
    code = "import sys; from aril.cli import main; sys.exit(main(['cache']))"
    done = subprocess.run([sys.executable, "-c", code], env={"CACHE_LIMIT": "much"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "aril: environment variable CACHE_LIMIT='much' is not valid; "
        "it accepts bytes, or a number with K, M, G or T (powers of 1024), such as 512M\n"
    )


def test_bench_is_found_in_the_clone_that_one_stands_in(tmp_path, monkeypatch, capsys):
    started = []
    monkeypatch.setattr(cli.os, "execve", lambda path, words, env: started.append((words[1:], env["PYTHONPATH"])))
    monkeypatch.setattr(cli.aril, "__file__", str(tmp_path / "aril" / "__init__.py"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(ROOT)
    cli.main(["bench", "--list"])
    assert started == [(["-m", "bench", "--list"], str(ROOT))]
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "--list"]) == 1 and len(started) == 1
    assert f"not in {tmp_path}: run it in a clone" in capsys.readouterr().err


def test_output_may_be_cut_short_by_its_reader():
    code = "import sys; from aril.cli import main; sys.exit(main(['settings']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 141


def test_the_doctor_goes_on_after_a_failed_check_and_says_what_to_do(capsys, monkeypatch):
    def broken() -> str:
        raise cli_doctor.Problem("no disc; put one in")

    monkeypatch.setattr(cli_doctor, "CHECKS", {"disc": broken, "worse": lambda: str(1 // 0), "last": lambda: "here"})
    assert cli_doctor.examine() == 1
    shown = capsys.readouterr().out
    assert shown == (
        "!!  disc      no disc; put one in\n"
        "!!  worse     ZeroDivisionError: integer division or modulo by zero\n"
        "ok  last      here\n"
        "2 of 3 checks failed\n"
    )


def test_the_doctor_names_a_cache_that_cannot_be_written():
    with Context(ARIL_CACHE="/proc/nowhere"), pytest.raises(cli_doctor.Problem, match="set ARIL_CACHE to a folder"):
        cli_doctor.CHECKS["cache"]()
