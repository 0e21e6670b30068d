"""A service without a socket: its application on a database of the test's own, and a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

from drumline.config.service import ServiceSettings
from drumline.database import Database, now_ms
from drumline.hardware import Machine
from drumline.monitoring.inventory import Inventory
from drumline.server.access.identity import Role
from drumline.server.access.tokens import Tokens
from drumline.server.app import create_app
from drumline.server.services import Services

HOST = "box"
URL = "http://127.0.0.1:8470"
TRAINING: dict[str, Any] = {
    "task": {
        "name": "clstm_ppo",
        "environment": {"name": "cartpole_memory"},
        "environments": 2,
        "total_steps": 64,
        "rollout_steps": 8,
    },
    "global_batch": 16,
}


class App:
    """An application, what it works with, and a client on this machine."""

    def __init__(
        self, database: Database, root: Path, simulate: str = "4xH100", **settings: Any
    ) -> None:
        self.settings = ServiceSettings(
            home=root, run_root=root / "runs", **({"script_roots": (root / "data",)} | settings)
        )
        self.database = database
        self.services = Services(self.settings, database)
        self.app: FastAPI = create_app(self.settings, database, self.services)
        self.client = TestClient(self.app, base_url=URL)
        if simulate:
            self.record(Machine.probe(simulate=simulate))

    def record(self, machine: Machine, host: str = HOST, time_ms: int | None = None) -> None:
        """Let a host be seen as this machine."""
        Inventory(self.database).record(machine, now_ms() if time_ms is None else time_ms, host)

    def token(self, role: Role, name: str = "somebody") -> str:
        """A new token."""
        return Tokens(self.database).create(name, role)[1]

    def train(self, **changes: Any) -> dict[str, Any]:
        """A training, made through the API."""
        answer = self.client.post("/api/v1/trainings", json={"config": TRAINING, **changes})
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made
