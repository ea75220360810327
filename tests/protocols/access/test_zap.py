"""Which connections are accepted: the answers of the ZAP handler."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.access.grants import Grants, Right, parse_grants
from kelek.protocols.access.zap import (
    ACCEPTED,
    CURVE,
    NULL,
    REFUSED,
    SLOTS_MAX,
    ZAP_ANSWER,
    ZAP_REQUEST,
    AllowedKey,
    Keyring,
    OpenKeyring,
    ProtectedEndpoint,
    ZapAnswer,
    ZapHandler,
    ZapRequest,
)
from kelek.protocols.errors import RemoteProtocolError

ANN, BOB, EVE = (bytes([number]) * 32 for number in (1, 2, 3))
READER, PEER = parse_grants("log.read"), parse_grants("peer")
ALLOWED = {ANN: AllowedKey("ann", READER), BOB: AllowedKey("bob", PEER)}
ENDPOINTS = {
    b"n1.url": ProtectedEndpoint(CURVE, Right.LOG_READ | Right.LOG_APPEND),
    b"n1.peer_url": ProtectedEndpoint(CURVE, Right.PEER),
    b"n1.foreign_url": ProtectedEndpoint(NULL, Right.LOG_READ, NULL),
}


@pytest.fixture
def keyring() -> Keyring:
    made = Keyring()
    made.replace(ALLOWED)
    return made


def ask(
    keyring: Keyring, domain: bytes, *credentials: bytes, mechanism: bytes = CURVE
) -> ZapAnswer:
    request = ZapRequest(domain, b"127.0.0.1", b"", mechanism, credentials)
    frames, problem = ZapHandler(keyring, ENDPOINTS).answer(ZAP_REQUEST.encode(request, b"7"))
    assert frames[:2] == [b"1.0", b"7"]
    answer = ZAP_ANSWER.decode(frames)
    assert (answer.status == ACCEPTED) == (not problem)
    assert answer.text.decode() == problem
    return answer


def test_a_key_with_a_right_of_the_endpoint_is_accepted(keyring: Keyring) -> None:
    assert ask(keyring, b"n1.url", ANN).user_id == keyring.user_id(ANN) == b"0.0"
    assert ask(keyring, b"n1.peer_url", BOB).user_id == b"1.0"


@pytest.mark.parametrize(
    ("domain", "credentials", "mechanism", "text"),
    [
        (b"n1.url", [EVE], CURVE, b"unknown key"),
        (b"n1.url", [BOB], CURVE, b"bob has no grant for this endpoint"),
        (b"n1.peer_url", [ANN], CURVE, b"ann has no grant"),
        (b"n1.url", [], NULL, b"the endpoint needs CURVE"),
        (b"n1.url", [b"ann", b"password"], b"PLAIN", b"the endpoint needs CURVE"),
        (b"n1.foreign_url", [ANN], CURVE, b"the endpoint needs NULL"),
        (b"n1.url", [], CURVE, b"no CURVE key"),
        (b"n1.url", [ANN[:16], ANN[16:]], CURVE, b"no CURVE key"),
        (b"n1.url", [ANN + b"x"], CURVE, b"no CURVE key"),
        (b"other", [ANN], CURVE, b"unknown ZAP domain"),
        (b"", [ANN], CURVE, b"unknown ZAP domain"),
    ],
)
def test_everything_else_is_refused(
    keyring: Keyring, domain: bytes, credentials: list[bytes], mechanism: bytes, text: bytes
) -> None:
    answer = ask(keyring, domain, *credentials, mechanism=mechanism)
    assert answer.status == REFUSED
    assert text in answer.text
    assert not answer.user_id


def test_all_peers_of_a_foreign_endpoint_share_an_entry(keyring: Keyring) -> None:
    assert ask(keyring, b"n1.foreign_url", mechanism=NULL).status == REFUSED
    keyring.replace({**ALLOWED, NULL: AllowedKey("foreign peers", READER)})
    answer = ask(keyring, b"n1.foreign_url", mechanism=NULL)
    assert (answer.status, answer.user_id) == (ACCEPTED, keyring.user_id(NULL))
    assert ask(keyring, b"n1.url", NULL).status == REFUSED


def test_a_removed_key_never_gets_its_old_user_id_back(keyring: Keyring) -> None:
    before = keyring.user_id(ANN)
    ((slot, name),) = keyring.replace({BOB: ALLOWED[BOB]})
    assert name == "ann"
    assert slot.allowed.grants == Grants()
    assert slot.user_id != before
    assert ask(keyring, b"n1.url", ANN).status == REFUSED
    keyring.replace({**ALLOWED, EVE: AllowedKey("eve", READER)})
    ids = {slot.user_id for slot in keyring.slots}
    assert before not in ids
    assert len(ids) == 3


def test_a_key_keeps_its_slot_when_its_grants_change(keyring: Keyring) -> None:
    before = keyring.user_id(ANN)
    changed = keyring.replace({**ALLOWED, ANN: AllowedKey("ann", PEER)})
    assert changed == [(keyring.slot_of(ANN), "ann")]
    assert changed[0].slot.user_id == before
    assert ask(keyring, b"n1.url", ANN).status == REFUSED
    assert keyring.replace({**ALLOWED, ANN: AllowedKey("ann", PEER)}) == []


@given(st.lists(st.sets(st.integers(0, 9)), max_size=12))
def test_no_user_id_ever_names_two_keys(steps: list[set[int]]) -> None:
    keyring = Keyring()
    owners: dict[bytes, int] = {}
    for keys in steps:
        keyring.replace({bytes([key]) * 32: AllowedKey(f"k{key}", READER) for key in keys})
        for key in range(10):
            slot = keyring.slot_of(bytes([key]) * 32)
            assert (slot is not None) == (key in keys)
            if slot is not None:
                assert owners.setdefault(slot.user_id, key) == key
        assert len(keyring.slots) <= 10


def test_too_many_keys_change_nothing(keyring: Keyring) -> None:
    many = {key.to_bytes(32): AllowedKey("k", READER) for key in range(SLOTS_MAX + 1)}
    with pytest.raises(ValueError, match=f"at most {SLOTS_MAX} keys"):
        keyring.replace(many)
    assert keyring.slot_of(ANN) is not None


@given(st.lists(st.binary(max_size=300), max_size=12))
def test_any_frames_get_an_answer_or_an_error(frames: list[bytes]) -> None:
    handler = ZapHandler(Keyring(), ENDPOINTS)
    with contextlib.suppress(RemoteProtocolError):
        handler.answer(frames)


def test_an_open_keyring_knows_the_last_keys_and_those_in_use() -> None:
    slots: dict[int, int] = {}  # As C sees them: the generation of each.
    keyring = OpenKeyring(
        8, AllowedKey("any", READER), lambda it: slots.update({it.number: it.generation})
    )
    keyring.used = lambda: {ANN, BOB}
    first = [ask(keyring, b"n1.url", key).user_id for key in (ANN, BOB, EVE)]
    crowd = [number.to_bytes(32) for number in range(1, 100)]
    for key in crowd:
        assert ask(keyring, b"n1.url", key).status == ACCEPTED
    assert len(keyring.slots) == len(slots) == 8
    assert [ask(keyring, b"n1.url", key).user_id for key in (ANN, BOB)] == first[:2]
    assert ask(keyring, b"n1.url", crowd[-1]).user_id == keyring.user_id(crowd[-1])
    assert ask(keyring, b"n1.url", EVE).user_id != first[2]
    assert all(slots[slot.number] == slot.generation for slot in keyring.slots)
    assert {slot.key for slot in keyring.slots} >= {ANN, BOB, EVE, crowd[-1]}
    keyring.used = lambda: [slot.key for slot in keyring.slots]
    assert ask(keyring, b"n1.url", b"\x09" * 32).status == REFUSED
