"""Who is let in: by name of the host, site of the page, token, role; and what is in the log."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from starlette.websockets import WebSocketDisconnect

from drumline.config.service import ServiceSettings
from drumline.database import open_database
from drumline.database.tables import sessions, tokens
from drumline.errors import BadInput
from drumline.server.access.addresses import Names, needs_token, same_site
from drumline.server.access.gate import FOR_VIEWERS, SESSION_PATH
from drumline.server.access.identity import Role
from drumline.server.access.rate import RateLimit
from drumline.server.access.tokens import SESSION_MS, USED_EVERY_MS, Tokens
from drumline.server.errors import NotFound, TooOften
from service_app import App

GPUS = "/api/v1/system/gpus"


@pytest.fixture
def local(sqlite_url: str, tmp_path: Path) -> Iterator[App]:
    database = open_database(sqlite_url)
    yield App(database, tmp_path)
    database.close()


@pytest.fixture
def reachable(sqlite_url: str, tmp_path: Path) -> Iterator[App]:
    """A service that others than this machine can reach."""
    database = open_database(sqlite_url)
    yield App(database, tmp_path, host="0.0.0.0", allowed_hosts=("gpu.example",))
    database.close()


def auth(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


# Names and sites.


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8470", True),
        ("localhost", True),
        ("[::1]:8470", True),
        ("LOCALHOST.:8470", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.5:8470", False),
        ("", False),
        ("[", False),
    ],
)
def test_on_loopback_only_names_of_loopback_count(host: str, known: bool) -> None:
    assert Names(ServiceSettings()).has(host) is known


def test_elsewhere_numbers_and_allowed_names_count() -> None:
    names = Names(ServiceSettings(host="0.0.0.0", allowed_hosts=("gpu.example:443",)))
    assert all(map(names.has, ("10.0.0.5:8470", "[fe80::1]", "gpu.example", "GPU.example:99")))
    assert not names.has("evil.example")


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://127.0.0.1:8470", "127.0.0.1:8470", True),
        ("https://gpu.example", "gpu.example", True),
        ("https://gpu.example", "gpu.example:443", True),
        ("http://127.0.0.1:3000", "127.0.0.1:8470", False),
        ("http://gpu.example.evil", "gpu.example", False),
        ("null", "127.0.0.1:8470", False),
        ("http://[", "[", False),
        ("http://a:99999999", "a:99999999", False),
    ],
)
def test_a_page_is_of_this_site(origin: str, host: str, same: bool) -> None:
    assert same_site(origin, host) is same


def test_who_can_be_reached_needs_a_token() -> None:
    assert not needs_token(ServiceSettings())
    assert not needs_token(ServiceSettings(host="::1", allowed_hosts=("localhost",)))
    assert needs_token(ServiceSettings(host="0.0.0.0"))
    assert needs_token(ServiceSettings(allowed_hosts=("gpu.example",)))  # behind a proxy


def test_a_rebound_name_is_refused_on_loopback_too(local: App) -> None:
    answer = local.client.get(GPUS, headers={"Host": "evil.example"})
    assert (answer.status_code, answer.json()["code"]) == (421, "unknown_host")
    assert local.client.get(GPUS).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_another_sites_page_changes_nothing(local: App, headers: dict[str, str]) -> None:
    at = f"/api/v1/trainings/{local.train()['id']}/cancel"
    refused = local.client.post(at, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "foreign_origin")
    own = {"Origin": "http://127.0.0.1:8470", "Sec-Fetch-Site": "same-origin"}
    assert local.client.post(at, headers=own).json()["state"] == "cancelled"


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}])
def test_another_sites_page_gets_no_websocket(local: App, headers: dict[str, str]) -> None:
    with (
        pytest.raises(WebSocketDisconnect),
        local.client.websocket_connect("/api/v1/live", headers=headers),
    ):
        pass


# Tokens and roles.


def test_only_the_hash_of_a_token_is_kept(local: App) -> None:
    secret = local.token(Role.VIEWER)
    with local.database.reading() as connection:
        row = connection.execute(sa.select(tokens)).one()
    assert row.hash == hashlib.sha256(secret.encode()).hexdigest()
    assert secret not in repr(row)
    assert len(secret) >= len("drumline_") + 43  # 256 bits, six to a character


def test_what_each_may(reachable: App) -> None:
    client, viewer = reachable.client, reachable.token(Role.VIEWER)
    operator = reachable.token(Role.OPERATOR, "ops")
    anybody = client.get(GPUS)
    assert (anybody.status_code, anybody.json()["code"]) == (401, "token_needed")
    assert anybody.headers["WWW-Authenticate"] == "Bearer"
    assert client.get(GPUS, headers=auth("drumline_wrong")).status_code == 401
    assert client.get(GPUS, headers={"Authorization": "Basic eDp5"}).status_code == 401
    assert client.get(GPUS, headers=auth(viewer)).status_code == 200
    refused = client.post("/api/v1/trainings", json={"config": {}}, headers=auth(viewer))
    assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")
    heard = client.post("/api/v1/trainings", json={"config": {}}, headers=auth(operator))
    assert heard.json()["code"] == "bad_config"
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers=auth(viewer)).status_code == 200


def test_whoever_changes_something_must_be_an_operator(reachable: App) -> None:
    viewer = auth(reachable.token(Role.VIEWER))
    checked = 0
    for path, methods in _paths(reachable).items():
        for method in methods - {"get"}:
            if path in FOR_VIEWERS or path == SESSION_PATH:
                continue
            answer = reachable.client.request(method, _filled(path), headers=viewer)
            assert answer.json()["code"] == "not_allowed", (method, path)
            checked += 1
    assert checked >= 10


def test_nothing_of_the_api_is_open_to_anybody(reachable: App) -> None:
    paths = list(_paths(reachable))
    assert len(paths) >= 20
    for path in [*paths, "/api/v1/openapi.json", "/api/v1/nothing", "/api/"]:
        if path != SESSION_PATH:
            answer = reachable.client.get(_filled(path))
            assert answer.status_code == 401, path


def _paths(app: App) -> dict[str, set[str]]:
    """All paths of the API with their methods."""
    return {path: set(methods) for path, methods in app.app.openapi()["paths"].items()}


def _filled(path: str) -> str:
    return re.sub(r"\{\w+\}", "x", path)


def test_a_wrong_token_is_wrong_where_none_is_needed(local: App) -> None:
    assert local.client.get(GPUS, headers=auth("drumline_wrong")).status_code == 401


def test_a_revoked_token_ends_at_once_with_its_logins(reachable: App) -> None:
    store = Tokens(reachable.database)
    made, secret = store.create("x", Role.OPERATOR)
    assert reachable.client.post(SESSION_PATH, json={"token": secret}).status_code == 200
    assert reachable.client.get(GPUS).status_code == 200
    store.revoke(made.id)
    assert reachable.client.get(GPUS).status_code == 401
    assert reachable.client.get(GPUS, headers=auth(secret)).status_code == 401
    assert not store.any()
    with pytest.raises(NotFound):
        store.revoke("nobody")


def test_use_is_noted_to_the_minute(local: App) -> None:
    now = 1_000_000
    store = Tokens(local.database, clock=lambda: now)
    secret = store.create("x", Role.VIEWER)[1]
    assert [token.used_ms for token in store.list()] == [None]
    store.who(secret)
    now += USED_EVERY_MS - 1
    store.who(secret)
    assert [token.used_ms for token in store.list()] == [1_000_000]
    now += 1
    store.who(secret)
    assert [token.used_ms for token in store.list()] == [1_000_000 + USED_EVERY_MS]


@pytest.mark.parametrize("name", ["", "  ", "x" * 65, "a\nb", "a\x00"])
def test_names_that_cannot_be(local: App, name: str) -> None:
    with pytest.raises(BadInput):
        Tokens(local.database).create(name, Role.VIEWER)


# Logging in.


def test_a_browser_logs_in_and_out(reachable: App) -> None:
    client, secret = reachable.client, reachable.token(Role.VIEWER, "ann")
    assert client.get(SESSION_PATH).json() == {"name": None, "role": None, "token_needed": True}
    answer = client.post(SESSION_PATH, json={"token": secret})
    assert answer.json() == {"name": "ann", "role": "viewer", "token_needed": False}
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and secret not in cookie
    assert client.get(GPUS).status_code == 200
    with reachable.database.reading() as connection:
        kept = connection.execute(sa.select(sessions)).one()
    assert client.cookies["drumline_session"] not in repr(kept)
    stolen = client.cookies["drumline_session"]
    assert client.delete(SESSION_PATH).status_code == 204
    client.cookies.set("drumline_session", stolen)
    assert client.get(GPUS).status_code == 401


def test_over_https_the_cookie_stays_there(reachable: App) -> None:
    secret = reachable.token(Role.VIEWER)
    url = f"https://gpu.example{SESSION_PATH}"
    answer = reachable.client.post(url, json={"token": secret})
    assert "Secure" in answer.headers["set-cookie"]


def test_a_login_ends_by_itself(local: App) -> None:
    now = 5_000_000
    store = Tokens(local.database, clock=lambda: now)
    identity = store.who(store.create("x", Role.VIEWER)[1])
    assert identity is not None
    session = store.open_session(identity)
    now += SESSION_MS - 1
    assert store.whose_session(session) == identity
    now += 1
    assert store.whose_session(session) is None


def test_logging_in_is_limited(reachable: App) -> None:
    codes = [
        reachable.client.post(SESSION_PATH, json={"token": f"guess{turn}"}).status_code
        for turn in range(12)
    ]
    assert codes[:10] == [401] * 10 and codes[11] == 429


def test_a_bucket_fills_up_again_for_each_and_for_all() -> None:
    now = 0.0
    limit = RateLimit(2, 3, 60, clock=lambda: now)
    limit.take("a", "x")
    limit.take("a", "x")
    with pytest.raises(TooOften) as refused:
        limit.take("a", "x")
    assert refused.value.values["retry_after_s"] == 30  # two in 60 s
    limit.take("b", "x")
    with pytest.raises(TooOften):  # all together have had three
        limit.take("c", "x")
    now = 30.0
    limit.take("a", "x")


# Around every answer.


def test_headers_of_every_answer(local: App) -> None:
    for path in (GPUS, "/api/v1/nothing", "/nothing"):
        headers = local.client.get(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "script-src" not in headers["Content-Security-Policy"]  # so: default-src 'self'
        assert headers["Referrer-Policy"] == "no-referrer"
    assert local.client.get(GPUS).headers["Cache-Control"] == "no-store"


def test_the_log_has_no_secret(reachable: App, caplog: pytest.LogCaptureFixture) -> None:
    secret = reachable.token(Role.OPERATOR)
    with caplog.at_level(logging.DEBUG):
        reachable.client.post(SESSION_PATH, json={"token": secret})
        reachable.client.get(GPUS, headers=auth(secret))
        reachable.client.get(f"{GPUS}?token={secret}&view=a%0Ab", headers=auth(secret))
    lines = [r.getMessage() for r in caplog.records if r.name == "drumline.access"]
    assert len(lines) == 3
    assert lines[2].endswith("ms") and "token=***" in lines[2] and "\n" not in lines[2]
    assert not any(
        secret in record.getMessage()
        for record in caplog.records
        if record.name.startswith("drumline")
    )
