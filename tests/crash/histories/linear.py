"""Linearizability of one register: does an order of its operations explain what clients saw?

Wing and Gong's search with a memo of (operations placed, value), as Lowe describes it in "Testing
for linearizability" (2017). An operation takes effect once between its call and its end. One
without an end (no answer, or an error) may take effect at any later time, or never. Registers are
independent, so that each key of a table is checked for itself.

Many operations without an end would make the search exponential. A read of them says nothing. Their
puts and swaps whose value no client tells of only hide the value before, each as well as another:
they take effect in the order of their calls. Mostly there is an order without all those whose value
no client has seen, which is therefore searched first.
"""

from collections.abc import Sequence
from typing import NamedTuple

READ, PUT, SWAP, COMPARE = "get", "put", "swap", "compare"
NEVER = float("inf")
UNTOLD = -1  # Stands for each value that no client tells of.


class Call(NamedTuple):
    """An operation of a client.

    kind      READ; PUT of `value`; SWAP for `value`; COMPARE: put `value` if it holds `expected`
    result    READ and SWAP: the value before; COMPARE: whether it did. Unknown without an end
    """

    kind: str
    began: float
    ended: float = NEVER
    value: int | None = None
    expected: int | None = None
    result: int | bool | None = None


def outcome(call: Call, held: int | None) -> tuple[bool, int | None]:
    """Whether the call's result fits what the register holds, and what it holds after it."""
    is_known = call.ended < NEVER
    match call.kind:
        case "get":
            return not is_known or call.result == held, held
        case "put":
            return True, call.value
        case "swap":
            return not is_known or call.result == held, call.value
        case _:
            does = held == call.expected
            return not is_known or call.result is does, call.value if does else held


def fault_of(calls: Sequence[Call]) -> Call | None:
    """None: there is an order. Else a call that no order explains: the earliest to end of those
    that the longest order found does not have."""
    known = [call for call in calls if call.ended < NEVER]
    seen = {call.result if call.kind in (READ, SWAP) else call.expected for call in known}
    likely = [call for call in calls if call.ended < NEVER or call.value in seen]
    return None if _search(likely) is None else _search(calls)


def _search(calls: Sequence[Call]) -> Call | None:
    """As fault_of()."""
    ordered = _shortened(calls)
    known = sum(1 << at for at, call in enumerate(ordered) if call.ended < NEVER)
    seen: set[tuple[int, int | None]] = set()
    todo: list[tuple[int, int | None]] = [(0, None)]
    longest = 0
    while todo:
        placed, held = todo.pop()
        if placed & known == known:
            return None
        if (placed & known).bit_count() > (longest & known).bit_count():
            longest = placed
        for at in _next(ordered, placed):
            fits, after = outcome(ordered[at], held)
            state = placed | 1 << at, after
            if fits and state not in seen:
                seen.add(state)
                todo.append(state)
    left = [call for at, call in enumerate(ordered) if not longest >> at & 1]
    return min(left, key=lambda call: call.ended)


def _shortened(calls: Sequence[Call]) -> list[Call]:
    """The calls in order, without what changes no answer."""
    told = {call.expected for call in calls}
    told |= {call.result for call in calls if call.ended < NEVER and call.kind in (READ, SWAP)}
    return [
        call if call.ended < NEVER or call.value in told else call._replace(value=UNTOLD)
        for call in sorted(calls, key=lambda call: call.began)
        if call.ended < NEVER or call.kind != READ
    ]


def _is_untold(call: Call) -> bool:
    return call.value == UNTOLD and call.kind != COMPARE


def _next(ordered: Sequence[Call], placed: int) -> list[int]:
    """The calls that may be the next: those that began before any other one left has ended, and of
    untold ones the first."""
    found: list[int] = []
    first_end, untold = NEVER, False
    at = _first_free(placed)
    while at < len(ordered) and ordered[at].began <= first_end:
        if not placed >> at & 1:
            if not (untold and _is_untold(ordered[at])):
                found.append(at)
            untold = untold or _is_untold(ordered[at])
            first_end = min(first_end, ordered[at].ended)
        at += 1
    # Those that end soonest come off the stack first.
    return sorted(found, key=lambda it: -ordered[it].ended)


def _first_free(placed: int) -> int:
    """The number of ones at the low end."""
    return (~placed & placed + 1).bit_length() - 1
