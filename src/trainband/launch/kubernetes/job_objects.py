"""JobObjects: the objects that a job has created in a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Callable

from trainband.launch.kubernetes.api import Api, ApiRefusal
from trainband.launch.kubernetes.manifest import KubernetesJob, Object, objects
from trainband.launch.kubernetes.pod_template import RUN_LABEL


class JobObjects:
    """The objects of one job. `left` has the kinds and names of those to delete, in the order of creation."""

    def __init__(self, job: KubernetesJob, api: Api, note: Callable[[str], None]) -> None:
        self._job = job
        self._api = api
        self._report = note
        self.left: list[tuple[str, str]] = []

    def make(self) -> None:
        """Creates them. The one that is deleted first owns the others, so that they go with it."""
        job = self._job
        made = objects(job)
        claims = [one for one in made if one["kind"] == "PersistentVolumeClaim"]
        root = next(one for one in made if one["kind"] in ("JobSet", "Service"))
        for claim in claims:
            self._make_claim(claim)
        owner = self._make_one(root)
        for one in made:
            if one is not root and one not in claims:
                self._make_one(one, owner)
        self._report(
            f"the job is {root['kind']} {job.name} in the namespace {self._api.namespace}; its "
            f"{len(list(job.spec.tasks()))} pods have the label {RUN_LABEL}={job.name}"
        )

    def _make_claim(self, claim: Object) -> None:
        name = claim["metadata"]["name"]
        try:
            self._api.create(claim)
        except ApiRefusal as exc:
            if exc.status != 409:
                raise
            self._report(f"the volume claim {name} already exists and is used")
            return
        self._report(
            f"the volume claim {name} and its checkpoints remain after the job; to delete them: kubectl delete "
            f"pvc {name} -n {self._api.namespace}"
        )

    def _make_one(self, content: Object, owner: Object | None = None) -> Object:
        if owner is not None:
            reference = {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
            }
            content = {**content, "metadata": {**content["metadata"], "ownerReferences": [reference]}}
        made = self._api.create(content)
        self.left.append((content["kind"], content["metadata"]["name"]))
        return {"apiVersion": content["apiVersion"], "kind": content["kind"], **made}

    def list_all(self, kind: str) -> list[Object]:
        """Returns the current objects of a kind that belong to the job."""
        return self._api.list_all(kind, f"{RUN_LABEL}={self._job.name}")

    def delete(self) -> None:
        """Deletes them: Jobs before the service through which their pods find one another."""
        while self.left:
            kind, name = self.left[-1]
            self._api.delete(kind, name)
            self.left.pop()
