"""kelek.Farm: the blocking client of a farm.

All work happens inside the calls. A Farm belongs to one thread at a time.
"""

from ..io.driver import BlockingDriver
from ..io.public import public
from .operations import FarmOperations


@public()
class Farm(FarmOperations, BlockingDriver):
    """A client of a farm: servers that share a log by Garlic Farm's protocol.

        files = {"secret_file": "farm/demo.secret", "ca_file": "farm/ca.pem"}
        with kelek.Farm("tls://127.0.0.1:7401", user="demo", **files) as farm:
            print(farm.append(b"one"), [each.value for each in farm.entries()])

    servers           some of them: a list, joined by commas, or by id
    farm              the farm's name
    user              a user in the servers' password file
    secret_file       a file of mode 0600 or less with the password alone
    password          the password itself
    ca_file           the servers' CA certificates (PEM); None: the system's
    certificate_file  the user's certificate (PEM), for servers that ask for it
    key_file          its key (PEM), of mode 0600 or less, without password
    key               your secret key, if zre://CLUSTER has CURVE
    server_keys       its nodes' public keys: for the search alone
    timeout_ms        of each call
    tuning            TLS versions, proxies, JRaft servers

    append() append_many()         appends values; returns an index
    entries() watch() read()       committed entries; each new one; one page
    commit_index() status()        the last committed index; the leader
    servers() add_server() remove_server()         the members
    documents() publisher() publish() include() exclude()   the MetaLS
    export() import_()             the administrators' configuration
    reach() counters, close()      waits for a server; counts; closes

    The client learns the other servers; zre://CLUSTER is looked up. By id is
    {1: "tls://.."}. A value may be in the log twice if a leader is lost during
    the call: the protocol has no sessions. Raises FarmError or a subclass.
    """
