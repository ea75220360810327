"""The keys of a topology as a JSON Schema."""

from typing import Any

from .schema import section_schema
from .settings import TopologyFile


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a topology, for editors; old names of keys are deprecated in it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kelek topology",
        **section_schema(TopologyFile),
    }
