"""Bugs planted into a farm's servers; farm_campaign.py must find each of them.

`python -m kelek.tests.sim.farm_planted [NAME...]` runs them all, or some.
"""

import sys

from kelek.tests.sim.planted import CORE, LOST, SEEDS_MAX, Patch, Plant, find, main

CAMPAIGN = "kelek.tests.sim.farm_campaign"
PEER = "protocols/garlicfarm/peer.py"
STUCK = "not within"

PLANTS = (
    Plant(
        "a vote is not saved",
        (Patch(PEER, "or self._hard_state\n        self._save()\n", "or self._hard_state\n"),),
        told="vote forgotten|term went back",
    ),
    Plant(
        "strangers are given votes",
        (
            Patch(
                PEER,
                "        return self.is_member and self.core.unled_ms(self._now_ms) > "
                "self._farewell_ms\n",
                "        return True\n",
            ),
            Patch(CORE, "not message.transfer and self._is_sticky(now_ms):", "False:"),
        ),
        told="a stranger's REQUEST_VOTE",
    ),
    Plant(
        "anybody invites anybody",
        (
            Patch(
                PEER,
                "        return term >= core.term and (\n",
                "        return term >= core.term or (\n",
            ),
        ),
        told=f"a stranger's JOIN|{LOST}",
    ),
    Plant(
        "a newcomer does not vote",
        (
            Patch(
                PEER,
                "        may_vote = self.is_member or core.log.last_index > 0\n",
                "        may_vote = self.is_member or self.roster.find(own) is not None\n",
            ),
        ),
        told=STUCK,
    ),
)


def find_in_farm(bug: Plant) -> str | None:
    """By dice; else by going through the steps of all changes."""
    found = find(bug, SEEDS_MAX, (CAMPAIGN,))
    return found or find(bug, 1, (CAMPAIGN, "--flows"))


if __name__ == "__main__":
    sys.exit(main(PLANTS, find_in_farm))
