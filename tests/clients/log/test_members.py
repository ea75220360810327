"""Changes of the members of a cluster: requests, refusals, and answers of the leader."""

import pytest

import kelek
from kelek.clients.log.members import ask_members, index_of, with_member, without_member
from kelek.protocols.zmqraft.wire.config_codec import ConfigStatus, ConfigUpdate, ConfigUpdateAnswer
from kelek.protocols.zmqraft.wire.values import encode_members

MEMBERS = {"n1": "tcp://h:1", "n2": "tcp://h:2"}


def test_a_request_has_all_members_and_a_new_id() -> None:
    first, second = (ask_members(MEMBERS).request for _ in range(2))
    assert isinstance(first, ConfigUpdate)
    assert first.payload == encode_members(tuple(MEMBERS.items()))
    assert first.reqid != second.reqid


def test_members_are_added_and_removed() -> None:
    assert with_member(MEMBERS, "n3", "tcp://h:3") == {**MEMBERS, "n3": "tcp://h:3"}
    assert without_member(MEMBERS, "n1") == {"n2": "tcp://h:2"}


def test_changes_without_effect_are_refused() -> None:
    with pytest.raises(kelek.MembersRefused, match="n2 at tcp://h:2 is a member already") as error:
        with_member(MEMBERS, "n2", "tcp://h:2")
    assert error.value.name == "Unchanged"
    with pytest.raises(kelek.MembersRefused, match="a member already, at tcp://h:2") as error:
        with_member(MEMBERS, "n2", "tcp://h:9")
    assert error.value.name == "Doubled"
    with pytest.raises(kelek.MembersRefused, match="n9 is no member; the members are n1, n2"):
        without_member(MEMBERS, "n9")


@pytest.mark.parametrize(
    ("answer", "kind", "error"),
    [
        (ConfigUpdateAnswer(ConfigStatus.BUSY), kelek.MembersConflict, "in progress"),
        (ConfigUpdateAnswer(ConfigStatus.EXPIRED), kelek.LogError, "check the clocks"),
        (
            ConfigUpdateAnswer(ConfigStatus.ERROR, name="QuorumLost", message="n2 is down"),
            kelek.MembersRefused,
            "n2 is down",
        ),
    ],
)
def test_refusals_of_the_leader_are_raised(
    answer: ConfigUpdateAnswer, kind: type[Exception], error: str
) -> None:
    assert index_of(ConfigUpdateAnswer(ConfigStatus.ACCEPTED, log_index=7)) == 7
    with pytest.raises(kind, match=error):
        index_of(answer)
