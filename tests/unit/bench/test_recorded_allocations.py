"""The allocator's model against what torch's did on an H100: recorded requests in, memory out.

Each recording holds the requests and frees of five optimizer steps in order, as torch's memory
history gave them, and what torch said it had reserved.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from drumline.planning.allocator import Block, CachingAllocator

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.json.gz"))


def replayed(recording: dict[str, Any]) -> CachingAllocator:
    allocator, blocks = CachingAllocator(), dict[int, Block]()
    for event in recording["events"]:
        if event > 0:
            blocks[event] = allocator.allocate(recording["sizes"][event - 1])
        else:
            allocator.release(blocks.pop(-event))
    return allocator


def test_there_are_recordings() -> None:
    assert len(RECORDINGS) == 3


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.partition(".")[0])
def test_what_a_gpu_asked_for_gives_what_it_reserved(path: Path) -> None:
    recording = json.loads(gzip.decompress(path.read_bytes()))
    allocator = replayed(recording)
    assert allocator.reserved_peak == pytest.approx(recording["reserved_peak"], rel=0.01)
    assert allocator.allocated_peak == pytest.approx(recording["allocated_peak"], rel=0.01)
    assert sorted(allocator.segments) == recording["segments"]
