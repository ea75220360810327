"""A private CA and certificates of servers, to try farms out: `kelek farm cert`.

Keys are made on P-256. For anything but trying use the CA that you have.
"""

import datetime
import os
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from ..cli_errors import FAILED, CliError
from ..output import show_json
from ..targets import Where
from .files import write

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName, KeyUsage

CA_DAYS = 3650
CLOCKS_APART = datetime.timedelta(hours=1)


class Signer(NamedTuple):
    """A CA."""

    certificate: "Certificate"
    key: "EllipticCurvePrivateKey"


def make(place: str, hosts: tuple[str, ...], options: Where) -> None:
    """Makes one certificate, and the CA if there is none."""
    try:
        import cryptography.x509  # noqa: F401
    except ImportError:
        way_out = "pip install 'kelek[farm]', or make certificates with openssl"
        raise CliError(f"cert: it takes the package cryptography; {way_out}", FAILED) from None
    folder, name = Path(place), options["name"]
    if not name or name == "ca" or Path(name).name != name:
        raise CliError(f"--name: '{name}' can't be the name of the files; take another one")
    target = folder / f"{name}.pem"
    if target.exists():
        raise CliError(f"{target}: it is there already; remove it, or take another --name")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        signer = _signer(folder)
        names = [general_name(host) for host in hosts]
        _sign(signer, names, target, options["days"])
    except OSError as error:
        raise CliError(f"{error.filename or place}: {error.strerror}", FAILED) from error
    own, key = folder / "ca.pem", target.with_suffix(".key")
    if options["output"] == "json":
        found = {"ca": str(own), "certificate": str(target), "key": str(key)}
        show_json({**found, "hosts": hosts, "days": options["days"]})
        return
    click.echo(f"{own}: the CA, for `ca:` of the topology, and --ca")
    click.echo(f"{target}: for {', '.join(hosts)}, {options['days']} days")
    click.echo(f"{key}: its key")


def general_name(host: str) -> "GeneralName":
    """A host, as certificates name it. Raises Ending."""
    from cryptography.x509 import DNSName, IPAddress

    try:
        return IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        if not host or any(character in host for character in ":/ ,@"):
            raise ValueError("a host's name has no such characters")
        return DNSName(host)
    except ValueError as error:
        raise CliError(f"HOST: '{host}' is neither a name nor an address: {error}") from error


def _signer(folder: Path) -> Signer:
    """The CA that is there, or a new one. Raises Ending, OSError."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    own, key_file = folder / "ca.pem", folder / "ca.key"
    if not own.exists():
        return _make_signer(own, key_file)
    try:
        certificate = x509.load_pem_x509_certificate(own.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise CliError(f"{folder}: ca.pem and ca.key are none of ours: {error}") from error
    except FileNotFoundError:
        raise CliError(f"{key_file}: missing, so {own} signs nothing; take another DIR") from None
    if not isinstance(key, EllipticCurvePrivateKey) or (
        key.public_key() != certificate.public_key()
    ):
        raise CliError(f"{key_file}: it is not the key of {own}; take another DIR")
    return Signer(certificate, key)


def _make_signer(own: Path, key_file: Path) -> Signer:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(
                x509.NameOID.COMMON_NAME, f"kelek farm, to try it out {os.urandom(4).hex()}"
            )
        ]
    )
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_APART)
        .not_valid_after(now + datetime.timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .sign(key, hashes.SHA256())
    )
    _write_key(key_file, key)
    _write_open(own, certificate.public_bytes(serialization.Encoding.PEM))
    return Signer(certificate, key)


def _sign(signer: Signer, names: "list[GeneralName]", target: Path, days: int) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    common = x509.NameAttribute(x509.NameOID.COMMON_NAME, "a server of a farm")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([common]))
        .issuer_name(signer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_APART)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .sign(signer.key, hashes.SHA256())
    )
    _write_key(target.with_suffix(".key"), key)
    _write_open(target, certificate.public_bytes(serialization.Encoding.PEM))


def _usage(signs: bool) -> "KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(path: Path, key: "EllipticCurvePrivateKey") -> None:
    """For its owner alone."""
    from cryptography.hazmat.primitives import serialization

    data = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write(str(path), data.decode())


def _write_open(path: Path, data: bytes) -> None:
    """For everybody."""
    write(str(path), data.decode())
    path.chmod(0o644)
