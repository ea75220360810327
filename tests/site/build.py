"""Stages the pages of the site: python -m kelek.tests.site.build FOLDER (`./check site`).

FOLDER gets `pages/`, the documents of the repository with links that hold there, the generated
references, and `mkdocs.yml`, which adds the navigation to the settings in the repository's.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

import yaml

from kelek.actors.topology import reference
from kelek.tests.site import commands, python_api

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(\]\(|^\[[^\]]+\]: )([^)\s]+)", re.M)
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.M | re.S)
# Documents outside docs/ -> pages; those of docs/ keep their paths.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "SECURITY.md": "security-policy.md",
    "bench/RESULTS.md": "results.md",
}
GENERATED: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands.page,
    "reference/python.md": python_api.page,
    "reference/topology.schema.json": lambda: json.dumps(reference.json_schema(), indent=1),
}
# The navigation: sections, each with pages or folders in order. A page that is not named here
# follows those of its folder.
RECIPES = (
    "lock", "election", "queue", "configuration", "stream", "event-log", "cache", "counter",
    "spark", "tests",
)  # fmt: skip
NAVIGATION: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Start", ("index.md", "tutorial/")),
    ("Recipes", ("recipes/README.md", *(f"recipes/{name}.md" for name in RECIPES), "recipes/")),
    ("Guides", ("guides/",)),
    ("Operations", ("operations/README.md", "security.md", "security-policy.md", "operations/")),
    (
        "Reference",
        (
            "reference/topology.md",
            "reference/commands.md",
            "reference/api.md",
            "reference/python.md",
            "reference/",
            "limits.md",
            "glossary.md",
            "changelog.md",
        ),
    ),
    ("Figures", ("performance.md", "results.md", "reliability.md", "comparison.md")),
    ("Protocols", ("protocols/",)),
    (
        "Internals",
        (
            "architecture.md",
            "dependencies.md",
            "internals/",
            "decisions/README.md",
            "decisions/",
        ),
    ),
)


def documents() -> dict[str, str]:
    """The pages of the repository: path there -> path in the site."""
    found = {old: new for old, new in OUTSIDE.items() if (ROOT / old).exists()}
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.is_file():
            name = path.relative_to(ROOT).as_posix()
            found[name] = name.removeprefix("docs/")
    return found


def relinked(text: str, old: str, pages: dict[str, str]) -> str:
    """A document with links that hold in the site; `old` is its path in the repository.

    The site has no sources: a link to one becomes its text alone.
    """
    here = PurePosixPath(pages[old]).parent
    shielded: list[str] = []

    def shield(found: re.Match[str]) -> str:
        shielded.append(found[0])
        return f"\0{len(shielded) - 1}\0"

    def link(found: re.Match[str]) -> str:
        target, _, anchor = found[2].partition("#")
        if "://" in target or not target:
            return found[0]
        path = os.path.normpath(PurePosixPath(old).parent / target)
        if path not in pages:
            return f"{found[1]}missing:{path}"
        new = os.path.relpath(pages[path], here)
        return f"{found[1]}{new}" + (f"#{anchor}" if anchor else "")

    text = LINK.sub(link, CODE.sub(shield, text))
    text = re.sub(r"\[([^\]]+)\]\(missing:[^)]*\)", r"\1", text)
    while "\0" in text:  # A span of code may hold a fence's shield.
        text = re.sub("\0(\\d+)\0", lambda found: shielded[int(found[1])], text)
    return text


def navigation(pages: Iterable[str]) -> list[object]:
    """NAVIGATION with the pages that exist, as mkdocs wants it."""
    left = [page for page in pages if page.endswith(".md")]
    folders = {each for _, named in NAVIGATION for each in named if each.endswith("/")}
    listed = {each for _, named in NAVIGATION for each in named}

    def take(named: str) -> Iterator[str]:
        for page in sorted(left, key=lambda each: (not each.endswith("/README.md"), each)):
            is_in = page.startswith(named) and page not in listed if named in folders else False
            if page == named or is_in:
                left.remove(page)
                yield page

    found: list[object] = []
    for title, named in NAVIGATION:
        inner: list[object] = []
        for each in named:
            taken = list(take(each))
            inner += [{"Decisions": taken}] if each == "decisions/" and taken else taken
        found += [{title: inner}] if inner else []
    return [*found, *left]


def stage(folder: Path) -> None:
    """Writes the pages and the settings into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = documents()
    for old, new in pages.items():
        target = folder / "pages" / new
        target.parent.mkdir(parents=True, exist_ok=True)
        if old.endswith(".md"):
            target.write_text(relinked((ROOT / old).read_text("utf-8"), old, pages), "utf-8")
        else:
            shutil.copyfile(ROOT / old, target)
    for new, make in GENERATED.items():
        (folder / "pages" / new).write_text(make(), "utf-8")
    settings = {
        "INHERIT": str(ROOT / "mkdocs.yml"),
        "docs_dir": "pages",
        "site_dir": "html",
        "nav": navigation([*pages.values(), *GENERATED]),
    }
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")


if __name__ == "__main__":
    stage(Path(sys.argv[1]).resolve())
