"""The keys of a topology as a JSON Schema, and what they mean."""

import ast
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from .schema import REQUIRED, NamedSectionsType, SectionType, ValueType, keys_of
from .settings import TopologyFile


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a topology, for editors; old names of keys are deprecated in it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kelek topology",
        **_section_schema(TopologyFile),
    }


def descriptions(section: type) -> dict[str, str]:
    """What each key of a section means: the string below its declaration in the source."""
    found = {}
    for declared, below in pairwise(_classes(section.__module__)[section.__name__].body):
        match declared, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                found[name] = " ".join(text.split())
    return found


@cache  # inspect.getsource() parses the whole module for each class in it.
def _classes(module: str) -> dict[str, ast.ClassDef]:
    source = Path(str(sys.modules[module].__file__)).read_text("utf-8")
    return {each.name: each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)}


def _section_schema(section: type) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    renamed: list[list[str]] = []  # Required keys that have an old name.
    meaning = descriptions(section)
    for name, (type_, default, alias) in keys_of(section).items():
        schema = _value_schema(type_)
        properties[name] = {"description": meaning[name].replace("`", ""), **schema}
        if default is REQUIRED and alias:
            renamed.append([name, alias.name])
        elif default is REQUIRED:
            required.append(name)
        elif default not in ("", None, {}) and not is_dataclass(default):
            properties[name]["default"] = default
        if alias:
            values = {"enum": list(alias.values)} if alias.values else schema
            note = {"description": f"renamed to {name}", "deprecated": True}
            properties[alias.name] = {**note, **values}
    found = {"type": "object", "additionalProperties": False, "properties": properties}
    if required:
        found["required"] = required
    if renamed:
        found["allOf"] = [{"anyOf": [{"required": [name]} for name in names]} for names in renamed]
    return found


def _value_schema(type_: ValueType) -> Mapping[str, Any]:
    if isinstance(type_, SectionType):
        return _section_schema(type_.section)
    if isinstance(type_, NamedSectionsType):
        inner, most = _section_schema(type_.section), type_.sections_max
        return {"type": "object", "additionalProperties": inner, "maxProperties": most}
    return type_.schema
