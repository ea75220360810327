"""The site's pages: each document is in it, and every link between them holds.

`./check site` builds the HTML, and fails for a link or an anchor that leads nowhere.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kelek.tests.site import build, commands, python_api


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("staged") / "site"
    build.stage(folder)
    return folder


def leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from leaves(each)


def test_every_page_is_in_the_navigation_once(staged: Path) -> None:
    nav = yaml.safe_load((staged / "mkdocs.yml").read_text())["nav"]
    assert all(isinstance(section, dict) for section in nav), "NAVIGATION lacks a folder"
    pages = staged / "pages"
    there = sorted(path.relative_to(pages).as_posix() for path in pages.rglob("*.md"))
    assert sorted(leaves(nav)) == there


def test_links_between_pages_hold(staged: Path) -> None:
    lost = []
    for page in (staged / "pages").rglob("*.md"):
        text = build.CODE.sub("", page.read_text(encoding="utf-8"))
        for _, target in build.LINK.findall(text):
            path = target.partition("#")[0]
            if "://" not in target and path and not (page.parent / path).exists():
                lost.append(f"{page}: {target}")
    assert not lost
    assert "missing:" not in "".join(map(str, lost))


def test_a_link_to_a_source_becomes_its_text() -> None:
    pages = build.documents()
    text = "[demo](topology.yaml), [limits](docs/limits.md#log) `[a](b)`\n"
    assert build.relinked(text, "README.md", pages) == "demo, [limits](limits.md#log) `[a](b)`\n"


def test_the_schema_of_the_topology_is_there(staged: Path) -> None:
    schema = json.loads((staged / "pages/reference/topology.schema.json").read_text())
    assert "nodes" in schema["properties"]


def test_the_reference_has_every_command_with_its_options() -> None:
    text = commands.page()
    for program, main in commands.PROGRAMS.items():
        for words, context in commands.commands(main, None, program):
            section = text.partition(f"# {words}\n")[2].partition("\n#")[0]
            options = [each for param in context.command.params for each in param.opts]
            hidden = {
                each for param in context.command.params if getattr(param, "hidden", False)
                for each in param.opts
            }  # fmt: skip
            missing = [each for each in options if each[:2] == "--" and each not in section]
            assert set(missing) <= hidden, words


def test_the_reference_has_every_public_name() -> None:
    text = python_api.page()
    headings = re.findall(r"^## ([\w.]+)$", text, re.M)
    assert sorted(headings) == sorted([*python_api.public_names(), *python_api.TESTING])
    for name in ("append", "watch", "read_index"):
        assert f"\n### Log.{name}\n" in text
    assert "append(data: Data) -> int" in text
    assert "### Log.subscribe\n" not in text, "old names are in api.md"


def test_no_page_is_outside_the_repository() -> None:
    assert not [old for old in build.documents() if os.path.isabs(old) or old.startswith("..")]
