"""Metrics on every task: who begins the page, what is on it, and what becomes of it."""

from __future__ import annotations

import json
import signal
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.monitor.prometheus_tools import tool
from tests.monitor.test_prometheus import values_of
from tests.programs import Programs, until
from tests.programs import ports as ports
from tests.programs import programs as programs
from tests.train.fakes import ONES, mean_model, trainer

from trainband.cluster import task_metrics
from trainband.cluster.resolvers.metrics import HOST, PORT
from trainband.errors import AddressInUse
from trainband.runtime.exposition import Family
from trainband.train import Hook

WAIT_S = 60.0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Asks this process to serve metrics, at any port."""
    monkeypatch.setenv(PORT, "0")
    monkeypatch.delenv(HOST, raising=False)
    yield
    task_metrics.close_metrics()


def page_at(url: str) -> str:
    """What is answered there."""
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return str(answer.read().decode())


def test_nothing_is_served_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PORT, raising=False)
    assert task_metrics.serve_metrics(None, pytest.fail) is None
    task_metrics.publish(None, pytest.fail, pytest.fail)()


@pytest.mark.usefixtures("asked")
def test_a_process_has_one_page_and_says_once_where(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    one = Family("gauge", "trainband_test_one", "One.", {(): 1})
    withdraw = task_metrics.publish(None, lambda: [one], said.append)
    task_metrics.publish(None, lambda: [Family("gauge", "trainband_test_two", "Two.", {(): 2})], said.append)
    page = task_metrics.serve_metrics(None, said.append)
    assert page is not None
    assert said == [f"metrics of local are at {page.server.url}"]
    assert page.server.url.startswith("http://127.0.0.1:")
    found = values_of(page.page())
    assert (found["trainband_test_one{}"], found["trainband_test_two{}"]) == (1, 2)
    withdraw()
    withdraw()
    assert "trainband_test_one" not in page.page()
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("asked")
def test_a_trainer_is_on_the_page_from_its_first_step_to_its_end() -> None:
    said: list[str] = []
    one = mean_model(say=said.append)
    seen: dict[str, float] = {}

    class Look(Hook):
        def after_run(self, session: Any, report: Any) -> None:  # noqa: ARG002 - a hook's signature
            if report.global_step == 3:
                seen.update(values_of(page_at(said[0].rpartition(" ")[2])))

    one.fit([ONES] * 5, steps=5, hooks=[Look()])
    assert seen["trainband_worker_target_global_step{task=local}"] == 5
    assert seen["trainband_worker_global_step{task=local}"] in (2, 3)
    assert seen["trainband_worker_examples_total{task=local}"] == 12
    assert seen["process_resident_memory_bytes{task=local}"] > 1e6
    one.job.close()
    page = task_metrics.serve_metrics(None, said.append)
    assert page is not None
    assert "trainband_worker" not in page.page()


@pytest.mark.usefixtures("asked")
def test_a_port_that_is_taken_ends_the_task_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    page = task_metrics.serve_metrics(None, lambda _: None)
    assert page is not None
    port = page.server.port
    monkeypatch.setattr(task_metrics, "_of_process", None)
    monkeypatch.setenv(PORT, str(port))
    with pytest.raises(AddressInUse, match=rf"127.0.0.1:{port}: another process listens there. Choose another port"):
        trainer().join()
    page.server.close()


def test_a_job_is_scraped_by_prometheus(programs: Programs, ports: tuple[str, ...], tmp_path: Path) -> None:
    """Each task at its port; and what a real Prometheus makes of it."""
    prometheus = tool("prometheus")
    metrics = [int(port.rpartition(":")[2]) for port in ports[1:3]]
    flags = ["--train_steps=1000000", "--pause_s=0.01"]
    tasks = {
        name: programs.python(
            name,
            str(Path(__file__).parents[1] / "line.py"),
            f"--job_name={name.partition(':')[0]}",
            f"--task_index={name.partition(':')[2]}",
            f"--ps_hosts={ports[0]}",
            "--worker_hosts=127.0.0.1:1",
            *flags,
            environ={PORT: str(port)},
        )
        for name, port in zip(("ps:0", "worker:0"), metrics, strict=True)
    }
    tasks["worker:0"].wait_for("^training$")
    config = tmp_path / "prometheus.yml"
    targets = json.dumps([f"127.0.0.1:{port}" for port in metrics])
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: trainband, static_configs: [{{targets: {targets}}}]}}]\n"
    )
    listen = ports[3]
    server = programs.start(
        "prometheus",
        prometheus,
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={listen}",
    )
    server.wait_for("Server is ready to receive web requests")

    def asked_for(query: str) -> dict[str, float]:
        url = f"http://{listen}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        found = json.loads(page_at(url))["data"]["result"]
        return {one["metric"].get("task", one["metric"].get("instance")): float(one["value"][1]) for one in found}

    until(lambda: bool(asked_for("rate(trainband_worker_steps_total[10s]) > 0")), "the rate of its steps")
    assert set(asked_for("up == 1").values()) == {1.0}
    assert len(asked_for("up == 1")) == len(tasks)
    assert asked_for("trainband_ps_updates_total")["ps:0"] > 0
    assert set(asked_for("process_resident_memory_bytes > 1e6")) == set(tasks)
    server.send(signal.SIGTERM)
    assert server.wait() == 0
    for task in tasks.values():
        task.end()
