"""Member changes of a farm with real processes: at each stage of a change, one of its servers is
killed.

The leader's status shows the stage. A proxy holds back what the stage waits for, so that it lasts
until the kill. Then the change must complete when it is requested again: the farm agrees on its
members and has everything that it acknowledged.

`PYTHONPATH=.build python -m kelek.tests.crash.farm.farm_drills --repeats 2` runs all of them.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from kelek.protocols.garlicfarm.server import membership
from kelek.protocols.garlicfarm.server.membership import ChangeStage
from kelek.protocols.garlicfarm.wire.messages import (
    ClusterServer,
    FarmLogEntry,
    MessageType,
    Request,
    ValueType,
)
from kelek.tests.actors.farm.farm_servers import SERVERS as SERVERS_USER
from kelek.tests.actors.farm.farm_servers import FarmServers
from kelek.tests.actors.farm.response_proxies import ResponseProxies

SERVERS = (1, 2, 3)
AGAIN_S = 0.3
# A leader without answers leads for so long; then a stage that others must end is over, too.
TIMES = "election_timeout_ms: [600, 1200], heartbeat_ms: 100, request_timeout_ms: 1000"
ATTEMPTS_MAX = 20  # Attempts after which a stage counts as missing.
SNAPSHOT_ENTRIES = 1000
FILLING = "x" * 200_000  # Makes a snapshot several chunks long.
GONE = OSError, EOFError  # The asked server is killed or starting.


class Drill(NamedTuple):
    """A change, the stage of the kill, and the answers held back for it.

    change   "add", "remove", "resign": the leader is removed
    victim   "leader", or "other": the joining or leaving server; for "resign" a follower
    """

    change: str
    stage: ChangeStage
    held: MessageType
    victim: str
    compacted: bool = False


STAGES = (
    ("add", ChangeStage.INVITE, MessageType.JOIN_CLUSTER_RESPONSE),
    ("remove", ChangeStage.FAREWELL, MessageType.LEAVE_CLUSTER_RESPONSE),
    ("add", ChangeStage.FEED, MessageType.SYNC_LOG_RESPONSE),
    ("remove", ChangeStage.COMMIT, MessageType.APPEND_ENTRIES_RESPONSE),
    ("add", ChangeStage.COMMIT, MessageType.APPEND_ENTRIES_RESPONSE),
    ("resign", ChangeStage.HAND_OVER, MessageType.APPEND_ENTRIES_RESPONSE),
    ("add", ChangeStage.FEED, MessageType.INSTALL_SNAPSHOT_RESPONSE),
    ("resign", ChangeStage.ASK, MessageType.REQUEST_VOTE_RESPONSE),
)


VICTIMS = ("leader", "other")
SHORT_VICTIMS = ("leader", "leader", "other", "leader", "other", "leader", "other", "leader")


def _drill(at: int, victim: str) -> Drill:
    change, stage, held = STAGES[at]
    return Drill(change, stage, held, victim, held is MessageType.INSTALL_SNAPSHOT_RESPONSE)


ALL = [_drill(at, victim) for at in range(len(STAGES)) for victim in VICTIMS]
SHORT = [_drill(at, victim) for at, victim in enumerate(SHORT_VICTIMS)]  # Each stage once.
# Held back with answers to AppendEntries, which leave in the same order.
BEFORE_COMMIT = {
    "add": (ChangeStage.FEED, MessageType.SYNC_LOG_RESPONSE),
    "remove": (ChangeStage.FAREWELL, MessageType.LEAVE_CLUSTER_RESPONSE),
}


class DrillFarm:
    """Three servers behind proxies. At most one of them is no member."""

    def __init__(self, farm: FarmServers, gates: ResponseProxies) -> None:
        self.farm, self.gates = farm, gates
        self.out: int | None = 3
        self.acked: list[int] = []
        self.attempts = 0  # At a stage, until it was seen.
        farm.start()
        self.post(FILLING)

    # Clients.

    def post(self, filling: str = "") -> None:
        """A document of another server each time, so that all appear in the end."""
        number = len(self.acked) + 1
        document = {"cluster": "farm", "date": 1, "id": number, "x": filling}
        self.farm.append(json.dumps(document).encode(), user=SERVERS_USER)
        self.acked.append(number)

    def tell(self, number: int, request: Request) -> None:
        """Sends a request and ignores the answer."""
        with suppress(*GONE), self.farm.connect(number) as admin:
            admin.ask(request)

    def shown(self, number: int, what: str = "status") -> dict[str, Any]:
        try:
            return self.farm.view(number, what)
        except GONE:
            return {}

    # A change.

    def request(self, change: str, subject: int) -> Request:
        if change == "add":
            return membership.add_server_request(
                ClusterServer(subject, self.farm.endpoint(subject))
            )
        return membership.remove_server_request(subject)

    def is_done(self, change: str, subject: int) -> bool:
        """Whether all running members agree and no change is in progress."""
        wished = {number for number in SERVERS if number != subject or change == "add"}
        for number in wished:
            shown = self.shown(number)
            said = {each["id"] for each in shown.get("members", ())}
            if said != wished or shown["change"] or shown["leader"] not in wished:
                return False
            if shown["commit"] != shown["last"] or shown["state"] not in ("leader", "follower"):
                return False
        return True

    def finish(self, change: str, subject: int) -> None:
        """Repeats the request until it is done, as an administrator would."""
        asked_s = 0.0

        def look() -> bool:
            nonlocal asked_s
            if self.is_done(change, subject):
                return True
            if time.monotonic() >= asked_s + AGAIN_S:
                asked_s = time.monotonic()
                self.tell(self.farm.leader(), self.request(change, subject))
            return False

        self.farm.wait(look, f"{change} {subject} comes to no end")
        self.out = None if change == "add" else subject
        if self.out is not None and self.shown(subject).get("state") != "waiting":
            self.begin_anew(subject)  # It does not know that it was removed.

    def begin_anew(self, number: int) -> None:
        self.farm.kill(number)
        shutil.rmtree(self.farm.folder / "data" / f"n{number}")
        self.farm.start(number, bootstrap=False)

    # A drill.

    def run(self, drill: Drill) -> None:
        """Raises AssertionError."""
        self.prepare(drill)
        subject, leader = self.reach(drill)
        victim = leader
        if drill.victim == "other":
            rest = [each for each in SERVERS if each not in (leader, self.out)]
            victim = subject if subject != leader else rest[0]
        self.farm.kill(victim)
        self.gates.release()
        self.farm.start(victim, bootstrap=False)
        self.finish(drill.change, subject)
        self.post()

    def prepare(self, drill: Drill) -> None:
        """Brings the farm into the drill's initial membership."""
        if drill.change == "add" and self.out is None:
            leader = self.farm.leader()
            self.finish("remove", next(each for each in SERVERS if each != leader))
        elif drill.change != "add" and self.out is not None:
            self.finish("add", self.out)
        if drill.compacted:
            while not all(self.is_compacted(each) for each in SERVERS if each != self.out):
                self.farm.append(*[b"x"] * SNAPSHOT_ENTRIES)

    def is_compacted(self, number: int) -> bool:
        return int(self.shown(number).get("first", 0)) > 1

    def reach(self, drill: Drill) -> tuple[int, int]:
        """Waits for the stage; returns the server of the change and the one that shows it."""
        for _ in range(ATTEMPTS_MAX):
            self.post()  # A leader can commit.
            leader = self.farm.leader()
            others = [number for number in SERVERS if number not in (leader, self.out)]
            subject = self.out if drill.change == "add" else others[0]
            if drill.change == "resign":
                subject = leader
            assert subject is not None
            self.attempts += 1
            if self.lead_to(drill, leader, subject):
                return subject, leader
            self.gates.release()
            self.finish(drill.change, subject)  # The stage was missed: repeat.
            self.prepare(drill)
        raise AssertionError(f"never seen: {drill}: {self.farm.report()}")

    def lead_to(self, drill: Drill, leader: int, subject: int) -> bool:
        """Whether the stage was seen."""
        stage, held = drill.stage, drill.held
        if stage is ChangeStage.COMMIT:
            stage, held = BEFORE_COMMIT[drill.change]
        self.gates.hold(held, SERVERS)
        if stage is ChangeStage.HAND_OVER:
            self.leave_open(leader)
        self.tell(leader, self.request(drill.change, subject))
        if not self.watch(leader, stage):
            return False
        if stage is drill.stage:
            return True
        self.gates.hold(drill.held, SERVERS)
        self.gates.release(held)
        return self.watch(leader, drill.stage)

    def watch(self, leader: int, stage: ChangeStage) -> bool:
        """Until the stage is shown or the change is over: every stage ends by itself."""

        def look() -> str:
            change = self.shown(leader).get("change")
            if not change:
                return "over"
            return "there" if change["stage"] == stage.name.lower() else ""

        return bool(self.farm.wait(look, f"{stage} does not come") == "there")

    def leave_open(self, leader: int) -> None:
        """An entry that cannot be committed, so that the stage has something to wait for."""
        entry = FarmLogEntry(0, ValueType.APPLICATION, b"open")
        with suppress(*GONE), self.farm.connect(leader) as client:
            client.send(Request(MessageType.CLIENT_REQUEST, entries=(entry,)))
            self.farm.wait(lambda: self.is_open(leader), "nothing is left open")

    def is_open(self, number: int) -> bool:
        shown = self.shown(number)
        return shown.get("state") != "leader" or shown["last"] > shown["commit"]

    # The end.

    def check(self) -> None:
        """Every member has everything that was acknowledged."""
        for number in SERVERS:
            if number != self.out:
                self.farm.wait(partial(self.has_all, number), f"{number} lacks something")

    def has_all(self, number: int) -> bool:
        documents = self.shown(number, "documents").get("documents", ())
        return {each["id"] for each in documents} >= set(self.acked)


def run(chosen: list[Drill], tell: Callable[[str], object] = lambda text: None) -> int:
    """Runs these drills on one farm. Returns how often a stage was awaited."""
    options = f"snapshot_entries: {SNAPSHOT_ENTRIES}, snapshot_trailing_entries: 0"
    with FarmServers(
        SERVERS, tls=False, processes=True, initial=(1, 2), proxied=True, farm=options,
        node="post_interval_ms: 0", times=TIMES,
    ) as farm:  # fmt: skip
        gates = ResponseProxies(farm.proxy_ports, farm.ports)
        try:
            drilled = DrillFarm(farm, gates)
            for drill in chosen:
                begun = time.monotonic()
                drilled.run(drill)
                drilled.check()
                where = f"{drill.change}, {drill.stage.name}, {drill.held.name}"
                tell(f"{where}, {drill.victim}: {time.monotonic() - begun:.1f} s")
            return drilled.attempts
        finally:
            gates.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1, help="of the whole matrix")
    parser.add_argument("--short", action="store_true", help="each stage once, as the test has it")
    arguments = parser.parse_args()
    for _ in range(arguments.repeats):
        chosen = SHORT if arguments.short else ALL
        attempts = run(chosen, lambda text: print(text, flush=True))
        print(f"{len(chosen)} drills went well, in {attempts} attempts", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
