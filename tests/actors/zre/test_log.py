"""The actor zre_log: reports become entries of the log or of a table."""

from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from kelek.actors.zre.log import KEY, ZreLog
from kelek.protocols.zerodb.wire import ops
from kelek.protocols.zre import services
from kelek.protocols.zre.log import Report, encode_report, uuid_hash
from kelek.protocols.zre.presence import Presence, PresenceEvent, encode_presence
from kelek.protocols.zre.values import Level, LogEvent, Version
from kelek.tests.actors.actor_harness import ActorHarness
from kelek.tests.actors.zre.zre_settings import PEER, receive, settings

REPORT = Report(Level.INFO, LogEvent.ENTER, 1, 2, 1_700_000_000_000, "x")
PRESENCE = Presence(
    PresenceEvent.ENTER, REPORT.time_ms, bytes(16), "n1", PEER, "b", "tcp://h:1", Version.V2
)


def publish_until(
    harness: ActorHarness, actor: ZreLog, messages: list[bytes], is_done: Callable[[], object]
) -> None:
    """Publishes messages until the condition holds: a new connection loses the first ones."""
    reports = harness.socket(zmq.PUB)
    reports.connect(actor.status()["endpoint"])  # type: ignore[arg-type]

    def publish() -> object:
        if not is_done():
            for data in messages:
                reports.send(data)
        return is_done()

    harness.run_until(publish)


@pytest.mark.parametrize("into", ["log", "table"])
@pytest.mark.parametrize("frame", [encode_report(REPORT), encode_presence(PRESENCE)])
def test_reports_are_appended_to_the_log_or_a_table(
    harness: ActorHarness, tmp_path: Path, into: str, frame: bytes
) -> None:
    pipe = harness.bind("zre_node.services")
    actor: ZreLog = harness.start_actor(
        ZreLog, str(tmp_path), 1, settings({"log_service": into}, log_table=7)
    )
    endpoint = str(actor.status()["endpoint"])
    for header in (services.ZRE_LOG, services.PRESENCE):
        assert receive(harness, pipe) == [header.encode(), endpoint.encode()]
    port = int(endpoint.rpartition(":")[2])
    assert 0xC000 <= port <= 0xFFFF
    publish_until(harness, actor, [frame], lambda: actor.in_flight)
    data = actor.in_flight[0].updates[0]
    if into == "log":
        assert data == frame
        return
    (put,) = ops.unpack(data)
    assert isinstance(put, ops.Put)
    assert put.table == 7
    assert put.values[0] == frame
    hashes = (
        (1, 2) if frame == encode_report(REPORT) else (uuid_hash(PRESENCE.node), uuid_hash(PEER))
    )
    assert KEY.unpack(put.keys[0])[:4] == (REPORT.time_ms, *hashes, LogEvent.ENTER)


def test_malformed_reports_are_counted_and_dropped(harness: ActorHarness, tmp_path: Path) -> None:
    harness.bind("zre_node.services")
    actor: ZreLog = harness.start_actor(ZreLog, str(tmp_path), 1, settings({"log_service": "log"}))
    malformed = [b"", b"x", b"\xaa\xa2", encode_report(REPORT) + b"x", b"\xaa\xa1" + bytes(16)]
    malformed += [encode_presence(PRESENCE)[:-1], encode_presence(PRESENCE) + b"x"]
    publish_until(
        harness,
        actor,
        malformed,
        lambda: actor.counters["report_short"] and actor.counters["report_trailing"],
    )
    assert actor.counters["report_signature"]
    assert actor.status()["waiting"] == 0
