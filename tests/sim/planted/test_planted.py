"""The simulation finds bugs: those that the issue names are planted and must be found.

planted.py beside this knows more of them, and runs them all.
"""

import pytest

from kelek.tests.sim.planted.planted import PACKAGE, PLANTS, SEEDS_MAX, PlantedBug, find

NAMED = (
    "acknowledged before it is synced",
    "volatile vote",
    "old terms committed by count",
    "tail recovered without a sync",
    "no pre-vote",
    "writer restarted alone",
    "read answered without a round",
    "read answered before the term's own commit",
    "entries served by a leader that is not confirmed",
)


@pytest.mark.parametrize("bug", PLANTS, ids=lambda bug: bug.name)
def test_every_plant_still_fits(bug: PlantedBug) -> None:
    """What is not run here must not rot: `python tests/sim/planted/planted.py` finds them all."""
    for path, old, new in bug.patches:
        assert (PACKAGE / path).read_text().count(old) == 1, f"{path} has changed: {old!r}"
        assert new != old


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMED)
def test_a_planted_bug_is_found(name: str) -> None:
    (bug,) = [plant for plant in PLANTS if plant.name == name]
    assert find(bug, SEEDS_MAX) is not None
