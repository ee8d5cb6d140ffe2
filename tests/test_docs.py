"""The programs in the README and the documentation run, and print what the comments beside them say."""

import pathlib
import re

import pytest

from tests import operations_page

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ["README.md", "docs/quickstart.md", "docs/settings.md", "docs/kernels-by-hand.md", "docs/distributed.md"]


def programs(page: str) -> list[str]:
    """The Python blocks of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_run_one_after_another(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    assert programs(page)
    names: dict[str, object] = {}
    for number, code in enumerate(programs(page)):
        exec(compile(code, f"{page} program {number}", "exec"), names)


def test_what_the_quickstart_says_of_a_gradient_is_printed(capsys):
    [code] = [code for code in programs("docs/quickstart.md") if "[6. 8.]" in code]
    exec("from aril import Tensor\n" + code, {})
    assert "[6. 8.]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_between_pages_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(link).exists(), link


def test_decision_records_are_numbered_once_and_by_their_headings():
    records = sorted((ROOT / "docs/decisions").glob("*.md"))
    assert [int(p.name[:4]) for p in records] == list(range(1, len(records) + 1))
    for record in records:
        assert record.read_text().startswith(f"# {int(record.name[:4])}. "), record


def test_pages_that_the_source_names_exist():
    named = {
        page for p in (ROOT / "aril").rglob("*.py") for page in re.findall(r"(?<!/)docs/[\w/-]+\.md", p.read_text())
    }
    assert "docs/ir.md" in named
    for page in named:
        assert (ROOT / page).exists(), page


def test_the_page_of_operations_is_what_the_table_and_the_docstrings_say():
    assert operations_page.PAGE.read_text() == operations_page.page(), "run: python -m tests.operations_page"


def test_the_tests_that_show_a_system_exist():
    shown = re.findall(r"\btests/[\w/.]+", (ROOT / "docs/systems.md").read_text())
    assert shown
    for path in shown:
        assert (ROOT / path).exists(), path
