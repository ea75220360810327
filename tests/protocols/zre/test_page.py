"""docs/protocols/zre.md names the commands, headers and numbers that the code has."""

import re

from kelek.actors.zre import beacon as zre_beacon
from kelek.actors.zre import reports as zre_reports
from kelek.native.net import datagrams
from kelek.protocols.zre import gossip, log, presence, services, values
from kelek.protocols.zre.dialogs import UNREADY_PART
from kelek.protocols.zre.limiter import RATE
from kelek.protocols.zre.peers import EventKind
from kelek.protocols.zre.values import TIMES, CommandKind, Level, LogEvent, Reason
from kelek.tests.markdown import ROOT, codes, page, tables

TEXT = page("docs/protocols/zre.md")


def test_commands() -> None:
    rows = dict(re.findall(r"^\| (\d) ([A-Z-]+) \|", TEXT, re.M))
    assert {int(number): word.replace("-", "_") for number, word in rows.items()} == {
        kind.value: kind.name for kind in CommandKind
    }


def test_events() -> None:
    table = TEXT.split("| event | when |", 1)[1].split("\n\n", 1)[0]
    assert set(re.findall(r"\b[A-Z]{4,}\b", table)) == {kind.value for kind in EventKind}


def test_headers() -> None:
    names = {value for name, value in vars(services).items() if name.isupper()}
    names -= {services.URLS_SEPARATOR}
    assert set(re.findall(r"^\| `(X-[A-Z-]+)` \|", TEXT, re.M)) == names
    assert f"`{gossip.HEADER}`" in TEXT


def test_reports() -> None:
    for kind in (Level, LogEvent, presence.PresenceEvent):
        assert ", ".join(f"{one.value} {one.name}" for one in kind) in TEXT
    assert log.FRAME_BYTES_MAX == 18 + 255
    assert presence.HEAD.size == 50
    assert f"first headers that fit into {presence.HEADERS_BYTES_MAX} octets" in TEXT


def test_numbers() -> None:
    assert f"{values.MAILBOX_BIND_MIN}-{values.MAILBOX_BIND_MAX}" in TEXT
    assert f"any number of frames, {values.CONTENT_FRAMES_MAX} at most" in TEXT
    rows = TEXT.split("## Times and limits", 1)[1].split("## ", 1)[0]
    numbers = [int(number) for number in re.findall(r"\| (\d+)[^|]*\|$", rows, re.M)]
    assert numbers == [
        values.BEACON_PORT,
        values.ANSWER_BEACON_MS,
        TIMES.greet_wait_ms,
        TIMES.evasive_ms,
        TIMES.silent_ms,
        TIMES.expired_ms,
        values.SEND_HWM,
        values.GROUPS_MAX,
        values.HEADERS_MAX,
        values.HEADER_BYTES_MAX,
        values.MESSAGE_BYTES >> 20,
        datagrams.PER_S,
        zre_beacon.RATE.per_s,
        RATE.burst,
        RATE.per_s,
        values.PEERS_MAX,
        zre_reports.RECENT_MAX,
    ]
    assert UNREADY_PART == 4
    assert f"256 of {zre_reports.RECENT_MS} ms" in rows


def test_the_names_of_counters() -> None:
    """docs/guides/discovery.md has a row for each of them."""
    documented = [codes(row[0]) for row in tables(page("docs/guides/discovery.md"), "name", "what")]
    assert {len(names) for names in documented} == {1}
    sources = [*(ROOT / "protocols/zre").glob("*.py"), ROOT / "clients/node/reactor.py"]
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    names = re.findall(r'(?:counters|found)\["(\w+)"\]', code)
    names += [f"message_{reason.value}" for reason in Reason]
    assert len(names) > 30
    assert set(names) - {name for row in documented for name in row} == set()
