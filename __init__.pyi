# The public names, each on one line: type checkers read this file, and __init__.py at run time.

from .clients.broker.async_broker import AsyncAnswerStream as AsyncAnswerStream
from .clients.broker.async_broker import AsyncBroker as AsyncBroker
from .clients.broker.body import Body as Body
from .clients.broker.broker import AnswerStream as AnswerStream
from .clients.broker.broker import Broker as Broker
from .clients.broker.broker import Future as Future
from .clients.broker.operations import BrokerTuning as BrokerTuning
from .clients.broker.service_worker import Service as Service
from .clients.broker.service_worker import Worker as Worker
from .clients.broker.service_worker import WorkerTuning as WorkerTuning
from .clients.broker.service_worker import service as service
from .clients.errors import BrokerError as BrokerError
from .clients.errors import BrokerTimeout as BrokerTimeout
from .clients.errors import BrokerUnavailable as BrokerUnavailable
from .clients.errors import ClaimLost as ClaimLost
from .clients.errors import Compacted as Compacted
from .clients.errors import Conflict as Conflict
from .clients.errors import Error as Error
from .clients.errors import FarmCompacted as FarmCompacted
from .clients.errors import FarmDenied as FarmDenied
from .clients.errors import FarmError as FarmError
from .clients.errors import FarmNoLeader as FarmNoLeader
from .clients.errors import FarmRefused as FarmRefused
from .clients.errors import FarmTimeout as FarmTimeout
from .clients.errors import FarmTooLarge as FarmTooLarge
from .clients.errors import FarmUnavailable as FarmUnavailable
from .clients.errors import FarmUntrusted as FarmUntrusted
from .clients.errors import JobFailed as JobFailed
from .clients.errors import JobGone as JobGone
from .clients.errors import KeyUnusable as KeyUnusable
from .clients.errors import LockLost as LockLost
from .clients.errors import LogCompacted as LogCompacted
from .clients.errors import LogError as LogError
from .clients.errors import LogExpired as LogExpired
from .clients.errors import LogNoLeader as LogNoLeader
from .clients.errors import LogNotAllowed as LogNotAllowed
from .clients.errors import LogRefused as LogRefused
from .clients.errors import LogTimeout as LogTimeout
from .clients.errors import LogTooLarge as LogTooLarge
from .clients.errors import LogUnavailable as LogUnavailable
from .clients.errors import MembersConflict as MembersConflict
from .clients.errors import MembersRefused as MembersRefused
from .clients.errors import NodeError as NodeError
from .clients.errors import NotAllowed as NotAllowed
from .clients.errors import Refused as Refused
from .clients.errors import ServiceNotAllowed as ServiceNotAllowed
from .clients.errors import ServiceRefused as ServiceRefused
from .clients.errors import SessionEnded as SessionEnded
from .clients.errors import SnapshotNotKept as SnapshotNotKept
from .clients.errors import SnapshotRefused as SnapshotRefused
from .clients.errors import SnapshotUnsupported as SnapshotUnsupported
from .clients.errors import StreamConflict as StreamConflict
from .clients.errors import StreamTrimmed as StreamTrimmed
from .clients.errors import TableCompacted as TableCompacted
from .clients.errors import TableError as TableError
from .clients.errors import TableJobLost as TableJobLost
from .clients.errors import TableNameConflict as TableNameConflict
from .clients.errors import TableNotAllowed as TableNotAllowed
from .clients.errors import TableRefused as TableRefused
from .clients.errors import TableSchemaError as TableSchemaError
from .clients.errors import TableTimeout as TableTimeout
from .clients.errors import TableTooLarge as TableTooLarge
from .clients.errors import TableUnavailable as TableUnavailable
from .clients.errors import TableUnsupported as TableUnsupported
from .clients.errors import Timeout as Timeout
from .clients.errors import TooLarge as TooLarge
from .clients.errors import TransferRefused as TransferRefused
from .clients.errors import Unavailable as Unavailable
from .clients.farm.async_farm import AsyncFarm as AsyncFarm
from .clients.farm.farm import Farm as Farm
from .clients.farm.operations import FarmTuning as FarmTuning
from .clients.farm.values import FarmEntry as FarmEntry
from .clients.farm.values import FarmPage as FarmPage
from .clients.farm.values import FarmServer as FarmServer
from .clients.lock.async_lock import AsyncElection as AsyncElection
from .clients.lock.async_lock import AsyncLock as AsyncLock
from .clients.lock.async_lock import AsyncSemaphore as AsyncSemaphore
from .clients.lock.lock import Election as Election
from .clients.lock.lock import Lock as Lock
from .clients.lock.lock import Semaphore as Semaphore
from .clients.lock.slots import Holder as Holder
from .clients.log.async_log import AsyncLog as AsyncLog
from .clients.log.log import Log as Log
from .clients.log.operations import LogTuning as LogTuning
from .clients.node.async_node import AsyncNode as AsyncNode
from .clients.node.base import NodeTuning as NodeTuning
from .clients.node.node import Node as Node
from .clients.queue.async_queue import AsyncQueue as AsyncQueue
from .clients.queue.job import AsyncJob as AsyncJob
from .clients.queue.job import Job as Job
from .clients.queue.job import JobInfo as JobInfo
from .clients.queue.operations import QueueTuning as QueueTuning
from .clients.queue.queue import Queue as Queue
from .clients.stream.async_group import AsyncGroup as AsyncGroup
from .clients.stream.async_stream import AsyncProducer as AsyncProducer
from .clients.stream.async_stream import AsyncStream as AsyncStream
from .clients.stream.core import StreamInfo as StreamInfo
from .clients.stream.group import Group as Group
from .clients.stream.group_admin import GroupInfo as GroupInfo
from .clients.stream.group_admin import GroupMember as GroupMember
from .clients.stream.layout import StreamRecord as StreamRecord
from .clients.stream.stream import Producer as Producer
from .clients.stream.stream import Stream as Stream
from .clients.table.async_table import AsyncTable as AsyncTable
from .clients.table.batch import Batch as Batch
from .clients.table.batch import BatchResult as BatchResult
from .clients.table.batch import Branch as Branch
from .clients.table.changes import Change as Change
from .clients.table.jobs import ClusterSnapshot as ClusterSnapshot
from .clients.table.jobs import RangeJob as RangeJob
from .clients.table.loads import LoadRun as LoadRun
from .clients.table.operations import TableTuning as TableTuning
from .clients.table.reads import KeyEntry as KeyEntry
from .clients.table.reads import KeyVersion as KeyVersion
from .clients.table.table import Table as Table
from .clients.table.typed.schema import TableSchema as TableSchema
from .clients.table.updates import KeyLifetime as KeyLifetime
from .clients.table.views.kept import KeptSnapshot as KeptSnapshot
from .clients.table.views.map import Map as Map
from .clients.table.views.view import AsyncTableView as AsyncTableView
from .clients.table.views.view import TableView as TableView
from .clients.tracing import disable_tracing as disable_tracing
from .clients.tracing import enable_tracing as enable_tracing
from .protocols.garlicfarm.app.documents import encode_status as encode_status
from .protocols.garlicfarm.app.state import SharedState as SharedState
from .protocols.zerodb.client.client import ServerInfo as ServerInfo
from .protocols.zerodb.wire.values import TableOptions as TableOptions
from .protocols.zmqraft.client.window import WindowLimits as WindowLimits
from .protocols.zmqraft.wire.client_codec import ConfigAnswer as ConfigAnswer
from .protocols.zmqraft.wire.client_codec import LogInfo as LogInfo
from .protocols.zmqraft.wire.entry import Entry as Entry
from .protocols.zmqraft.wire.snapshot_codec import SnapshotMade as SnapshotMade
from .protocols.zre.peers import Event as Event
from .protocols.zre.peers import EventKind as EventKind
from .protocols.zre.peers import PeerInfo as PeerInfo
from .protocols.zre.presence import Presence as Presence
from .protocols.zre.presence import decode_presence as decode_presence
from .protocols.zre.presence import is_presence as is_presence
from .version import __version__ as __version__

# ---- old names: kelek warns when a program uses them, and a later release drops them ----
ChangesGone = TableCompacted
JobLost = TableJobLost
MembersBusy = MembersConflict
NoBroker = BrokerUnavailable
NoFarm = FarmUnavailable
NoFarmLeader = FarmNoLeader
NoLeader = LogNoLeader
NoPeer = LogUnavailable
NoServer = TableUnavailable
NotKelek = SnapshotUnsupported
ServiceFailed = ServiceRefused
SnapshotNotMade = SnapshotRefused
UpdateExpired = LogExpired
UpdateRefused = LogRefused
UpdateTooLarge = LogTooLarge
