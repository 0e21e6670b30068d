"""Fixtures of runs that several modules look at. What they import is in `shared_runs`: the name
`conftest` may be that of another folder.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from shared_runs import REGRESSION, ROWS, WIDTH, SAERuns, sparse_rows
from support import Finished, run_to_end, script


@pytest.fixture(scope="session")
def activations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Activations in float64, [ROWS, WIDTH]."""
    path = tmp_path_factory.mktemp("activations") / "rows.npy"
    np.save(path, sparse_rows(ROWS, WIDTH))
    return path


@pytest.fixture(scope="session")
def sae_runs(activations: Path, tmp_path_factory: pytest.TempPathFactory) -> SAERuns:
    """All runs on the shared set."""
    return SAERuns(activations, tmp_path_factory.mktemp("sae"))


@pytest.fixture(scope="session")
def undisturbed_regression(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The program on three processes, in fp32, with dropout; nothing happens to them."""
    folder = tmp_path_factory.mktemp("undisturbed")
    arguments = script("regression.py", "cpu:3", {"config": REGRESSION})
    return run_to_end(arguments, folder).succeeded()
