"""`trainband serve --follow` beside a real job, which asks for a proof of its secret, until it has ended."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.cluster_join.test_elastic_workers import STEPS, ask, pace, started
from tests.programs import Programs, until

__all__ = ["pace"]

PREDICT = """
def predict(params, batch):
    return batch @ params["kernel"] + params["bias"]
"""


def fetched(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(url, data, timeout=30) as answer:
        return json.load(answer)


def test_a_server_follows_a_job_to_its_end(programs: Programs, pace: Any, tmp_path: Path) -> None:
    job, (address,) = started(programs, pace, "--ps=1")
    (tmp_path / "predict.py").write_text(PREDICT)
    model = (f"--model={tmp_path / 'predict.py'}:predict", "--input=input:float32[batch,8]", "--max-batch=1")
    server = programs.trainband("serve", "--follow", address, *model, "--port=0")
    url = server.wait_for(r"serving predict, version \d+, on cpu, at (http://\S+)")[1]
    first = int(fetched(f"{url}/v1/models/predict")["model_version_status"][0]["version"])
    until(
        lambda: int(fetched(f"{url}/v1/models/predict")["model_version_status"][0]["version"]) > first, "a new version"
    )
    assert [one.task for one in ask(address).workers] == ["worker:0"]
    pace.hurry()
    pace.leave()
    job.succeed()
    until(lambda: fetched(url)["source"]["state"] == "ended", "the news of the end")
    told = fetched(url)
    assert told["version"] == STEPS
    assert told["source"]["detail"] == f"job ended at step {STEPS} (the job is complete)"
    (answer,) = fetched(f"{url}/v1/models/predict:predict", {"instances": [[1, 2, 3, 4, 5, 6, 7, 8]]})["predictions"]
    assert answer == pytest.approx(36.0, rel=0.01)  # it has learnt to add
    server.send(signal.SIGTERM)
    assert server.wait() == 128 + signal.SIGTERM
