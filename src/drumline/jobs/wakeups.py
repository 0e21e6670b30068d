"""Wake-ups and periodic work through Celery: prompts to look, never the thing itself.

Tasks carry no arguments and run in milliseconds; what is to be done is read from the database. So a
message that is lost, late or doubled does no harm, and every agent looks by itself anyway. The
broker is in this process (memory://), or Redis where there are several hosts.

Settings keep off known traps: a message is taken off the queue before its task runs, so that no
visibility timeout can run it again; results, remote control and events are off; old messages
expire; a broker that is away is waited for by threads that nobody else waits for. The number of
messages that a worker holds is not bounded: one whose acknowledgement a cut connection swallowed
would count for ever, and with a bound the worker would read nothing more, not even that it is cut
off.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import celery
from celery import beat
from celery.worker import WorkController
from celery.worker import state as worker_state
from kombu import Exchange, Queue
from kombu.common import Broadcast

logger = logging.getLogger(__name__)

ALL, SHARED = "drumline.all", "drumline"
WAKE, SWEEP, HOST_HEARTBEAT, ROLL_UP, CLEAN_UP = (
    f"drumline.{name}" for name in ("wake", "sweep", "host_heartbeat", "roll_up", "clean_up")
)
_STOP_S = 1.0


def make_app(broker_url: str, host: str | None = None) -> celery.Celery:
    """The Celery app of this process.

    Args:
        broker_url: memory://, or redis://…
        host: The name of this host, whose own queue it is; by default what it calls itself.
    """
    host = host or socket.gethostname()
    own = f"{SHARED}.host.{host}"
    if broker_url == "memory://":
        broker_url = "memory://localhost"  # kombu warns of a URL without a host
    app = celery.Celery("drumline", broker=broker_url, set_as_current=False)
    app.conf.update(
        task_queues=(
            Queue(SHARED),
            Queue(own),
            Broadcast(ALL, queue=f"{ALL}.{host}"),  # a name that stays: none are left behind
        ),
        task_default_queue=SHARED,
        task_routes={
            WAKE: {"queue": ALL},
            SWEEP: {"queue": own},
            HOST_HEARTBEAT: {"queue": own},
        },
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_acks_late=False,
        task_serializer="json",
        accept_content=["json"],
        task_publish_retry=False,
        worker_prefetch_multiplier=0,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_send_task_events=False,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=2,
        broker_transport_options={
            "global_keyprefix": "drumline:",
            "socket_connect_timeout": 2,
            "socket_timeout": 10,
            "polling_interval": 0.1,  # of memory://
        },
    )
    return app


class Sender:
    """Sends wake-ups to all agents, without ever making the caller wait.

    Any number of wake-ups that come while one is being sent are one.
    """

    def __init__(self, app: celery.Celery) -> None:
        self._app = app
        self._due = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="drumline-waker", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Have all agents look at the database soon. May be lost."""
        self._due.set()

    def stop(self) -> None:
        """End; what was not sent is lost."""
        self._stopping = True
        self._due.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            if self._stopping:
                return
            try:
                # Celery leaves it to us to tell a process that only sends what kind of exchange
                # it is; without, the message goes nowhere.
                self._app.send_task(WAKE, expires=60, declare=[Exchange(ALL, type="fanout")])
            except Exception as error:  # of whatever transport: agents look by themselves
                logger.warning("A wake-up was not sent: %s", error)


class Worker:
    """Runs tasks in a thread of this process, and sends those that are due at intervals.

    Args:
        app: Of `make_app`.
        handlers: What to do, by the name of the task. Each takes milliseconds.
        every_s: How often a task is sent, by its name.
    """

    def __init__(
        self,
        app: celery.Celery,
        handlers: Mapping[str, Callable[[], Any]],
        every_s: Mapping[str, float],
    ) -> None:
        self._app = app
        for name, handler in handlers.items():
            app.task(_guarded(name, handler), name=name, ignore_result=True)
        app.conf.beat_schedule = {
            name: {"task": name, "schedule": period_s, "options": {"expires": 3 * period_s}}
            for name, period_s in every_s.items()
        }
        app.finalize()
        self._worker: WorkController | None = None
        self._beat = beat.Service(app, max_interval=1, scheduler_cls="celery.beat:Scheduler")
        self._threads = [
            threading.Thread(target=target, name=f"drumline-{name}", daemon=True)
            for name, target in (("worker", self._work), ("beat", self._send))
        ]

    def start(self) -> None:
        """Begin. Where the broker is away, it is waited for in the threads."""
        worker_state.should_stop = None
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End. Threads that wait for a broker end with the process."""
        worker_state.should_stop = 0
        self._beat.stop(wait=False)
        for thread in self._threads:
            thread.join(_STOP_S)
        worker_state.should_stop = None

    def _work(self) -> None:
        self._app.set_current()  # of this thread: where Celery looks for tasks
        self._worker = WorkController(
            app=self._app,
            pool_cls="solo",
            concurrency=1,
            without_heartbeat=True,
            without_mingle=True,
            without_gossip=True,
        )
        with suppress(SystemExit):
            self._worker.start()

    def _send(self) -> None:
        with suppress(SystemExit):
            self._beat.start()


def _guarded(name: str, handler: Callable[[], Any]) -> Callable[[], None]:
    """A task that tells of its failure in a line: it comes again, and there is nothing to redo."""

    def run() -> None:
        try:
            handler()
        except Exception as error:
            logger.warning("%s: %s", name, error)

    return run
