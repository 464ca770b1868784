"""MLflowTracker: a run in MLflow, in local files by default."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from trainband.errors import YourError
from trainband.monitor.trackers.base import Tracker
from trainband.runtime.overrides import override

MOST_PARAM = 6_000
"""Characters of a parameter's value that MLflow accepts."""


class MLflowTracker(Tracker):
    """Keeps a run in MLflow.

    Args:
      experiment: the name of the experiment, created if missing.
      directory: for local files: the database `mlflow.db` and the folder `artifacts`. MLflow 3.17 refuses to keep runs
        in a directory without a database.
      tracking_uri: instead: an `sqlite:///` file, or the address of a server. Without both, MLflow chooses.
      run_name: of the run; MLflow makes one up by default.
      tags: of the run.

    Raises:
      YourError: MLflow is not installed, or both places are given.
    """

    def __init__(
        self,
        experiment: str = "trainband",
        *,
        directory: str | Path | None = None,
        tracking_uri: str | None = None,
        run_name: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        if directory is not None and tracking_uri is not None:
            raise YourError("MLflowTracker: give a directory for local files or a tracking_uri, not both.")
        try:
            library = import_module("mlflow")
        except ImportError:
            raise YourError(
                "MLflowTracker needs MLflow, which is not installed: pip install mlflow; or, much smaller "
                "but without MLflow's page, pip install mlflow-skinny sqlalchemy alembic."
            ) from None
        self._mlflow: Any = library
        self._experiment = experiment
        self._directory = None if directory is None else Path(directory).absolute()
        self._uri = tracking_uri if self._directory is None else f"sqlite:///{self._directory / 'mlflow.db'}"
        self._run_name = run_name
        self._tags = dict(tags or {})
        self._client: Any = None
        self._run = ""

    @property
    def run_id(self) -> str:
        """MLflow's id of the run; empty before it begins."""
        return self._run

    @override
    def start(self, config: Mapping[str, object]) -> None:
        entities, artifacts = self._mlflow.entities, None
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
            artifacts = (self._directory / "artifacts").as_uri()
        self._client = client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        found = client.get_experiment_by_name(self._experiment)
        if found is None:
            number = client.create_experiment(self._experiment, artifact_location=artifacts)
        else:
            number = found.experiment_id
        self._run = client.create_run(number, run_name=self._run_name, tags=self._tags).info.run_id
        params = [entities.Param(_key(name), str(value)[:MOST_PARAM]) for name, value in config.items()]
        client.log_batch(self._run, params=params)

    @override
    def log(self, metrics: Mapping[str, float], global_step: int) -> None:
        now = int(time.time() * 1000)
        kept = [
            self._mlflow.entities.Metric(_key(name), value, now, global_step)
            for name, value in metrics.items()
            if math.isfinite(value)  # not every MLflow store accepts other values
        ]
        if kept:
            self._client.log_batch(self._run, metrics=kept)

    @override
    def add_artifact(self, path: Path) -> None:
        if path.is_dir():
            self._client.log_artifacts(self._run, str(path), path.name)
        else:
            self._client.log_artifact(self._run, str(path))

    @override
    def finish(self, *, failed: bool) -> None:
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


def _key(name: str) -> str:
    """Returns a name that MLflow accepts: letters, digits and a few marks."""
    return re.sub(r"[^\w\-. /]", "_", name)[:250] or "_"
