"""Simulated farms under faults, in a short form; farm_campaign.py is the long one."""

import os
from collections.abc import Callable

import pytest

from kelek.protocols.garlicfarm.wire.messages import MessageType
from kelek.tests.sim.farm.farm_directed import DIRECTED
from kelek.tests.sim.farm.farm_flows import FLOWS, Flow, FlowRun, strikes_of_suite
from kelek.tests.sim.farm.farm_planted import PLANTS, find_in_farm
from kelek.tests.sim.farm.farm_planted import SEEDS as PLANTED_SEEDS
from kelek.tests.sim.farm.farm_run import STRANGERS, FarmRun, rest
from kelek.tests.sim.farm.farm_sim import FarmSim, UnknownServer
from kelek.tests.sim.planted.planted import PACKAGE, PlantedBug

ONE = os.environ.get("KELEK_SEED")
SEEDS = [int(ONE)] if ONE else list(PLANTED_SEEDS)
FAULTS_MIN = 5
STRIKES_MIN = 8
FOUND = (
    "two changes at a time",
    "a leader is heard for ever",
    "who does not know that it counts votes for no stranger",
)


@pytest.mark.parametrize("seed", SEEDS)
def test_farm(seed: int) -> None:
    run = FarmRun(seed)
    run.run()
    assert sum(run.faults.values()) >= FAULTS_MIN
    assert run.sim.acked


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_a_change_survives_its_steps(flow: Flow) -> None:
    """A change completes without a loss, whichever server is killed at a step."""
    chosen = strikes_of_suite(flow)
    for strike in chosen:
        FlowRun(flow, strike, 1).run()
    assert len(chosen) >= STRIKES_MIN


@pytest.mark.parametrize("course", DIRECTED)
def test_a_course_goes_well(course: Callable[[int], None]) -> None:
    for seed in SEEDS:
        course(seed)


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_bug_is_found(name: str) -> None:
    """`python -m kelek.tests.sim.farm.farm_planted` finds all of them."""
    (bug,) = [plant for plant in PLANTS if plant.name == name]
    assert find_in_farm(bug) is not None


@pytest.mark.parametrize("bug", PLANTS, ids=lambda bug: bug.name)
def test_every_plant_still_fits(bug: PlantedBug) -> None:
    for path, old, new in bug.patches:
        assert (PACKAGE / path).read_text().count(old) == 1, f"{path} has changed: {old!r}"
        assert new != old


def test_the_flows_have_all_messages() -> None:
    names: set[str] = set()
    for flow in FLOWS:
        run = FlowRun(flow)
        run.run()
        names |= {step.name for step in run.steps}
    of_clients = {
        MessageType.CLIENT_REQUEST,
        MessageType.ADD_SERVER,
        MessageType.ADD_SERVER_RESPONSE,
    }
    assert names >= {each.name for each in set(MessageType) - of_clients}


def test_unknown_servers_depose_no_leader() -> None:
    sim = FarmSim(1)
    leader = sim.elect()
    term = sim.peers[leader].core.term
    for number in (1, 2, 3):
        for kind in STRANGERS:
            stranger = UnknownServer(sim, number)
            for _ in range(3):
                stranger.disturb(kind)
                sim.run(100)
    rest(sim)
    assert (sim.leader, sim.peers[leader].core.term) == (leader, term)
