"""Parses a YAML file into values that know their line and column. It never builds a Python object.

The parser accepts mappings, sequences and scalars only. It refuses anchors, aliases, merge keys,
tags and further documents, so a small file cannot grow in memory. Size, depth and number of values
are limited.
"""

from pathlib import Path
from typing import Any, NoReturn

import yaml

from ..errors import OperatorError
from .yaml_values import Mapping, Mark, Node, Scalar, Sequence

FILE_BYTES_MAX = 256 << 10
VALUES_MAX = 10_000
DEPTH_MAX = 16
LIBYAML: Any = getattr(yaml, "CSafeLoader", None)  # Absent in some builds of PyYAML.
PLAIN_BELOW = "\ud800"


class _Builder:
    """Builds the tree from PyYAML's parser events."""

    def __init__(self, name: str, text: str, loader: Any) -> None:
        self._name = name
        self._events = yaml.parse(text, Loader=loader)
        self._count = 0

    def document(self) -> Node:
        self._next(yaml.StreamStartEvent)
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            self._fail(Mark(1, 1), "the file is empty", "write `cluster:` and `nodes:`")
        node = self._node(next(self._events), 0)
        self._next(yaml.DocumentEndEvent)
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            self._fail(_mark(event), "a second document begins here", "keep one document a file")
        return node

    def _next(self, kind: type[yaml.Event]) -> None:
        event = next(self._events)
        assert isinstance(event, kind), event

    def _node(self, event: yaml.Event, depth: int) -> Node:
        mark = _mark(event)
        self._count += 1
        if self._count > VALUES_MAX:
            self._fail(mark, f"more than {VALUES_MAX} values", "split the file")
        if depth > DEPTH_MAX:
            self._fail(mark, f"nested deeper than {DEPTH_MAX}", "write it flat")
        if isinstance(event, yaml.AliasEvent):
            self._fail(mark, f"alias *{event.anchor} is not supported", "write the value out")
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if anchor:
            self._fail(mark, f"anchor &{anchor} is not supported", "write the value out")
        if tag:
            self._fail(mark, f"tag {tag} is not supported", "write a plain value")
        if isinstance(event, yaml.ScalarEvent):
            if event.style == "" and not event.value:
                raise yaml.YAMLError("libyaml places an absent value at the next token")
            return Scalar(mark, event.value, not event.style)  # libyaml: "", PyYAML: None.
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                items.append(self._node(event, depth + 1))
            return Sequence(mark, items)
        return self._mapping(mark, depth)

    def _mapping(self, mark: Mark, depth: int) -> Mapping:
        entries: list[tuple[Scalar, Node]] = []
        lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            if not isinstance(key, Scalar):
                self._fail(key.mark, "a key must be a word", "write `key: value`")
            if key.text == "<<" and key.plain:
                self._fail(key.mark, "merge key << is not supported", "write the values out")
            if key.text in lines:
                self._fail(
                    key.mark,
                    f"key '{key.text}' is given twice, first in line {lines[key.text]}",
                    "remove one of them",
                )
            lines[key.text] = key.mark.line
            entries.append((key, self._node(next(self._events), depth + 1)))
        return Mapping(mark, entries)

    def _fail(self, mark: Mark, problem: str, way_out: str) -> NoReturn:
        raise OperatorError(f"{self._name}:{mark.line}:{mark.column}", problem, way_out)


def parse(path: str, text: str) -> Node:
    """Parses the text of one file. Raises OperatorError if it is not in the accepted YAML."""
    if found := read_fast(path, text):
        return found
    try:
        return _Builder(path, text, yaml.SafeLoader).document()
    except yaml.reader.ReaderError as error:
        mark = _mark_at(text, error.position)
        problem = f"character {text[error.position]!r} is not allowed in YAML"
        raise OperatorError(f"{path}:{mark.line}:{mark.column}", problem, "remove it") from None
    except yaml.MarkedYAMLError as error:
        place, problem = path, error.problem or "not YAML"
        if error.problem_mark:
            place = f"{path}:{error.problem_mark.line + 1}:{error.problem_mark.column + 1}"
        way_out = "correct the YAML there"
        if "'\\t'" in problem:
            problem, way_out = "YAML cannot be indented by a tab", "use spaces"
        raise OperatorError(place, _one_line(problem), way_out) from None


def read_fast(path: str, text: str) -> Mapping | None:
    """What libyaml reads, in a tenth of the time. None: the parser in Python decides.

    libyaml accepts tabs that PyYAML refuses, and says less of what is wrong.
    """
    is_plain = text.replace("\n", "").isprintable() and max(text, default="") < PLAIN_BELOW
    if LIBYAML is None or not is_plain:
        return None
    try:
        found = _Builder(path, text, LIBYAML).document()
    except (yaml.YAMLError, OperatorError):
        return None
    return found if isinstance(found, Mapping) else None


def read_text(path: str) -> str:
    """The text of a file. Raises OperatorError."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise OperatorError(path, "the file does not exist", "give the topology's path") from None
    except OSError as error:
        raise OperatorError(
            path, f"cannot be read: {error.strerror}", "give a readable file"
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise OperatorError(
            path,
            f"larger than {FILE_BYTES_MAX >> 10} KiB",
            "split it if it is a topology",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        mark = _mark_at(data[: error.start].decode("utf-8-sig"), error.start)
        raise OperatorError(
            f"{path}:{mark.line}:{mark.column}",
            f"byte 0x{data[error.start]:02x} is not UTF-8",
            "save the file as UTF-8",
        ) from None


def _mark(event: yaml.Event) -> Mark:
    assert event.start_mark is not None
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


def _mark_at(text: str, position: int) -> Mark:
    before = text[:position]
    return Mark(before.count("\n") + 1, len(before) - before.rfind("\n"))


def _one_line(text: str) -> str:
    return " ".join(text.split())
