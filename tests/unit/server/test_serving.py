"""What keeps `drumline serve` from starting, each said in a line; and its address."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from drumline.cli.main import run
from drumline.config.service import ServiceSettings
from drumline.server.serving import listening, url_of


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRUMLINE_HOME", str(tmp_path))
    for name in ("DRUMLINE_DATABASE_URL", "DRUMLINE_HOST", "DRUMLINE_PORT"):
        monkeypatch.delenv(name, raising=False)


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run(["serve", *arguments])
    printed = capsys.readouterr()
    assert printed.out == "" and "Traceback" not in printed.err
    return code, printed.err


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        code, said = fails(capsys, "--port", port)
    assert code == 2
    assert f"port {port} of 127.0.0.1 is taken" in said and "--port" in said


@pytest.mark.parametrize(
    "arguments", [["--host", "0.0.0.0"], ["--host", "gpu.example"], ["--host", "::"]]
)
def test_others_and_no_token(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, said = fails(capsys, "--port", "0", *arguments)
    assert code == 2
    assert "there is no token" in said and "drumline token create" in said


def test_behind_a_proxy_and_no_token(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRUMLINE_ALLOWED_HOSTS", "gpu.example")
    code, said = fails(capsys, "--port", "0")
    assert code == 2 and "there is no token" in said


def test_an_address_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["token", "create", "--role", "viewer"]) == 0
    capsys.readouterr()
    code, said = fails(capsys, "--host", "203.0.113.7")
    assert code == 2 and "cannot listen on port 8470 of 203.0.113.7" in said


@pytest.mark.parametrize(
    ("url", "says", "ends_with"),
    [
        ("postgresql+psycopg://nobody:hunter2@127.0.0.1:1/none", "does not answer", 1),
        ("mysql://nobody:hunter2@x/y", "is not a database that can be used", 2),
        ("sqlite:////proc/none/drumline.db", "cannot be made", 1),
    ],
)
def test_a_database_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    says: str,
    ends_with: int,
) -> None:
    monkeypatch.setenv("DRUMLINE_DATABASE_URL", url)
    code, said = fails(capsys)
    assert code == ends_with and says in said and "DRUMLINE_DATABASE_URL" in said
    assert "hunter2" not in said


def test_a_setting_that_cannot_be_used_is_named_and_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRUMLINE_PORT", "hunter2")
    code, said = fails(capsys)
    assert code == 2 and "DRUMLINE_PORT" in said and "hunter2" not in said


@pytest.mark.parametrize(
    ("host", "url"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("localhost", None)]
)
def test_the_address_told_can_be_opened(host: str, url: str | None) -> None:
    with listening(ServiceSettings(host=host, port=0)) as listener:
        told = url_of(listener)
        assert told == f"http://{url or listener.getsockname()[0]}:{listener.getsockname()[1]}"
        with socket.create_connection(("127.0.0.1", listener.getsockname()[1])):
            pass
