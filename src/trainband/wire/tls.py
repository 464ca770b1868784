"""Mutual TLS with certificates of `trainband certs`: who may be at the other end, checked before gRPC speaks to it.

gRPC checks a chain and a name, tells a refusal in words for those who write gRPC, and knows no revocation. So a client
first makes a TLS handshake of its own, looks at the listener's certificate, and has gRPC trust that very certificate
and no other. A listener has gRPC ask for a certificate of the authority, and looks at whom it names at each call.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainband.cluster.certificate_files import PS_NAME, CertificateFiles, Certified, Revocations, read_uri
from trainband.cluster.identity import Identity
from trainband.errors import AuthenticationError, ClusterError, DeadlineExceeded, NobodyListens, Unreachable
from trainband.wire import port as ports


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """What pyarrow's client takes for a connection."""

    tls_root_certs: bytes
    cert_chain: bytes
    private_key: bytes
    override_hostname: str


class Tls:
    """One task's certificates, for what it serves and for what it calls.

    Args:
      directory: of the certificates.
      identity: whose.

    Raises:
      ClusterError: the directory does not have them.
    """

    def __init__(self, directory: Path, identity: Identity) -> None:
        self.files = CertificateFiles.find(directory, identity)
        self._revoked = Revocations(directory)

    def certified(self, uri: bytes) -> Identity:
        """Whom the certificate of a client names.

        Args:
          uri: what gRPC takes for its name: the first alternative name of the certificate.

        Raises:
          AuthenticationError: it is none of `trainband certs`, or revoked.
        """
        try:
            certified = read_uri(uri.decode("ascii", "replace"))
        except ClusterError as exc:
            raise AuthenticationError(str(exc)) from None
        self._require_valid(certified, "")
        return certified.identity

    def _require_valid(self, certified: Certified, where: str) -> None:
        if certified.serial in self._revoked:
            raise AuthenticationError(
                f"the certificate of {certified.identity.name}{where} (serial {certified.serial}) was revoked."
            )

    def look(self, address: str, timeout_s: float) -> bytes:
        """Makes a TLS handshake with a ps and checks its certificate; returns that, in PEM.

        Raises:
          AuthenticationError: one of the two does not take the other's certificate; the message says why.
          Unreachable, DeadlineExceeded: nobody is there, or does not answer.
        """
        host, port = ports.split(address)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False  # below: the address may be an alias, but then none of the certificate's hosts
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
                    raise self._refused_us(address, "it hung up")
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
            raise self._refused_us(address, (exc.reason or str(exc)).lower().replace("_", " ")) from None
        except TimeoutError:
            raise DeadlineExceeded(f"{address} gave no answer in {timeout_s:g} s; check that it runs.") from None
        except socket.gaierror:
            raise ports.unknown_host(address) from None
        except ConnectionResetError:
            raise self._refused_us(address, "it hung up") from None
        except OSError as exc:
            kind = NobodyListens if isinstance(exc, ConnectionRefusedError) else Unreachable
            raise kind(
                f"nobody listens at {address}; check that the task runs and that the address is right."
            ) from None
        assert der is not None
        self._check(address, host, found or {})
        return ssl.DER_cert_to_PEM_cert(der).encode()

    def _refused_us(self, address: str, why: str) -> AuthenticationError:
        return AuthenticationError(
            f"{address} does not take the certificate {self.files.certificate_path} ({why}); check that it has not "
            f"expired (`trainband certs list {self.files.directory}`), and that both have the same ca.pem."
        )

    def _check(self, address: str, host: str, found: dict[str, Any]) -> None:
        names = found.get("subjectAltName", ())
        uris = [value for kind, value in names if kind == "URI"]
        try:
            certified = read_uri(uris[0] if uris else "")
        except ClusterError as exc:
            raise AuthenticationError(f"{address}: {exc}") from None
        self._require_valid(certified, f" at {address}")
        if certified.identity.job != "ps":
            raise AuthenticationError(
                f"{address} has the certificate of {certified.identity.name}, and only a ps serves; check the address."
            )
        hosts = [value for kind, value in names if kind in ("DNS", "IP Address")]
        if len(hosts) > 1 and not any(_same_host(host, one) for one in hosts):
            raise AuthenticationError(
                f"the certificate of {certified.identity.name} at {address} was issued for {', '.join(hosts[1:])}, and "
                f"not for {host}; issue it anew with that host, too."
            )

    def options(self, pinned: bytes) -> TlsOptions:
        """For a connection to the listener with just this certificate."""
        return TlsOptions(pinned, self.files.certificate, self.files.key, PS_NAME)


def _same_host(host: str, named: str) -> bool:
    if host.lower() == named.lower():
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host) == ipaddress.ip_address(named)
    return False


def speaks_tls(address: str, timeout_s: float) -> bool:
    """Whether whoever listens at an address wants TLS, as far as one handshake without a certificate can tell."""
    host, port = ports.split(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only whether it speaks TLS: nothing is said
    try:
        with socket.create_connection((host, port), timeout_s) as raw, context.wrap_socket(raw):
            return True
    except ssl.SSLError as exc:
        return exc.reason is not None and exc.reason.endswith("CERTIFICATE_REQUIRED")
    except OSError:
        return False
