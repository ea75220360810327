"""Which of Spark's types json and msgpack hold: said when a query is planned, not by its tasks."""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
)

from .errors import SchemaError
from .formats import STRUCTURED

PLAIN = (BooleanType, IntegralType, FloatType, DoubleType, StringType, NullType)


def check_type(name: str, form: str, data_type: DataType) -> None:
    """A column's type must be what its format holds. Raises SchemaError."""
    if form in STRUCTURED and (reason := _misfit(form, data_type)):
        raise SchemaError(f"column {name} is {data_type.simpleString()}: {reason}")


def _misfit(form: str, data_type: DataType) -> str:
    """Why it does not fit, and the way out; empty: it does."""
    match data_type:
        case ArrayType():
            return _misfit(form, data_type.elementType)
        case StructType():
            found = (_misfit(form, field.dataType) for field in data_type)
            return next(filter(None, found), "")
        case MapType(keyType=StringType()):
            return _misfit(form, data_type.valueType)
        case MapType():
            keys = data_type.keyType.simpleString()
            return f"{form} has maps with text as keys, not {keys}; use MAP<STRING, ...>"
        case BinaryType() if form == "msgpack":
            return ""
        case BinaryType():
            return "json has no bytes; use text, as by base64(), or the format msgpack"
        case _ if isinstance(data_type, PLAIN):
            return ""
    return f"{form} has no {data_type.simpleString()}; use STRING, or a number, and cast it"
