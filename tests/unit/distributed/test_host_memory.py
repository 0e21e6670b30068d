"""What a process frees it keeps, unless its user says otherwise. Counted are page faults: one for
each page that the system hands out anew.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BLOCK, BLOCKS = 50 * 2**20, 60
PAGES = BLOCKS * BLOCK // os.sysconf("SC_PAGE_SIZE")
PROGRAM = f"""
import resource, torch
from drumline.config import ClusterEnvironment
from drumline.distributed import open_world

with open_world(None, ClusterEnvironment.detect()):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({BLOCKS}):
        torch.ones({BLOCK}, dtype=torch.uint8)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**variables: str) -> int:
    """Of blocks each of which is asked for after the one before was freed."""
    others = {n: v for n, v in os.environ.items() if not n.startswith(("MALLOC_", "GLIBC_"))}
    environment = {**others, "CUDA_VISIBLE_DEVICES": "", **variables}
    words = [sys.executable, "-c", PROGRAM]
    told = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
    return int(told.stdout)


def test_blocks_that_were_freed_are_used_again() -> None:
    assert faults() < PAGES / 2


@pytest.mark.parametrize("variable", ["MALLOC_MMAP_MAX_", "GLIBC_TUNABLES"])
def test_who_sets_malloc_s_variables_is_left_alone(variable: str) -> None:
    value = "65536" if variable == "MALLOC_MMAP_MAX_" else ""
    assert faults(**{variable: value}) > 0.9 * PAGES
