"""Settings: where values come from, what is refused, and how Context changes them."""

import os
import pathlib
import subprocess
import sys
import threading

import pytest

from aril import config
from aril.config import ALLOC_CACHE_LIMIT, BEAM, DEBUG, DEFAULT_FLOAT, DEV, SPEC, Context, SettingError

ROOT = pathlib.Path(__file__).parent.parent


def in_new_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in {s.name for s in config.settings()}}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True, cwd=ROOT)


def test_a_setting_compares_and_tests_as_its_value():
    with Context(DEBUG=2, SPEC=0, DEV="CPU:LLVM"):
        assert DEBUG >= 2 and DEBUG > 1 and DEBUG < 3 and DEBUG <= 2 and DEBUG == 2 and DEBUG != 3
        assert not SPEC and bool(DEBUG)
        assert int(DEBUG) == 2 and range(5)[DEBUG] == 2
        assert DEV == "CPU:LLVM" and str(DEV) == "CPU:LLVM" and repr(DEBUG) == "DEBUG=2"


def test_contexts_nest_and_restore():
    before = DEBUG.value, BEAM.value
    with Context(DEBUG=3):
        with Context(DEBUG=1, BEAM=4):
            assert (DEBUG.value, BEAM.value) == (1, 4)
        assert (DEBUG.value, BEAM.value) == (3, before[1])
    assert (DEBUG.value, BEAM.value) == before


def test_a_context_restores_after_an_exception():
    before = DEBUG.value
    with pytest.raises(ZeroDivisionError), Context(DEBUG=5):
        1 / 0  # noqa: B018
    assert DEBUG.value == before


def test_a_context_decorates_a_function_that_calls_itself():
    before = BEAM.value

    @Context(BEAM=2)
    def down(n: int) -> list[int]:
        return [BEAM.value] + (down(n - 1) if n else [])

    assert down(3) == [2, 2, 2, 2]
    assert BEAM.value == before


def test_one_context_object_may_be_entered_again():
    before, again = DEBUG.value, Context(DEBUG=4)
    with again, Context(DEBUG=1), again:
        assert DEBUG.value == 4
    assert DEBUG.value == before


def test_a_context_is_not_seen_in_another_thread():
    seen: list[int] = []
    with Context(BEAM=7):
        thread = threading.Thread(target=lambda: seen.append(BEAM.value))
        thread.start()
        thread.join()
    assert seen == [BEAM.value]


def test_the_short_word_for_several_settings_follows_each_context_and_is_the_threads_own():
    assert config.unwatched.value
    for name, value in (("DEBUG", 2), ("PROFILE", 1), ("NAN_CHECK", 1), ("JIT", 0), ("JIT", 2)):
        with Context(**{name: value}):
            assert not config.unwatched.value
            seen = []
            thread = threading.Thread(target=lambda seen=seen: seen.append(config.unwatched.value))
            thread.start()
            thread.join()
            assert seen == [True]
            with Context(DEBUG=1):
                assert config.unwatched.value is (name == "DEBUG")
            assert not config.unwatched.value
        assert config.unwatched.value


def test_an_unknown_name_suggests_a_close_one():
    with pytest.raises(SettingError, match="no setting called 'DEBG'; did you mean DEBUG"):
        Context(DEBG=1)
    with pytest.raises(SettingError, match="aril settings"):
        Context(ZZZZZZ=1)


@pytest.mark.parametrize("value", [-1, 8, "loud", None, 1.5, ""])
def test_a_value_out_of_range_is_refused_before_anything_changes(value):
    before = BEAM.value
    with pytest.raises(SettingError, match="DEBUG=.* is not valid; it accepts an integer from 0 to 7"):
        Context(BEAM=3, DEBUG=value)
    assert BEAM.value == before


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("4096", 4096), ("1K", 1024), ("1.5G", 3 << 29), ("512MiB", 512 << 20), (7, 7)]
)
def test_sizes_take_units(text, size):
    with Context(ALLOC_CACHE_LIMIT=text):
        assert ALLOC_CACHE_LIMIT.value == size


@pytest.mark.parametrize("text", ["-1", "1X", "G", "1e9", "many"])
def test_sizes_that_make_no_sense_are_refused(text):
    with pytest.raises(SettingError, match="such as 512M"):
        Context(ALLOC_CACHE_LIMIT=text)


def test_a_choice_takes_one_of_its_values_and_a_dtype_by_name():
    class Half:
        name = "float16"

    with Context(DEFAULT_FLOAT=Half()):
        assert DEFAULT_FLOAT == "float16"
    with pytest.raises(SettingError, match="one of float16, bfloat16, float32, float64"):
        Context(DEFAULT_FLOAT="int8")


def test_the_environment_gives_the_first_value():
    code = "from aril.config import *; from aril.config import DEBUG, SPEC, CACHE_LIMIT, NO_COLOR, JIT; "
    code += "print(DEBUG.value, SPEC.value, CACHE_LIMIT.value, NO_COLOR.value, JIT.value)"
    done = in_new_process(code, DEBUG=" 3", SPEC="true", CACHE_LIMIT="2M", NO_COLOR="please", JIT="")
    assert done.stdout.split() == ["3", "1", str(2 << 20), "1", "1"], done.stderr


def test_a_malformed_environment_variable_names_itself():
    done = in_new_process("from aril.config import DEBUG; DEBUG.value", DEBUG="loud")
    assert "environment variable DEBUG='loud' is not valid; it accepts an integer from 0 to 7" in done.stderr


def test_a_malformed_variable_hurts_only_those_who_read_it():
    assert in_new_process("from aril.config import DEBUG, BEAM; BEAM.value", DEBUG="loud").returncode == 0


def test_the_cache_folder_follows_its_variables():
    code = "from aril.config import cache_dir; print(cache_dir())"
    assert in_new_process(code, ARIL_CACHE="/x/y").stdout == "/x/y\n"
    assert in_new_process(code, XDG_CACHE_HOME="/x").stdout == "/x/aril\n"
    assert in_new_process(code, XDG_CACHE_HOME="", HOME="/h").stdout == "/h/.cache/aril\n"


def test_changed_lists_what_differs_from_the_defaults():
    with Context(BEAM=5):
        assert config.changed()["BEAM"] == 5
    assert "BEAM" not in config.changed()


def test_every_default_is_accepted_by_its_own_setting():
    for one in config.settings():
        assert one.parse(one.default) == one.default
        assert one.meaning.endswith(".") and one.accepts


def test_importing_aril_imports_nothing_heavy():
    code = "import sys, aril; print(sorted({'numpy', 'llvmlite', 'pathlib'} & set(sys.modules)))"
    assert in_new_process(code).stdout == "[]\n"


def test_an_unknown_top_level_name_says_what_there_is():
    import aril

    with pytest.raises(AttributeError, match="it offers Context, Device, .*Tensor"):
        aril.Tensr  # noqa: B018


def test_a_name_one_slip_away_from_a_setting_is_warned_of(monkeypatch):
    slips = {"DEUBG": "DEBUG", "CACHE_LIMITS": "CACHE_LIMIT", "BEAN_DEBUG": "BEAM_DEBUG"}
    slips |= {"ARIL_DEBUG": "DEBUG"}
    with monkeypatch.context() as environment:
        for name in [*slips, "ARIL_VENV", "SPEED", "BEAMS", "DEBUGGER", "PATH", "debgu", "XDEBUG_MODE", "NOCOLOR"]:
            environment.setenv(name, "1")
        assert config.misspelt() == slips
    done = in_new_process("from aril import Tensor; from aril import nn", DEUBG="2")
    assert done.returncode == 0 and done.stderr.count("did you mean DEBUG?") == 1
    assert not in_new_process("from aril import Tensor", DEBUG="0", SPEED="2").stderr
