"""The members of a cluster and requests to change them."""

from collections.abc import Callable, Mapping

from ...protocols.zmqraft.client.requests import Query
from ...protocols.zmqraft.wire.config_codec import ConfigStatus, ConfigUpdate, ConfigUpdateAnswer
from ...protocols.zmqraft.wire.values import encode_members
from ..errors import LogError, MembersConflict, MembersRefused
from ..io.reqids import new_reqid


def ask_members(members: Mapping[str, str]) -> Query:
    """The request that makes these the members, PEER ID -> url."""
    return Query(ConfigUpdate(new_reqid(), encode_members(tuple(members.items()))))


def news_of(ask: Query) -> Callable[[], bool]:
    """A test whether the leader has sent a message about the request since this call."""
    taken = ask.accepted_count
    return lambda: ask.done or ask.accepted_count != taken


def index_of(answer: object) -> int:
    """The LOG INDEX of the change. Raises MembersRefused, MembersConflict, LogError."""
    assert isinstance(answer, ConfigUpdateAnswer)
    match answer.status:
        case ConfigStatus.ACCEPTED:
            assert answer.log_index is not None
            return answer.log_index
        case ConfigStatus.BUSY:
            raise MembersConflict("another change of the members is in progress")
        case ConfigStatus.EXPIRED:
            raise LogError("the cluster considers this request hours old: check the clocks")
        case _:
            raise MembersRefused(answer.name, answer.message)


def with_member(members: Mapping[str, str], peer_id: str, url: str) -> dict[str, str]:
    """The members and another one. Raises MembersRefused when it is a member already."""
    if members.get(peer_id) == url:
        raise MembersRefused("Unchanged", f"{peer_id} at {url} is a member already")
    if peer_id in members:
        raise MembersRefused("Doubled", f"{peer_id} is a member already, at {members[peer_id]}")
    return {**members, peer_id: url}


def without_member(members: Mapping[str, str], peer_id: str) -> dict[str, str]:
    """The members without this one. Raises MembersRefused when it is no member."""
    if peer_id not in members:
        names = ", ".join(members)
        raise MembersRefused("Unchanged", f"{peer_id} is no member; the members are {names}")
    return {peer: url for peer, url in members.items() if peer != peer_id}
