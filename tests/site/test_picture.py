"""docs/pictures/terminal.svg shows what the commands print today: `.ci/picture` makes it anew."""

import re
from typing import Any
from xml.etree import ElementTree

from kelek.tests.site import picture
from kelek.tests.test_docs import blocks, commands

SVG = "{http://www.w3.org/2000/svg}"


def shown_lines() -> list[str]:
    """The lines of the terminal in the picture, from top to bottom."""
    lines: dict[float, dict[float, str]] = {}
    for text in ElementTree.parse(picture.PICTURE).iter(f"{SVG}text"):
        if "clip-path" in text.attrib:
            pieces = lines.setdefault(float(text.attrib["y"]), {})
            pieces[float(text.attrib["x"])] = "".join(text.itertext())
    joined = ("".join(pieces[x] for x in sorted(pieces)) for _, pieces in sorted(lines.items()))
    return [line.replace("\xa0", " ").rstrip() for line in joined if line.strip()]


def shape(line: str) -> str:
    """A line without what changes from run to run: numbers, times, the leader, widths."""
    line = re.sub(r"\b(leader|follower)\b", "ROLE", line)
    line = re.sub(r"n\d leads", "NODE leads", line)
    return " ".join(re.sub(r"\d+(\.\d+)?(s|m\d+s)?\b", "0", line).split())


def test_the_picture_shows_what_commands_print(shell: Any) -> None:
    printed = []
    for command in picture.COMMANDS:
        quick = command.replace("--detach", "--detach --one-process")
        lines = shell.ok(quick).splitlines() if "table" not in command else []
        printed += [f"$ {command}", *(line for line in lines if line.strip())]
    without_tables = [line for line in shown_lines() if line != "10"]
    assert [shape(line) for line in without_tables] == [shape(line) for line in printed]


def test_the_picture_shows_the_commands_of_the_readme() -> None:
    first = next(block for block in blocks("README.md") if block.kind == "console")
    run = [command for command, _ in commands(first)]
    assert set(run[2:]) <= set(picture.COMMANDS), "behind the installation"


def test_the_picture_loads_nothing() -> None:
    text = picture.PICTURE.read_text(encoding="utf-8")
    assert not re.search(r"url\((?!#)|href=|@import|@font-face", text)
