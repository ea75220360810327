"""docs/pipeline.md: its programs run, and its tables name all options with their defaults."""

import re
from pathlib import Path
from typing import Any

import pytest

from kelek.pipeline.table import options as table_options

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
TABLES = TEXT.partition("\n## The log\n")[0]  # log/test_docs.py runs the log's.
FILES = [path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("pipeline/*.py")]
PROGRAMS = [
    program
    for program in re.findall(r"^```python\n(.*?)^```$", TABLES, re.M | re.S)
    if program not in FILES  # test_examples.py runs those.
]
URL = "tcp://127.0.0.1:7100"


FOLDERS = ("arrived", "checkpoint")  # Where the JVM was started, unless they are moved.


def test_programs(spark: Any, node: str, tmp_path: Path) -> None:
    """In their order: what one wrote the next one may read."""
    for program in PROGRAMS:
        place = TEXT[: TEXT.index(program)].count("\n")
        text = program.replace(URL, node)
        for folder in FOLDERS:
            text = text.replace(f'"{folder}"', f'"{tmp_path}/{folder}"')
        exec(compile("\n" * place + text, "docs/pipeline.md", "exec"), {})


def documented(title: str) -> dict[str, str]:
    """Option -> default, of one table."""
    body = TEXT.split(f"| option for {title} | default | meaning |\n", 1)[1].split("\n\n", 1)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in body.splitlines()[1:]]
    return {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize(
    ("title", "options"), [("reading", table_options.READ), ("writing", table_options.WRITE)]
)
def test_options(title: str, options: Any) -> None:
    shown = {
        option.name: "" if option.default is None else f"`{str(option.default).lower()}`"
        for option in options
    }
    found = {name: text.lower() for name, text in documented(title).items()}
    assert found == {**shown, **({"partitions": "by size"} if title == "reading" else {})}
