"""How parts of kelek announce themselves: headers of a HELLO, their names and values.

    X-KELEK-CLUSTER    the cluster's ident: NAME in zre://NAME
    X-KELEK-LOG        the url of a Raft peer
    X-KELEK-TABLES     of a door to the tables
    X-KELEK-BROKER     of a broker's clients
    X-KELEK-WORKERS    of a broker's workers
    X-KELEK-FARM       of a farm's server
    X-KELEK-PRESENCE   of a log service that is told more than the text's reports (presence.py)
    X-ZRELOG           tcp://ipaddress:port of a log service (the text, "ZRE/LOG")

Several urls in one value are joined by commas.
"""

CLUSTER = "X-KELEK-CLUSTER"
LOG = "X-KELEK-LOG"
TABLES = "X-KELEK-TABLES"
BROKER = "X-KELEK-BROKER"
WORKERS = "X-KELEK-WORKERS"
FARM = "X-KELEK-FARM"
PRESENCE = "X-KELEK-PRESENCE"
URLS_SEPARATOR = ","
