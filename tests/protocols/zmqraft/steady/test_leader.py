"""A leader in C replicates, commits and answers as one in Python does, message by message."""

import sys
from pathlib import Path
from random import Random

import pytest

from kelek.native.latency import IndexLatency
from kelek.native.log.reads import Reads
from kelek.native.log.steady import TABLES, LeadingState, PeerLimits, PeerState, SteadyLeader
from kelek.native.log.updates import MARKED_ACCEPTED, Reqids, Updates
from kelek.native.net.messages import Arena, Frames
from kelek.protocols.raft.messages import KIND_STATE, AppendResponse
from kelek.protocols.zmqraft.wire.extensions import APPEND_PACKED_ANSWER
from kelek.tests.protocols.zmqraft.steady import bugs
from kelek.tests.protocols.zmqraft.steady.leader_twins import (
    ClientScript,
    LeadingTwin,
    compare_leaders,
)
from kelek.tests.protocols.zmqraft.steady.twins import CLUSTER

SEEDS = range(40)
BUG_SEEDS = range(200)  # At each of them both do the same without a bug.


def test_both_do_the_same() -> None:
    led, unsent = map(sum, zip(*map(compare_leaders, SEEDS), strict=True))
    assert led > 15 * len(SEEDS)  # So many events in C, else the test compares nothing.
    assert unsent > len(SEEDS)  # Some states begin while the windows of followers are full.


def test_only_entries_of_its_own_term_are_committed_by_counting() -> None:
    """Raft, section 5.4.2: a majority holds entry 5, which is of an older term."""
    limits, outs = PeerLimits(4, 1 << 20, counts=True, promises=True), (Frames(), Frames())
    found = PeerState(7, 5, 0, 0, 0, 0, 0, (6,), 1, ((1, 6, 0),))
    reqids = Reqids()
    intakes = [(Updates(CLUSTER, reqids), 1 << 10) for _ in range(2)]
    leader = SteadyLeader(CLUSTER, intakes, Reads(CLUSTER))
    state = LeadingState(
        2,
        b"n1",
        6,
        3,
        6,
        10,
        70,
        0,
        0,
        False,
        True,
        (),
        1 << 60,
        [(MARKED_ACCEPTED, KIND_STATE)],
        0,
        (),
    )
    leader.begin(state, [(found, limits, Frames()), (found, limits, Frames())], IndexLatency())
    leader.commit(0, outs)
    assert leader.end().commit_index == 3
    answer = APPEND_PACKED_ANSWER.encode(AppendResponse(2, True, 6), 1)
    assert leader.answers(0, Arena.from_messages([answer]), 5) == 1
    leader.commit(0, outs)
    assert leader.end().commit_index == 6


def test_no_lease_before_an_entry_of_the_term_is_committed() -> None:
    """Dissertation, section 6.4, step 1: until then a leader does not know what is committed."""
    limits = PeerLimits(4, 1 << 20, counts=True, promises=True)
    found = PeerState(7, 6, 6, 5, 5, 0, 0, (), 1, ())
    reqids = Reqids()
    intakes = [(Updates(CLUSTER, reqids), 1 << 10) for _ in range(2)]
    for term_start, lease_ms in ((6, 150), (7, 0)):
        leader = SteadyLeader(CLUSTER, intakes, Reads(CLUSTER))
        state = LeadingState(
            *(2, b"n1", 6, 6, term_start, 10, 70, 5, 50, True, True, (), 1 << 60),
            *([(MARKED_ACCEPTED, KIND_STATE)], 100, [(5, 50)]),
        )
        leader.begin(state, [(found, limits, Frames())], IndexLatency())
        assert leader.lease_ms == lease_ms
        leader.end()


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return bugs.compile_objects(tmp_path_factory.mktemp("objects"))


@pytest.mark.skipif(sys.platform != "linux", reason="needs -Bsymbolic")
@pytest.mark.parametrize("name", bugs.LEADER_BUGS)
def test_a_planted_bug_is_found(name: str, objects: list[Path], tmp_path: Path) -> None:
    with bugs.planted(name, tmp_path, objects):
        try:
            test_no_lease_before_an_entry_of_the_term_is_committed()
            for seed in BUG_SEEDS:
                compare_leaders(seed)
        except AssertionError:
            return
    raise RuntimeError(f"no seed finds: {name}")


def test_a_steady_state_learns_of_table_servers() -> None:
    """Packs that C took prove that the cluster has table servers, as those that Python takes."""

    class Twin(LeadingTwin):
        holds_tables = False

    twin, clients = Twin(Random(1)), ClientScript(Random(1))
    now_ms = twin.began_ms
    while not twin.is_steady:
        now_ms += 1
        twin.time(now_ms)
    assert not twin.peer.members.holds_tables
    twin.updates(TABLES, [clients.pack()], now_ms)
    assert twin.is_steady
    assert twin.led
    twin.leave(now_ms)
    assert twin.peer.members.holds_tables
