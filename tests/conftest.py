"""What holds for every test: the user's own cache is left alone, and Ctrl-C is not ignored."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from drumline.config.environment import CACHE_FOLDER


@pytest.fixture(autouse=True, scope="session")
def _cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_FOLDER, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """A shell's background jobs ignore SIGINT, and so would all that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
