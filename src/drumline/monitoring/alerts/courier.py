"""Brings alerts to where they are to go, on a thread of its own for each way, with retries.

What cannot be delivered in the end is logged, with the alert's text and without any secret. Alerts
that wait are in memory: they are lost with the process.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from drumline.config.service import ServiceSettings
from drumline.errors import DrumlineError
from drumline.monitoring.alerts.incidents import Alert

logger = logging.getLogger(__name__)
MOST_WAITING = 256
RETRY_AFTER_S = (1.0, 5.0, 30.0, 120.0)


class Undelivered(DrumlineError):
    """An alert did not arrive. `again` says whether another attempt may help."""

    code = "undelivered"

    def __init__(self, message: str, *, again: bool, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.again = again


class Way(Protocol):
    """How an alert gets to somebody."""

    name: str

    def deliver(self, alert: Alert) -> None:
        """Bring it there, within a time of its own.

        Raises:
            Undelivered: If it did not arrive.
        """


class Log:
    """The way of those who have set up no other: a warning in the service's log."""

    name = "log"

    def deliver(self, alert: Alert) -> None:
        """Write a line."""
        logger.warning("Alert %s (%s): %s", alert.state, alert.rule, alert.message)


class Courier:
    """Delivers alerts one way, in order.

    Args:
        way: Where to.
        retry_after_s: How long to wait before each further attempt.
    """

    def __init__(self, way: Way, retry_after_s: Sequence[float] = RETRY_AFTER_S) -> None:
        self._way = way
        self._retry_after_s = tuple(retry_after_s)
        self._waiting: deque[Alert] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self.dropped = 0
        """Alerts that gave way as too many waited."""
        self.failed = 0
        """Alerts that were given up."""
        self._thread = threading.Thread(
            target=self._run, name=f"drumline-alerts-{way.name}", daemon=True
        )
        self._thread.start()

    def send(self, alerts: Iterable[Alert]) -> None:
        """Have these delivered; never waits. If too many wait, the oldest gives way."""
        with self._changed:
            for alert in alerts:
                if len(self._waiting) >= MOST_WAITING:
                    self._waiting.popleft()
                    self.dropped += 1
                self._waiting.append(alert)
            self._changed.notify_all()

    def close(self, timeout_s: float = 5.0) -> None:
        """Deliver what waits, without further attempts, and end; waits no longer than told."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (alert := self._next()) is not None:
            self._deliver(alert)

    def _next(self) -> Alert | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closing)
            return self._waiting.popleft() if self._waiting else None

    def _deliver(self, alert: Alert) -> None:
        for pause_s in (*self._retry_after_s, None):
            try:
                self._way.deliver(alert)
                return
            except Undelivered as error:
                if not error.again or pause_s is None or self._pause(pause_s):
                    self._give_up(alert, str(error))
                    return
            except Exception as error:  # a courier must outlive what it stumbles over
                self._give_up(alert, type(error).__name__)
                return

    def _pause(self, seconds: float) -> bool:
        """Wait; True if the courier is to end."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closing, seconds)

    def _give_up(self, alert: Alert, why: str) -> None:
        self.failed += 1
        logger.error("Alert not delivered by %s (%s): %s", self._way.name, why, alert.message)


def couriers(settings: ServiceSettings) -> list[Courier]:
    """A courier for each way that is set up, and one for the log in any case.

    Raises:
        BadInput: If an address cannot be used.
    """
    from drumline.monitoring.alerts.email import Email
    from drumline.monitoring.alerts.webhook import Webhook

    ways: list[Way] = [Log()]
    if settings.alert_webhook:
        ways.append(Webhook(settings.alert_webhook))
    if settings.alert_email:
        ways.append(Email(settings.alert_email, settings.smtp_url))
    return [Courier(way) for way in ways]
