"""A client of a farm without sockets or clocks: whom to ask, what to ask again, what came of it.

Requests go to the leader over one connection, many at a time; questions to the servers' HTTP faces
have a connection each. Its owner does what ready() says, sends what the lines hold in `out`, and
tells what befalls them.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

from ...errors import RemoteProtocolError
from ..wire.handshake import NO_USERS, ClientHandshake, ConnectTarget, Opening, Step, path_to
from ..wire.link import OUTSTANDING_MAX, Link
from ..wire.messages import NO_LEADER, ClusterServer, MessageType, Request, Response
from ..wire.values import Address, address_of
from .fetch import ClientFetch
from .values import (
    ENTRIES_PER_REQUEST,
    REQUEST_BYTES,
    Close,
    FarmClientSetup,
    FarmCommand,
    Open,
    Question,
    ServerAddress,
    Trouble,
    TroubleKind,
    text_of,
)

REFUSALS_MAX = 3  # Of one server that knows no leader; then the next one is asked.
AGAIN_MAX = 4  # New challenges of one server, one behind the other.
HOPS_MAX = 3  # At once; the next ones take a pause.
PLACES_MAX = 256
TOLD_MAX = 3  # Troubles of one error.
UNHEARD = Trouble(TroubleKind.LOST, "nobody has been heard")


class Line:
    """One connection; who has it, its subclasses say."""

    def __init__(self, number: int, place: ServerAddress, until_ms: int) -> None:
        self.number = number
        self.place = place
        self.until_ms: int | None = until_ms  # Then it is given up; None: it is through.
        self.out = bytearray()  # To be sent, and then cleared, by the owner.
        self.handshake: ClientHandshake | None = None
        self.tries = 1  # Of the same, with newer challenges.


class _QuestionLine(Line):
    def __init__(
        self, number: int, place: ServerAddress, until_ms: int, question: Question
    ) -> None:
        super().__init__(number, place, until_ms)
        self.question = question


class _Channel(Line):
    """The connection to who leads, or may know who does."""

    def __init__(self, number: int, place: ServerAddress, until_ms: int) -> None:
        super().__init__(number, place, until_ms)
        self.link = Link(str(place))
        self.sent: deque[list[FarmCommand]] = deque()  # By request; an empty one asks who leads.
        self.refused: list[FarmCommand] = []  # In their order.
        self.leads = False
        self.refusals = 0
        self.again_ms: int | None = None  # When to ask again who leads.

    @property
    def wishes(self) -> list[FarmCommand]:
        """All that it did not do, in their order."""
        return [*self.refused, *(wish for wishes in self.sent for wish in wishes)]


class FarmClient:
    """One client of one farm."""

    def __init__(self, setup: FarmClientSetup, random_bytes: Callable[[int], bytes]) -> None:
        assert setup.places, "somewhere to begin"
        self.setup = setup
        self.counters: Counter[str] = Counter()
        self.lines: dict[int, Line] = {}
        self.places: dict[Address, ServerAddress] = {}
        self.ids: dict[int, Address] = {}
        self.leader_id: int | None = None  # As it was heard last.
        self.troubles: dict[Address, Trouble] = {}  # Of the search for the leader.
        self.questions: list[Question] = []
        self._random_bytes = random_bytes
        self._actions: list[Open | Close] = []
        self._number = 0
        self._queue: deque[FarmCommand] = deque()
        self._channel: _Channel | None = None
        self._wanted: Address | None = None  # Where the leader is said to be.
        self._good: Address | None = None  # Who has answered last.
        self._unreached_ms: int | None = None  # Since when calls wait for a first server.
        self._turn = 0  # Where the search goes on.
        self._hops = 0  # From one to the next, since somebody led.
        self._pause_ms = 0  # No new try before.
        self._soonest_ms: int | None = None  # No wish is over before.
        self._members: Question | None = None  # Where is the leader that was named?
        for address in setup.places:
            self._place(address)
        for server_id, address in setup.ids:
            self.ids[server_id] = address

    # ---- callers ----

    def wish(self, wish: FarmCommand) -> FarmCommand:
        """Puts it on its way to the leader."""
        self._queue.append(wish)
        self._soonest_ms = min(self._soonest_ms or wish.until_ms, wish.until_ms)
        return wish

    def drop(self, wishes: Iterable[FarmCommand]) -> None:
        """Nobody waits for these any more: what is not on its way is not sent."""
        unwanted = set(map(id, wishes))
        if not unwanted:
            return
        self._queue = deque(wish for wish in self._queue if id(wish) not in unwanted)
        channel = self._channel
        if channel is not None:
            channel.refused = [wish for wish in channel.refused if id(wish) not in unwanted]
            for index, sent in enumerate(channel.sent):
                if any(id(wish) in unwanted for wish in sent):
                    # Its answer is still to come: others may share the request.
                    channel.sent[index] = [wish for wish in sent if id(wish) not in unwanted]

    @property
    def outstanding(self) -> int:
        """Wishes that wait."""
        sent = len(self._channel.wishes) if self._channel is not None else 0
        return len(self._queue) + sent

    def ask(self, question: Question) -> Question:
        """Asks a server's HTTP face."""
        if self.setup.plain:
            text = "servers of JRaft show nothing; ask one of kelek's that has the handshake"
            question.failure = Trouble(TroubleKind.NO_FACE, text)
        else:
            self.questions.append(question)
        return question

    def forget(self, question: Question) -> None:
        """Nobody waits for it any more."""
        if question in self.questions:
            self.questions.remove(question)
            if question.line is not None:
                self._drop_line(self.lines[question.line])

    def learn(self, servers: Iterable[ClusterServer]) -> None:
        """Who is where, as a server's Configuration says; what users gave stays."""
        given = dict(self.setup.ids)
        for server_id, endpoint in servers:
            try:
                address = address_of(endpoint)
            except RemoteProtocolError:
                continue
            if server_id not in given and self._place(address) is not None:
                self.ids[server_id] = address

    def report(self) -> Trouble:
        """Why nothing goes on, as far as is known."""
        channel = self._channel
        if channel is not None and channel.leads:
            text = f"{channel.place}, who leads, has not committed it; a majority has to run"
            return Trouble(TroubleKind.LATE, text)
        return worst(self.troubles)

    def _place(self, address: Address) -> ServerAddress | None:
        if address not in self.places and len(self.places) < PLACES_MAX:
            self.places[address] = ServerAddress(address)
        return self.places.get(address)

    # ---- the owner ----

    def ready(self, now_ms: int) -> list[Open | Close]:
        """What the owner is to do now; then it sends what the lines hold."""
        self._expire(now_ms)
        self._expire_unreached(now_ms)
        for question in self.questions:
            if question.line is None and now_ms >= question.again_ms:
                self._begin_question(question, now_ms)
        if self._channel is None and self._queue and self._members is None:
            self._begin_channel(now_ms)
        if self._channel is not None:
            self._speak(self._channel, now_ms)
        actions, self._actions = self._actions, []
        return actions

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must come at the latest."""
        times = [line.until_ms for line in self.lines.values()]
        times += [each.again_ms for each in self.questions if each.line is None]
        times += [each.until_ms for each in self.questions]
        times += [self._soonest_ms, self._unreached_ms if self._all_failed else None]
        channel = self._channel
        if channel is not None:
            times += [channel.again_ms if self._queue else None, channel.link.deadline_ms]
        elif self._queue and self._members is None:
            again_ms = min(place.again_ms for place in self.places.values())
            times.append(max(again_ms, self._pause_ms))
        known = [each for each in times if each is not None]
        return min(known) if known else None

    def on_open(self, number: int, now_ms: int) -> None:
        """A connection is made, its TLS too."""
        line = self.lines.get(number)
        if line is None:
            return
        self.counters["connections"] += 1
        if self.setup.plain:
            assert isinstance(line, _Channel), "nothing is asked of a server without a face"
            self._entered(line, now_ms)
            return
        host, door = str(line.place), self._door
        if isinstance(line, _QuestionLine):
            door = door._replace(host=host, path=path_to(door.cluster, line.question.what))
            kind: type[ClientHandshake] = ClientFetch
        else:
            door, kind = door._replace(host=host), ClientHandshake
        line.handshake = kind(door, line.place.challenges, now_ms, self._random_bytes)
        line.out += line.handshake.request

    @property
    def _door(self) -> ConnectTarget:
        setup = self.setup
        return ConnectTarget("", setup.farm, setup.user, setup.password, setup.via_proxy)

    def on_data(self, number: int, data: bytes, now_ms: int) -> None:
        """Bytes have arrived."""
        line = self.lines.get(number)
        if line is None:
            return
        if line.handshake is not None:
            opening = line.handshake.feed(data, now_ms)
            if opening is not None:
                self._on_opening(line, opening, now_ms)
        elif isinstance(line, _Channel):
            self._on_answers(line, data, now_ms)

    def on_lost(self, number: int, trouble: Trouble | None, now_ms: int) -> None:
        """A connection could not be made, or has ended; None: the other side has closed it."""
        line = self.lines.get(number)
        if line is not None and trouble is None and line.handshake is not None:
            self.on_data(number, b"", now_ms)  # An answer may end with its connection.
            line = self.lines.get(number)
        if line is not None:
            del self.lines[number]
            self._failed(
                line, trouble or Trouble(TroubleKind.LOST, "it closed the connection"), now_ms
            )

    # ---- connections ----

    def _open(self, line: Line) -> None:
        self.lines[line.number] = line
        self._actions.append(Open(line.number, line.place.address))

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _drop_line(self, line: Line) -> None:
        """We want no more of it."""
        del self.lines[line.number]
        self._actions.append(Close(line.number))

    def _expire(self, now_ms: int) -> None:
        for line in list(self.lines.values()):
            if line.until_ms is not None and now_ms >= line.until_ms:
                self._drop_line(line)
                text = f"no answer within {self.setup.reach_ms / 1000:g} s"
                self._failed(line, Trouble(TroubleKind.LOST, text), now_ms)
        for question in [each for each in self.questions if now_ms >= each.until_ms]:
            self.forget(question)
            question.failure = worst(question.troubles or self.troubles)
            self._on_members(question)
        if self._soonest_ms is not None and now_ms >= self._soonest_ms:
            self._expire_wishes(now_ms)
        channel = self._channel
        until_ms = None if channel is None else channel.link.deadline_ms
        if channel is not None and until_ms is not None and now_ms >= until_ms:
            self._drop_line(channel)
            text = f"no answer within {self.setup.silence_ms / 1000:g} s"
            self._failed(channel, Trouble(TroubleKind.LOST, text), now_ms)

    @property
    def _all_failed(self) -> bool:
        """Whether each place was tried, and none was of use since."""
        return all(place.failures for place in self.places.values())

    def _expire_unreached(self, now_ms: int) -> None:
        """Ends all that waits when no server was ever reached, and each was tried."""
        if self._good is not None or not (self._queue or self.questions):
            self._unreached_ms = None
            return
        if self._unreached_ms is None:
            self._unreached_ms = now_ms + self.setup.unreached_ms
        if now_ms < self._unreached_ms or not self._all_failed:
            return
        self._unreached_ms = None
        for question in list(self.questions):
            self.forget(question)
            question.failure = worst(question.troubles or self.troubles)
            self._on_members(question)
        self._give_up()

    def _expire_wishes(self, now_ms: int) -> None:
        sent = self._channel.wishes if self._channel is not None else []
        trouble = self.report()
        over = [wish for wish in (*sent, *self._queue) if now_ms >= wish.until_ms]
        self.drop(over)
        for wish in over:
            wish.failure = trouble
        left = self._channel.wishes if self._channel is not None else []
        self._soonest_ms = min((wish.until_ms for wish in (*left, *self._queue)), default=None)

    def _choose(self, now_ms: int) -> ServerAddress | None:
        """The next place to try that may be tried now."""
        places = list(self.places.values())
        for step in range(len(places)):
            place = places[(self._turn + step) % len(places)]
            if now_ms >= place.again_ms:
                self._turn = (self._turn + step + 1) % len(places)
                return place
        return None

    def _on_opening(self, line: Line, opening: Opening, now_ms: int) -> None:
        if opening.step is Step.AGAIN and line.tries < AGAIN_MAX:
            self._drop_line(line)
            line.number, line.tries = self._next_number(), line.tries + 1
            line.out.clear()
            line.handshake = None
            if isinstance(line, _QuestionLine):
                line.question.line = line.number
            self._open(line)
            return
        if opening.step is Step.OPEN:
            line.place.failures = 0
            line.place.again_ms = 0
            self._good = line.place.address
            if isinstance(line, _QuestionLine):
                self._drop_line(line)
                self._answered(line.question, line.place, opening.rest)
            else:
                assert isinstance(line, _Channel)
                line.handshake = None
                self._entered(line, now_ms)
                if opening.rest:
                    self._on_answers(line, opening.rest, now_ms)
            return
        self._drop_line(line)
        self._failed(line, self._trouble_of(opening), now_ms)

    def _trouble_of(self, opening: Opening) -> Trouble:
        if opening.why == NO_USERS:
            return Trouble(TroubleKind.DENIED, NO_USERS)
        if opening.status == 401:
            text = f"user {self.setup.user} or the password is wrong for the farm {self.setup.farm}"
            return Trouble(TroubleKind.DENIED, text)
        if opening.status == 404 and not self.setup.via_proxy:
            return Trouble(TroubleKind.NO_FARM, f"it has no farm {self.setup.farm}")
        return Trouble(TroubleKind.LOST, opening.why or "it wants ever new credentials")

    def _failed(self, line: Line, trouble: Trouble, now_ms: int) -> None:
        """A line is of no use any more."""
        place = line.place
        self.counters["lost"] += 1
        if isinstance(line, _QuestionLine):
            question = line.question
            question.line = None
            question.troubles[place.address] = trouble
            self._later(place, now_ms)
            self._judge_question(question, now_ms)
            return
        assert isinstance(line, _Channel)
        self._channel = None
        if line.leads and not line.wishes:  # It was idle: nothing is wrong with the place.
            self._wanted = place.address
            return
        self._requeue(line)
        self.troubles[place.address] = trouble
        self._later(place, now_ms)
        kinds = {each.kind for each in self.troubles.values()}
        tried = len(self.troubles) == len(self.places)
        if tried and self.report().is_final and TroubleKind.LEADERLESS not in kinds:
            self._give_up()

    def _later(self, place: ServerAddress, now_ms: int) -> None:
        setup = self.setup
        place.again_ms = now_ms + min(setup.retry_ms << place.failures, setup.retry_ms_max)
        place.failures = min(place.failures + 1, 16)

    def _give_up(self) -> None:
        """Nobody will do it, however often we ask."""
        trouble = self.report()
        for wish in self._queue:
            wish.failure = trouble
        self._queue.clear()
        self.troubles.clear()

    # ---- questions ----

    def _begin_question(self, question: Question, now_ms: int) -> None:
        if question.place is not None:
            place = self._place(question.place)
        else:
            good = self.places.get(self._good) if self._good is not None else None
            is_fit = good is not None and good.address not in question.troubles
            place = good if is_fit else self._choose(now_ms)
        if place is None:  # All have been tried a moment ago.
            question.again_ms = min(each.again_ms for each in self.places.values())
            return
        until_ms = now_ms + self.setup.reach_ms
        line = _QuestionLine(self._next_number(), place, until_ms, question)
        question.line = line.number
        self._open(line)

    def _judge_question(self, question: Question, now_ms: int) -> None:
        """Whether anybody is left to be asked."""
        wanted = {question.place} if question.place is not None else set(self.places)
        question.again_ms = now_ms
        if wanted <= question.troubles.keys():
            trouble = worst(question.troubles)
            if trouble.is_final or question.is_once:
                self._end_question(question)
                question.failure = trouble
                self._on_members(question)
            else:
                question.again_ms = now_ms + self.setup.retry_ms

    def _answered(self, question: Question, place: ServerAddress, body: bytes) -> None:
        self._end_question(question)
        question.body, question.source = body, place.address
        self._on_members(question)

    def _end_question(self, question: Question) -> None:
        question.line = None
        if question in self.questions:
            self.questions.remove(question)

    def _on_members(self, question: Question) -> None:
        """Where the leader is, if it was that which was asked."""
        if question is not self._members:
            return
        self._members = None
        self.learn(members_in(question.body or b""))
        if self.leader_id is not None:
            self._wanted = self.ids.get(self.leader_id)

    # ---- the leader ----

    def _begin_channel(self, now_ms: int) -> None:
        if now_ms < self._pause_ms:
            return
        wanted, self._wanted = self._wanted, None
        place = self.places.get(wanted) if wanted is not None else None
        if place is None or now_ms < place.again_ms:
            place = self._choose(now_ms)
        if place is not None:
            until_ms = now_ms + self.setup.reach_ms
            self._channel = _Channel(self._next_number(), place, until_ms)
            self._open(self._channel)

    def _entered(self, channel: _Channel, now_ms: int) -> None:
        """The messages begin: who leads?"""
        channel.until_ms = None
        self._good = channel.place.address
        channel.link.connected()
        channel.again_ms = now_ms

    def _speak(self, channel: _Channel, now_ms: int) -> None:
        link, until_ms = channel.link, now_ms + self.setup.silence_ms
        if self._queue and channel.again_ms is not None and now_ms >= channel.again_ms:
            channel.again_ms = None
            link.send(Request(MessageType.CLIENT_REQUEST), until_ms)
            channel.sent.append([])
        while channel.leads and self._queue and link.outstanding < OUTSTANDING_MAX:
            wishes = self._take()
            entries = tuple(entry for wish in wishes for entry in wish.entries)
            behind = len(entries)
            for wish in wishes:
                behind -= len(wish.entries)
                wish.behind = behind
            link.send(Request(wishes[0].type, entries=entries), until_ms)
            channel.sent.append(wishes)
            self.counters["requests"] += 1
        channel.out += link.out
        link.out.clear()

    def _take(self) -> list[FarmCommand]:
        """What goes into the next request."""
        queue = self._queue
        wishes = [queue.popleft()]
        count, size = len(wishes[0].entries), wishes[0].size
        while queue and wishes[0].shares and queue[0].shares:
            count += len(queue[0].entries)
            size += queue[0].size
            if count > ENTRIES_PER_REQUEST or size > REQUEST_BYTES:
                break
            wishes.append(queue.popleft())
        return wishes

    def _on_answers(self, channel: _Channel, data: bytes, now_ms: int) -> None:
        try:
            for _, response in channel.link.feed(data):
                self._on_answer(channel, response, now_ms)
        except RemoteProtocolError as error:
            self.counters["junk"] += 1
            if self._channel is channel:
                self._drop_line(channel)
                self._failed(channel, Trouble(TroubleKind.LOST, str(error)), now_ms)
            return
        if self._channel is channel and not channel.leads and not channel.sent:
            self._follow(channel, now_ms)

    def _on_answer(self, channel: _Channel, response: Response, now_ms: int) -> None:
        wishes = channel.sent.popleft()
        address = channel.place.address
        self.ids[response.source] = address
        self.leader_id = None if response.destination == NO_LEADER else response.destination
        is_own = response.destination == response.source
        is_judged = is_own and not response.next_index  # A leader that takes no such entries.
        if response.is_accepted or (is_own and wishes and wishes[0].is_alone):
            for wish in wishes:
                wish.response = response._replace(next_index=response.next_index - wish.behind)
        elif is_judged and len(wishes) == 1:
            wishes[0].response = response
        elif is_judged and wishes:
            for wish in wishes:
                wish.is_apart = True
            self._queue.extendleft(reversed(wishes))
        else:
            channel.leads = False
            channel.refused += wishes
            if wishes:
                self.counters["refused"] += 1
        if response.is_accepted:
            channel.refusals = self._hops = 0
            channel.leads = not channel.refused
            self.troubles.clear()

    def _follow(self, channel: _Channel, now_ms: int) -> None:
        """Who was asked does not lead: on to who does."""
        place, leader_id = channel.place, self.leader_id
        self._requeue(channel)
        address = None if leader_id is None else self.ids.get(leader_id)
        way_out = self._why_not(place, address, now_ms)
        if way_out:
            self.troubles[place.address] = Trouble(TroubleKind.LEADERLESS, way_out)
            channel.refusals += 1
            if channel.refusals < REFUSALS_MAX or len(self.places) == 1:
                channel.again_ms = now_ms + self.setup.retry_ms
                return
        self._channel = None
        self._drop_line(channel)
        place.again_ms = now_ms + self.setup.retry_ms
        if way_out:
            return
        self.counters["redirects"] += 1
        self._hops += 1
        if self._hops > HOPS_MAX:  # They send us in circles.
            self._pause_ms = now_ms + self.setup.retry_ms
        self._wanted = address
        if address is None:
            text = f"it says that server {leader_id} leads, and nobody says where that is"
            self.troubles[place.address] = Trouble(TroubleKind.LEADERLESS, text)
            if not self.setup.plain:
                until_ms = now_ms + 2 * self.setup.reach_ms
                question = Question("status", until_ms, place.address, is_once=True)
                self._members = self.ask(question)

    def _why_not(self, place: ServerAddress, address: Address | None, now_ms: int) -> str:
        """Why there is nowhere to go on to just now; "": there is."""
        leader_id = self.leader_id
        source = next((key for key, at in self.ids.items() if at == place.address), None)
        name = "it" if source is None else f"server {source}"
        if leader_id is None:
            return f"{name} knows no leader"
        if leader_id == source:
            return f"{name} is about to hand over"
        leader = self.places.get(address) if address is not None else None
        if leader is not None and now_ms < leader.again_ms:
            why = self.troubles.get(leader.address, UNHEARD).text
            return f"{name} says that server {leader_id} leads; {leader}: {why}"
        return ""

    def _requeue(self, channel: _Channel) -> None:
        """What it did not do is done before anything newer."""
        self._queue.extendleft(reversed(channel.wishes))
        channel.refused.clear()
        channel.sent.clear()


def worst(troubles: Mapping[Address, Trouble]) -> Trouble:
    """What says most, and of whom: what no other try helps against, then who was heard at all."""
    kind = max((trouble.kind for trouble in troubles.values()), default=None)
    if kind is None:
        return UNHEARD
    by_text: dict[str, list[str]] = {}
    for address, trouble in troubles.items():
        if trouble.kind is kind:
            by_text.setdefault(trouble.text, []).append(text_of(address))
    parts = [f"{', '.join(places)}: {text}" for text, places in by_text.items()]
    return Trouble(kind, "; ".join(parts[:TOLD_MAX]))


def members_in(body: bytes) -> list[ClusterServer]:
    """The members that a server's status names; none when it is no status."""
    try:
        status = json.loads(body)
        members = status["members"]
        return [
            ClusterServer(each["id"], each["endpoint"])
            for each in members
            if isinstance(each["id"], int) and isinstance(each["endpoint"], str)
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
