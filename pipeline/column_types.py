"""Checks when a query is planned that json and msgpack can hold the types of its columns."""

from pyspark.sql import types
from pyspark.sql.types import DataType, StringType

from .errors import SchemaError
from .formats import STRUCTURED

PLAIN = types.BooleanType, types.IntegralType, types.FloatType, types.DoubleType, types.NullType


def check_type(name: str, form: str, data_type: DataType) -> None:
    """Raises SchemaError unless the format can hold the column's type."""
    if form in STRUCTURED and (reason := _misfit(form, data_type)):
        raise SchemaError(f"column {name} is {data_type.simpleString()}: {reason}")


def _misfit(form: str, data_type: DataType) -> str:
    """Returns why the type does not fit and what to do about it, or "" if it fits."""
    match data_type:
        case types.ArrayType():
            return _misfit(form, data_type.elementType)
        case types.StructType():
            found = (_misfit(form, field.dataType) for field in data_type)
            return next(filter(None, found), "")
        case types.MapType(keyType=StringType()):
            return _misfit(form, data_type.valueType)
        case types.MapType():
            keys = data_type.keyType.simpleString()
            return f"{form} has maps with text as keys, not {keys}; use MAP<STRING, ...>"
        case types.BinaryType() if form == "msgpack":
            return ""
        case types.BinaryType():
            return "json has no bytes; use text, as by base64(), or the format msgpack"
        case _ if isinstance(data_type, (StringType, *PLAIN)):
            return ""
    return f"{form} has no {data_type.simpleString()}; use STRING, or a number, and cast it"
