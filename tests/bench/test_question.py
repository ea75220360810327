"""The questions of `python -m kelek.bench`: what they answer, and the page that is made of it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kelek.bench import everything
from kelek.bench.machine import BenchError
from kelek.bench.question import Question, ask
from kelek.bench.report import Section, markdown, summed_up, table, with_section

FOUND: dict[str, Any] = {
    "date": "today",
    "load": [1, 2],
    "conditions": {"machine": "a fast one"},
    "versions": {"kelek": "0"},
    "missing": {"etcd": "is not installed"},
    "rounds": 3,
    "secs": 1,
    "restart": {"kelek": [0.5, 0.4, 0.6]},
}
SECTION = Section(
    "Swans",
    [summed_up("swans, black", [2.0, 1.0, 3.0], "ms", 2), summed_up("white", [1.0], "x", 2, True)],
    [["what", "median"], ["swan", "2"]],
    "Counted by hand.",
)


def test_a_page_holds_the_goals_of_all() -> None:
    page = markdown(FOUND, [SECTION])
    assert (
        "| restart with 1e5 entries, first committed write | 0.5 | 0.4-0.6 | s | <= 1 | met |"
        in page
    )
    assert "| swans, black | 2 | 1-3 | ms | <= 2 | met |" in page
    assert "| white | 1 | 1-1 | x | >= 2 | missed |" in page
    assert (
        "\n## Swans\n\n| what | median |\n| --- | --- |\n| swan | 2 |\n\nCounted by hand.\n" in page
    )
    assert "- without etcd: is not installed" in page
    assert "kelek.bench all --results" in page
    assert "kelek.bench log --results" in markdown(FOUND)
    assert "Counted by hand." in table(FOUND, [SECTION])


def test_what_is_asked_alone_has_its_own_place_on_the_page() -> None:
    page = markdown(FOUND, [SECTION])
    geese = SECTION._replace(title="Geese", note="By ear.")
    with_geese = with_section(page, geese, ["today", "a slow machine"])
    assert with_geese.startswith(page.rstrip("\n"))
    text = "\n## Geese\n\nAsked alone: today, a slow machine. By ear.\n\n| figure |"
    assert text in with_geese
    assert with_section(with_geese, geese, ["today", "a slow machine"]) == with_geese
    later = with_section(with_geese, SECTION._replace(note="Again."), ["tomorrow"])
    assert later.index("Asked alone: tomorrow. Again.") < later.index("## Geese")
    assert "Counted by hand." not in later
    anew = markdown(FOUND, [SECTION], later)  # All are asked again, but for the geese.
    assert text in anew
    assert "tomorrow" not in anew
    assert markdown(FOUND, [SECTION], anew) == anew


def test_a_note_holds_count_and_load(tmp_path: Path) -> None:
    asked: list[tuple[Path, int]] = []

    def measure(directory: Path, rounds: int) -> Section:
        asked.append((directory, rounds))
        return SECTION

    section = ask(Question("swans", None, measure, 7), tmp_path, 5)
    assert asked == [(tmp_path / "swans", 5)]
    assert section.note.startswith("5 rounds, load ")
    assert section.note.endswith(". Counted by hand.")


@pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")
def test_all_goes_on_without_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> Section:
        raise BenchError("redis-server is missing")

    monkeypatch.setenv("CC", "/nowhere/cc")
    questions = [
        Question("swans", None, lambda directory, rounds: SECTION, 1),
        Question("geese", None, fail, 1),
    ]
    assert everything.main(questions, ["--quick"]) == 0
    said = capsys.readouterr()
    assert "without log: no C compiler (cc)" in said.err
    assert "without geese: redis-server is missing" in said.err
    assert "Counted by hand." in said.out


@pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")
@pytest.mark.parametrize("name", ["entries", "members"])
def test_a_question_is_answered(name: str) -> None:
    command = [sys.executable, "-m", "kelek.bench", name, "--rounds", "1", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["figures"]
    assert all(figure["value"] > 0 for figure in found["figures"])
