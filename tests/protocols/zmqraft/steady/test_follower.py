"""A follower in C answers, appends and commits as one in Python does, message by message."""

import sys
from pathlib import Path

import pytest

from kelek.protocols.errors import LocalProtocolError
from kelek.tests.protocols.zmqraft.steady import bugs
from kelek.tests.protocols.zmqraft.steady.twins import compare

SEEDS = range(60)
BUG_SEEDS = range(200)


def test_both_do_the_same() -> None:
    followed = sum(compare(seed) for seed in SEEDS)
    assert followed > 20 * len(SEEDS)  # So many messages of C, else the test compares nothing.


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return bugs.compile_objects(tmp_path_factory.mktemp("objects"))


@pytest.mark.skipif(sys.platform != "linux", reason="needs -Bsymbolic")
@pytest.mark.parametrize("name", bugs.BUGS)
def test_a_planted_bug_is_found(name: str, objects: list[Path], tmp_path: Path) -> None:
    with bugs.planted(name, tmp_path, objects):
        for seed in BUG_SEEDS:
            try:
                compare(seed)
            except (AssertionError, LocalProtocolError):
                return
    raise RuntimeError(f"no seed finds: {name}")


@pytest.mark.skipif(sys.platform != "linux", reason="needs -Bsymbolic")
def test_without_a_bug_nothing_is_found(objects: list[Path], tmp_path: Path) -> None:
    with bugs.planted("", tmp_path, objects):
        for seed in SEEDS[:10]:
            compare(seed)
