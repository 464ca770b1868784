"""What `deploy/prometheus` holds: rules, and a dashboard whose every query is about metrics that there are."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from tests.monitor.prometheus_tools import promtool
from tests.monitor.test_prometheus import PAGES

import trainband

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "prometheus"
DASHBOARD = json.loads((DEPLOY / "grafana_dashboard.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel.get("targets", ())]
_NAME = re.compile(r"\b(?:trainband|process)_[a-z0-9_]+")


def test_promtool_takes_the_configuration_and_the_rules() -> None:
    promtool("check", "config", DEPLOY / "prometheus.yml")
    promtool("check", "rules", DEPLOY / "trainband.rules.yml")


def test_alerts_are_raised_when_they_should_be() -> None:
    promtool("test", "rules", DEPLOY / "trainband.tests.yml")


def exported() -> set[str]:
    """The names of all samples of tasks and jobs."""
    return {name for page in PAGES.values() for name in re.findall(r"^([a-z_]+)[{ ]", page, re.M)}


def exported_by_servers() -> set[str]:
    """Those of an inference server, by its source; skips where it is not there."""
    source = Path(trainband.__file__).parent / "serve"
    names = {
        name
        for path in source.rglob("*.py")
        for name in re.findall(r'"(trainband_serve_[a-z_]+)"', path.read_text(encoding="utf-8"))
    }
    if not names:
        pytest.skip("this trainband has no inference server")
    return names | {f"{name}_bucket" for name in names}


def named() -> set[str]:
    """The metrics that rules, tests of them and dashboard name."""
    rules = (DEPLOY / "trainband.rules.yml").read_text(encoding="utf-8")
    tests = re.findall(r"series: '(\w+)", (DEPLOY / "trainband.tests.yml").read_text(encoding="utf-8"))
    variables = json.dumps(DASHBOARD["templating"])
    found = {name for text in (rules, variables, *(query for _, query in QUERIES)) for name in _NAME.findall(text)}
    return found | (set(tests) - {"up"})


def test_every_metric_that_is_named_is_exported() -> None:
    ours = {name for name in named() if not name.startswith("trainband_serve")}
    assert len(ours) > 30
    assert ours - exported() == set()


def test_every_metric_of_servers_that_is_named_is_exported() -> None:
    theirs = {name for name in named() if name.startswith("trainband_serve")}
    assert theirs - exported_by_servers() == set()


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    """Source: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/."""
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= DASHBOARD.keys()
    assert "id" not in DASHBOARD, "an id is of one Grafana"
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "job", "model"}
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert panel["type"] in ("row", "stat", "timeseries")
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["targets"]
            assert panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"]
            refs = [target["refId"] for target in panel["targets"]]
            assert len(set(refs)) == len(refs)
            assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
    for a, b in combinations((panel["gridPos"] for panel in PANELS), 2):
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"], (a, b)
    used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(PANELS)))
    assert used <= variables


def test_prometheus_understands_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{i}", "expr": re.sub(r"\$__rate_interval", "1m", query).replace("$job", ".*")}
        for i, (_, query) in enumerate(QUERIES)
    ]
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML, too
    assert f"{len(QUERIES)} rules found" in promtool("check", "rules", path)
