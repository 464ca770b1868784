"""Api: a launcher's requests to the API server of a cluster, and its refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from trainband.errors import Unreachable, YourError
from trainband.launch.kubernetes.manifest import Object

_ANSWER_S = (5.0, 30.0)
"""To connect, and for an answer."""
_LOG_S = (5.0, 3600.0)
"""To connect, and for the next line of a task that rarely prints."""
_METHODS = {"PersistentVolumeClaim": "persistent_volume_claim", "Secret": "secret", "Service": "service", "Pod": "pod"}
"""The name of each kind in methods of the core API's client."""
_BATCH = {"Job": "job"}
_CUSTOM = {"JobSet": ("jobset.x-k8s.io", "v1alpha2", "jobsets")}
_QUOTA = re.compile(
    r"exceeded quota: (?P<quota>[^,]+), requested: (?P<asked>\S+), used: (?P<used>\S+), limited: (?P<most>\S+)"
)
_QUOTA_WANTS = re.compile(r"failed quota: (?P<quota>[^:]+): must specify (?P<what>.+)")


class ApiRefusal(YourError):
    """The API server has refused a request.

    Attributes:
      status: the HTTP status.
      is_json: whether the answer is the API's, and not one for an unknown path.
    """

    def __init__(self, message: str, status: int, is_json: bool) -> None:
        super().__init__(message)
        self.status = status
        self.is_json = is_json


def quota_in_words(message: str) -> str:
    """Returns the text of a quota's refusal of a pod; empty for other messages."""
    if found := _QUOTA.search(message):
        return (
            f"the quota {found['quota']} of the namespace allows {found['most']}, of which {found['used']} is used and "
            f"{found['asked']} was requested; request less, or wait until others free some"
        )
    if found := _QUOTA_WANTS.search(message):
        return (
            f"the quota {found['quota']} of the namespace requires {found['what']} of each pod; set cpu and "
            "memory (and ps_cpu and ps_memory)"
        )
    return ""


class Api:
    """The API server of a cluster, in one namespace. Any thread may use it.

    Args:
      context: of the kubeconfig; its current one when empty. Without a kubeconfig, in a pod, that pod's own account.
      namespace: the context's when empty.
      kubeconfig: the file; the default one when empty.

    Raises:
      YourError: the client is not installed, or no cluster is configured.
    """

    def __init__(self, *, context: str = "", namespace: str = "", kubeconfig: str = "") -> None:
        try:
            import kubernetes  # optional, and half a second to import
            import urllib3
        except ModuleNotFoundError as exc:
            raise YourError(
                "jobs on Kubernetes need its Python client, which is not installed: "
                "pip install 'trainband[kubernetes]'."
            ) from exc
        self._exceptions = kubernetes.client.exceptions
        self._silence = urllib3.exceptions.HTTPError
        configuration = kubernetes.client.Configuration()
        found = _load(kubernetes.config, configuration, context, kubeconfig)
        configuration.connection_pool_maxsize = 1000  # one per followed log
        configuration.retries = False  # the launcher retries, and tells the user
        self.namespace = namespace or found or "default"
        self.host = str(configuration.host)
        self._context = context
        self._client = kubernetes.client.ApiClient(configuration)
        self._core = kubernetes.client.CoreV1Api(self._client)
        self._batch = kubernetes.client.BatchV1Api(self._client)
        self._custom = kubernetes.client.CustomObjectsApi(self._client)

    def create(self, content: Object) -> Object:
        """Creates an object and returns it.

        Raises:
          ApiRefusal: it cannot be created; the message says why.
          Unreachable: the API server does not answer.
        """
        kind = content["kind"]
        if kind in _CUSTOM:
            return self._ask(f"create a {kind}", self._custom.create_namespaced_custom_object, *self._of(kind), content)
        return self._ask(f"create a {kind}", self._method("create", kind), self.namespace, content)

    def read(self, kind: str, name: str) -> Object:
        """Returns an object. Raises as `create`."""
        if kind in _CUSTOM:
            return self._ask(f"read the {kind}", self._custom.get_namespaced_custom_object, *self._of(kind), name)
        return self._ask(f"read the {kind}", self._method("read", kind), name, self.namespace)

    def list_all(self, kind: str, selector: str) -> list[Object]:
        """Returns the objects with these labels. Raises as `create`."""
        method = self._method("list", kind)
        return list(self._ask(f"list the {kind}s", method, self.namespace, label_selector=selector).get("items") or [])

    def warnings(self) -> list[Object]:
        """Returns the warning events of the namespace. Raises as `create`."""
        method = self._core.list_namespaced_event
        return list(self._ask("list events", method, self.namespace, field_selector="type=Warning").get("items") or [])

    def delete(self, kind: str, name: str, *, grace_s: int | None = None) -> bool:
        """Deletes an object after its dependents. Returns whether it existed. Raises as `create`."""
        options: dict[str, Any] = {"propagation_policy": "Foreground"}
        if grace_s is not None:
            options["grace_period_seconds"] = grace_s
        try:
            if kind in _CUSTOM:
                method = self._custom.delete_namespaced_custom_object
                self._ask(f"delete the {kind}", method, *self._of(kind), name, **options)
            else:
                self._ask(f"delete the {kind}", self._method("delete", kind), name, self.namespace, **options)
        except ApiRefusal as exc:
            if exc.status != 404:
                raise
            return False
        return True

    def follow(self, pod: str, container: str, since_s: int | None) -> Any:
        """Returns the log of a container as it is written: a response to read, with the time before each line.

        Args:
          since_s: the greatest age of a line; no limit when `None`.

        Raises:
          ApiRefusal: it has no log, or none yet.
          Unreachable: the API server does not answer.
        """
        options: dict[str, Any] = {"container": container, "follow": True, "timestamps": True}
        if since_s is not None:
            options["since_seconds"] = since_s
        return self._respond(
            "read the log", self._core.read_namespaced_pod_log, pod, self.namespace, timeout=_LOG_S, **options
        )

    def lines(self, response: Any) -> Iterator[bytes]:
        """Yields the lines of a log as they come.

        Raises:
          Unreachable: the connection broke.
        """
        rest = b""
        try:
            for piece in response.stream(65536, decode_content=False):
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines
        except self._silence as exc:
            raise self._unreachable(exc) from None
        if rest:
            yield rest

    def close(self) -> None:
        """Closes the connections. Idempotent."""
        self._client.rest_client.pool_manager.clear()

    def _of(self, kind: str) -> tuple[str, str, str, str]:
        group, version, plural = _CUSTOM[kind]
        return group, version, self.namespace, plural

    def _method(self, verb: str, kind: str) -> Callable[..., Any]:
        api, name = (self._batch, _BATCH[kind]) if kind in _BATCH else (self._core, _METHODS[kind])
        method: Callable[..., Any] = getattr(api, f"{verb}_namespaced_{name}")
        return method

    def _ask(self, what: str, method: Callable[..., Any], *args: Any, **options: Any) -> Object:
        response = self._respond(what, method, *args, timeout=_ANSWER_S, **options)
        try:
            content = json.loads(response.read())
        except self._silence as exc:
            raise self._unreachable(exc) from None
        if not isinstance(content, dict):
            raise Unreachable(f"{self.host} is not a Kubernetes API server: it did not answer with an object.")
        return content

    def _respond(
        self, what: str, method: Callable[..., Any], *args: Any, timeout: tuple[float, float], **options: Any
    ) -> Any:
        try:
            # Not as objects of the client, whose classes refuse an object that lacks one field.
            response = method(*args, _preload_content=False, _request_timeout=timeout, **options)
        except self._exceptions.ApiException as exc:
            raise self._refusal(what, int(exc.status or 0), str(exc.reason or ""), str(exc.body or "")) from None
        except self._silence as exc:
            raise self._unreachable(exc) from None
        response = getattr(response, "response", response)
        if not 200 <= response.status < 300:
            body = response.read().decode(errors="replace")
            raise self._refusal(what, int(response.status), str(response.reason or ""), body)
        return response

    def _unreachable(self, exc: Exception) -> Unreachable:
        reason = str(getattr(exc, "reason", None) or exc).rpartition(": ")[2]
        return Unreachable(f"the Kubernetes API server at {self.host} does not answer ({reason}).")

    def _refusal(self, what: str, status: int, reason: str, body: str) -> ApiRefusal:
        try:
            answer = json.loads(body)
            message, is_json = str(answer.get("message") or reason), True
        except (ValueError, AttributeError):
            message, is_json = body.strip() or reason, False
        return ApiRefusal(f"cannot {what}: {self._in_words(status, message, is_json)}", status, is_json)

    def _in_words(self, status: int, message: str, is_json: bool) -> str:
        of_context = f" of context {self._context}" if self._context else ""
        if status == 401:
            return (
                f"{self.host} rejected the credentials{of_context} in your kubeconfig: they are missing or have "
                "expired (kubectl get pods says more)."
            )
        if status == 403:
            if quota := quota_in_words(message):
                return f"{quota}."
            return f"{message}. You need a role that allows it in the namespace {self.namespace}."
        if status == 404 and not is_json:
            return (
                "this cluster has no JobSet; ask an administrator to install its controller "
                "(https://jobset.sigs.k8s.io/docs/installation/), or use kind=job (plain Jobs)."
            )
        if status == 409:
            return f"{message}; choose another name, or delete that one."
        return f"{message} (status {status})."


def _load(config: Any, configuration: Any, context: str, kubeconfig: str) -> str:
    """Finds the cluster and returns its namespace."""
    try:
        config.load_kube_config(
            config_file=kubeconfig or None, context=context or None, client_configuration=configuration
        )
        contexts, current = config.list_kube_config_contexts(config_file=kubeconfig or None)
    except config.ConfigException as exc:
        if context or kubeconfig:
            raise YourError(f"the kubeconfig cannot be used: {exc}") from None
        return _load_of_pod(config, configuration)
    chosen = next((one for one in contexts if one["name"] == context), current) if context else current
    return str(chosen["context"].get("namespace") or "")


def _load_of_pod(config: Any, configuration: Any) -> str:
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        raise YourError(
            "no Kubernetes cluster is configured: there is no kubeconfig (~/.kube/config, or the file that "
            "KUBECONFIG names), and this is not a pod. Check that kubectl get pods works."
        ) from None
    return ""
