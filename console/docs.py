"""`kelek docs`: the documents, which are in the package as text."""

from collections import Counter
from pathlib import Path

import click

from .cli_errors import CliError
from .options import argument, command

FOLDER = Path(__file__).resolve().parents[1] / "docs"
FIRST, LAST = "tutorial", ("decisions", "internals")  # Folders; the others are between them.


def pages() -> dict[str, Path]:
    """The documents by name, such as `security` or `guides/queues`, in order."""
    paths = FOLDER.rglob("*.md")
    found = {path.relative_to(FOLDER).with_suffix("").as_posix(): path for path in paths}
    names = sorted(found, key=lambda it: (it.startswith(LAST), not it.startswith(FIRST), it))
    return {name.removesuffix("/README"): found[name] for name in names}


def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Names, and the last words that are enough."""
    known = pages()
    last = Counter(name.rpartition("/")[2] for name in known)
    words = [word for word, count in last.items() if count == 1]
    return sorted({name for name in (*known, *words) if name.startswith(incomplete)})


@command
def docs(page: str = argument(metavar="[PAGE]", default="", shell_complete=complete)) -> None:
    """Shows a document; without PAGE lists all.

    PAGE is a name of the list, its last word if no other name ends so, or a path that a message
    has: docs/security.md.
    """
    known = pages()
    if not page:
        width = max(map(len, known))
        for name, path in known.items():
            with path.open(encoding="utf-8") as file:
                click.echo(f"{name:{width}}  {file.readline().lstrip('# ').rstrip()}")
        return
    name = page.removeprefix("docs/").removesuffix(".md").removesuffix("/README")
    word = name.rpartition("/")[2]
    same = [other for other in known if other.rpartition("/")[2] == word]
    if len(same) == 1 and name == word:
        (name,) = same
    if name not in known:
        near = ", ".join(same or [other for other in known if word in other])
        way_out = f"there are {near}" if near else "list them: kelek docs"
        raise CliError(f"there is no document {page}; {way_out}")
    click.echo_via_pager(known[name].read_text("utf-8"))
