"""Moving and cutting batches of any nesting."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from drumline.training.batches import narrow, to_device


class Pair(NamedTuple):
    inputs: Tensor
    labels: list[str]


class Names(NamedTuple):
    first: list[str]
    last: list[str]


def nested() -> dict[str, Any]:
    return {
        "x": torch.arange(10).reshape(5, 2),
        "inner": [torch.arange(5), (torch.ones(5), ["a", "b", "c", "d", "e"])],
        "pair": Pair(torch.zeros(5, 1), list("vwxyz")),
        "names": Names(list("abcde"), list("ABCDE")),
        "task": "what it is for",
        "none": None,
    }


def test_every_part_is_cut_along_the_samples() -> None:
    part = narrow(nested(), 1, 3)
    assert part["x"].tolist() == [[2, 3], [4, 5], [6, 7]]
    assert part["inner"][0].tolist() == [1, 2, 3]
    assert part["inner"][1][0].shape == (3,)
    assert part["inner"][1][1] == ["b", "c", "d"]
    assert isinstance(part["pair"], Pair)
    assert part["pair"].labels == ["w", "x", "y"]
    assert part["names"] == Names(["b", "c", "d"], ["B", "C", "D"])
    assert (part["task"], part["none"]) == ("what it is for", None)


def test_cuts_are_views() -> None:
    whole = torch.zeros(4)
    narrow(whole, 1, 2)[:] = 1
    assert whole.tolist() == [0, 1, 1, 0]


def test_cuts_of_micro_batches_put_together_are_the_whole() -> None:
    whole = torch.randn(7, 3)
    parts = [narrow((whole,), start, min(3, 7 - start))[0] for start in range(0, 7, 3)]
    assert torch.equal(torch.cat(parts), whole)


def test_every_tensor_is_moved_and_all_else_is_kept() -> None:
    moved = to_device(nested(), torch.device("meta"))
    assert moved["x"].is_meta
    assert moved["inner"][1][0].is_meta
    assert moved["pair"].inputs.is_meta
    assert moved["inner"][1][1] == list("abcde")
    assert moved["task"] == "what it is for"
    assert to_device(None, torch.device("cpu")) is None
