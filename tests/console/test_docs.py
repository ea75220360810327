"""`kelek docs`, and the documents that messages name."""

import re

import click
import pytest

from kelek.console import cli_errors, docs
from kelek.tests.conftest import ROOT
from kelek.tests.console.kelek_runner import fails, ok

CODE = "actors", "clients", "console", "net", "pipeline", "protocols", "storage"


def test_it_lists_documents_by_name_and_title() -> None:
    lines = ok("docs").splitlines()
    named = dict(re.split("  +", line, maxsplit=1) for line in lines)
    assert len(named) == len([*(ROOT / "docs").rglob("*.md")])
    assert named["security"] == "Security"
    assert "guides/spark" in named, "the page of a folder has the folder's name"


@pytest.mark.parametrize("name", ["security", "docs/security.md", "security.md"])
def test_it_shows_a_document(name: str) -> None:
    assert ok("docs", name).rstrip() == (ROOT / "docs/security.md").read_text().rstrip()


def test_the_last_word_of_a_name_is_enough_if_it_is_the_only_one() -> None:
    assert ok("docs", "first-steps") == ok("docs", "tutorial/first-steps")
    assert ok("docs", "queues") == ok("docs", "guides/queues"), "0045-queues is another word"
    for page, way_out in {
        "log": "there are guides/log, internals/log",
        "guide/log": "there are guides/log, internals/log",
        "swans": "list them: kelek docs",
    }.items():
        code, line = fails("docs", page)
        assert code == cli_errors.IMPOSSIBLE
        assert line.startswith(f"kelek: there is no document {page}; {way_out}")


def test_names_and_last_words_are_completed() -> None:
    context = click.Context(click.Command("docs"))

    def completed(incomplete: str) -> list[str]:
        return docs.complete(context, click.Argument(["page"]), incomplete)

    assert completed("first") == ["first-steps"]
    assert completed("tutorial/f") == ["tutorial/first-steps"]
    assert completed("log") == [], "guides/log and internals/log end so"


def test_the_list_begins_with_what_a_new_user_reads() -> None:
    folders = [line.partition("/")[0].split()[0] for line in ok("docs").splitlines()]
    assert folders[0] == "tutorial"
    assert folders[-1] == "internals"
    assert folders.index("decisions") > folders.index("security")


def test_each_document_that_code_names_exists() -> None:
    named: set[str] = set()
    for folder in CODE:
        for path in (ROOT / folder).rglob("*.py"):
            named |= {*re.findall(r"\bdocs/[\w./-]+\.md\b", path.read_text())}
    assert len(named) > 10
    assert not {name for name in named if not (ROOT / name).is_file()} - {"docs/reference/cli.md"}
