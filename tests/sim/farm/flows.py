"""Member changes of a farm, step by step: at each step, in a run of its own, one of the two
servers is killed or their connection is lost. Then the change must complete.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from kelek.protocols.garlicfarm.server import membership
from kelek.tests.protocols.garlicfarm.farm_cluster import FarmRequester, client_request, server
from kelek.tests.sim.checker import RuleBroken
from kelek.tests.sim.farm.cluster import FarmSim, Killed, SimWriter, Step
from kelek.tests.sim.farm.run import HEAL_MS, rest

ENTRIES = 20
AGAIN_MS = 1500  # An administrator repeats a request after so long.
AWAY_MS_MAX = 6000
STEPS_MAX = 400
NEW = 4


class Flow(NamedTuple):
    """A change, its server, and the condition at its end."""

    name: str
    members: tuple[int, ...] = (1, 2, 3)
    compacted: bool = False
    is_leaders: bool = False  # The leader leaves: its id is known only then.
    is_again: bool = False  # The added server was a member before, by the log or a snapshot.


FLOWS = (
    Flow("add"),
    Flow("add, snapshot", compacted=True),
    Flow("add to one", members=(1,)),
    Flow("add again", is_again=True),
    Flow("add again, snapshot", compacted=True, is_again=True),
    Flow("remove"),
    Flow("remove one of two", members=(1, 2)),
    Flow("remove the leader", is_leaders=True),
    Flow("remove the leader of two", members=(1, 2), is_leaders=True),
)


class Interruption(NamedTuple):
    """The fault at a step."""

    at: int
    what: str  # "actor" or "other" is killed, "lost": the connection ends


class FlowRun:
    """One flow, with or without a strike, and its steps."""

    def __init__(self, flow: Flow, interruption: Interruption | None = None, seed: int = 1) -> None:
        self.flow, self.interruption = flow, interruption
        self.sim = FarmSim(seed, flow.members)
        self.sim.partial = 0.5
        self.steps: list[Step] = []
        self._asked_ms = 0
        self._begin()

    def _begin(self) -> None:
        sim, flow = self.sim, self.flow
        leader = sim.elect()
        for first in range(0, ENTRIES, 5):
            sim.ask(client_request(*(b"%d" % at for at in range(first, first + 5))))
        if flow.compacted:
            for number in flow.members:
                sim.compact(number, 3)
        self.subject = NEW
        others = [number for number in flow.members if number != leader]
        if self.is_removal:
            self.subject = leader if flow.is_leaders else others[0]
        elif flow.is_again:
            self.subject = others[0]
            FarmRequester(sim, leader).send(membership.remove_server_request(self.subject))
            sim.run_until(lambda: sim.peers[self.subject].own_membership.is_waiting)
        else:
            sim.start(NEW)
        sim.run_until(sim.has_converged)

    @property
    def is_removal(self) -> bool:
        return self.flow.name.startswith("remove")

    def run(self) -> None:
        """Raises Broken."""
        sim = self.sim
        try:
            sim.on_step = self._on_step
            sim.run_until(self._is_over, HEAL_MS)
            sim.on_step = lambda step: None
            writer = SimWriter(sim, sim.elect(), b"behind")
            writer.send(client_request(b"behind"))
            sim.run_until(lambda: bool(writer.answers), HEAL_MS)
            sim.run_until(sim.has_converged, HEAL_MS)
            sim.check_end()
            rest(sim)
        except (AssertionError, RuleBroken) as error:
            where = f"{self.flow.name}, {self.interruption}"
            step = self.steps[self.interruption.at - 1] if self.interruption else ""
            raise RuleBroken(f"{where} ({step}): {error!r}\n{sim.simulation.trace()}") from error

    def _on_step(self, step: Step) -> None:
        self.steps.append(step)
        if self.interruption is None or len(self.steps) != self.interruption.at:
            return
        sim, what = self.sim, self.interruption.what
        if step.other is not None and what == "lost":
            sim.lose(step.actor, step.other)
            return
        victim = step.other if what == "other" else step.actor
        assert victim is not None
        sim.after(sim.random.randint(1, AWAY_MS_MAX), partial(self._revive, victim))
        if step.other is None:
            raise Killed(step)
        sim.kill(victim)

    def _revive(self, number: int) -> None:
        if number not in self.sim.peers:
            self.sim.start(number)

    def _is_over(self) -> bool:
        """Whether the members are as requested; if no change is in progress, it repeats the
        request.
        """
        sim, leader = self.sim, self.sim.leader
        if leader is None or len(sim.peers) < len(sim.disks):
            return False
        is_in = self.subject in sim.ids(leader)
        is_done = sim.has_converged() and is_in is not self.is_removal
        if not is_done and sim.now_ms >= self._asked_ms + AGAIN_MS:
            self._asked_ms = sim.now_ms
            add = membership.add_server_request(server(self.subject))
            remove = membership.remove_server_request(self.subject)
            FarmRequester(sim, leader).send(remove if self.is_removal else add)
        return is_done


def interruptions(flow: Flow, seed: int, *, kinds_only: bool) -> Iterator[Interruption]:
    """All faults of a flow; kinds_only: at the first step of each kind."""
    calm = FlowRun(flow, seed=seed)
    calm.run()
    assert len(calm.steps) < STEPS_MAX
    seen: set[tuple[str, bool]] = set()
    for at, step in enumerate(calm.steps, 1):
        kind = (step.name, step.actor == calm.subject)
        if kinds_only and kind in seen:
            continue
        seen.add(kind)
        yield Interruption(at, "actor")
        if step.other is not None:
            yield Interruption(at, "other")
            yield Interruption(at, "lost")


def interruptions_of_suite(flow: Flow) -> list[Interruption]:
    """At the first step of each kind; a third of them for flows with nearly the same steps."""
    return list(interruptions(flow, 1, kinds_only=True))[:: 3 if flow.is_again else 1]
