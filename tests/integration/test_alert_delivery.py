"""Alerts reach a real HTTP server and a real SMTP server, also where these fail at first."""

from __future__ import annotations

import email
import email.policy
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest

from drumline.config.service import ServiceSettings
from drumline.errors import BadInput
from drumline.monitoring.alerts import Alert, Courier, couriers
from drumline.monitoring.alerts.courier import Undelivered
from drumline.monitoring.alerts.email import Email
from drumline.monitoring.alerts.webhook import Webhook

PATIENCE_S = 20
RAISED = Alert("a1", "raised", "temperature", "GPU-1", "GPU 0", "GPU 0 is at 93 °C.", 93, 0, 30_000)
RESOLVED = replace(RAISED, state="resolved", message="Over.", value=60, at_ms=90_000)


@contextmanager
def running(server: Any) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)


@contextmanager
def http_server(answers: list[int]) -> Iterator[tuple[str, Queue[Any]]]:
    """Gives these answers in turn, the last for ever; puts what it got into the queue."""
    got: Queue[Any] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(code)
            if code == 302:
                self.send_header("Location", f"http://127.0.0.1:{port}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()
            got.put((self.path, dict(self.headers), json.loads(body)))

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield f"http://127.0.0.1:{port}/hook?key=secret", got


@contextmanager
def smtp_server(
    answer: Callable[[str], str | None], host: str = "127.0.0.1"
) -> Iterator[tuple[int, Queue[EmailMessage]]]:
    """As much SMTP as takes a message; `answer` may give another answer to a line."""
    got: Queue[EmailMessage] = Queue()

    class Handler(StreamRequestHandler):
        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        def handle(self) -> None:
            self.say("220 here")
            while line := self.rfile.readline().decode().strip():
                verb = line.split()[0].upper()
                other = answer(line)
                if other is not None:
                    self.say(other)
                elif verb == "EHLO":
                    self.wfile.write(b"250-here\r\n250 AUTH PLAIN LOGIN\r\n")
                elif verb == "DATA":
                    self.say("354 go on")
                    lines = iter(self.rfile.readline, b".\r\n")
                    message = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
                    self.say("250 taken")
                    got.put(message)
                elif verb == "QUIT":
                    self.say("221 bye")
                    return
                else:
                    self.say("235 welcome" if verb == "AUTH" else "250 ok")

    with running(ThreadingTCPServer((host, 0), Handler)) as port:
        yield port, got


def test_a_webhook_gets_each_alert_once_as_json() -> None:
    with http_server([200]) as (url, got):
        courier = Courier(Webhook(url))
        courier.send([RAISED, RESOLVED])
        path, headers, body = got.get(timeout=PATIENCE_S)
        assert path == "/hook?key=secret"
        assert headers["Content-Type"] == "application/json"
        assert body == RAISED.as_dict()
        assert got.get(timeout=PATIENCE_S)[2]["state"] == "resolved"
        courier.close()
        assert got.empty()
        assert courier.failed == 0


def test_a_webhook_that_fails_at_first_is_tried_again_and_knows_it() -> None:
    with http_server([503, 429, 204]) as (url, got):
        courier = Courier(Webhook(url), retry_after_s=(0.01, 0.01, 0.01))
        courier.send([RAISED])
        keys = {got.get(timeout=PATIENCE_S)[1]["Idempotency-Key"] for _ in range(3)}
        assert keys == {"a1-raised"}
        courier.close()
        assert courier.failed == 0


@pytest.mark.parametrize(("answer", "tries"), [(404, 1), (302, 1), (500, 3)])
def test_what_cannot_be_delivered_is_logged_without_the_secret(
    answer: int, tries: int, caplog: pytest.LogCaptureFixture
) -> None:
    with http_server([answer]) as (url, got), caplog.at_level(logging.ERROR):
        courier = Courier(Webhook(url), retry_after_s=(0.01, 0.01))
        courier.send([RAISED])
        for _ in range(tries):
            assert got.get(timeout=PATIENCE_S)[0] == "/hook?key=secret"
        courier.close(PATIENCE_S)
        assert (courier.failed, got.empty()) == (1, True)
    assert "GPU 0 is at 93 °C." in caplog.text
    assert str(answer) in caplog.text
    assert "secret" not in caplog.text


def test_a_server_that_is_not_there_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    with http_server([200]) as (url, _):
        pass
    courier = Courier(Webhook(url), retry_after_s=(600,))
    courier.send([RAISED])
    courier.close(PATIENCE_S)
    assert courier.failed == 1
    assert "cannot be reached: URLError" in caplog.text


def test_mail_arrives_and_the_end_of_an_incident_belongs_to_its_beginning() -> None:
    with smtp_server(lambda line: None) as (port, got):
        to = "one@example.org, Two <two@example.org>"
        courier = Courier(Email(to, f"smtp://127.0.0.1:{port}?from=drumline@example.org"))
        nasty = replace(RAISED, subject="GPU\r\nBcc: all@example.org")
        courier.send([nasty, RESOLVED])
        first, second = (got.get(timeout=PATIENCE_S) for _ in range(2))
        courier.close()
    assert first["Subject"] == "[drumline] raised: GPU Bcc: all@example.org"
    assert first["Bcc"] is None
    assert (first["From"], first["To"]) == (
        "drumline@example.org",
        "one@example.org, two@example.org",
    )
    assert first.get_content().splitlines()[0] == "GPU 0 is at 93 °C."
    assert second["References"] == first["Message-ID"] != second["Message-ID"]


def test_a_mail_server_that_says_later_is_asked_again_and_one_that_says_no_is_not() -> None:
    seen: list[str] = []

    def answer(line: str) -> str | None:
        if not line.upper().startswith("RCPT"):
            return None
        seen.append(line)
        return {1: "451 later", 2: None}.get(len(seen), "550 no such user")

    with smtp_server(answer) as (port, got):
        way = Email("one@example.org", f"smtp://127.0.0.1:{port}")
        courier = Courier(way, retry_after_s=(0.01, 0.01))
        courier.send([RAISED])
        assert got.get(timeout=PATIENCE_S)["To"] == "one@example.org"
        courier.send([RESOLVED])
        courier.close(PATIENCE_S)
        assert (len(seen), courier.failed) == (3, 1)


def test_a_password_is_sent_on_this_machine_and_refused_to_another_without_encryption() -> None:
    seen: list[str] = []

    def answer(line: str) -> None:
        seen.append(line)

    with smtp_server(answer) as (port, got):
        Email("a@example.org", f"smtp://me:pass%40word@127.0.0.1:{port}").deliver(RAISED)
        assert got.get(timeout=PATIENCE_S)["From"] == "a@example.org"
        assert any(line.startswith("AUTH") for line in seen)
    seen.clear()
    # An address that is not known to be this machine.
    with smtp_server(answer, "127.0.0.2") as (port, got):
        with pytest.raises(Undelivered, match="no encryption") as refused:
            Email("a@example.org", f"smtp://me:word@127.0.0.2:{port}").deliver(RAISED)
        assert not refused.value.again
        assert not any(line.startswith("AUTH") for line in seen)


def test_addresses_that_cannot_be_used_are_refused_at_the_start() -> None:
    for settings in (
        {"alert_webhook": "ftp://host/x"},
        {"alert_webhook": "host/hook"},
        {"alert_email": "nobody", "smtp_url": "smtp://host"},
        {"alert_email": "a@example.org"},
    ):
        with pytest.raises(BadInput, match="DRUMLINE_"):
            couriers(ServiceSettings(**settings))  # type: ignore[arg-type]
    (log,) = couriers(ServiceSettings())
    log.close()


def test_the_log_is_a_way_too(caplog: pytest.LogCaptureFixture) -> None:
    (log,) = couriers(ServiceSettings())
    log.send([RAISED])
    log.close(PATIENCE_S)
    assert "Alert raised (temperature): GPU 0 is at 93 °C." in caplog.text


def test_too_many_that_wait_give_way_to_newer_ones() -> None:
    blocked, entered = threading.Event(), threading.Event()
    delivered: list[str] = []

    class Slow:
        name = "slow"

        def deliver(self, alert: Alert) -> None:
            entered.set()
            blocked.wait(PATIENCE_S)
            delivered.append(alert.id)

    courier = Courier(Slow())
    courier.send([replace(RAISED, id="first")])
    assert entered.wait(PATIENCE_S)
    courier.send(replace(RAISED, id=str(n)) for n in range(300))
    blocked.set()
    courier.close(PATIENCE_S)
    assert courier.dropped == 300 - 256
    assert delivered == ["first", *map(str, range(44, 300))]
