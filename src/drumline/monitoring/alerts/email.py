"""Alerts by e-mail, over SMTP."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate, make_msgid, parseaddr
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from drumline.config.service import LOOPBACK
from drumline.errors import BadInput
from drumline.monitoring.alerts.courier import Undelivered
from drumline.monitoring.alerts.incidents import Alert

TIMEOUT_S = 20.0
_PORTS = {"smtp": 587, "smtps": 465}


class Email:
    """Sends each alert as a message of its own; an incident and its end are one thread.

    The connection is encrypted where the server offers it; a password is never sent without.

    Args:
        to: Addresses, separated by commas.
        smtp_url: smtp://user:password@host:port?from=address; smtps:// for TLS from the start. The
            sender is `from`, else the user if it is an address, else the first recipient.

    Raises:
        BadInput: If an address or the URL cannot be used.
    """

    name = "email"

    def __init__(self, to: str, smtp_url: str, timeout_s: float = TIMEOUT_S) -> None:
        self._to = [_address(part) for part in to.split(",")]
        parts = urlsplit(smtp_url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise BadInput(
                "Alerts by e-mail need a mail server.",
                remedy="Set DRUMLINE_SMTP_URL to smtp://user:password@host:587.",
            )
        self._server = parts
        self._user, self._password = unquote(parts.username or ""), unquote(parts.password or "")
        self._from = _sender(parts, self._user, self._to)
        self._timeout_s = timeout_s

    def deliver(self, alert: Alert) -> None:
        """Send it.

        Raises:
            Undelivered: If the server cannot be reached or does not take it.
        """
        host = self._server.hostname
        try:
            with self._connect() as server:
                server.send_message(self._message(alert))
        except smtplib.SMTPResponseException as error:
            again = 400 <= error.smtp_code < 500
            raise Undelivered(f"{host} answers {error.smtp_code}.", again=again) from None
        except smtplib.SMTPRecipientsRefused as error:
            again = all(400 <= code < 500 for code, _ in error.recipients.values())
            raise Undelivered(f"{host} refuses every recipient.", again=again) from None
        except (OSError, smtplib.SMTPException) as error:
            raise Undelivered(
                f"{host} cannot be reached: {type(error).__name__}.", again=True
            ) from None

    def _connect(self) -> smtplib.SMTP:
        host, port = str(self._server.hostname), self._server.port or _PORTS[self._server.scheme]
        if self._server.scheme == "smtps":
            context = ssl.create_default_context()
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                host, port, timeout=self._timeout_s, context=context
            )
        else:
            server = smtplib.SMTP(host, port, timeout=self._timeout_s)
        try:
            self._secure(server, host)
        except BaseException:
            server.close()
            raise
        return server

    def _secure(self, server: smtplib.SMTP, host: str) -> None:
        encrypted = self._server.scheme == "smtps"
        server.ehlo()
        if not encrypted and server.has_extn("starttls"):
            server.starttls(context=ssl.create_default_context())
            server.ehlo()
            encrypted = True
        if not self._user:
            return
        if not encrypted and host not in LOOPBACK:
            raise Undelivered(
                f"{host} offers no encryption, and a password is not sent without.",
                again=False,
                remedy="Use smtps://, or a URL without a user.",
            )
        server.login(self._user, self._password)

    def _message(self, alert: Alert) -> EmailMessage:
        message = EmailMessage()
        domain = self._from.rpartition("@")[2]
        message["Subject"] = " ".join(f"[drumline] {alert.state}: {alert.subject}".split())
        message["From"] = self._from
        message["To"] = ", ".join(self._to)
        message["Date"] = formatdate(alert.at_ms / 1000)
        thread = f"<{alert.id}@{domain}>"
        message["Message-ID"] = thread if alert.state == "raised" else make_msgid(domain=domain)
        if alert.state != "raised":
            message["References"] = thread
        message.set_content(f"{alert.message}\n\nRule: {alert.rule}\nIncident: {alert.id}\n")
        return message


def _address(text: str) -> str:
    address = parseaddr(text)[1]
    if "@" not in address:
        raise BadInput(
            f"{text.strip()!r} is not an e-mail address.",
            remedy="Set DRUMLINE_ALERT_EMAIL to addresses separated by commas.",
        )
    return address


def _sender(parts: SplitResult, user: str, to: list[str]) -> str:
    told = parse_qs(parts.query).get("from", [user if "@" in user else to[0]])
    return _address(told[0])
