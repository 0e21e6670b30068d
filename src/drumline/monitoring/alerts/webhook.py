"""Alerts as an HTTP POST of JSON to one address."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from drumline.errors import BadInput
from drumline.monitoring.alerts.courier import Undelivered
from drumline.monitoring.alerts.incidents import Alert

TIMEOUT_S = 10.0
_AGAIN = frozenset({408, 425, 429})


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would turn the POST into a GET, and could lead elsewhere: it is an error."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook:
    """POSTs each alert as JSON. The header Idempotency-Key is the same for every attempt.

    Args:
        url: http or https; a query or password in it is never logged.
        timeout_s: For one attempt.

    Raises:
        BadInput: If the URL is not http or https.
    """

    name = "webhook"

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadInput(
                "The address of the webhook is none of http or https.",
                remedy="Set DRUMLINE_ALERT_WEBHOOK to https://host/path.",
            )
        self._url = url
        self._where = parts.hostname
        self._timeout_s = timeout_s
        self._opener = build_opener(_NoRedirect)

    def deliver(self, alert: Alert) -> None:
        """POST it.

        Raises:
            Undelivered: If there is no answer, or none of 2xx.
        """
        request = Request(
            self._url,
            json.dumps(alert.as_dict()).encode(),
            {
                "Content-Type": "application/json",
                "User-Agent": "drumline",
                "Idempotency-Key": f"{alert.id}-{alert.state}",
            },
            method="POST",
        )
        try:
            with self._opener.open(request, timeout=self._timeout_s):
                return
        except HTTPError as error:
            error.close()
            again = error.code >= 500 or error.code in _AGAIN
            raise Undelivered(f"{self._where} answers {error.code}.", again=again) from None
        except (OSError, HTTPException) as error:
            raise Undelivered(
                f"{self._where} cannot be reached: {type(error).__name__}.", again=True
            ) from None
