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
FLAT = " ".join(TEXT.split())


def test_commands() -> None:
    rows = dict(re.findall(r"^\| (\d) ([A-Z-]+) \|", TEXT, re.M))
    assert {int(number): word.replace("-", "_") for number, word in rows.items()} == {
        kind.value: kind.name for kind in CommandKind
    }


def test_events() -> None:
    told = TEXT.split("| what the user is told |", 1)[1].split("\n\n", 1)[0]
    assert set(re.findall(r"\b[A-Z]{4,}\b", told)) == {kind.value for kind in EventKind}


def test_headers() -> None:
    names = {value for name, value in vars(services).items() if name.isupper()}
    names -= {services.URLS_SEPARATOR}
    assert set(re.findall(r"^\| `(X-[A-Z-]+)` \|", TEXT, re.M)) == names | {values.LOG_SERVICE}
    assert f"`{gossip.HEADER}`" in TEXT


def test_reports() -> None:
    for kind in (Level, LogEvent, presence.Happening):
        assert ", ".join(f"{one.value} {one.name}" for one in kind) in TEXT
    assert log.FRAME_BYTES_MAX == 18 + 255
    assert presence.HEAD.size == 50
    assert f"the first ones up to {presence.HEADERS_BYTES_MAX} octets" in TEXT


def test_numbers() -> None:
    assert f"UDP to port {values.BEACON_PORT}" in TEXT
    assert f"({values.ANSWER_BEACON_MS} ms apart at least, for each node once in 5 s)" in FLAT
    assert f"{values.MAILBOX_BIND_MIN}-{values.MAILBOX_BIND_MAX}" in TEXT
    assert f"send buffer holds {values.SEND_HWM} messages" in FLAT
    assert f"left {TIMES.greet_wait_ms} ms to go first" in FLAT
    assert f"After {TIMES.evasive_ms // 1000} s without one" in FLAT
    assert f"after {TIMES.dead_ms // 1000} s it is dead" in FLAT
    assert f"for {TIMES.silent_ms // 1000} s, asked in vain" in FLAT
    assert f"dropped after {TIMES.silent_ms // 1000} s" in FLAT
    assert f"{values.GROUPS_MAX} groups of a peer, {values.HEADERS_MAX} headers" in FLAT
    assert f"{values.HEADER_BYTES_MAX} octets of one header's value" in FLAT
    assert f"any number of frames, {values.CONTENT_FRAMES_MAX} at most" in TEXT
    assert f"beyond {datagrams.PER_S} a second are dropped in C" in FLAT
    assert f"`zre_beacon` {zre_beacon.RATE.per_s} a second of one address" in FLAT
    assert f"{RATE.burst} new peers are believed at once, then {RATE.per_s} a second" in FLAT
    assert f"The table has {values.PEERS_MAX} peers at most" in FLAT
    assert UNREADY_PART == 4
    assert f"up to {zre_reports.RECENT_MAX} of the last minute" in FLAT
    assert zre_reports.RECENT_MS == 60_000


def test_the_names_of_counters() -> None:
    """docs/discovery.md has a row for each of them."""
    documented = [codes(row[0]) for row in tables(page("docs/discovery.md"), "name", "what")]
    assert {len(names) for names in documented} == {1}
    sources = [*(ROOT / "protocols/zre").glob("*.py"), ROOT / "clients/node/reactor.py"]
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    names = re.findall(r'(?:counters|found)\["(\w+)"\]', code)
    names += [f"message_{reason.value}" for reason in Reason]
    assert len(names) > 30
    assert set(names) - {name for row in documented for name in row} == set()
