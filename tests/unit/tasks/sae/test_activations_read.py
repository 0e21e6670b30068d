"""Every format gives the rows that were written, by number, in the stored type."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.utils.data import DataLoader

from drumline.tasks.sae.activations import open_activations


def rows_of(count: int, width: int = 6, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_safetensors_shards_in_every_type(tmp_path: Path, dtype: torch.dtype) -> None:
    first, second = rows_of(5, dtype=dtype), rows_of(4, dtype=dtype)
    save_file({"acts": first}, tmp_path / "a.safetensors")
    save_file({"acts": second, "other": torch.zeros(3)}, tmp_path / "b.safetensors")
    found = open_activations(tmp_path)
    assert (len(found), found.width, found.dtype) == (9, 6, dtype)
    numbers = [8, 0, 4, 5, 5, 1]
    assert torch.equal(found.__getitems__(numbers), torch.cat([first, second])[numbers])
    assert torch.equal(found[7], second[2])


def test_one_safetensors_file_with_a_named_tensor(tmp_path: Path) -> None:
    wanted = rows_of(3)
    save_file({"layer1": rows_of(4), "layer2": wanted}, tmp_path / "acts.safetensors")
    found = open_activations(tmp_path / "acts.safetensors", name="layer2")
    assert torch.equal(found.__getitems__([2, 1, 0]), wanted.flip(0))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_npy_file_and_folder(tmp_path: Path, dtype: type) -> None:
    parts = [rows_of(3).numpy().astype(dtype), rows_of(2).numpy().astype(dtype)]
    for number, part in enumerate(parts):
        np.save(tmp_path / f"part{number}.npy", part)
    whole = open_activations(tmp_path)
    assert torch.equal(whole.__getitems__([4, 0]), torch.from_numpy(np.concatenate(parts)[[4, 0]]))
    assert len(open_activations(tmp_path / "part1.npy")) == 2


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_huggingface_folder_is_read_context_by_context(tmp_path: Path, dtype: str) -> None:
    from datasets import Array2D, Dataset, Features, Sequence, Value

    contexts = rows_of(7 * 5).reshape(7, 5, 6).numpy().astype(dtype)
    hook = "blocks.3.hook_resid_post"
    features = Features(
        {hook: Array2D(shape=(5, 6), dtype=dtype), "token_ids": Sequence(Value("int32"), length=5)}
    )
    tokens = np.arange(35, dtype=np.int32).reshape(7, 5)
    cached = Dataset.from_dict({hook: contexts, "token_ids": tokens}, features=features)
    cached.save_to_disk(tmp_path, num_shards=3)
    found = open_activations(tmp_path)
    assert found.describe()["hook_point"] == hook
    assert (found.describe()["length"], found.describe()["files"]) == (5, 3)
    flat = torch.from_numpy(contexts.reshape(35, 6))
    assert torch.equal(found.__getitems__(range(35)), flat)


def test_saelens_cached_activations(tmp_path: Path) -> None:
    """The runner's own shard writing and merging, without the language model."""
    from datasets import Array2D, Dataset, Features
    from sae_lens.cache_activations_runner import CacheActivationsRunner

    shards = [rows_of(4 * 3).reshape(4, 3, 6), rows_of(2 * 3).reshape(2, 3, 6)]
    features = Features({"blocks.0.hook_mlp_out": Array2D(shape=(3, 6), dtype="float32")})
    for number, shard in enumerate(shards):
        part = Dataset.from_dict({"blocks.0.hook_mlp_out": shard}, features=features)
        part.save_to_disk(tmp_path / f"out/.tmp_shards/shard_{number:05d}", num_shards=1)
    CacheActivationsRunner._consolidate_shards(
        tmp_path / "out/.tmp_shards", tmp_path / "out", copy_files=False
    )
    found = open_activations(tmp_path / "out")
    assert torch.equal(found.__getitems__(range(18)), torch.cat(shards).reshape(18, 6))


def test_loader_workers_get_a_pickled_set(tmp_path: Path) -> None:
    rows = rows_of(20)
    save_file({"acts": rows}, tmp_path / "a.safetensors")
    found = open_activations(tmp_path)
    copy = pickle.loads(pickle.dumps(found))
    assert torch.equal(copy.__getitems__([19, 2]), rows[[19, 2]])
    loader = DataLoader(
        found,
        batch_sampler=[[3, 1], [19, 0]],
        num_workers=1,
        collate_fn=lambda batch: batch,
    )
    assert [batch.tolist() for batch in loader] == [rows[[3, 1]].tolist(), rows[[19, 0]].tolist()]


def test_sums_that_overflow_are_not_taken_for_bad_rows(tmp_path: Path) -> None:
    rows = torch.full((2, 4), 3e38)
    save_file({"acts": rows}, tmp_path / "a.safetensors")
    assert torch.equal(open_activations(tmp_path).__getitems__([0, 1]), rows)


def test_numbers_outside_the_set_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", rows_of(3).numpy())
    found = open_activations(tmp_path / "a.npy")
    for number in (-1, 3):
        with pytest.raises(IndexError):
            found[number]
    assert found.__getitems__([]).shape == (0, 6)


def test_importing_and_describing_needs_no_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    np.save(tmp_path / "a.npy", rows_of(3).numpy())
    script = (
        "import sys; from pathlib import Path\n"
        "from drumline.tasks.sae.activations import open_activations\n"
        "from drumline.tasks.sae.extract_options import ExtractOptions\n"
        "print(open_activations(Path(sys.argv[1])).describe()['count'], 'torch' in sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True
    )
    assert printed.stdout.split() == ["3", "False"]


def test_rows_of_many_blocks_come_in_the_order_asked_for(tmp_path: Path) -> None:
    parts = [rows_of(40), rows_of(1), rows_of(30)]
    for number, part in enumerate(parts):
        np.save(tmp_path / f"part{number}.npy", part.numpy())
    found, whole = open_activations(tmp_path), torch.cat(parts)
    numbers = torch.randint(0, 71, (200,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(found.__getitems__(numbers.tolist()), whole[numbers])
    assert found.__getitems__([]).shape == (0, 6)


def test_rows_are_read_into_the_memory_that_is_given(tmp_path: Path) -> None:
    """As they are into page-locked memory, which torch gives again and again."""
    rows = rows_of(9, dtype=torch.bfloat16)
    save_file({"acts": rows}, tmp_path / "acts.safetensors")
    found = open_activations(tmp_path)
    found.pinned = torch.cuda.is_available()
    read = found.__getitems__([3, 8, 0])
    assert torch.equal(read, rows[[3, 8, 0]])
    assert read.is_pinned() == torch.cuda.is_available()
