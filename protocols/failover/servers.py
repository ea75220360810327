"""The failover of a client without I/O: its connections, the search for a server, its silence.

Every service's client machine has a Failover, whose policy holds the service's times and habits.
The machine is the Failover's `FailoverService`: it writes the questions and repeats the requests.

1. Search: the client connects to all candidates and asks each, until one answers that it serves.
2. Use: the machine sends its requests to that server, `current`.
3. Silence: a server that owes an answer for too long is probed, and left if the probes stay
   unanswered. Bytes that it must still receive extend the time.
4. Leave: after a loss, a silence or a refusal, the machine requeues its requests, and searches.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from ..connections import ClientAction, Connect, Disconnect, Send, Warn
from .limits import BYTES_PER_MS, GIVE_UP_MS, NEVER_MS, NOTICE_MS, SERVERS_MAX, SILENCE_MS


class FailoverPolicy(NamedTuple):
    """How the client of one service finds, keeps and leaves a server. Times in milliseconds.

    kind              what a server is called, as in "is a broker running there?"
    plural            the counter of the servers that were used
    ident             the cluster's name, "" if the service has none
    search_ms         between two questions to a candidate; 0: the first connection is used
    search_retry_ms   the same, while the candidate does not answer
    silence_ms        a server that owes an answer for so long is probed
    probes_max        unanswered probes; then the server is left
    keeps_others      connections to the other servers stay open
    keeps_left        a server that is left alive keeps its connection
    notice            whether to warn of requests that wait without a server
    reach_ms          requests fail after so long while no url has ever led to a server; None: after
                      GIVE_UP_MS, if one is of another cluster or refuses this client
    """

    kind: str
    plural: str
    ident: str = ""
    search_ms: int = 0
    search_retry_ms: int = 0
    silence_ms: int = SILENCE_MS
    probes_max: int = 0
    keeps_others: bool = False
    keeps_left: bool = False
    notice: bool = False
    reach_ms: int | None = NEVER_MS


class Candidate:
    """A connection to one server. A service's subclass adds what the server has said."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connected = False
        self.asked_ms: int | None = None  # The last question of the search.
        self.answered = True  # That question.
        self.is_known = False  # It has answered in this connection.
        self.is_elsewhere = False  # It belongs to another cluster.


CandidateT = TypeVar("CandidateT", bound=Candidate)
AskedT = TypeVar("AskedT", bound=Candidate, contravariant=True)


class FailoverService(Protocol[AskedT]):
    """What a client machine does for its Failover."""

    def candidates(self) -> Iterable[str]:
        """The urls to search."""

    def ask(self, server: AskedT, now_ms: int) -> None:
        """Sends a question that every server of the service answers."""

    def on_used(self, server: AskedT, now_ms: int) -> None:
        """A server is used from now on."""

    def on_left(self, server: AskedT, why: str) -> None:
        """The server is left: all unanswered requests must be sent again."""

    def owed(self) -> tuple[int | None, int]:
        """Since when the server owes an answer, and the bytes that it may still be receiving."""

    def waits(self) -> str | None:
        """Why the requests wait, as far as a server said; None: they do not wait."""


class StallNotice:
    """Says once that requests wait without a server, NOTICE_MS after they began to."""

    def __init__(self) -> None:
        self._since_ms: int | None = None
        self._is_given = False

    def is_due(self, waits: bool, now_ms: int) -> bool:
        """Whether to warn now; waits: requests wait at this time."""
        if not waits:
            self._since_ms, self._is_given = None, False
        elif self._since_ms is None:
            self._since_ms = now_ms
        elif not self._is_given and now_ms >= self._since_ms + NOTICE_MS:
            self._is_given = True
            return True
        return False

    def begin(self, since_ms: int) -> None:
        """Requests have waited since then, as is known only now."""
        if self._since_ms is None:
            self._since_ms = since_ms

    @property
    def deadline_ms(self) -> int:
        return NEVER_MS if self._is_given else self.after(NOTICE_MS)

    def after(self, wait_ms: int) -> int:
        """When the requests will have waited so long."""
        return NEVER_MS if self._since_ms is None else self._since_ms + wait_ms


class Failover(Generic[CandidateT]):
    """The servers of one client. Its owner carries out `actions`."""

    def __init__(
        self,
        policy: FailoverPolicy,
        service: FailoverService[CandidateT],
        new_server: Callable[[str], CandidateT],
        counters: Counter[str],
    ) -> None:
        self.policy = policy
        self.current: CandidateT | None = None  # The server in use.
        self.servers: dict[str, CandidateT] = {}
        self.actions: list[ClientAction] = []
        self.counters = counters
        self.heard_ms = 0  # The server's last message, or our last probe.
        self._service = service
        self._new_server = new_server
        self._probes = 0  # Unanswered ones in a row.
        self._avoided = ""  # A server that is used last.
        self._was_heard = False  # A server has answered, or was used.
        self._notice = StallNotice()
        self._refusals: dict[str, tuple[str, str]] = {}  # Problem and way out, by url.
        self._final: set[str] = set()  # The urls of those that do not end by themselves.

    # ---- connections ----

    def connect(self, url: str) -> None:
        """Adds a server, unless there are too many."""
        if url not in self.servers and len(self.servers) < SERVERS_MAX:
            self.servers[url] = self._new_server(url)
            self.actions.append(Connect(url))

    def disconnect(self, url: str) -> None:
        """Removes a server, with the messages that wait to be sent to it."""
        del self.servers[url]
        self.actions.append(Disconnect(url))

    def on_connected(self, url: str, now_ms: int) -> CandidateT | None:
        """The connection is made, or made again: nothing is known of its server."""
        if url not in self.servers:
            return None
        server = self.servers[url] = self._new_server(url)
        server.connected = True
        self._refusals.pop(url, None)
        self._final.discard(url)
        if self.current is not None and self.current.url == url:
            self.current = server
        if self.current is None and not self.policy.search_ms:
            self.use(server, now_ms)
        return server

    def on_disconnected(self, url: str, now_ms: int) -> CandidateT | None:
        """The connection is lost. If it was the server's in use, the search starts at once."""
        server = self.servers.get(url)
        if server is None or not server.connected:
            return None
        server.connected = False
        if server is self.current:
            self.leave("lost", now_ms)
        return server

    def on_refused(self, url: str, problem: str, way_out: str, may_pass: bool = False) -> None:
        """The connection is not made, and why. may_pass: that may end by itself"""
        self._refusals[url] = problem, way_out
        (self._final.discard if may_pass else self._final.add)(url)

    def send(self, url: str, frames: list[bytes]) -> None:
        self.actions.append(Send(url, frames))

    def on_heard(self, server: CandidateT, now_ms: int) -> None:
        """A message of a server has arrived."""
        server.answered = server.is_known = self._was_heard = True
        server.is_elsewhere = False
        if server is self.current:
            self.heard_ms, self._probes = now_ms, 0

    def restart_silence(self, now_ms: int) -> None:
        """The server owes answers from now on."""
        self.heard_ms, self._probes = now_ms, 0

    # ---- the server in use ----

    def use(self, server: CandidateT, now_ms: int, keep: Collection[str] = ()) -> None:
        """Uses this server, unless it was left on purpose and another one may answer.

        keep   other urls whose connections stay
        """
        others = (it for it in self.servers.values() if it is not server)
        if server.url == self._avoided and any(it.connected for it in others):
            self._avoided = ""  # It is used at its next answer, unless another one comes first.
            return
        self.current, self._avoided, self._was_heard = server, "", True
        self.counters[self.policy.plural] += 1
        self.restart_silence(now_ms)
        if not self.policy.keeps_others:
            for url in [url for url in self.servers if url != server.url and url not in keep]:
                self.disconnect(url)
        self._service.on_used(server, now_ms)

    def leave(self, why: str, now_ms: int, avoids: bool = False) -> None:
        """Leaves the server and searches. A lost one gets a new connection: no message in the old
        one may arrive later.

        why      the counter: lost, silent, refused
        avoids   use another server, if there is one
        """
        server = self.current
        assert server is not None
        self.counters[why] += 1
        if avoids:
            self._avoided = server.url
        if why == "lost" or not self.policy.keeps_left:
            self.disconnect(server.url)
        self.current = None
        self._service.on_left(server, why)
        self.search(now_ms, server.url)

    def search(self, now_ms: int, last: str = "") -> None:
        """Connects to all candidates. Without questions, the next connected one is used."""
        urls = tuple(self._service.candidates())
        for url in urls:
            self.connect(url)
        if self.policy.search_ms:
            self.counters["searches"] += 1
            return
        first = urls.index(last) + 1 if last in urls else 0
        for url in (*urls[first:], *urls[:first]):
            if self.servers[url].connected:
                self.use(self.servers[url], now_ms)
                return

    # ---- time ----

    def step(self, now_ms: int) -> None:
        """Probes or leaves a silent server; asks the candidates while none is in use."""
        if self.current is not None and self._silent_at_ms <= now_ms:
            if self._probes < self.policy.probes_max:
                self.heard_ms, self._probes = now_ms, self._probes + 1
                self._service.ask(self.current, now_ms)
            else:
                self.leave("silent", now_ms)
        if self.current is None and self.policy.search_ms:
            for server in list(self.servers.values()):
                self.ask_if_due(server, now_ms)
        if self.policy.notice:
            self._warn_if_due(now_ms)

    def ask_if_due(self, server: CandidateT, now_ms: int) -> None:
        """Asks a connected server, if its last question was long enough ago."""
        if server.connected and self.ask_due_ms(server) <= now_ms:
            self._service.ask(server, now_ms)
            server.asked_ms, server.answered = now_ms, False

    def ask_due_ms(self, server: CandidateT) -> int:
        """When the server may be asked again."""
        if server.asked_ms is None:
            return 0
        policy = self.policy
        return server.asked_ms + (policy.search_ms if server.answered else policy.search_retry_ms)

    @property
    def _silent_at_ms(self) -> int:
        since_ms, size = self._service.owed()
        if since_ms is None:
            return NEVER_MS
        return since_ms + self.policy.silence_ms + size // BYTES_PER_MS

    @property
    def deadline_ms(self) -> int:
        """When step() must be called at the latest; NEVER_MS: no time is set."""
        times = [self._notice.deadline_ms]
        if self.current is not None:
            times.append(self._silent_at_ms)
        elif self.policy.search_ms:
            times += [self.ask_due_ms(it) for it in self.servers.values() if it.connected]
        return min(times)

    # ---- what is wrong ----

    def on_waiting_since(self, since_ms: int) -> None:
        """Requests have waited since then, as is known only now."""
        if self.policy.notice:
            self._notice.begin(since_ms)

    @property
    def give_up_ms(self) -> int:
        """When waiting requests should fail, as far as can be said now. The machine sees to it."""
        return self._notice.after(self.reach_ms) if self.is_hopeless else NEVER_MS

    @property
    def reach_ms(self) -> int:
        """How long requests wait while it is hopeless."""
        return GIVE_UP_MS if self.policy.reach_ms is None else self.policy.reach_ms

    @property
    def is_new(self) -> bool:
        """Whether requests will fail after reach_ms unless a server is found."""
        return not self._was_heard and self.reach_ms < NEVER_MS

    @property
    def is_hopeless(self) -> bool:
        """Whether no url has ever led to a server: each is unreachable, refuses this client or
        belongs to another cluster. An election or a restart is not hopeless, nor, unless the owner
        says so by reach_ms, a server that has not started yet."""
        servers = self.servers.values()
        wrong = [it for it in servers if it.is_elsewhere or it.url in self._final]
        absent = [it for it in servers if not (it.connected or it in wrong)]
        return (
            self.is_new
            and len(wrong) + len(absent) == len(servers)
            and (bool(wrong) or self.policy.reach_ms is not None)
        )

    def _warn_if_due(self, now_ms: int) -> None:
        """Warns once of requests that wait for a server, until they no longer wait."""
        reason = self._service.waits()
        waits = reason is not None and (self.current is None or reason != "")
        if self._notice.is_due(waits, now_ms):
            if self.is_hopeless and self.reach_ms <= 2 * NOTICE_MS:
                return  # An error says it soon.
            if self.current is None:
                reason = self.explain()
            else:
                reason = f"{self.current.url}: {reason}; does a majority of its cluster run?"
            self.actions.append(Warn(f"requests wait: {reason}"))

    @property
    def is_silent(self) -> bool:
        """Whether a server has taken the connection, but not answered: it may be slow."""
        servers = self.servers.values()
        return any(it.connected and not (it.is_known or it.is_elsewhere) for it in servers)

    def explain(self, timeout_ms: int = 0) -> str:
        """Why no server is in use: each url with what is wrong there, then the way out."""
        servers = self.servers.values()
        kind, ident = self.policy.kind, self.policy.ident
        member = f"{kind} of cluster {ident!r}" if ident else kind
        leaderless = [it.url for it in servers if it.connected and it.is_known]
        elsewhere = [it.url for it in servers if it.connected and it.is_elsewhere]
        silent = [it.url for it in servers if it.connected and not (it.is_known or it.is_elsewhere)]
        unreached = [it.url for it in servers if not it.connected]
        refused = {url: self._refusals[url] for url in unreached if url in self._refusals}
        parts, ways_out = [], []
        if leaderless:
            parts.append(f"no leader at {', '.join(leaderless)}")
            whose = f"cluster {ident!r}" if ident else "its cluster"
            ways_out.append(f"does a majority of {whose} run?")
        if elsewhere:
            parts.append(f"not cluster {ident!r} but another one at {', '.join(elsewhere)}")
            ways_out.append("give its ident, which is in its topology, or other urls")
        if silent:
            parts.append(f"no answer from {', '.join(silent)}")
            own = f"is {ident!r} the ident of its cluster?" if ident else f"is it a {kind}?"
            ways_out.append(own)
        for url, (problem, way_out) in refused.items():
            parts.append(f"{url}: {problem}")
            ways_out.append(way_out)
        if unreached := [url for url in unreached if url not in refused]:
            parts.append(f"no connection to {', '.join(unreached)}")
            ways_out.append(f"does a {member} run there?")
        if self.is_hopeless:
            timeout_ms = min(timeout_ms, self.reach_ms)
        within = f" within {timeout_ms / 1000:g} s" if timeout_ms else ""
        return f"{', '.join(parts)}{within}; {ways_out[0] if ways_out else 'give another url'}"
