"""The values of a YAML file with their positions: mappings, sequences, scalars."""

from typing import NamedTuple


class Mark(NamedTuple):
    """A position in the file: line and column count from 1."""

    line: int
    column: int


class Scalar(NamedTuple):
    mark: Mark
    text: str
    plain: bool  # Written without quotes.


class Mapping(NamedTuple):
    mark: Mark
    entries: list[tuple[Scalar, "Node"]]


class Sequence(NamedTuple):
    mark: Mark
    items: list["Node"]


Node = Scalar | Mapping | Sequence
