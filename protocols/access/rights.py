"""The right that each command of each protocol needs. A message needs one of the bits of its row.

`ANY` is for commands by which every kind of client finds its server. A command without a row is
refused. Which tables and services a key may use, its grants say (grants.py).
"""

from collections.abc import Mapping
from types import MappingProxyType

from ..garlicfarm.wire.messages import MessageType
from ..majordomo import values as majordomo
from ..zerodb.wire import values as zerodb
from ..zmqraft.wire import values as zmqraft
from .grants import ALL, Right

ANY = ALL
READ = Right.LOG_READ
PEER, ADMIN = Right.PEER, Right.ADMIN

# By message type.
LOG: Mapping[bytes, Right] = MappingProxyType({
    zmqraft.HELLO: ANY,
    zmqraft.REQUEST_CONFIG: ANY,
    zmqraft.REQUEST_LOG_INFO: READ | Right.LOG_APPEND | Right.OBSERVE,
    zmqraft.REQUEST_UPDATE: Right.LOG_APPEND,
    zmqraft.UPDATE_PACK: Right.LOG_APPEND,
    zmqraft.REQUEST_ENTRIES: READ,
    zmqraft.ENTRIES_PACKED: READ,
    zmqraft.REQUEST_BROADCAST_STATE_URL: READ,
    zmqraft.READ_INDEX: READ,
    zmqraft.CONFIG_UPDATE: ADMIN,
    zmqraft.TRANSFER: ADMIN,
    zmqraft.MAKE_SNAPSHOT: ADMIN,
    zmqraft.REQUEST_VOTE: PEER,
    zmqraft.PRE_VOTE: PEER,
    zmqraft.TRANSFER_VOTE: PEER,
    zmqraft.TIMEOUT_NOW: PEER,
    zmqraft.APPEND_ENTRIES: PEER,
    zmqraft.APPEND_PACKED: PEER,
    zmqraft.INSTALL_SNAPSHOT: PEER,
    zmqraft.INSTALL_PACKED: PEER,
})  # fmt: skip

# By request type. Sessions, leases and jobs of other keys need ADMIN.
TABLES: Mapping[int, Right] = MappingProxyType({
    zerodb.SERVER_INFO: ANY,
    zerodb.TABLE_INFO: Right.TABLE_READ | Right.OBSERVE,
    zerodb.READ: Right.TABLE_READ,
    zerodb.COUNT: Right.TABLE_READ,
    zerodb.EXISTS: Right.TABLE_READ,
    zerodb.SCAN: Right.TABLE_READ,
    zerodb.SPLIT_POINTS: Right.TABLE_READ,
    zerodb.WATCH: Right.TABLE_READ,
    zerodb.LIFETIMES: Right.TABLE_READ,
    zerodb.PUT: Right.TABLE_WRITE,
    zerodb.DELETE: Right.TABLE_WRITE,
    zerodb.DELETE_RANGE: Right.TABLE_WRITE,
    zerodb.DELETE_LIMITED: Right.TABLE_WRITE,
    zerodb.WRITE_TABLES: Right.TABLE_WRITE,
    zerodb.TRANSACTION: Right.TABLE_READ | Right.TABLE_WRITE,
    zerodb.SESSION: Right.TABLE_WRITE | ADMIN,
    zerodb.LOAD: Right.TABLE_WRITE,
    zerodb.FORWARD_RANGE: Right.JOBS,
    zerodb.MAP_TABLE: Right.JOBS,
    zerodb.RANGE_JOB: Right.JOBS,
    zerodb.COPY_TABLE: Right.JOBS,
    zerodb.CLIENT_DATA: Right.JOBS,
    zerodb.JOB_STATUS: Right.JOBS | Right.OBSERVE,
    zerodb.LIST_JOBS: Right.JOBS | Right.OBSERVE,
    zerodb.END_JOB: Right.JOBS | ADMIN,
    zerodb.LEASE: Right.JOBS | ADMIN,
    zerodb.OPEN_TABLE: ADMIN,
    zerodb.CLOSE_TABLE: ADMIN,
    zerodb.COMPACT_TABLE: ADMIN,
    zerodb.TRUNCATE_TABLE: ADMIN,
})  # fmt: skip

# Of all commands of a broker's two sides, in all framings.
BROKER_CLIENT = Right.CALL | Right.OBSERVE  # OBSERVE: only the broker's own services below.
BROKER_WORKER = Right.WORK

# Services of the broker itself, by name. Others are allowed by patterns.
BROKER_SERVICES: Mapping[bytes, Right] = MappingProxyType({
    majordomo.MMI_SERVICE: Right.CALL | Right.OBSERVE,
    majordomo.OWN_FEATURES: Right.CALL | Right.OBSERVE,
    majordomo.OWN_SERVICES: Right.OBSERVE,
    majordomo.OWN_WORKERS: Right.OBSERVE,
    majordomo.TITANIC_REQUEST: Right.CALL,
    majordomo.TITANIC_REPLY: Right.CALL,
    majordomo.TITANIC_CLOSE: Right.CALL,
})  # fmt: skip

# By request type of a farm. PEER: as the server that the user may act as.
FARM: Mapping[MessageType, Right] = MappingProxyType({
    # Without entries it asks for the leader. Entries need LOG_APPEND, orders ADMIN, and a server's
    # status document PEER (append_policy.py).
    MessageType.CLIENT_REQUEST: ANY,
    MessageType.ADD_SERVER: ADMIN,
    MessageType.REMOVE_SERVER: ADMIN | PEER,  # PEER: the sender itself.
    MessageType.REQUEST_VOTE: PEER,
    MessageType.APPEND_ENTRIES: PEER,
    MessageType.SYNC_LOG: PEER,
    MessageType.JOIN_CLUSTER: PEER,
    MessageType.LEAVE_CLUSTER: PEER,
    MessageType.INSTALL_SNAPSHOT: PEER,
})  # fmt: skip

# By the last segment of a path of a farm's HTTP API.
FARM_PATHS: Mapping[str, Right] = MappingProxyType({
    "websocket": ANY,  # The messages above.
    "status": ANY,
    "documents": READ,
    "entries": READ,
    "configuration": READ | ADMIN,
})  # fmt: skip
