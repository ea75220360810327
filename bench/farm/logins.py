"""Does a farm server tell unknown users from wrong passwords by the time of its answer?

    python -m kelek.bench farm-logins [--quick] [--rounds N] [-o json]

A round has 10,000 pairs of logins, in random order within a pair: an unknown user, another one each
time, and a known user with a wrong password. The figure is by how much the medians of the two
differ. `function`: the server's handshake, from the head of a request to its answer, in this
process. `wire`: a farm server on loopback with TLS, from the head to the first bytes of the answer,
one connection after the other; after five wrong passwords its answers are 429 instead of 401, but
it still verifies each digest.
"""

import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from kelek.bench.farm.cluster import USER, FarmCluster
from kelek.bench.farm.floor import connect, contexts
from kelek.bench.machine import BenchError
from kelek.bench.question import ROW_HEAD, Question, row, say
from kelek.bench.report import Section, summed_up
from kelek.protocols.garlicfarm.server.inbound import PeerSession
from kelek.protocols.garlicfarm.server.logins import LoginCheck, LoginDelays
from kelek.protocols.garlicfarm.wire.authenticator import DigestAuthenticator
from kelek.protocols.garlicfarm.wire.handshake import (
    ChallengeCache,
    ClientHandshake,
    ConnectTarget,
    ServerHandshake,
)
from kelek.protocols.garlicfarm.wire.htdigest import users_of, with_user

ROUNDS = 3
PAIRS = 10_000
USERS = 20  # In the password file of `function`.
REFUSED = (b"HTTP/1.1 401 ", b"HTTP/1.1 429 ")
Login = Callable[[bytes], float]  # Sends a request's head; returns the seconds to its answer.


def request(challenges: ChallengeCache, user: str) -> bytes:
    target = ConnectTarget("127.0.0.1:1", "farm", user, os.urandom(8).hex())
    return ClientHandshake(target, challenges, 0, os.urandom).request


def differences(login: Login, challenges: ChallengeCache) -> tuple[list[float], list[float]]:
    """The times of unknown users and of wrong passwords, in microseconds."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(PAIRS):
        for is_known in random.sample((True, False), 2):
            user = USER if is_known else os.urandom(len(USER) // 2).hex()
            times[is_known].append(login(request(challenges, user)) * 1e6)
    return times[False], times[True]


class FunctionLogins:
    """The server's handshake in this process."""

    def __init__(self) -> None:
        text = ""
        for number in range(USERS - 1):
            text = with_user(text, "farm", f"{USER}{number}", "secret")
        self._users = users_of(with_user(text, "farm", USER, "secret"), "farm")
        self._authenticator = DigestAuthenticator(os.urandom(32), os.urandom)
        self._delays = LoginDelays()
        self.challenges = ChallengeCache()
        offers = self._authenticator.challenges(self._users, 0)
        self.challenges.store([(b"www-authenticate", offer) for offer in offers], 0)

    def __call__(self, head: bytes) -> float:
        begun = time.perf_counter()
        check = LoginCheck(self._delays, "", lambda cluster, user: PeerSession(user))
        server = ServerHandshake(self._authenticator, {"farm": self._users}, 0, None, check)
        reply = server.feed(head, 0)
        took = time.perf_counter() - begun
        if reply is None or not reply.data.startswith(REFUSED):
            raise BenchError(f"a wrong login got {reply}")
        return took

    def close(self) -> None:
        pass


class WireLogins:
    """A farm server with TLS on loopback."""

    def __init__(self, directory: Path) -> None:
        self._farm = FarmCluster(directory, tls=True, servers=1)
        self._farm.prepare()
        self._farm.start()
        _, self._context = contexts(self._farm.tls_folder)
        self.challenges = ChallengeCache()
        self._farm.dial(1, self._context, self.challenges).close()

    def __call__(self, head: bytes) -> float:
        with connect(self._farm.ports[1], self._context) as sock:
            begun = time.perf_counter()
            sock.sendall(head)
            answer = sock.recv(65536)
            took = time.perf_counter() - begun
        if not answer.startswith(REFUSED):
            raise BenchError(f"a wrong login got {answer!r}")
        return took

    def close(self) -> None:
        self._farm.stop()


def measure(directory: Path, rounds: int) -> Section:
    systems: dict[str, FunctionLogins | WireLogins] = {}
    systems["function"], systems["wire"] = FunctionLogins(), WireLogins(directory)
    found: dict[str, list[float]] = {}
    try:
        for number in range(rounds):
            for name, system in systems.items():
                say(f"farm-logins: round {number + 1} of {rounds}, {name}")
                unknown, wrong = map(statistics.median, differences(system, system.challenges))
                found.setdefault(f"{name}, unknown user", []).append(unknown)
                found.setdefault(f"{name}, wrong password", []).append(wrong)
                difference = abs(unknown - wrong) / wrong * 100
                found.setdefault(f"{name}, difference", []).append(difference)
    finally:
        for system in systems.values():
            system.close()
    name = "unknown user against wrong password"
    figures = [
        summed_up(f"{name}, {each}", found.pop(f"{each}, difference"), "%", 5.0) for each in systems
    ]
    rows = [ROW_HEAD, *(row(each, values, "us", ".1f") for each, values in found.items())]
    note = (
        f"Medians of {PAIRS} interleaved logins each, one after the other. `wire`: a farm server "
        "on loopback with TLS 1.3, whose answers are 429 after the first five."
    )
    return Section("Security: logins of a farm", figures, rows, note)


QUESTION = Question("farm-logins", __doc__, measure, ROUNDS)
