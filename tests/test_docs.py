"""Runs the commands that README and docs show, each page as one story, and follows their links.

A page's console and Python blocks run in order, in a folder of their own with a topology on free
ports. A command whose output is shown must print that; `...` stands for anything.
"""

import doctest
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for folder, pattern in ((ROOT, "*.md"), (ROOT / "docs", "**/*.md"), (ROOT / "bench", "*.md"))
    for page in folder.glob(pattern)
)

# Shown, but not run here: {the command's beginning: why}.
NOT_RUN = {
    "./check": "it is what runs this test",
    "./demo": ".ci/run runs it, and tests/examples/demo/test_demo.py a short one",
    ".venv/bin/python -m pytest": "a test that runs the tests would not end",
    ".venv/bin/python -m ruff": "a stage of ./check",
    "KELEK_USER=": "containers need images of a registry; tests/examples/container runs the rest",
    "docker ": "the same",
    "pip install .": "tests/test_packaging.py runs it, with the wheel",
    "kelek top": "it needs a terminal; tests/console/top runs it",
    "python3 -m venv": "tests/test_packaging.py runs it",
    "tests/csrc/fuzz": "a stage of ./check",
    "tests/csrc/run": "a stage of ./check",
}


class Block(NamedTuple):
    """One fenced block of a page."""

    line: int
    kind: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S):
        yield Block(text.count("\n", 0, match.start()) + 2, match[1], match[2])


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """(command, shown output) of a console block; a backslash at the end goes on."""
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command, _, shown = part.replace("\\\n", " ").partition("\n")
        yield command, shown


def why_not(command: str) -> str | None:
    return next((why for start, why in NOT_RUN.items() if command.startswith(start)), None)


ELSEWHERE = {
    "docs/guides/mapper.md": "tests/pipeline/maps/test_with_spark.py, on a node with a JVM",
    "docs/recipes/spark.md": "tests/pipeline/test_docs.py, with one JVM for all of them",
    **{page: "tests/pipeline" for page in PAGES if page.startswith("docs/guides/spark/")},
}
# The same of sections: (page, heading).
CLIENT_KEYS = "docs/security.md", "## Clients"  # tests/console/test_client_keys.py
THREE_MACHINES = "docs/security.md", "## Three machines"  # tests/crash/machines


def section(page: str, heading: str) -> list[Block]:
    """The blocks of the section of a page that another test runs."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    first = lines.index(heading) + 1
    last = next(at for at in range(first, len(lines)) if lines[at].startswith("## "))
    return [block for block in blocks(page) if first < block.line <= last]


RUN_THERE = frozenset(
    block.text
    for found in (*map(blocks, ELSEWHERE), section(*CLIENT_KEYS), section(*THREE_MACHINES))
    for block in found
)
# One story, on one cluster.
RECIPES = sorted({page for page in PAGES if page.startswith("docs/recipes/")} - ELSEWHERE.keys())
STORIES = [
    page
    for page in PAGES
    if page not in (*ELSEWHERE, *RECIPES)
    and any(b.kind in ("console", "python") for b in blocks(page))
]


def needs_tables(page: str) -> bool:
    return any(
        re.search(r"kelek (table|stream|queue)|kelek\.(Async)?(Table|Stream|Queue)", block.text)
        for block in blocks(page)
    )


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.tables] * needs_tables(page)) for page in STORIES],
)
def test_page(page: str, shell: Any) -> None:
    run_page(page, shell)


@pytest.mark.tables
def test_recipes(shell: Any) -> None:
    for page in RECIPES:
        run_page(page, shell)


def run_page(page: str, shell: Any) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for block in blocks(page):
        if block.text in RUN_THERE:
            continue
        if block.kind == "python":
            shell.ok("python -", shell.translate(block.text).encode())
        elif block.kind == "console":
            for command, shown in commands(block):
                if why_not(command):
                    continue
                found = shell.ok(shell.translate(command))
                same = doctest.OutputChecker().check_output(shown, found, flags)
                assert same or not shown.strip(), f"{page}:{block.line}: $ {command}\n{found}"


@pytest.mark.parametrize("page", PAGES)
def test_links(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path = target.partition("#")[0]
        if "://" not in target and path and not (ROOT / page).parent.joinpath(path).exists():
            lost.append(target)
    assert not lost, f"{page} points at what isn't there"


@pytest.mark.parametrize("page", PAGES)
def test_every_console_block_has_commands(page: str) -> None:
    """A block without a `$ ` would look like a command and never be run."""
    for block in blocks(page):
        if block.kind == "console":
            assert list(commands(block)), f"{page}:{block.line}: no line begins with `$ `"
        assert block.kind not in ("sh", "bash", "shell"), f"{page}:{block.line}: call it console"


def test_not_run_is_still_shown() -> None:
    shown = [
        c for page in PAGES for b in blocks(page) if b.kind == "console" for c, _ in commands(b)
    ]
    for start in NOT_RUN:
        assert any(command.startswith(start) for command in shown), f"{start} is shown nowhere"
