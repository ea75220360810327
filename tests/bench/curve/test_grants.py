"""The question `grants`: both receivers get all messages, with grants and without."""

import pytest
import zmq

from kelek.bench.curve import grants


@pytest.mark.parametrize("case", grants.cases(), ids=lambda case: case.name)
def test_messages_pass_the_grants(case: grants.GrantsCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "MESSAGES", 40)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        guarded, other = grants.receivers(context, case)
        assert guarded.drain.is_guarded
        assert not other.drain.is_guarded
        assert guarded.receive() > 0
        assert other.receive() > 0
    finally:
        context.destroy(0)
    assert len(grants.measured(case, 2)) == 2
