"""Logs and artifacts: right bytes, and never one from outside the configured folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from drumline.database import open_database
from drumline.database.tables import trainings
from drumline.server.errors import NotFound
from drumline.server.run_files import RunFiles
from service_app import App

SECRET = "the secret of another folder"


class Run:
    """A training that has a run directory with some files, and a client."""

    def __init__(self, app: App, root: Path) -> None:
        self.app, self.root = app, root
        self.id = app.train()["id"]
        self.path = root / "runs" / "a-run"
        (self.path / "logs").mkdir(parents=True)
        (self.path / "logs" / "rank-0.log").write_bytes(b"one\ntwo\n\xff\n")
        (self.path / "logs" / "rank-10.log").write_text("ten")
        (self.path / "logs" / "launcher.log").write_text("launched")
        (self.path / "checkpoints" / "step-5").mkdir(parents=True)
        (self.path / "checkpoints" / "step-5" / "model.safetensors").write_bytes(bytes(range(256)))
        (self.path / "config.yaml").write_text("a: 1")
        (self.path / "curve.png").write_text("png")
        (root / "outside").mkdir()
        (root / "outside" / "secret").write_text(SECRET)
        self.lies_at(self.path)

    def lies_at(self, path: Path) -> None:
        with self.app.database.writing() as connection:
            connection.execute(sa.update(trainings).values(run_dir=str(path), host_id=None))

    def get(self, path: str, **query: object) -> object:
        return self.app.client.get(f"/api/v1/trainings/{self.id}/{path}", params=query)

    def files(self) -> RunFiles:
        return RunFiles(self.app.services.trainings.get(self.id), self.app.settings)


@pytest.fixture
def run(sqlite_url: str, tmp_path: Path) -> Iterator[Run]:
    database = open_database(sqlite_url)
    yield Run(App(database, tmp_path), tmp_path)
    database.close()


def test_artifacts_are_listed_by_what_they_are(run: Run) -> None:
    (run.path / ".held").write_text("1")
    os.mkfifo(run.path / "pipe")
    (run.path / "link").symlink_to(run.root / "outside" / "secret")
    (run.path / "folder").symlink_to(run.root / "outside")
    told = run.get("artifacts").json()
    assert told["complete"] is True
    assert [(one["path"], one["kind"], one["bytes"]) for one in told["artifacts"]] == [
        ("checkpoints/step-5/model.safetensors", "checkpoint", 256),
        ("config.yaml", "record", 4),
        ("curve.png", "plot", 3),
    ]


def test_a_file_is_downloaded_whole_and_as_a_file(run: Run) -> None:
    answer = run.get("artifacts/checkpoints/step-5/model.safetensors")
    assert answer.content == bytes(range(256))
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Length"] == "256"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="model.safetensors"'


@pytest.mark.parametrize(
    "path",
    [
        "..%2F..%2Foutside%2Fsecret",
        "%2Fetc%2Fpasswd",
        "link",
        "folder/secret",
        "checkpoints/link",
        "checkpoints",
        "checkpoints%2F..%2Fconfig.yaml",
        "config.yaml%2F",
        "pipe",
        "config.yaml%00",
        "nothing",
    ],
)
def test_no_path_leaves_the_run_directory(run: Run, path: str) -> None:
    os.mkfifo(run.path / "pipe")
    (run.path / "link").symlink_to(run.root / "outside" / "secret")
    (run.path / "folder").symlink_to(run.root / "outside")
    (run.path / "checkpoints" / "link").symlink_to(Path("..") / ".." / ".." / "outside" / "secret")
    answer = run.get(f"artifacts/{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert SECRET not in answer.text
    assert run.get("logs/tail", name=f"../{path}").status_code == 404


def test_a_folder_that_becomes_a_link_is_not_followed(run: Run) -> None:
    files = run.files()
    real = run.path / "checkpoints"
    real.rename(run.path / "moved")
    real.symlink_to(run.root / "outside")
    with pytest.raises(NotFound):
        files.open("checkpoints/secret")


def test_run_directories_outside_the_folders_are_closed(run: Run) -> None:
    (run.root / "runs" / "linked").symlink_to(run.root / "outside")
    for path in ("outside", "runs", "runs/linked", "runs/../outside", "runs-too"):
        run.lies_at(run.root / path)
        assert run.get("artifacts").status_code == 404, path
        assert run.get("artifacts/secret").status_code == 404, path
    run.lies_at(run.root / "runs" / "gone")
    assert "not on this machine" in run.get("artifacts").json()["detail"]


def test_a_root_may_itself_be_a_link(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    database = open_database(sqlite_url)
    run = Run(App(database, tmp_path), tmp_path)
    assert run.get("artifacts/config.yaml").text == "a: 1"
    run.lies_at(tmp_path / "disk" / "a-run")
    assert run.get("artifacts/config.yaml").text == "a: 1"
    database.close()


def test_no_descriptor_is_left_open(run: Run) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    run.get("artifacts/config.yaml")
    before = count()
    for path in ("config.yaml", "nothing", "checkpoints", "checkpoints/step-5/x"):
        for _ in range(5):
            run.get(f"artifacts/{path}")
    run.get("artifacts")
    run.get("logs")
    assert count() == before


def test_logs_ranks_first(run: Run) -> None:
    logs = run.get("logs").json()["logs"]
    assert [(log["name"], log["rank"], log["bytes"]) for log in logs] == [
        ("rank-0.log", 0, 10),
        ("rank-10.log", 10, 3),
        ("launcher.log", None, 8),
    ]


def test_a_log_is_followed_without_gap_or_repeat(run: Run) -> None:
    tail = run.get("logs/tail", rank=0, bytes=6).json()
    assert (tail["text"], tail["offset"], tail["next_offset"]) == ("two\n�\n", 4, 10)
    with (run.path / "logs" / "rank-0.log").open("ab") as log:
        log.write(b"three\n")
    more = run.get("logs/tail", rank=0, offset=tail["next_offset"]).json()
    assert (more["text"], more["next_offset"], more["bytes"]) == ("three\n", 16, 16)
    nothing = run.get("logs/tail", rank=0, offset=more["next_offset"]).json()
    assert (nothing["text"], nothing["next_offset"]) == ("", 16)
    assert run.get("logs/tail", name="launcher.log").json()["text"] == "launched"
    assert run.get("logs/tail", rank=7).status_code == 404


def test_before_it_started_there_are_no_files(run: Run) -> None:
    other = run.app.train()["id"]
    for path in ("artifacts", "logs", "logs/tail"):
        answer = run.app.client.get(f"/api/v1/trainings/{other}/{path}")
        assert "no run directory yet" in answer.json()["detail"]
