"""The catalogue of tables: how a client finds the number of a name, and changes it.

Requests carry numbers alone. The catalogue is a table (protocols/zerodb/wire/catalogue.py), which
clients read like any other; they change it by a compare-and-set that the server checks.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...protocols.zerodb.wire import answers, requests
from ...protocols.zerodb.wire.catalogue import (
    COUNTER,
    CatalogueChange,
    NameChange,
    NameExchange,
    decode_number,
    name_key,
)
from ...protocols.zerodb.wire.values import (
    CATALOGUE_TABLE,
    FEATURE_EXCHANGE,
    FEATURE_NAMES,
    NAMED_FIRST,
    NAMED_LAST,
    PACKED,
    PARTSYNC,
    Extension,
)
from ..errors import TableError, TableUnsupported
from ..io.operations import Operation

if TYPE_CHECKING:
    from .operations import TableOperations


def catalogue_values(
    client: "TableOperations", keys: Iterable[bytes], flags: int = PACKED
) -> Operation[list[bytes | None]]:
    """The values of keys of the catalogue, from the leader's index on unless flags has STALE."""
    asked = requests.Read(CATALOGUE_TABLE, list(keys), Extension(flags))
    return client._fetch(asked, answers.VALUES)


def find_number(client: "TableOperations", name: str) -> Operation[int | None]:
    """The number of a name; None: it has none."""
    return decode_number((yield from catalogue_values(client, [name_key(name)]))[0])


def make_number(client: "TableOperations", name: str) -> Operation[int]:
    """The number of a name, which gets the next one if it has none. Of several clients that give a
    name its number, one succeeds, and all get the same.

    Raises TableError, TableUnsupported, TableNotAllowed.
    """
    while True:
        data, last = yield from catalogue_values(client, [name_key(name), COUNTER])
        number = decode_number(data)
        if number is not None:
            return number
        number = (decode_number(last) or NAMED_FIRST - 1) + 1
        if number > NAMED_LAST:
            raise TableError("the catalogue has no number left for a new name")
        if (yield from change_names(client, NameChange(number, after=name, is_new=True))):
            return number


def change_names(client: "TableOperations", change: NameChange | NameExchange) -> Operation[bool]:
    """Changes names; False: they are not as the change expects. Raises TableUnsupported."""
    server = yield from client._served()
    feature, what = FEATURE_NAMES, "support names of tables"
    if isinstance(change, NameExchange):
        feature, what = FEATURE_EXCHANGE, "exchange names of tables"
    if not server.features & feature:
        raise TableUnsupported(f"the server at {server.url} does not {what}")
    return (yield from change_catalogue(client, change))


def change_catalogue(client: "TableOperations", change: CatalogueChange) -> Operation[bool]:
    """Changes the catalogue; False: it is not as the change expects."""
    flags = client._write_flags or PARTSYNC
    asked = requests.Transaction(change.compares(), change.operations(), [], flags)
    return (yield from client._fetch(asked, answers.TRANSACTION))[0]
