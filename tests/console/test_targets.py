"""How long a command waits for the first answer of a server."""

import pytest

from kelek.clients.errors import BrokerTimeout, Error, TableUnavailable
from kelek.console.targets import reach
from kelek.protocols.failover.limits import REACH_MS, SLOW_REACH_MS


class Silent(TableUnavailable):
    _is_silent = True


@pytest.mark.parametrize(
    "error", [Silent("no answer"), BrokerTimeout("no answer")], ids=["table", "broker"]
)
def test_a_slow_server_gets_more_time(error: Error, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[int] = []

    def ask(within_ms: int) -> str:
        asked.append(within_ms)
        if len(asked) == 1:
            raise error
        return "answer"

    assert reach(ask, 60_000) == "answer"
    assert asked == [REACH_MS, SLOW_REACH_MS]
    said = "no answer in 2 s, but the connection is not refused; waiting 10 s more"
    assert capsys.readouterr().err == f"kelek: {said}\n"


@pytest.mark.parametrize(
    ("error", "timeout_ms"),
    [(TableUnavailable("no connection"), 60_000), (Silent("no answer"), 500)],
)
def test_a_command_fails_soon_if_no_server_listens_or_its_time_is_over(
    error: Error, timeout_ms: int, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def ask(within_ms: int) -> None:
        asked.append(within_ms)
        raise error

    with pytest.raises(TableUnavailable):
        reach(ask, timeout_ms)
    assert asked == [min(REACH_MS, timeout_ms)]
    assert capsys.readouterr().err == ""
