"""Taking back what an attempt has left whose supervisor is gone: end its processes, see that they
are gone and the devices free, and only then give the devices back and queue the training again.

Each attempt has a thread of its own, as a training is given time to save.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from drumline.config.service import ServiceSettings
from drumline.errors import DrumlineError
from drumline.jobs.endings import ending_found
from drumline.jobs.launching import mark_of
from drumline.jobs.leases import Leases
from drumline.jobs.processes import end_all, is_running, let_save
from drumline.jobs.returning import memory_has_fallen
from drumline.jobs.training import Attempt, Training

logger = logging.getLogger(__name__)

GRACE_S = 60.0
"""A training without a supervisor may take so long to save, if the settings allow it."""

MEMORY_PATIENCE_S = 120.0


class Reclaimer:
    """Takes attempts back, several at a time.

    Args:
        settings: Of the service.
        leases: Of its database.
        training_of: Reads a training.
    """

    def __init__(
        self, settings: ServiceSettings, leases: Leases, training_of: Callable[[str], Training]
    ) -> None:
        self._settings, self._leases, self._training_of = settings, leases, training_of
        self._at_work: dict[int, threading.Thread] = {}

    def take_back(self, host_id: str) -> None:
        """Begin with each attempt of the host whose lease has run out; returns at once.

        Raises:
            DatabaseError: If the database cannot be reached.
        """
        self._at_work = {key: t for key, t in self._at_work.items() if t.is_alive()}
        for attempt in self._leases.expired(host_id):
            if attempt.id in self._at_work:
                continue
            thread = threading.Thread(
                target=self._take_back, args=(attempt,), name=f"reclaim-{attempt.id}", daemon=True
            )
            self._at_work[attempt.id] = thread
            thread.start()

    def wait(self, timeout_s: float) -> None:
        """Until those begun have been taken back, or given up until the next look."""
        deadline_s = time.monotonic() + timeout_s
        for thread in self._at_work.values():
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _take_back(self, attempt: Attempt) -> None:
        mark = mark_of(attempt.training_id, attempt.number)
        try:
            training = self._training_of(attempt.training_id)
            if not self._is_over(attempt, mark, by_hand=training.by_hand):
                return  # its devices stay taken, and the next look tries again
            self._wait_for_memory(attempt)
            ending = ending_found(training.run_dir, attempt.claimed_ms)
            state = self._leases.reclaim(attempt.id, ending)
        except DrumlineError as error:
            logger.warning("%s", error)
            return
        logger.info("Training %s was taken back and is %s.", mark, state)

    def _is_over(self, attempt: Attempt, mark: str, *, by_hand: bool) -> bool:
        """Whether no process of the attempt is left. What a user has started is not ended."""
        if by_hand:
            pid, started = attempt.process_id, attempt.process_started
            return pid is None or not is_running(pid, started)
        logger.warning("Training %s has lost its supervisor and is taken back.", mark)
        _end_supervisor(attempt)
        let_save(mark, min(GRACE_S, self._settings.stop_grace_s))
        return end_all(mark)

    def _wait_for_memory(self, attempt: Attempt) -> None:
        deadline_s = time.monotonic() + MEMORY_PATIENCE_S
        while not memory_has_fallen(self._settings.simulate, attempt.gpu_ids):
            if time.monotonic() > deadline_s:
                return  # whoever holds it is none of ours; the device counts as in use
            time.sleep(1)


def _end_supervisor(attempt: Attempt) -> None:
    """One that hangs must not act any more. It is told from a later process of the same id."""
    pid = attempt.process_id
    if pid is None or pid == os.getpid() or attempt.process_started is None:
        return
    if is_running(pid, attempt.process_started):
        with suppress(psutil.Error):
            psutil.Process(pid).kill()
