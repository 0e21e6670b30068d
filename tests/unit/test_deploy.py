"""What lies in deploy/ fits what the service offers: names of metrics, settings, units."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from drumline.config.service import ServiceSettings
from drumline.hardware import Machine
from drumline.jobs.reports import Batch, Value
from drumline.monitoring.inventory import Inventory
from drumline.server.prometheus import Exposition, Health
from queue_cases import service_at

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy/grafana/drumline.json"
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
NAME = re.compile(r"\b(?:drumline|process)_[a-z_]+\b")


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> set[str]:
    """The names of all samples of a service in which everything reports everything."""
    path = tmp_path_factory.mktemp("offered") / "drumline.db"
    shutil.copy(migrated_sqlite, path)
    machine = Machine.probe(simulate="1xH100")
    with service_at(f"sqlite:///{path}") as service:
        Inventory(service.database).record(machine, service.clock.now, "h")
        service.ask(1)
        claim = service.leases.claim("h", machine)
        assert claim is not None
        values = (Value("loss", 1, 0, 1.0), Value("samples_per_s", 1, 0, 1.0))
        service.trainings.reports.write(claim.token, Batch(values, step=1, steps=8))
        health = Health(1, 1, sampler_late_ticks=0, alerts_open=0, alerts_failed=0)
        page, _ = Exposition(service.database, lambda: health, service.clock).page()
    lines = page.decode().splitlines()
    return {re.split(r"[{ ]", line)[0] for line in lines if line and not line.startswith("#")}


def expressions(node: Any) -> list[str]:
    """Every PromQL expression and label query in a dashboard."""
    if isinstance(node, list):
        return [found for item in node for found in expressions(item)]
    if not isinstance(node, dict):
        return []
    own = [node[key] for key in ("expr", "definition") if key in node]
    return own + [found for item in node.values() for found in expressions(item)]


def test_the_dashboard_asks_only_for_what_is_offered(offered: set[str]) -> None:
    board = json.loads(DASHBOARD.read_text())
    asked = {name for text in expressions(board["panels"]) for name in NAME.findall(text)}
    chosen = {name for text in expressions(board["templating"]) for name in NAME.findall(text)}
    assert len(asked) > 15
    assert chosen == {"drumline_host_up", "drumline_training_step"}
    assert asked | chosen <= offered


def test_panels_do_not_overlap_and_have_their_own_number() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not own & cells, panel["title"]
        cells |= own


def test_every_metric_is_in_the_handbook_and_nothing_else(offered: set[str]) -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    told = set(re.findall(r"`(drumline_[a-z_]+)`", text))
    assert told == {name for name in offered if name.startswith("drumline_")}


def test_prometheus_reads_the_port_of_the_service() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "drumline"
    (target,) = job["static_configs"][0]["targets"]
    assert target == f"127.0.0.1:{ServiceSettings.model_fields['port'].default}"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_leave_trainings_alone_and_name_only_known_settings(unit: Path) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    service = parser["Service"]
    assert (service["KillMode"], service["OOMPolicy"]) == ("process", "continue")
    assert service["ExecStart"].split()[1] == unit.stem.removeprefix("drumline-")
    settings = {f"DRUMLINE_{name.upper()}" for name in ServiceSettings.model_fields}
    assert {pair.split("=")[0] for pair in service["Environment"].split()} <= settings


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here to ask")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/drumline/bin/drumline", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
    )
    about_this = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, about_this) == (0, [])
