"""A loop of one's own gives on any number of ranks what a plain PyTorch loop gives on one."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from own_loop_cases import SAMPLES, adam, build, losses, samples, weights
from real_commands import command_environment, free_port, python
from torch import nn

CASES = Path(__file__).with_name("own_loop_cases.py")
WORLDS = [1, 2, 3]
Seen = list[list[list[int]]]


def mpirun(rank: int, size: int) -> dict[str, str]:
    """The variables that Open MPI gives its processes."""
    place = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in place.items()}


def srun(rank: int, size: int) -> dict[str, str]:
    """The variables that Slurm gives the tasks of a step."""
    names = {"PROCID": rank, "LOCALID": rank, "STEP_NUM_TASKS": size, "JOB_ID": 7}
    return {f"SLURM_{name}": str(value) for name, value in names.items()}


def start(folder: Path, starter: Any, size: int, words: Sequence[Path]) -> tuple[list[int], str]:
    """Run a script in every rank of a world: exit codes, and all that went to standard error."""
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env=command_environment(MASTER_PORT=port, **starter(rank, size)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    told = "".join(rank.communicate(timeout=200)[1] for rank in ranks)
    return [rank.returncode for rank in ranks], told


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What every rank of worlds of 1, 2 and 3 saw. Three save, and the others load that."""
    folder = tmp_path_factory.mktemp("own_loop")
    saved = folder / "saved"
    for size, starter in ((3, mpirun), (2, srun)):
        codes, told = start(folder, starter, size, [CASES, folder / str(size), saved])
        assert codes == [0] * size, told
    python(folder, CASES, folder / "1", saved)
    return {
        size: [json.loads((folder / f"{size}/rank-{r}.json").read_text()) for r in range(size)]
        for size in WORLDS
    }


def together(ranks: list[dict[str, Any]], case: str) -> Seen:
    """The samples of each step over all ranks, in rank order; one list for each epoch."""
    epochs = zip(*(rank[case]["seen"] for rank in ranks), strict=True)
    return [
        [[n for part in step for n in part] for step in zip(*epoch, strict=True)]
        for epoch in epochs
    ]


def plain(
    steps: Iterable[Iterable[int]], count: int, *, clip: bool = True, epoch_ends: Sequence[int] = ()
) -> list[float]:
    """The weights of a plain PyTorch loop over these samples, with means for losses."""
    data, model = samples(count), build()
    optimizer = adam(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for number, step in enumerate(steps, 1):
        optimizer.zero_grad()
        losses(model, data[torch.tensor(list(step))]).mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if number in epoch_ends:
            schedule.step()
    return weights(model)


def ends(seen: Seen) -> list[int]:
    return [sum(len(epoch) for epoch in seen[: number + 1]) for number in range(len(seen))]


def test_the_worlds_are_what_started_them(ran: dict[int, list[dict[str, Any]]]) -> None:
    kinds = {size: {rank["kind"] for rank in ranks} for size, ranks in ran.items()}
    assert kinds == {1: {"alone"}, 2: {"slurm"}, 3: {"mpirun"}}
    assert all(rank["size"] == size for size, ranks in ran.items() for rank in ranks)


TRAINED = {  # samples of the data set, sizes of an epoch's batches
    "shuffled": (SAMPLES, [5, 5, 5, 5, 2]),
    "sequential": (SAMPLES, [5, 5, 5, 5]),
    "ten": (10, [10]),
    "pairs": (5, [2, 2, 1]),  # on three ranks some have nothing
    "drawn": (SAMPLES, [4, 4, 4, 1]),
    "lists": (SAMPLES, [3, 1, 5]),
    "stream": (11, [4, 4, 3]),
    "worked": (11, [4, 4, 2, 1]),  # two workers: 6 samples and 5
}


@pytest.mark.parametrize("case", TRAINED)
@pytest.mark.parametrize("size", WORLDS)
def test_the_result_is_that_of_a_plain_loop(
    ran: dict[int, list[dict[str, Any]]], size: int, case: str
) -> None:
    ranks, (count, sizes) = ran[size], TRAINED[case]
    seen = together(ranks, case)
    for epoch in seen:
        assert sorted(map(len, epoch), reverse=True) == sorted(sizes, reverse=True)
    expected = plain([step for epoch in seen for step in epoch], count, epoch_ends=ends(seen))
    for rank in ranks:
        assert rank[case]["weights"] == pytest.approx(expected, rel=0, abs=1e-12)


@pytest.mark.parametrize("case", ["shuffled", "ten", "pairs", "stream", "worked"])
@pytest.mark.parametrize("size", WORLDS)
def test_an_epoch_is_every_sample_once(
    ran: dict[int, list[dict[str, Any]]], size: int, case: str
) -> None:
    for epoch in together(ran[size], case):
        assert sorted(n for step in epoch for n in step) == list(range(TRAINED[case][0]))


@pytest.mark.parametrize("case", ["shuffled", "ten", "stream", "worked"])
def test_every_epoch_has_an_order_of_its_own_equal_on_any_number_of_ranks(
    ran: dict[int, list[dict[str, Any]]], case: str
) -> None:
    alone = together(ran[1], case)
    flat = [tuple(n for step in epoch for n in step) for epoch in alone]
    assert len({*flat, tuple(range(TRAINED[case][0]))}) == len(flat) + 1
    for size in WORLDS:
        assert together(ran[size], case) == alone


def test_orders_that_are_given_are_kept(ran: dict[int, list[dict[str, Any]]]) -> None:
    for size in WORLDS:
        assert together(ran[size], "lists") == [[[3, 1, 4], [5], [9, 2, 6, 8, 7]]]
        in_order = [list(range(start, start + 5)) for start in range(0, 20, 5)]
        assert together(ran[size], "sequential") == [in_order]
    first, second = together(ran[2], "drawn")
    assert first != second


@pytest.mark.parametrize("case", ["shuffled", "pairs", "worked"])
@pytest.mark.parametrize("size", WORLDS)
def test_means_are_weighted_and_padding_does_not_count(
    ran: dict[int, list[dict[str, Any]]], size: int, case: str
) -> None:
    """The mean before each step is that of a plain loop over the same samples."""
    seen, count = together(ran[size], case), TRAINED[case][0]
    steps = [step for epoch in seen for step in epoch]
    data, model = samples(count), build()
    for number, step in enumerate(steps):
        before = plain(steps[:number], count, epoch_ends=ends(seen))
        nn.utils.vector_to_parameters(torch.tensor(before, dtype=torch.float64), model.parameters())
        expected = losses(model, data[torch.tensor(step)]).mean().item()
        for rank in ran[size]:
            assert rank[case]["means"][number] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("size", WORLDS)
def test_means_of_what_only_some_ranks_have(
    ran: dict[int, list[dict[str, Any]]], size: int
) -> None:
    counts = range(size)  # rank r has r samples, and the mean r
    for rank in ran[size]:
        means = dict(rank["means"])
        if size == 1:
            assert all(map(math.isnan, means.values()))  # nobody counted anything
            continue
        squares = sum(r * r for r in counts)
        assert means.pop("rank") == pytest.approx(squares / sum(counts))
        assert math.isnan(means.pop("r0"))
        assert means == {f"r{r}": 1.0 for r in counts if r}


@pytest.mark.parametrize("size", WORLDS)
def test_micro_batches_add_up_to_one_step(ran: dict[int, list[dict[str, Any]]], size: int) -> None:
    expected = plain([range(9), range(9, 16)], 16, clip=False)
    for rank in ran[size]:
        assert rank["accumulated"]["weights"] == pytest.approx(expected, abs=1e-12)


def test_streams_that_differ_by_rank_are_refused(ran: dict[int, list[dict[str, Any]]]) -> None:
    assert [rank["refused"] for rank in ran[1]] == [""]
    for size in WORLDS[1:]:
        for rank in ran[size]:
            assert "differ at batch 0" in rank["refused"]


@pytest.mark.parametrize("size", WORLDS)
def test_a_rank_whose_own_data_ends_early_neither_waits_nor_counts(
    ran: dict[int, list[dict[str, Any]]], size: int
) -> None:
    (seen,) = together(ran[size], "own_part")
    least = 1 if size > 1 else 0
    ranks = range(least, size)
    expected = [
        [(8 * r + 2 * step + n) % SAMPLES for r in ranks for n in (0, 1) if step < max(r, 1)]
        for step in range(max(1, size - 1))
    ]
    assert seen == expected
    for rank in ran[size]:
        assert rank["own_part"]["weights"] == pytest.approx(
            plain(expected, SAMPLES, clip=False), rel=0, abs=1e-12
        )


@pytest.mark.parametrize("size", WORLDS)
def test_all_ranks_skip_what_is_not_finite_on_one(
    ran: dict[int, list[dict[str, Any]]], size: int
) -> None:
    expected = plain([range(4), range(8, 12)], 12, clip=False)
    for rank in ran[size]:
        assert rank["skipped"]["taken"] == [True, False, True]
        assert rank["skipped"]["weights"] == pytest.approx(expected, rel=0, abs=1e-12)


def test_saved_on_three_ranks_it_goes_on_on_others(
    ran: dict[int, list[dict[str, Any]]],
) -> None:
    (whole,) = together(ran[3], "resumed")
    assert list(map(len, whole)) == [5, 5, 5, 5, 2] * 2
    assert sorted(n for step in whole[5:] for n in step) == list(range(SAMPLES))
    data, model = samples(), build()
    optimizer = adam(model)
    for number, step in enumerate(whole):
        optimizer.param_groups[0]["lr"] = 0.05 * 0.9**number
        optimizer.zero_grad()
        losses(model, data[torch.tensor(step)]).mean().backward()
        optimizer.step()
    for size in WORLDS:
        values = {} if size == 3 else {"best": 0.5, "name": "seven"}  # what load gave
        assert together(ran[size], "resumed") == [whole if size == 3 else whole[7:]]
        for rank in ran[size]:
            assert rank["resumed"]["values"] == values
            assert rank["resumed"]["weights"] == pytest.approx(weights(model), rel=0, abs=1e-12)


DYING = """
import os, torch, drumline
from torch import nn
with drumline.open_world() as world:
    model = nn.Linear(1, 1)
    model, optimizer = world.prepare(model, torch.optim.SGD(model.parameters()))
    for step in range(3):
        if step == 2 and world.rank == 1:
            os._exit(9)
        world.backward(model(torch.ones(2, 1)).squeeze(1))
        world.step(optimizer)
"""


def test_a_rank_that_is_lost_is_named(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    codes, told = start(tmp_path, mpirun, 2, [tmp_path / "dying.py"])
    assert codes == [1, 9]
    assert "RankFailure: Rank 1 did not come to a collective" in told


def test_the_cpu_does_not_report_memory(ran: dict[int, list[dict[str, Any]]]) -> None:
    assert ran[1][0]["stats"] == {
        "device": "cpu",
        "allocated_bytes": None,
        "reserved_bytes": None,
        "peak_bytes": None,
        "total_bytes": None,
    }
