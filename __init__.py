"""kelek: a replicated log, tables, a broker, discovery and JRaft over ZeroMQ."""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .clients.async_broker import AsyncBroker as AsyncBroker
    from .clients.async_farm import AsyncFarm as AsyncFarm
    from .clients.async_log import AsyncLog as AsyncLog
    from .clients.async_node import AsyncNode as AsyncNode
    from .clients.async_table import AsyncTable as AsyncTable
    from .clients.batch import Batch as Batch
    from .clients.body import Body as Body
    from .clients.broker import Broker as Broker
    from .clients.broker_steps import BrokerTuning as BrokerTuning
    from .clients.errors import BrokerError as BrokerError
    from .clients.errors import BrokerTimeout as BrokerTimeout
    from .clients.errors import ChangesGone as ChangesGone
    from .clients.errors import FarmCompacted as FarmCompacted
    from .clients.errors import FarmDenied as FarmDenied
    from .clients.errors import FarmError as FarmError
    from .clients.errors import FarmRefused as FarmRefused
    from .clients.errors import FarmTimeout as FarmTimeout
    from .clients.errors import FarmTooLarge as FarmTooLarge
    from .clients.errors import FarmUntrusted as FarmUntrusted
    from .clients.errors import JobLost as JobLost
    from .clients.errors import LogCompacted as LogCompacted
    from .clients.errors import LogError as LogError
    from .clients.errors import LogTimeout as LogTimeout
    from .clients.errors import MembersBusy as MembersBusy
    from .clients.errors import MembersRefused as MembersRefused
    from .clients.errors import NoBroker as NoBroker
    from .clients.errors import NodeError as NodeError
    from .clients.errors import NoFarm as NoFarm
    from .clients.errors import NoFarmLeader as NoFarmLeader
    from .clients.errors import NoLeader as NoLeader
    from .clients.errors import NoPeer as NoPeer
    from .clients.errors import NoServer as NoServer
    from .clients.errors import NotKelek as NotKelek
    from .clients.errors import ServiceFailed as ServiceFailed
    from .clients.errors import SessionEnded as SessionEnded
    from .clients.errors import SnapshotNotMade as SnapshotNotMade
    from .clients.errors import TableError as TableError
    from .clients.errors import TableRefused as TableRefused
    from .clients.errors import TableTimeout as TableTimeout
    from .clients.errors import TableTooLarge as TableTooLarge
    from .clients.errors import TableUnsupported as TableUnsupported
    from .clients.errors import TransferRefused as TransferRefused
    from .clients.errors import UpdateExpired as UpdateExpired
    from .clients.errors import UpdateRefused as UpdateRefused
    from .clients.errors import UpdateTooLarge as UpdateTooLarge
    from .clients.farm import Farm as Farm
    from .clients.farm_steps import FarmTuning as FarmTuning
    from .clients.farm_values import FarmEntry as FarmEntry
    from .clients.farm_values import FarmPage as FarmPage
    from .clients.farm_values import FarmServer as FarmServer
    from .clients.log import Log as Log
    from .clients.node import Node as Node
    from .clients.node_face import NodeTuning as NodeTuning
    from .clients.serving import Service as Service
    from .clients.serving import Worker as Worker
    from .clients.serving import WorkerTuning as WorkerTuning
    from .clients.serving import service as service
    from .clients.table import Table as Table
    from .clients.table import TableOptions as TableOptions
    from .protocols.zre.peers import Event as Event
    from .protocols.zre.peers import EventKind as EventKind
    from .protocols.zre.peers import PeerInfo as PeerInfo

# Loaded when first asked for: `import kelek` alone loads neither ZeroMQ nor the C core.
# What is not named here is one of the errors.
_LAZY = {
    "AsyncBroker": ".clients.async_broker",
    "AsyncFarm": ".clients.async_farm",
    "AsyncLog": ".clients.async_log",
    "AsyncNode": ".clients.async_node",
    "AsyncTable": ".clients.async_table",
    "Batch": ".clients.batch",
    "Body": ".clients.body",
    "Broker": ".clients.broker",
    "BrokerTuning": ".clients.broker_steps",
    "Event": ".protocols.zre.peers",
    "EventKind": ".protocols.zre.peers",
    "Farm": ".clients.farm",
    "FarmEntry": ".clients.farm_values",
    "FarmPage": ".clients.farm_values",
    "FarmServer": ".clients.farm_values",
    "FarmTuning": ".clients.farm_steps",
    "Log": ".clients.log",
    "Node": ".clients.node",
    "NodeTuning": ".clients.node_face",
    "PeerInfo": ".protocols.zre.peers",
    "Service": ".clients.serving",
    "Table": ".clients.table",
    "TableOptions": ".clients.table",
    "Worker": ".clients.serving",
    "WorkerTuning": ".clients.serving",
    "service": ".clients.serving",
}

__all__ = [
    "AsyncBroker",
    "AsyncFarm",
    "AsyncLog",
    "AsyncNode",
    "AsyncTable",
    "Batch",
    "Body",
    "Broker",
    "BrokerError",
    "BrokerTimeout",
    "BrokerTuning",
    "ChangesGone",
    "Event",
    "EventKind",
    "Farm",
    "FarmCompacted",
    "FarmDenied",
    "FarmEntry",
    "FarmError",
    "FarmPage",
    "FarmRefused",
    "FarmServer",
    "FarmTimeout",
    "FarmTooLarge",
    "FarmTuning",
    "FarmUntrusted",
    "JobLost",
    "Log",
    "LogCompacted",
    "LogError",
    "LogTimeout",
    "MembersBusy",
    "MembersRefused",
    "NoBroker",
    "NoFarm",
    "NoFarmLeader",
    "NoLeader",
    "NoPeer",
    "NoServer",
    "Node",
    "NodeError",
    "NodeTuning",
    "NotKelek",
    "PeerInfo",
    "Service",
    "ServiceFailed",
    "SessionEnded",
    "SnapshotNotMade",
    "Table",
    "TableError",
    "TableOptions",
    "TableRefused",
    "TableTimeout",
    "TableTooLarge",
    "TableUnsupported",
    "TransferRefused",
    "UpdateExpired",
    "UpdateRefused",
    "UpdateTooLarge",
    "Worker",
    "WorkerTuning",
    "service",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_LAZY.get(name, ".clients.errors"), __name__), name)
    globals()[name] = value
    return value
