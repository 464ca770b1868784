"""A private certificate authority for the tasks of a job: `trainband certs`.

The keys are on NIST's curve P-256; the certificates' purposes and names follow RFC 5280. Needs the package
`cryptography` (`pip install 'trainband[tls]'`); using certificates does not.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from trainband.cluster.certificate_files import AUTHORITY, PS_NAME, REVOKED, file_name, read_uri, uri_of
from trainband.cluster.identity import Identity
from trainband.errors import ClusterError, YourError
from trainband.runtime.regular_files import append_regular, read_regular, replacing

AUTHORITY_DAYS = 3650
TASK_DAYS = 90
_EARLY = timedelta(minutes=5)
"""How long before its creation a certificate is valid, because clocks differ."""
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate in a directory, for people."""

    name: str
    serial: str
    hosts: tuple[str, ...]
    expires: datetime
    revoked: bool

    @property
    def expired(self) -> bool:
        """Whether its end date has passed."""
        return self.expires < datetime.now(UTC)


def _x509() -> Any:
    try:
        from cryptography import x509
    except ImportError:
        raise YourError(
            "making certificates needs cryptography, which is not installed: pip install 'trainband[tls]'."
        ) from None
    return x509


def make_authority(directory: Path, *, days: int = AUTHORITY_DAYS) -> None:
    """Makes a new authority in a directory: `ca.pem` and `ca.key`.

    Raises:
      ClusterError: there already is one, or the directory is not writable.
      YourError: `cryptography` is not installed.
    """
    x509 = _x509()
    if (directory / f"{AUTHORITY}.key").exists() or (directory / f"{AUTHORITY}.pem").exists():
        raise ClusterError(f"{directory} already has an authority; every certificate that it has issued depends on it.")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise ClusterError(f"{directory} cannot be created: {exc.strerror}.") from None
    key = _new_key()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "trainband job authority")])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    _write(directory, AUTHORITY, builder.sign(key, _hash()), key, replace=False)


def issue(directory: Path, name: str, hosts: Sequence[str] = (), *, days: float = TASK_DAYS) -> Path:
    """Issues a certificate to a task, replacing its last; returns its path.

    Args:
      directory: with the authority.
      name: whose: `ps:0`, `worker:1`, `observer`, `admin`, or `worker` for any worker.
      hosts: the names and addresses at which a ps is reached; any when empty.
      days: until it expires.

    Raises:
      ClusterError: there is no authority, or the name or a host is invalid.
      YourError: `cryptography` is not installed.
    """
    x509 = _x509()
    from cryptography.hazmat.primitives import serialization

    identity = Identity(name)
    authority = x509.load_pem_x509_certificate(_bytes(directory / f"{AUTHORITY}.pem"))
    authority_key: Any = serialization.load_pem_private_key(_bytes(directory / f"{AUTHORITY}.key"), None)
    serial = x509.random_serial_number()
    # gRPC uses the first one as the name of the owner.
    names: list[Any] = [x509.UniformResourceIdentifier(uri_of(identity.name, serial))]
    if identity.job == "ps":
        names.append(x509.DNSName(PS_NAME))
        names += [_host(x509, host) for host in (*hosts, *_LOCAL_HOSTS)] if hosts else []
    key, now = _new_key(), datetime.now(UTC)
    usages = [x509.ExtendedKeyUsageOID.CLIENT_AUTH, x509.ExtendedKeyUsageOID.SERVER_AUTH]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, identity.name)]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - max(_EARLY, -timedelta(days=days) + _EARLY))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    )
    return _write(directory, file_name(identity.name), builder.sign(authority_key, _hash()), key, replace=True)


def revoke(directory: Path, name: str) -> str:
    """Revokes the certificate of a task, read from the directory; returns its serial number.

    Tasks notice when the file `revoked` has been copied to their directories.

    Raises:
      ClusterError: there is no certificate of that name.
      YourError: `cryptography` is not installed.
    """
    found = _issued(directory, directory / f"{file_name(Identity(name).name)}.pem", frozenset())
    with append_regular(directory / REVOKED) as file:
        file.write(f"{found.serial}  # {found.name}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n".encode("ascii"))
    return found.serial


def listing(directory: Path) -> list[Issued]:
    """Returns the certificates in a directory except the authority's.

    Raises:
      ClusterError: the directory, or a certificate in it, cannot be read.
      YourError: `cryptography` is not installed.
    """
    revoked = directory / REVOKED
    lines = _bytes(revoked).decode("ascii", "replace").splitlines() if revoked.exists() else []
    serials = frozenset(line.split("#")[0].strip() for line in lines)
    paths = sorted(path for path in directory.glob("*.pem") if path.stem != AUTHORITY)
    return [_issued(directory, path, serials) for path in paths]


def _issued(directory: Path, path: Path, revoked: frozenset[str]) -> Issued:
    x509 = _x509()
    if not path.is_file():
        raise ClusterError(f"{directory} has no certificate {path.name}.")
    try:
        certificate = x509.load_pem_x509_certificate(_bytes(path))
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as exc:
        raise ClusterError(f"{path} is not a certificate of `trainband certs`: {exc}.") from None
    owner = read_uri(next(iter(names.get_values_for_type(x509.UniformResourceIdentifier)), ""))
    hosts = [host for host in names.get_values_for_type(x509.DNSName) if host != PS_NAME]
    hosts += [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return Issued(
        owner.identity.name, owner.serial, tuple(hosts), certificate.not_valid_after_utc, owner.serial in revoked
    )


def _host(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ClusterError(f"{host!r} is not a host name or an address.") from None


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _hash() -> Any:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA256()


def _usage(*, sign: bool) -> Any:
    return _x509().KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign,
        crl_sign=sign,
        encipher_only=False,
        decipher_only=False,
    )


def _bytes(path: Path) -> bytes:
    try:
        return read_regular(path, 1 << 20)
    except OSError as exc:
        raise ClusterError(
            f"{path} cannot be read: {exc.strerror}. `trainband certs init {path.parent}` makes an authority."
        ) from None


def _write(directory: Path, name: str, certificate: Any, key: Any, *, replace: bool) -> Path:
    """Writes a certificate and its key: the key first, each atomically."""
    from cryptography.hazmat.primitives import serialization

    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    for ending, mode, data in (("key", 0o600, private), ("pem", 0o644, public)):
        path = directory / f"{name}.{ending}"
        try:
            with replacing(path, mode=mode, replace=replace) as file:
                file.write(data)
        except OSError as exc:
            raise ClusterError(f"{path} cannot be written: {exc.strerror}.") from None
    return directory / f"{name}.pem"
