"""The headers by which parts of kelek announce themselves in HELLO.

    X-KELEK-CLUSTER    the cluster's ident: NAME in zre://NAME
    X-KELEK-LOG        the url of a Raft peer
    X-KELEK-TABLES     the url of a table server
    X-KELEK-BROKER     a broker's url for clients
    X-KELEK-WORKERS    a broker's url for workers
    X-KELEK-FARM       the url of a farm server
    X-KELEK-PRESENCE   a log service that accepts presence reports (presence.py)
    X-ZRELOG           tcp://ipaddress:port of a log service (RFC 20, "ZRE/LOG")

A value may hold several urls, separated by commas.
"""

CLUSTER = "X-KELEK-CLUSTER"
LOG = "X-KELEK-LOG"
TABLES = "X-KELEK-TABLES"
BROKER = "X-KELEK-BROKER"
WORKERS = "X-KELEK-WORKERS"
FARM = "X-KELEK-FARM"
PRESENCE = "X-KELEK-PRESENCE"
ZRE_LOG = "X-ZRELOG"
URLS_SEPARATOR = ","
