"""Map a table on its node: a WebAssembly mapper makes an index, and Spark reads the index.

The topology allows mappers (zerodb: {mapper: wasm}), and its nodes have kelek[wasm].
"""

from pathlib import Path

import wasmtime

import kelek
import kelek.pipeline

URL = "tcp://127.0.0.1:7100"
MAPPER = Path(__file__).parents[1] / "mappers" / "swap.wat"  # Stores each pair under its value.

with kelek.Table(URL, 22) as planes:
    planes.put_many((b"flight/%04d" % n, b"plane %03d/%04d" % (n % 250, n)) for n in range(5000))
    with kelek.Table(URL, 23) as index:
        index.truncate()
    job = planes.wait_job(planes.map_into(23, bytes(wasmtime.wat2wasm(MAPPER.read_text()))))
    print(f"{job['state']}: {int(job['rows']):,} rows mapped, {int(job['puts']):,} put")

spark = kelek.pipeline.session(app_name="server-side map", master="local[2]")
form = {"keyFormat": "utf8", "valueFormat": "utf8"}
reader = spark.read.format("kelek").options(kind="table", urls=URL, table=23, **form)
of_one = reader.option("prefix", "plane 042/").load()
print(f"{of_one.count()} flights of plane 042, the first one {of_one.first().value}")
