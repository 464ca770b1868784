"""The private parts of JAX that trainband uses. One file, so that they are found when JAX changes.

JAX 0.12 has no public way to start its coordination service so that a client outlives it, to reach the service's
key-value store, to name the host that gloo gives to the others, or to ask whether the backends have started.
(`jax.distributed.initialize` sets only the heartbeats' timeout, recoverability and mTLS;
`multihost_utils.live_devices` reports who is alive at a barrier, in which a healthy task must take part.)
All of this is the same in JAX 0.10 to 0.12; a test checks the installed version.
"""

from __future__ import annotations

import functools
from typing import Any

from jax._src import distributed, xla_bridge
from jax._src.lib import _jax  # type: ignore[attr-defined]

from trainband.cluster.certificate_files import SCHEME, CertificateFiles

NAMES: dict[str, tuple[str, ...]] = {
    "jax._src.xla_bridge.backends_are_initialized": (),
    "jax._src.distributed.global_state.client": (),
    "jax._src.distributed.global_state.service": (),
    "jax._src.distributed.global_state.process_id": (),
    "jax._src.distributed.global_state.num_processes": (),
    "jax._src.distributed.global_state.coordinator_address": (),
    "jax._src.lib._jax.get_distributed_runtime_service": ("heartbeat_timeout", "shutdown_timeout", "recoverable"),
    "jax._src.lib._jax.get_distributed_runtime_client": (
        "rpc_timeout",
        "init_timeout",
        "shutdown_timeout",
        "heartbeat_timeout",
        "shutdown_on_destruction",
        "use_compression",
    ),
    "jax._src.lib._jax.DistributedRuntimeClient.connect": (),
    "jax._src.lib._jax.DistributedRuntimeClient.shutdown": (),
    "jax._src.lib._jax.DistributedRuntimeClient.key_value_set": ("allow_overwrite",),
    "jax._src.lib._jax.DistributedRuntimeClient.key_value_try_get": (),
    "jax._src.lib._jax.DistributedRuntimeClient.key_value_dir_get": (),
    "jax._src.lib._jax.DistributedRuntimeClient.key_value_delete": (),
    "jax._src.lib._jax.make_gloo_tcp_collectives": ("distributed_client", "hostname"),
}
"""Every private name that this file and its users need, and the keywords that it must take."""

_make_gloo = _jax.make_gloo_tcp_collectives


def backends_have_started() -> bool:
    """Whether JAX already holds its devices."""
    return bool(xla_bridge.backends_are_initialized())


def accepts_certificates() -> bool:
    """Whether JAX's coordination service can encrypt, as from JAX 0.12 on."""
    return "mtls_cert_file" in (_jax.get_distributed_runtime_service.__doc__ or "")


def _mtls(certificates: CertificateFiles | None) -> dict[str, str]:
    if certificates is None:
        return {}
    return {
        "mtls_cert_file": str(certificates.certificate_path),
        "mtls_key_file": str(certificates.key_path),
        "mtls_ca_file": str(certificates.authority_path),
        "mtls_peer_uri_prefix": f"{SCHEME}://",  # the client reaches it through a proxy: no host name would match
    }


def service_at(
    address: str, processes: int, *, heartbeat_s: int, shutdown_s: int, certificates: CertificateFiles | None
) -> Any:
    """Returns a coordination service that survives the loss of a client."""
    return _jax.get_distributed_runtime_service(
        address,
        processes,
        heartbeat_timeout=heartbeat_s,
        shutdown_timeout=shutdown_s,
        recoverable=True,
        **_mtls(certificates),
    )


def client_of(
    address: str,
    index: int,
    *,
    call_s: int,
    connect_s: int,
    shutdown_s: int,
    heartbeat_s: int,
    certificates: CertificateFiles | None,
) -> Any:
    """Returns a client of the service at `address`, as process `index`; its `connect` connects it."""
    return _jax.get_distributed_runtime_client(
        address,
        index,
        rpc_timeout=call_s,
        init_timeout=connect_s,
        shutdown_timeout=shutdown_s,
        heartbeat_timeout=heartbeat_s,
        shutdown_on_destruction=False,
        use_compression=True,
        **_mtls(certificates),
    )


def set_distributed_state(
    client: Any, service: Any, index: int, processes: int, coordinator: str, own_host: str
) -> None:
    """Makes JAX's backends, when they start, compute with the others; gloo's peers reach this one at `own_host`."""
    state = distributed.global_state
    state.client, state.service = client, service
    state.process_id, state.num_processes = index, processes
    state.coordinator_address = coordinator
    # Other machines often cannot use a machine's own name for itself.
    _jax.make_gloo_tcp_collectives = functools.partial(_make_gloo, hostname=own_host)


def is_distributed() -> bool:
    """Whether this process computes with others, through trainband or `jax.distributed`."""
    return distributed.global_state.client is not None


def forget() -> None:
    """Keeps JAX from shutting down or freeing its client and its service at exit."""
    distributed.global_state.client = distributed.global_state.service = None
