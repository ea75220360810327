"""The form of log and lifecycle lines: `time event key=value`."""

import json
import time
from collections.abc import Mapping


def timestamp() -> str:
    """The time that log lines begin with: UTC, milliseconds."""
    now = time.time()
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now * 1000) % 1000:03}Z"


def format_event(event: str, values: Mapping[str, object]) -> str:
    """`event key=value`: the form of every log and lifecycle line."""
    return " ".join([event, *(f"{key}={_word(value)}" for key, value in values.items())])


def _word(value: object) -> str:
    """A value of a log line: quoted unless it is a single word."""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if text and text.isprintable() and not any(c in text for c in ' "='):
        return text
    return json.dumps(text)
