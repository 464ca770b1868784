"""Mutual TLS with certificates of `trainband certs`: the peer is checked before gRPC speaks to it.

gRPC checks a chain and a name, reports a refusal in its own terms, and does not support revocation. So a client
first makes its own TLS handshake, checks the listener's certificate, and lets gRPC trust only that certificate.
A listener makes gRPC request a certificate of the authority, and checks its owner at each call.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainband.cluster.certificate_files import PS_NAME, CertificateFiles, Certified, Revocations, read_uri
from trainband.cluster.identity import Identity
from trainband.errors import AuthenticationError, ClusterError, DeadlineExceeded, NobodyListens, Unreachable
from trainband.wire import port as ports
from trainband.wire.security.retries import retried

_PAUSES_S = (0.05, 0.25)
"""Seconds before each further attempt to check a listener."""


class _HungUp(AuthenticationError):
    """A listener has closed the connection without a message, as gRPC does when it refuses a certificate."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS options of pyarrow's client."""

    tls_root_certs: bytes
    cert_chain: bytes
    private_key: bytes = field(repr=False)
    override_hostname: str


class Tls:
    """One task's certificates, for serving and calling.

    Raises:
      ClusterError: the directory does not have them.
    """

    def __init__(self, directory: Path, identity: Identity) -> None:
        self.files = CertificateFiles.find(directory, identity)
        self._revoked = Revocations(directory)

    def certified(self, uri: bytes) -> Identity:
        """Returns the identity in a client's certificate.

        Args:
          uri: gRPC's name for it: the first alternative name of the certificate.

        Raises:
          AuthenticationError: it is not from `trainband certs`, or revoked.
        """
        try:
            certified = read_uri(uri.decode("ascii", "replace"))
        except ClusterError as exc:
            raise AuthenticationError(str(exc)) from None
        self.require_valid(certified)
        return certified.identity

    def is_revoked(self, certified: Certified) -> bool:
        """Whether the current list of revoked certificates has this one."""
        return certified.serial in self._revoked

    def require_valid(self, certified: Certified, where: str = "") -> None:
        """Raises `AuthenticationError` if a certificate was revoked; `where`: its owner's place, for the message."""
        if self.is_revoked(certified):
            raise AuthenticationError(
                f"the certificate of {certified.identity.name}{where} (serial {certified.serial}) was revoked."
            )

    def fetch_certificate(self, address: str, timeout_s: float) -> tuple[bytes, Certified]:
        """Makes a TLS handshake with a ps and checks its certificate; returns that, in PEM, and its owner.

        Raises:
          AuthenticationError: one of the two does not accept the other's certificate; the message says why.
          Unreachable, DeadlineExceeded: no task is there, or it does not answer.
        """
        return retried(
            lambda: self._fetch_certificate(address, timeout_s), lambda exc: isinstance(exc, _HungUp), _PAUSES_S
        )

    def _fetch_certificate(self, address: str, timeout_s: float) -> tuple[bytes, Certified]:
        host, port = ports.split(address)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False  # below: the address may be an alias, if the certificate names no hosts
        context.set_alpn_protocols(["h2"])
        try:
            context.load_verify_locations(self.files.authority_path)
            context.load_cert_chain(self.files.certificate_path, self.files.key_path)
        except (OSError, ssl.SSLError) as exc:
            raise ClusterError(f"the certificates in {self.files.directory} cannot be used: {exc}.") from None
        try:
            with (
                socket.create_connection((host, port), timeout_s) as raw,
                context.wrap_socket(raw, server_hostname=None) as connection,
            ):
                der, found = connection.getpeercert(binary_form=True), connection.getpeercert()
                # With TLS 1.3 a listener refuses a client's certificate after the client's side of the handshake.
                if not connection.recv(1):
                    raise self._refused_us(address, "it hung up", _HungUp)
        except ssl.SSLCertVerificationError as exc:
            raise AuthenticationError(
                f"the certificate of {address} is not accepted: {exc.verify_message} (checked against "
                f"{self.files.authority_path})."
            ) from None
        except ssl.SSLError as exc:
            if exc.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
                raise AuthenticationError(
                    f"{address} does not speak TLS; start that task with the same TRAINBAND_TLS, too."
                ) from None
            refused = _HungUp if isinstance(exc, ssl.SSLEOFError) else AuthenticationError
            raise self._refused_us(address, (exc.reason or str(exc)).lower().replace("_", " "), refused) from None
        except TimeoutError:
            raise DeadlineExceeded(f"{address} gave no answer in {timeout_s:g} s; check that it runs.") from None
        except socket.gaierror:
            raise ports.unknown_host(address) from None
        except ConnectionResetError:
            raise self._refused_us(address, "it hung up", _HungUp) from None
        except OSError as exc:
            unreachable = NobodyListens if isinstance(exc, ConnectionRefusedError) else Unreachable
            raise unreachable(
                f"nothing listens at {address}; check that the task runs and that the address is right."
            ) from None
        assert der is not None
        return ssl.DER_cert_to_PEM_cert(der).encode(), self._check(address, host, found or {})

    def _refused_us(
        self, address: str, why: str, kind: type[AuthenticationError] = AuthenticationError
    ) -> AuthenticationError:
        return kind(
            f"{address} does not accept the certificate {self.files.certificate_path} ({why}); check that it has not "
            f"expired (`trainband certs list {self.files.directory}`), and that both have the same ca.pem."
        )

    def _check(self, address: str, host: str, found: dict[str, Any]) -> Certified:
        names = found.get("subjectAltName", ())
        uris = [value for kind, value in names if kind == "URI"]
        try:
            certified = read_uri(uris[0] if uris else "")
        except ClusterError as exc:
            raise AuthenticationError(f"{address}: {exc}") from None
        self.require_valid(certified, f" at {address}")
        if certified.identity.job != "ps":
            raise AuthenticationError(
                f"{address} has the certificate of {certified.identity.name}, but only a ps serves; check the address."
            )
        hosts = [value for kind, value in names if kind in ("DNS", "IP Address")]
        if len(hosts) > 1 and not any(_same_host(host, one) for one in hosts):
            raise AuthenticationError(
                f"the certificate of {certified.identity.name} at {address} was issued for {', '.join(hosts[1:])}, not "
                f"for {host}; issue a new one that includes that host."
            )
        return certified

    def options(self, pinned: bytes) -> TlsOptions:
        """Returns the options for a connection to the listener with exactly this certificate."""
        return TlsOptions(pinned, self.files.certificate, self.files.key, PS_NAME)


def _same_host(host: str, named: str) -> bool:
    if host.lower() == named.lower():
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host) == ipaddress.ip_address(named)
    return False


def speaks_tls(address: str, timeout_s: float) -> bool:
    """Whether the listener at an address requires TLS, judging by one handshake without a certificate."""
    host, port = ports.split(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only tests for TLS: no data is sent
    try:
        with socket.create_connection((host, port), timeout_s) as raw, context.wrap_socket(raw):
            return True
    except ssl.SSLError as exc:
        return exc.reason is not None and exc.reason.endswith("CERTIFICATE_REQUIRED")
    except OSError:
        return False
