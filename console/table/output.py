"""The formats of keys and values: one line of text, or a JSON object."""

import base64
import json


def data_text(data: bytes) -> str:
    """UTF-8 on one line, with other characters escaped."""
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def pair_text(key: bytes, value: bytes) -> str:
    return f"{data_text(key)}\t{data_text(value)}"


def data_json(name: str, data: bytes | None) -> dict[str, object]:
    """{name: text}, or {name_base64: ...} for data that is not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def pair_json(key: bytes, value: bytes) -> str:
    return json.dumps({**data_json("key", key), **data_json("value", value)})
