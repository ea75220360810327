"""kelek.Farm: the blocking client of a farm.

All work happens inside the calls. A Farm belongs to one thread at a time.
"""

from ..io.driver import BlockingDriver
from .operations import FarmOperations


class Farm(FarmOperations, BlockingDriver):
    """A client of a farm: servers that share a log by Garlic Farm's protocol.

        with kelek.Farm("tls://127.0.0.1:7401", "farm", user="demo", secret_file="secret",
                        ca_file="ca.pem") as farm:
            farm.append(b"one")
            farm.append_many([b"two", b"three"])
            for entry in farm.entries(): ...

    servers       some of them, in a list, joined by commas, or by id: {1: "tls://.."}; the
                  client learns the others. zre://CLUSTER is looked up
    farm          the farm's name
    user          a user in the servers' password file. secret_file holds its password alone and
                  must have mode 0600 or less; or give password
    ca_file       the CA certificates (PEM) of the servers; None: the system's
    certificate_file, key_file
                  the user's certificate and its key (PEM), for servers that ask for one. The key
                  must have mode 0600 or less, and no password
    timeout_ms    of each call
    tuning        TLS versions, proxies, JRaft servers

    A value may be in the log twice if a leader is lost during the call: the protocol has no
    sessions. Raises FarmError or one of its subclasses.
    """
