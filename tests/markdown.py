"""Reads tables of documents, so that tests can compare them with constants."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def page(path: str) -> str:
    """The text of a document, by its path in the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def tables(text: str, *heading: str) -> list[list[str]]:
    """The rows of all tables whose first heading cells are these, as stripped cells."""
    rows: list[list[str]] = []
    is_wanted = in_table = False
    for line in text.splitlines():
        if not line.startswith("|"):
            in_table = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not in_table:
            in_table, is_wanted = True, tuple(cells[: len(heading)]) == heading
        elif is_wanted and not set("".join(cells)) <= set("-: "):
            rows.append(cells)
    assert rows, f"no table with the heading {heading}"
    return rows


def codes(cell: str) -> list[str]:
    """The words in backquotes of a cell."""
    return re.findall(r"`([^`]+)`", cell)


def number(cell: str) -> int:
    """The number that a cell starts with; a binary unit of bytes is applied, any other is not."""
    match = re.match(r"([\d,]+)(?: (KiB|MiB|GiB)\b)?", cell)
    assert match is not None, f"no number: {cell!r}"
    return int(match[1].replace(",", "")) * UNITS.get(match[2], 1)
