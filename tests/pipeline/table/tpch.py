"""Rows of some tables of TPC-H and its queries 1, 3, 6, 12 and 14.

A generator of its own, since DuckDB's is an extension that it loads from the network. It keeps the
types, ranges and relations that the queries need; the text is shorter. With KELEK_TPCH the rows are
those of Parquet files in that folder, such as of scale factor 0.1:

    pip install tpchgen-cli
    tpchgen-cli parquet -s 0.1 --output-dir=/tmp/tpch
    KELEK_TPCH=/tmp/tpch pytest tests/pipeline/table/test_typed.py -k tpch
"""

import os
from datetime import date, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ORDERS = 1500
CUSTOMERS = 150
PARTS = 200
FIRST_DAY = date(1992, 1, 1)
MODES = ("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB")
PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD")
TYPES = ("PROMO BRUSHED TIN", "STANDARD POLISHED COPPER", "ECONOMY ANODIZED STEEL")

# Columns and key of each table.
TABLES: dict[str, tuple[str, list[str]]] = {
    "lineitem": (
        "l_orderkey int64, l_linenumber int32, l_partkey int64, l_quantity decimal(15, 2), "
        "l_extendedprice decimal(15, 2), l_discount decimal(15, 2), l_tax decimal(15, 2), "
        "l_returnflag utf8, l_linestatus utf8, l_shipdate date32, l_commitdate date32, "
        "l_receiptdate date32, l_shipmode utf8, l_comment utf8",
        ["l_orderkey", "l_linenumber"],
    ),
    "orders": (
        "o_orderkey int64, o_custkey int64, o_totalprice decimal(15, 2), o_orderdate date32, "
        "o_orderpriority utf8, o_shippriority int32",
        ["o_orderdate", "o_orderkey"],
    ),
    "customer": ("c_custkey int64, c_name utf8, c_mktsegment utf8", ["c_mktsegment", "c_custkey"]),
    "part": ("p_partkey int64, p_type utf8", ["p_partkey"]),
}

QUERIES = {
    "Q1": """
        SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
            sum(l_extendedprice * (1 - l_discount)),
            sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), avg(l_quantity),
            avg(l_extendedprice), avg(l_discount), count(*)
        FROM lineitem WHERE l_shipdate <= DATE '1998-09-02'
        GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus""",
    "Q3": """
        SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate,
            o_shippriority
        FROM customer, orders, lineitem
        WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
            AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
        GROUP BY l_orderkey, o_orderdate, o_shippriority
        ORDER BY revenue DESC, o_orderdate, l_orderkey LIMIT 10""",
    "Q6": """
        SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem
        WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
            AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
    "Q12": """
        SELECT l_shipmode,
            sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END),
            sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 0 ELSE 1 END)
        FROM orders, lineitem
        WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP')
            AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
            AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01'
        GROUP BY l_shipmode ORDER BY l_shipmode""",
    "Q14": """
        SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount)
            ELSE 0 END) / sum(l_extendedprice * (1 - l_discount))
        FROM lineitem, part
        WHERE l_partkey = p_partkey AND l_shipdate >= DATE '1995-09-01'
            AND l_shipdate < DATE '1995-10-01'""",
}


def rows_of(name: str, schema: pa.Schema) -> pa.Table:
    """The rows of a table, the same at each call."""
    if folder := os.environ.get("KELEK_TPCH"):
        return pq.read_table(f"{folder}/{name}.parquet", columns=schema.names).cast(schema)
    makers = {"lineitem": lineitems, "orders": orders, "customer": customers, "part": parts}
    rows = makers[name](Random(1))
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def cents(random: Random, least: int, most: int) -> Decimal:
    return Decimal(random.randint(least, most)) / 100


def orders(random: Random) -> list[tuple[Any, ...]]:
    return [
        (
            order, random.randint(1, CUSTOMERS), cents(random, 100_00, 500_000_00),
            FIRST_DAY + timedelta(random.randrange(2406)), random.choice(PRIORITIES), 0,
        )
        for order in range(1, ORDERS + 1)
    ]  # fmt: skip


def lineitems(random: Random) -> list[tuple[Any, ...]]:
    found = []
    for order in orders(Random(1)):
        for line in range(1, random.randint(2, 8)):
            shipped = order[3] + timedelta(random.randint(1, 121))
            committed = order[3] + timedelta(random.randint(30, 90))
            received = shipped + timedelta(random.randint(1, 30))
            quantity = random.randint(1, 50)
            returned = random.choice("RA") if received <= date(1995, 6, 17) else "N"
            found.append((
                order[0], line, random.randint(1, PARTS), Decimal(quantity),
                quantity * cents(random, 900_00, 2000_00), cents(random, 0, 10),
                cents(random, 0, 8), returned, "O" if shipped > date(1995, 6, 17) else "F",
                shipped, committed, received, random.choice(MODES), f"comment {random.random()}",
            ))  # fmt: skip
    return found


def customers(random: Random) -> list[tuple[Any, ...]]:
    found = range(1, CUSTOMERS + 1)
    return [(number, f"Customer#{number:09}", random.choice(SEGMENTS)) for number in found]


def parts(random: Random) -> list[tuple[Any, ...]]:
    return [(number, random.choice(TYPES)) for number in range(1, PARTS + 1)]
