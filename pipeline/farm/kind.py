"""The kind `farm`: documents, orders and Configurations of a Garlic Farm's log, in log order."""

from ..kind import Kind
from ..log.source import LogReader, LogStreamReader
from .options import FarmReadOptions
from .rows import SCHEMA

KIND = Kind("farm", SCHEMA, (FarmReadOptions, LogReader, LogStreamReader))
