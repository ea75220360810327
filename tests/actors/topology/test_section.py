"""Sections of a topology: dataclasses that inherit their methods."""

from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import pytest

from kelek.actors.topology.section import Section


class Settings(Section):
    number: int
    word: str = "default"


class Further(Settings):
    third: tuple[int, ...] = ()


def test_a_section_is_a_frozen_dataclass() -> None:
    made = Further(third=(1,), number=5)
    assert is_dataclass(made)
    assert [one.name for one in fields(Further)] == ["number", "word", "third"]
    assert repr(made) == "Further(number=5, word='default', third=(1,))"
    assert replace(made, word="other") == Further(number=5, word="other", third=(1,))
    assert made != Further(number=6, third=(1,))
    assert Settings(number=5) != Further(number=5)
    assert len({made, Further(number=5, third=(1,)), Further(number=5)}) == 2
    with pytest.raises(FrozenInstanceError, match="'number'"):
        made.number = 6  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="'number'"):
        del made.number
    with pytest.raises(TypeError, match="Further: 'number' is missing"):
        Further()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Settings: unknown third"):
        Settings(number=1, third=2)  # type: ignore[call-arg]
