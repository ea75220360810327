"""A Spark job with a key: `python examples/secure/spark_job.py FOLDER`, as cluster.py has made it.

It writes table 7 and reads it again. The key `flights` may use no other table.
"""

import json
import subprocess
import sys
from pathlib import Path

import kelek.pipeline

folder = Path(sys.argv[1]).resolve()
URLS = {"tcp://127.0.0.1:7621": "n1", "tcp://127.0.0.1:7622": "n2", "tcp://127.0.0.1:7623": "n3"}


def public_key(name: str) -> str:
    command = ["kelek", "keys", "show", f"keys/{name}.key", "-o", "json"]
    found = subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return str(json.loads(found.stdout)["key"])


table = {
    "kind": "table",
    "urls": ",".join(URLS),
    "table": "7",
    "keyFile": str(folder / "keys" / "flights.key_secret"),
    "serverKeys": json.dumps({url: public_key(name) for url, name in URLS.items()}),
    "keyFormat": "be64",
    "valueFormat": "utf8",
}
spark = kelek.pipeline.session(app_name="secure", master="local[2]")
rows = spark.range(1000).selectExpr("id AS key", "'flight ' || id AS value")
rows.write.format("kelek").mode("append").options(**table).save()
print(f"table 7 has {spark.read.format('kelek').options(**table).load().count()} rows")
