"""Each command of each protocol has a row in the table of rights."""

from typing import Any

import pytest

import kelek.protocols.zmqraft.wire
from kelek.protocols.access import rights
from kelek.protocols.access.grants import ALL, Right, parse_grants
from kelek.protocols.garlicfarm.wire.handshake import MESSAGES_NAME
from kelek.protocols.garlicfarm.wire.http_api import VIEW_NAMES
from kelek.protocols.garlicfarm.wire.messages import RESPONSE_TYPES
from kelek.protocols.majordomo import values as majordomo
from kelek.protocols.wire import Constant
from kelek.protocols.zerodb.wire.requests import LAYOUTS
from kelek.protocols.zmqraft.wire import values as zmqraft
from kelek.tests.protocols.layouts import layouts


def test_each_message_of_the_log_has_a_row() -> None:
    types = {
        next(part.data for part in layout.parts if isinstance(part, Constant))
        for layout in layouts(kelek.protocols.zmqraft.wire)
        if any(isinstance(part, Constant) for part in layout.parts)
    }
    assert types
    assert types - {zmqraft.NOT_ALLOWED, zmqraft.TOO_MANY} <= rights.LOG.keys()


def test_each_message_type_of_the_log_has_a_row() -> None:
    types = {
        value
        for name, value in vars(zmqraft).items()
        if name.isupper() and isinstance(value, bytes) and name != "NULL"
    }
    assert types - {zmqraft.NOT_ALLOWED, zmqraft.TOO_MANY} == rights.LOG.keys(), (
        "all but those of answers"
    )


def test_each_request_of_tables_has_a_row() -> None:
    assert {layout.kind for layout in LAYOUTS} == rights.TABLES.keys()


def test_each_service_of_the_broker_has_a_row() -> None:
    named = {
        value
        for value in vars(majordomo).values()
        if isinstance(value, bytes) and value.startswith(majordomo.RESERVED)
    }
    assert named - set(majordomo.RESERVED) == rights.BROKER_SERVICES.keys()


def test_each_request_of_a_farm_has_a_row() -> None:
    assert rights.FARM.keys() == RESPONSE_TYPES.keys()
    assert rights.FARM_PATHS.keys() == {MESSAGES_NAME, *VIEW_NAMES}


ROWS = [
    (name, command, right)
    for name in ("LOG", "TABLES", "BROKER_SERVICES", "FARM", "FARM_PATHS")
    for command, right in getattr(rights, name).items()
]


@pytest.mark.parametrize(("name", "command", "right"), ROWS)
def test_no_row_is_empty_and_internal_keys_have_each(name: str, command: Any, right: Right) -> None:
    assert right
    assert right in ALL
    assert parse_grants("internal").rights & right


FIND = {zmqraft.HELLO, zmqraft.REQUEST_CONFIG}


@pytest.mark.parametrize(
    ("grants", "commands"),
    [
        ("tables:*:rw services:*", FIND),
        ("observer", FIND | {zmqraft.REQUEST_LOG_INFO}),
        (
            "log.append",
            FIND | {zmqraft.REQUEST_LOG_INFO, zmqraft.REQUEST_UPDATE, zmqraft.UPDATE_PACK},
        ),
    ],
)
def test_what_a_key_may_say_to_the_log(grants: str, commands: set[bytes]) -> None:
    mine = parse_grants(grants).rights
    assert {command for command, needed in rights.LOG.items() if mine & needed} == commands


def test_only_members_speak_raft_and_only_administrators_change_members() -> None:
    for command in (zmqraft.APPEND_ENTRIES, zmqraft.REQUEST_VOTE, zmqraft.INSTALL_PACKED):
        assert rights.LOG[command] == Right.PEER
    for command in (zmqraft.CONFIG_UPDATE, zmqraft.TRANSFER, zmqraft.MAKE_SNAPSHOT):
        assert rights.LOG[command] == Right.ADMIN
