"""The harness of the ZRE actors."""

from collections.abc import Iterator

import pytest

from kelek.tests.actors.actor_harness import ActorHarness


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Iterator[ActorHarness]:
    """The parameter limits the number of its sockets."""
    harness = ActorHarness(*([request.param] if hasattr(request, "param") else []))
    yield harness
    harness.close()
