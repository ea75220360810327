"""How values become bytes, and bytes values: for kelek.Map, and a Table that has a codec."""

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

import msgpack


class Codec(Protocol):
    """How a value becomes bytes, and bytes a value."""

    def encode(self, value: Any, /) -> bytes: ...
    def decode(self, data: bytes, /) -> Any: ...


class _Json:
    def encode(self, value: Any) -> bytes:
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            raise _unstorable("json", value, error) from error

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


class _Msgpack:
    def encode(self, value: Any) -> bytes:
        try:
            data: bytes = msgpack.packb(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise _unstorable("msgpack", value, error) from error
        return data

    def decode(self, data: bytes) -> Any:
        return msgpack.unpackb(data)


class _Text:
    def encode(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"a value is a str, not {type(value).__name__}: choose another codec")
        return value.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


class _Bytes:
    def encode(self, value: bytes) -> bytes:
        return value  # checked_value() raises TypeError.

    def decode(self, data: bytes) -> bytes:
        return data


class _Pydantic:
    """A model of pydantic, as JSON."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def encode(self, value: Any) -> bytes:
        _check_model(value, self._model)
        data: bytes = value.model_dump_json().encode()
        return data

    def decode(self, data: bytes) -> Any:
        return self._model.model_validate_json(data)


class _Msgspec:
    """A Struct of msgspec, as JSON."""

    def __init__(self, struct: Any) -> None:
        msgspec: Any = import_module("msgspec")
        self._struct = struct
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(struct).decode

    def encode(self, value: Any) -> bytes:
        _check_model(value, self._struct)
        data: bytes = self._encode(value)
        return data

    def decode(self, data: bytes) -> Any:
        return self._decode(data)


def _unstorable(codec: str, value: Any, error: Exception) -> TypeError:
    kind = type(value).__name__
    return TypeError(f"codec {codec} cannot store this {kind}: {error}; choose another codec")


def _check_model(value: Any, model: Any) -> None:
    if not isinstance(value, model):
        raise TypeError(f"a value is a {model.__name__}, not {type(value).__name__}")


CODECS: Mapping[str, Codec] = {
    "json": _Json(),
    "msgpack": _Msgpack(),
    "text": _Text(),
    "bytes": _Bytes(),
}


def codec_of(codec: Any) -> Codec:
    """A codec by name, of a model, or as given. Raises ValueError."""
    if isinstance(codec, str):
        if codec not in CODECS:
            raise ValueError(f"codec is {', '.join(CODECS)}, a model or a codec, not {codec!r}")
        return CODECS[codec]
    if hasattr(codec, "model_validate_json"):
        return _Pydantic(codec)
    if hasattr(codec, "__struct_fields__"):
        return _Msgspec(codec)
    if not (callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))):
        raise ValueError(f"a codec has encode() and decode(), {type(codec).__name__} has not")
    checked: Codec = codec
    return checked
