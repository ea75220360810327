"""The simulation finds bugs: some are planted here and must be found.

`python -m kelek.tests.sim.planted` searches for all of them.
"""

import pytest

from kelek.tests.sim.patches import PACKAGE, PlantedBug
from kelek.tests.sim.planted import BUGS, find

FOUND = (
    "acknowledged before it is synced",
    "volatile vote",
    "old terms committed by count",
    "tail recovered without a sync",
    "no pre-vote",
    "writer restarted alone",
    "read answered without a round",
    "read answered before the term's own commit",
    "a lease that does not end",
    "a lost connection ends the promise to the leader",
    "a lease goes on during a transfer",
    "entries served by a leader that is not confirmed",
    "a worker applies its last entry again",
    "tables of a snapshot that name the next entry",
    "a get answered without the leader",
    "newer writes stay when an older one is given up",
    "a watch skips an entry behind a full page",
    "sessions end by the clock of each node",
    "an increment counts again when it is repeated",
    "compares that are not evaluated when they are applied",
    "reads behind a write without room are forwarded twice",
    "a repeat is another request",
    "a request is deleted while a part of its segment has no end",
    "a worker gets a request before the log has it",
    "titanic accepts a request before the log has it",
    "two changes at a time",
    "a leader is heard for ever",
    "who does not know that it counts votes for no stranger",
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_patch_applies(bug: PlantedBug) -> None:
    """A search for all bugs takes too long here; a patch that no longer applies fails at once."""
    for path, old, new in bug.patches:
        assert (PACKAGE / path).read_text().count(old) == 1, f"{path} has changed: {old!r}"
        assert new != old


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FOUND)
def test_a_planted_bug_is_found(name: str) -> None:
    (bug,) = [bug for bug in BUGS if bug.name == name]
    assert find(bug) is not None
