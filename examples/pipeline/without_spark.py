"""A table in pandas, Polars and DuckDB: Arrow record batches, without a JVM."""

import duckdb
import polars
import pyarrow

import kelek

with kelek.Table("tcp://127.0.0.1:7100", 24) as table:
    names = pyarrow.table({"key": ["ann", "bob", "cid"], "value": ["41", "17", "35"]})
    table.put_arrow(names.to_batches())
    people = pyarrow.Table.from_batches(table.to_arrow())

ages = people.cast(pyarrow.schema({"key": pyarrow.string(), "value": pyarrow.string()}))
print("pandas:", ages.to_pandas().set_index("key")["value"].astype(int).to_dict())
print("Polars:", polars.from_arrow(ages).select(polars.col("value").cast(int).mean()).item())
print("DuckDB:", duckdb.sql("SELECT key FROM ages WHERE value::INT > 20 ORDER BY key").fetchall())
