"""Tables of Spark's catalog: CREATE TABLE t USING kelek OPTIONS (..).

Spark up to 4.3 passes the options to a Python source when it creates such a table, but not when it
reads or writes the table. For a read it passes the columns with their comments. So the comment of
the last column holds the options.
"""

import json
from collections.abc import Mapping

from pyspark.sql.types import StructType

from ..errors import OptionError

OF_TABLE = "option."  # Prefix of each option's name; Spark passes each option again without it.
COMMENT = "kelek: "


def options_of_new_table(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of a CREATE TABLE; none if this is a frame or a view."""
    return {
        name.lower().removeprefix(OF_TABLE): text
        for name, text in given.items()
        if name.lower().startswith(OF_TABLE)
    }


def columns_with_options(columns: StructType | str, given: Mapping[str, str]) -> str:
    """Returns the columns in Spark's DDL, with the options in the comment of the last one."""
    assert isinstance(columns, str)
    text = COMMENT + json.dumps(given, ensure_ascii=False, sort_keys=True)
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"{columns} COMMENT '{quoted}'"


def read_options(given: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """Returns the options of a read: those that Spark passes, merged with the catalog table's.

    Raises OptionError if there are none.
    """
    if any(name.lower() == "kind" for name in given):
        return given
    for field in schema:
        comment = field.metadata.get("comment", "")
        if comment.startswith(COMMENT):
            found: dict[str, str] = json.loads(comment.removeprefix(COMMENT))
            return found | {name.lower(): text for name, text in given.items()}
    if given:
        return given
    raise OptionError(
        "Spark gave no options: of a table in its catalog they are kept with the columns that "
        "kelek names, so write CREATE TABLE .. USING kelek OPTIONS (..) without columns"
    )


def write_options(given: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the options of a write. Raises OptionError if there are none.

    Comments do not count: INSERT INTO t SELECT .. FROM s passes those of s.
    """
    if not given:
        raise OptionError(
            "Spark gives a Python source no options when it writes a table of its catalog: use "
            "INSERT INTO t WITH (kind '..', urls '..', ..), a temporary view, or df.write"
        )
    return given
