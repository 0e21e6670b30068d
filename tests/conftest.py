"""What holds for every test: the user's own cache is left alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from drumline.config.environment import CACHE_FOLDER


@pytest.fixture(autouse=True, scope="session")
def _cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_FOLDER, str(tmp_path_factory.mktemp("cache")))
        yield
