"""Who leads a group: the member with the smallest UUID among those that are there.

This is the classic way to an eventual leader: each node trusts the smallest of those that it does
not hold dead (Chandra and Toueg's failure detectors; "Omega" out of an eventually perfect one).
Presence is ZRE's own: JOIN, LEAVE, EXIT, PING. So no message of its own is needed, and none can be
lost. Once the members' views of who is there agree, all of them name the same leader; until then,
as in a network that is cut in two, more than one may lead. It is no lock: what must happen at most
once goes through the log.
"""

from collections.abc import Iterable


def leader_of(members: Iterable[bytes]) -> bytes | None:
    """The leader among these UUIDs; None: nobody is there."""
    return min(members, default=None)
