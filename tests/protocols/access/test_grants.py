"""What operators write in a certificate's grants, and what it allows."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.access.grants import (
    ALL,
    EVERYTHING,
    GrantError,
    Grants,
    Right,
    TableRange,
    parse_grants,
)
from kelek.protocols.zerodb.wire.values import TABLE_MAX


def test_nothing_is_granted_by_default() -> None:
    grants = parse_grants("  ")
    assert grants == Grants()
    assert not any(grants.may(right) for right in Right)
    assert not grants.may_use_table(7, False)
    assert not grants.may_call(b"mail")
    assert not grants.may_offer(b"mail")


@pytest.mark.parametrize(
    ("text", "rights"),
    [
        ("log.read", Right.LOG_READ),
        ("log.append", Right.LOG_APPEND),
        ("log.read log.append", Right.LOG_READ | Right.LOG_APPEND),
        ("tables:7:r", Right.TABLE_READ),
        ("tables:7:rw", Right.TABLE_READ | Right.TABLE_WRITE),
        ("services:mail", Right.CALL),
        ("worker:mail", Right.WORK),
        ("jobs", Right.JOBS),
        ("observer", Right.OBSERVE),
        ("admin", Right.ADMIN | Right.OBSERVE),
        ("peer", Right.PEER),
        ("internal", ALL),
    ],
)
def test_rights_of_a_grant(text: str, rights: Right) -> None:
    assert parse_grants(text).rights == rights


def test_tables_of_a_range() -> None:
    grants = parse_grants("tables:7-9,12:r tables:8:rw")
    assert grants.tables == (
        TableRange(7, 9, False),
        TableRange(12, 12, False),
        TableRange(8, 8, True),
    )
    read = [table for table in range(20) if grants.may_use_table(table, False)]
    written = [table for table in range(20) if grants.may_use_table(table, True)]
    assert (read, written) == ([7, 8, 9, 12], [8])
    assert parse_grants("tables:*:rw").may_use_table(TABLE_MAX, True)


def test_patterns_of_services() -> None:
    grants = parse_grants("services:mail.*,echo worker:mail.send")
    assert grants.may_call(b"mail.send")
    assert grants.may_call(b"mail.")
    assert grants.may_call(b"echo")
    assert not grants.may_call(b"mail")
    assert not grants.may_call(b"echo2")
    assert grants.may_offer(b"mail.send")
    assert not grants.may_offer(b"echo")
    assert parse_grants("services:*").may_call(b"anything")


def test_internal_keys_may_do_everything() -> None:
    assert parse_grants("log.read internal") == EVERYTHING
    assert all(EVERYTHING.may(right) for right in Right)
    assert EVERYTHING.may_use_table(0, True)
    assert EVERYTHING.may_call(b"x")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("log.write", "log.write: no such grant; use log.read"),
        ("peer:n1", "peer:n1: no such grant"),
        ("tables:7", "tables:7: a grant of tables ends with :r or :rw"),
        ("tables::r", "'' is no range of tables"),
        ("tables:9-7:r", "'9-7' is no range"),
        ("tables:-7:r", "'-7' is no range"),
        ("tables:7-:x", "ends with :r or :rw"),
        ("tables:4294967296:r", "a table is at most 4294967295"),
        ("tables:٧:r", "is no range"),
        ("services:", "'' is no pattern"),
        ("services:a*b", "'a\\*b' is no pattern"),
        ("worker:" + "x" * 256, "is no pattern"),
        ("tables:" + ",".join("1" * 17) + ":r", "at most 16 ranges"),
        ("services:" + ",".join(f"s{i}" for i in range(65)), "at most 64 patterns"),
    ],
)
def test_grants_that_make_no_sense(text: str, problem: str) -> None:
    with pytest.raises(GrantError, match=problem):
        parse_grants(text)


@given(st.text())
def test_any_text_is_grants_or_an_error(text: str) -> None:
    with contextlib.suppress(GrantError):
        parse_grants(text)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans()), max_size=16))
def test_ranges_allow_what_a_set_of_tables_allows(ranges: list[tuple[int, int, bool]]) -> None:
    wanted = [(min(a, b), max(a, b), write) for a, b, write in ranges]
    words = [f"tables:{first}-{last}:{'rw' if write else 'r'}" for first, last, write in wanted]
    grants = parse_grants(" ".join(words))
    for table in range(41):
        holds = [write for first, last, write in wanted if first <= table <= last]
        assert grants.may_use_table(table, False) == bool(holds)
        assert grants.may_use_table(table, True) == any(holds)
