"""The checker of histories against all orders of small ones, and with planted faults."""

import itertools
from random import Random

from kelek.tests.crash.histories.linear import (
    COMPARE,
    NEVER,
    PUT,
    READ,
    SWAP,
    Call,
    fault_of,
    outcome,
)

KINDS = READ, PUT, SWAP, COMPARE


def has_order(calls: list[Call]) -> bool:
    """The definition itself: some permutation of the known calls and of some unknown ones."""
    known = [call for call in calls if call.ended < NEVER]
    unknown = [call for call in calls if call.ended == NEVER]
    for count in range(len(unknown) + 1):
        for more in itertools.combinations(unknown, count):
            if any(explains(order) for order in itertools.permutations([*known, *more])):
                return True
    return False


def explains(order: tuple[Call, ...]) -> bool:
    held = None
    for at, call in enumerate(order):
        if any(later.ended < call.began for later in order[at + 1 :]):
            return False
        fits, held = outcome(call, held)
        if not fits:
            return False
    return True


def random_call(dice: Random, known: float = 0.8, most: int = 2) -> Call:
    """known: the share of calls that have an end; most: the largest value"""
    began = dice.random()
    ended = began + dice.random() / 2 if dice.random() < known else NEVER
    kind = dice.choice(KINDS)
    values = [dice.choice((None, *range(1, most + 1))) for _ in range(2)]
    result = dice.choice((True, False)) if kind == COMPARE else values[1]
    return Call(kind, began, ended, dice.randint(1, most), values[0], result)


def register(dice: Random, count: int, writers: int) -> list[Call]:
    """What a right register answers to some clients, each with one call at a time."""
    calls, held = [], None
    free = [0.0] * writers
    events = []
    for _ in range(count):
        client = min(range(writers), key=free.__getitem__)
        began = free[client] + dice.random()
        acts, ended = sorted((began + dice.random() * 3, began + dice.random() * 3 + 0.01))
        free[client] = ended
        events.append((acts, began, ended))
    for number, (_, began, ended) in enumerate(sorted(events)):
        kind = dice.choice(KINDS)
        expected = held if dice.random() < 0.5 else 0
        call = Call(kind, began, ended, number + 1, expected)
        result = held == expected if kind == COMPARE else held
        _, held = outcome(call._replace(ended=NEVER), held)
        if dice.random() < 0.02:
            ended = NEVER
        calls.append(call._replace(result=result, ended=ended))
    return calls


def test_it_decides_as_the_definition_does() -> None:
    dice = Random(1)
    found = {True: 0, False: 0}
    for _ in range(800):
        calls = [random_call(dice) for _ in range(dice.randint(1, 4))]
        expected = has_order(calls)
        assert (fault_of(calls) is None) == expected, calls
        found[expected] += 1
    assert min(found.values()) > 80


def test_it_decides_so_about_calls_without_an_end() -> None:
    """Most of their values are told by no other call."""
    dice = Random(2)
    found = {True: 0, False: 0}
    for _ in range(600):
        calls = [random_call(dice, 0.5, 4) for _ in range(dice.randint(2, 5))]
        expected = has_order(calls)
        assert (fault_of(calls) is None) == expected, calls
        found[expected] += 1
    assert min(found.values()) > 80


def test_many_calls_without_an_end_take_no_time() -> None:
    unknown = [
        Call(kind, at / 100, NEVER, 1 + at) for at, kind in enumerate((PUT, SWAP, READ) * 15)
    ]
    rest = [
        Call(PUT, 1, 2, 999),
        Call(READ, 3, 4, result=999),
        Call(COMPARE, 5, 6, 998, 999, False),
    ]
    assert fault_of([*unknown, *rest]) is None, "one of them has hidden the value"
    missed = Call(READ, 7, 8, result=1000)
    assert fault_of([*unknown, *rest, missed]) == missed


def test_long_histories_of_a_right_register_have_an_order() -> None:
    for seed in range(4):
        assert fault_of(register(Random(seed), 300, 8)) is None


def test_a_stale_read_and_a_lost_write_are_found() -> None:
    found = 0
    for seed in range(20):
        dice = Random(seed)
        calls = register(dice, 200, 4)
        reads = [at for at, call in enumerate(calls) if call.kind == READ and call.ended < NEVER]
        at = dice.choice(reads[5:])
        stale = calls[at]._replace(result=calls[reads[0]].result)
        fault = fault_of([*calls[:at], stale, *calls[at + 1 :]])
        found += fault is not None
    assert found >= 18, "only a value that comes again hides it"
    calls = [Call(PUT, 0, 1, 7), Call(READ, 2, 3), Call(SWAP, 4, 5, 8, None, 7)]
    assert fault_of(calls) == calls[1]


def test_many_calls_without_an_end_do_not_hold_up_the_search() -> None:
    """The first order that it tries of two puts is wrong; then it would try all sets of them."""
    unknown = [
        call
        for at in range(30)
        for call in (
            Call(SWAP, 0, NEVER, 100 + at),
            Call(COMPARE, 0, NEVER, 200 + at, 100 + at),
        )
    ]
    known = [Call(PUT, 0, 1, 1), Call(PUT, 0, 2, 2), Call(READ, 3, 4, result=1)]
    assert fault_of([*unknown, *known]) is None


def test_a_call_without_an_end_may_take_effect_late_or_never() -> None:
    put = Call(PUT, 0, NEVER, 1)
    nothing, one = Call(READ, 5, 6), Call(READ, 7, 8, result=1)
    assert fault_of([put, nothing]) is None
    assert fault_of([put, nothing, one]) is None
    assert fault_of([put, one, nothing._replace(began=9, ended=10)]) is not None
