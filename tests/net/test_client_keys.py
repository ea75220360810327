"""A client's own key and the keys of its servers."""

import pickle
from pathlib import Path

import pytest
import zmq

from kelek.net.access.keys import load_key
from kelek.net.client_keys import ClientKeys, UnpinnedServer, load_client_keys
from kelek.net.errors import OperatorError
from kelek.net.private_files import replace_file
from kelek.net.sockets import CurveClient
from kelek.protocols.access.certificates import (
    Certificate,
    decode_key,
    encode_key,
    format_certificate,
)

URL, OTHER = "tcp://127.0.0.1:7101", "tcp://127.0.0.1:7102"


def new_key(name: str) -> Certificate:
    public, secret = zmq.curve_keypair()
    return Certificate(decode_key(public.decode()), decode_key(secret.decode()), {"name": name})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "orders.key_secret"
    replace_file(found, format_certificate(new_key("orders")))
    return found


def test_a_secret_key_is_in_a_private_file(path: Path) -> None:
    key = load_key(path)
    assert (key.name, len(key.secret_key)) == ("orders", 32)
    path.chmod(0o640)
    with pytest.raises(OperatorError, match=r"^topology: .*mode 0640.*chmod 600"):
        load_key(str(path), "topology")
    public = path.with_name("orders.key")
    replace_file(public, format_certificate(key._replace(secret_key=b"")))
    with pytest.raises(OperatorError, match=r"is a public key; name .*orders\.key_secret"):
        load_key(public)
    replace_file(path, "curve\n")
    with pytest.raises(OperatorError, match="no public-key"):
        load_key(path)


def test_a_connection_has_the_pinned_key_of_its_url(path: Path) -> None:
    own, server = load_key(path), new_key("n1").public_key
    keys = load_client_keys(path, {URL: encode_key(server), "tcp://old:1": None})
    assert keys.curve(URL) == CurveClient(server, own.public_key, own.secret_key)
    assert keys.curve("tcp://old:1") is None, "it was said to have no CURVE"
    assert keys.curve("ipc:///run/n1") is None
    with pytest.raises(UnpinnedServer, match=rf"^{OTHER}: no key"):
        keys.curve(OTHER)
    assert keys.curve(OTHER, URL) == keys.curve(URL), "another address of the same server"
    with pytest.raises(UnpinnedServer):
        keys.curve(OTHER, "tcp://old:1")
    one = load_client_keys(path, encode_key(server))
    assert one.curve(OTHER) == keys.curve(URL)


@pytest.mark.parametrize("text", ["", "short", "x" * 41, '"' * 40])
def test_a_malformed_server_key_is_named_by_its_url(path: Path, text: str) -> None:
    with pytest.raises(OperatorError, match=rf"^{URL}: the server key is malformed"):
        load_client_keys(path, {URL: text})
    with pytest.raises(OperatorError, match=r"^server key: the server key is malformed"):
        load_client_keys(path, text)


def test_the_secret_stays_in_the_object(path: Path) -> None:
    own = load_key(path)
    keys = ClientKeys(own, new_key("n1").public_key)
    shown = f"{keys!r} {keys} {keys.curve(URL)!r} {own!r}"
    assert "orders" in shown
    assert encode_key(own.secret_key) not in shown
    assert repr(own.secret_key)[2:12] not in shown
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(keys)
