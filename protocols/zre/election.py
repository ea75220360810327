"""Leader election in a group: the present member with the smallest UUID leads.

Each node trusts the smallest member that it does not consider failed (Chandra and Toueg's failure
detectors: "Omega" from an eventually perfect one). Presence comes from ZRE's JOIN, LEAVE, EXIT and
PING, so the election needs no message. Members with equal views name the same leader; until then,
for example in a partitioned network, several nodes may lead. It is no lock: use the log for actions
that must happen at most once.
"""

from collections.abc import Iterable


def leader_of(members: Iterable[bytes]) -> bytes | None:
    """The leader among these UUIDs; None: there are none."""
    return min(members, default=None)
