"""The tables of frames in docs/protocols/ follow the declarations of the messages.

`pytest tests/protocols/test_page.py --rewrite` rewrites the tables. Before each stands a marker
with the names of one or two messages: `<!-- frames: transfer request, transfer answer -->`.
"""

import re
from itertools import zip_longest

import pytest

from kelek.protocols import zre
from kelek.protocols.garlicfarm import wire as garlicfarm
from kelek.protocols.wire import TableRow
from kelek.protocols.zmqraft import wire as zmqraft
from kelek.tests.markdown import ROOT
from kelek.tests.protocols.layouts import layouts

PAGES = {"garlic-farm": garlicfarm, "zmq-raft": zmqraft, "zre": zre}
TABLE = re.compile(r"(<!-- frames: (.*) -->\n\n)(?:\|.*\n)*\n?")


def table(names: list[str], columns: list[list[TableRow]]) -> str:
    lines = [[cell for name in names for cell in (name, "")], ["---"] * 2 * len(names)]
    for rows in zip_longest(*columns, fillvalue=TableRow("", "", "")):
        lines.append([cell for row in rows for cell in (f"{row[0]} {row[1]}".strip(), row.meaning)])
    return (
        "".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in line)}|\n" for line in lines)
        + "\n"
    )


@pytest.mark.parametrize("name", PAGES)
def test_tables_of_frames_follow_the_code(name: str, request: pytest.FixtureRequest) -> None:
    page = ROOT / "docs" / "protocols" / f"{name}.md"
    declared = {layout.name: layout for layout in reversed(layouts(PAGES[name]))}
    text = page.read_text(encoding="utf-8")

    def current(match: re.Match[str]) -> str:
        names = match[2].split(", ")
        return match[1] + table(names, [list(declared[each].rows()) for each in names])

    wanted = TABLE.sub(current, text)
    if request.config.getoption("--rewrite"):
        page.write_text(wanted, encoding="utf-8")
    else:
        assert wanted == text, "run this test with --rewrite"
    assert not {each for each in declared if each not in text}, "the page names each message"
