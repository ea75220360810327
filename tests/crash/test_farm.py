"""Real processes of a farm, killed in the middle of changes: a snapshot on its way to a newcomer, a
farewell. tests/sim/test_farm.py has all the steps, in virtual time."""

import shutil
from collections.abc import Callable
from contextlib import suppress

import kelek
from kelek.protocols.garlicfarm import members
from kelek.protocols.garlicfarm.messages import ClusterServer, Request
from kelek.tests.actors.farm_servers import PASSWORD, USER, Farm

DOCUMENTS = 8
FILLING = b"x" * 400_000
NEW = 3


class Drill:
    """Two servers that stay, and one that comes and goes."""

    def __init__(self, farm: Farm) -> None:
        self.farm = farm
        self.told = 0
        farm.start(1, 2)
        for number in range(1, DOCUMENTS + 1):
            document = b'{"cluster":"farm","date":1,"id":%d,"x":"%s"}' % (number, FILLING)
            farm.put(document)
        farm.wait(lambda: all(self.status(n, "snapshot_index") > 0 for n in (1, 2)))

    def status(self, number: int, key: str) -> int:
        return int(self.farm.status(number).get(key, 0))

    def role(self) -> str:
        return str(self.farm.status(NEW).get("raft_role", ""))

    def ask(self, request: Request) -> None:
        with suppress(OSError, EOFError), self.farm.connect(self.farm.leader()) as admin:
            admin.ask(request)

    def ask_until(self, request: Request, is_done: Callable[[], bool]) -> None:
        """As an administrator would, again and again."""

        def look() -> bool:
            done = is_done()
            if not done:
                self.ask(request)
            return done

        self.farm.wait(look, f"{request} has no end")

    def kill(self, number: int) -> None:
        self.farm.kill(number)
        self.farm.start(number, bootstrap=False)

    def members(self) -> str:
        """Of the newest line of whoever leads."""
        lines = self.farm.log(self.farm.leader()).splitlines()
        return next(line.rpartition("members=")[2] for line in lines[::-1] if "members=" in line)

    def come(self, victim: int | None, step: Callable[[], bool]) -> None:
        """The newcomer, with an empty directory; somebody is killed at a step. None: the leader."""
        farm = self.farm
        farm.start(NEW, bootstrap=False)
        add = members.add_server(ClusterServer(NEW, farm.endpoint(NEW)))
        self.ask(add)
        farm.wait(lambda: step() or self.role() == "follower", "nothing comes")
        self.kill(farm.leader() if victim is None else victim)
        self.ask_until(add, lambda: str(NEW) in self.members())
        index = farm.put(b"behind").next_index - 1
        farm.wait(lambda: self.status(NEW, "applied_index") >= index, "it does not follow")
        url = f"tls://127.0.0.1:{farm.ports[NEW]}"
        ca = str(farm.ca)
        with kelek.Farm({NEW: url}, user=USER, password=PASSWORD, ca_file=ca) as client:
            assert len(client.documents()["documents"]) == DOCUMENTS

    def go(self, victim: int | None) -> None:
        """It is removed; somebody is killed when that has begun."""
        remove = members.remove_server(NEW)
        self.ask(remove)
        self.kill(self.farm.leader() if victim is None else victim)
        self.ask_until(remove, lambda: str(NEW) not in self.members())
        self.farm.put(b"without it")
        self.farm.kill(NEW)
        shutil.rmtree(self.farm.place / "data" / f"n{NEW}")

    def has(self, name: str) -> bool:
        return any((self.farm.place / "data" / f"n{NEW}").rglob(name))


def test_a_newcomer_and_its_leader_are_killed() -> None:
    with Farm(
        begin=(1, 2),
        processes=True,
        farm=f"snapshot_entries: {DOCUMENTS}, snapshot_behind: 0",
        node="post_interval_ms: 0",
    ) as farm:
        drill = Drill(farm)
        drill.come(NEW, lambda: drill.has("snapshot.in*"))
        drill.go(NEW)
        drill.come(None, lambda: drill.has("snapshot*"))
        drill.go(None)
        farm.put(b"last")
