"""Reads and writes kelek's tables, logs, nodes and farms with Spark (`pip install 'kelek[spark]'`).

    spark = kelek.pipeline.session()
    spark.read.format("kelek").options(kind="table", urls="tcp://127.0.0.1:7100", table=7).load()

The package imports Spark at the first call of session().
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .spark_session import session as session

__all__ = ["session"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .spark_session import session

    return session
