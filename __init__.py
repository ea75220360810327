"""kelek: a replicated log, tables, a broker, discovery and JRaft over ZeroMQ."""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .clients.broker.async_broker import AsyncBroker as AsyncBroker
    from .clients.broker.body import Body as Body
    from .clients.broker.broker import Broker as Broker
    from .clients.broker.operations import BrokerTuning as BrokerTuning
    from .clients.broker.service_worker import Service as Service
    from .clients.broker.service_worker import Worker as Worker
    from .clients.broker.service_worker import WorkerTuning as WorkerTuning
    from .clients.broker.service_worker import service as service
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
    from .clients.farm.async_farm import AsyncFarm as AsyncFarm
    from .clients.farm.farm import Farm as Farm
    from .clients.farm.operations import FarmTuning as FarmTuning
    from .clients.farm.values import FarmEntry as FarmEntry
    from .clients.farm.values import FarmPage as FarmPage
    from .clients.farm.values import FarmServer as FarmServer
    from .clients.log.async_log import AsyncLog as AsyncLog
    from .clients.log.log import Log as Log
    from .clients.node.async_node import AsyncNode as AsyncNode
    from .clients.node.base import NodeTuning as NodeTuning
    from .clients.node.node import Node as Node
    from .clients.table.async_table import AsyncTable as AsyncTable
    from .clients.table.batch import Batch as Batch
    from .clients.table.table import Table as Table
    from .clients.table.table import TableOptions as TableOptions
    from .protocols.zre.peers import Event as Event
    from .protocols.zre.peers import EventKind as EventKind
    from .protocols.zre.peers import PeerInfo as PeerInfo

# Loaded when first asked for: `import kelek` alone loads neither ZeroMQ nor the C core.
# What is not named here is one of the errors.
_LAZY = {
    "AsyncBroker": ".clients.broker.async_broker",
    "AsyncFarm": ".clients.farm.async_farm",
    "AsyncLog": ".clients.log.async_log",
    "AsyncNode": ".clients.node.async_node",
    "AsyncTable": ".clients.table.async_table",
    "Batch": ".clients.table.batch",
    "Body": ".clients.broker.body",
    "Broker": ".clients.broker.broker",
    "BrokerTuning": ".clients.broker.operations",
    "Event": ".protocols.zre.peers",
    "EventKind": ".protocols.zre.peers",
    "Farm": ".clients.farm.farm",
    "FarmEntry": ".clients.farm.values",
    "FarmPage": ".clients.farm.values",
    "FarmServer": ".clients.farm.values",
    "FarmTuning": ".clients.farm.operations",
    "Log": ".clients.log.log",
    "Node": ".clients.node.node",
    "NodeTuning": ".clients.node.base",
    "PeerInfo": ".protocols.zre.peers",
    "Service": ".clients.broker.service_worker",
    "Table": ".clients.table.table",
    "TableOptions": ".clients.table.table",
    "Worker": ".clients.broker.service_worker",
    "WorkerTuning": ".clients.broker.service_worker",
    "service": ".clients.broker.service_worker",
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
