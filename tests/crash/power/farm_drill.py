"""Power losses of a farm's three servers under load: no acknowledged document is lost.

    PYTHONPATH=.build python -m kelek.tests.crash.power.farm_drill --losses 50 --seed 7

The documents are those of many servers in turn: each server of the farm must show, of each, what
was acknowledged last or something newer. Snapshots replace the log all the time. In the end the
logs on the disks have equal entries at equal indexes.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

from kelek.actors.topology.farm import farm_directory
from kelek.protocols.garlicfarm.wire.messages import FarmLogEntry, MessageType, Request, ValueType
from kelek.storage.disk.disk import Disk
from kelek.storage.errors import StorageError
from kelek.storage.log.segment import Identity
from kelek.storage.log.verify import StoredEntry, entries
from kelek.tests.actors.farm.farm_servers import PASSWORDS, FarmServers, ServerProcess
from kelek.tests.actors.farm.farm_servers import SERVERS as SERVERS_USER
from kelek.tests.crash.kill_drill import Broken
from kelek.tests.crash.power.forgetful import ForgetfulFolder
from kelek.tests.crash.power.power_drill import kill_together

SERVERS = (1, 2, 3)
FARM = "snapshot_entries: 40, snapshot_trailing_entries: 10"
REQUESTS_BETWEEN = (20, 60)  # Losses.
OPEN_MAX = 8  # Unanswered requests when the power goes.
ENTRIES_MAX = 3  # Of a request.
IDS = 100  # Of the servers that the documents are of.
FILLINGS = 10, 100, 3000
LATER_S = 0.0, 0.002, 0.01, 0.05


class FarmPowerDrill:
    """The farm, and what it has acknowledged."""

    def __init__(self, place: Path, seed: int, lies: bool = False) -> None:
        self.dice = Random(seed)
        self.farm = FarmServers(
            SERVERS, tls=False, processes=True, farm=FARM, node="post_interval_ms: 0"
        )
        self.folder = ForgetfulFolder(self.farm.folder / "data", place, lies)
        self.farm.environment = self.folder.environment()
        self.acknowledged: dict[int, int] = {}  # The last document of each id.
        self.seen = {"losses": 0, "writes taken back": 0, "names taken back": 0}
        self._sent = 0

    def run(self, losses: int) -> None:
        """Raises Broken."""
        with self.farm:
            self.farm.start()
            for _ in range(losses):
                self.load()
                self.lose_power()
                self.check()
            self.load()
            self.check()
            for number in SERVERS:
                self.farm.stop(number)
            self.check_logs()

    # ---- the load ----

    def _requests(self, count: int) -> list[tuple[Request, range]]:
        """Requests, and the numbers of their documents."""
        found = []
        for _ in range(count):
            numbers = range(self._sent + 1, self._sent + 1 + self.dice.randint(1, ENTRIES_MAX))
            self._sent = numbers[-1]
            values = map(self._document, numbers)
            made = tuple(FarmLogEntry(0, ValueType.APPLICATION, value) for value in values)
            found.append((Request(MessageType.CLIENT_REQUEST, entries=made), numbers))
        return found

    def _document(self, number: int) -> bytes:
        filling = "x" * self.dice.choice(FILLINGS)
        document = {"cluster": "farm", "date": number, "id": id_of(number), "x": filling}
        return json.dumps(document).encode()

    def load(self) -> None:
        """Appends with some requests unanswered at a time; leaves the last ones so."""
        leader = self.farm.leader()
        requests = self._requests(self.dice.randint(*REQUESTS_BETWEEN))
        login = self.farm.names[0], SERVERS_USER, PASSWORDS[SERVERS_USER]
        with suppress(EOFError), self.farm.connect(leader, *login) as client:
            for at, (request, _) in enumerate(requests):
                client.send(request)
                if at >= OPEN_MAX and client.answer().is_accepted:
                    self._acknowledge(requests[at - OPEN_MAX][1])
            Event().wait(self.dice.choice(LATER_S))

    def _acknowledge(self, numbers: range) -> None:
        self.acknowledged |= {id_of(number): number for number in numbers}

    def lose_power(self) -> None:
        servers = [it for it in self.farm.running.values() if isinstance(it, ServerProcess)]
        kill_together([server.process for server in servers])
        for number in SERVERS:
            self.farm.kill(number)
        lost = self.folder.lose_power(self.dice)
        self.seen["losses"] += 1
        self.seen["writes taken back"] += lost.writes
        self.seen["names taken back"] += lost.names
        self.farm.start(bootstrap=False)

    # ---- checks ----

    def check(self) -> None:
        """Each server shows all that is acknowledged, in the end."""
        self.farm.leader()
        for number in SERVERS:
            try:
                self.farm.wait(lambda at=number: self._has_all(at))  # type: ignore[misc]
            except AssertionError as error:
                raise Broken(f"server {number} lacks {self._lacks(number)}: {error}") from error

    def _has_all(self, number: int) -> bool:
        return not self._lacks(number)

    def _lacks(self, number: int) -> set[int]:
        shown: dict[str, Any] = {}
        with suppress(OSError, EOFError):
            shown = self.farm.view(number, "documents")
        has = {each["id"]: each["document"]["date"] for each in shown.get("documents", ())}
        return {it for at, it in self.acknowledged.items() if has.get(at, 0) < it}

    def check_logs(self) -> None:
        logs = [self._stored(number) for number in SERVERS]
        for log in logs:
            for index in log.keys() & logs[0].keys():
                if log[index] != logs[0][index]:
                    raise Broken(f"entry {index} differs: {log[index]}, {logs[0][index]}")

    def _stored(self, number: int) -> dict[int, StoredEntry]:
        name = self.farm.names[0]
        folder = farm_directory(self.folder.root / f"n{number}", name)
        try:
            found: Iterable[StoredEntry] = entries(Disk(str(folder)), Identity(name, str(number)))
            return {entry.index: entry for entry in found}
        except StorageError as error:
            raise Broken(f"server {number}: {error}") from error


def id_of(number: int) -> int:
    """The server that a document is of."""
    return number % IDS + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", type=int, default=50, help="how many times")
    parser.add_argument("--seed", type=int, default=1, help="of all dice")
    parser.add_argument("--lies", action="store_true", help="no sync makes anything durable")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kelek-drill-") as directory:
        drill = FarmPowerDrill(Path(directory), arguments.seed, arguments.lies)
        try:
            drill.run(arguments.losses)
        except (Broken, AssertionError) as broken:
            print(f"seed {arguments.seed}: {broken}")
            return 1
    print(drill.seen, f"{max(drill.acknowledged.values())} documents; none was lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
