"""What cannot be used is refused, naming the file, the row and what to do."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drumline.errors import DataError
from drumline.tasks.sae.activations import open_activations


def shard(path: Path, rows: int = 4, width: int = 6, dtype: torch.dtype = torch.float32) -> Path:
    save_file({"acts": torch.ones(rows, width, dtype=dtype)}, path)
    return path


def refused(path: Path, name: str | None = None) -> str:
    with pytest.raises(DataError) as caught:
        open_activations(path, name=name)
    assert caught.value.remedy
    return str(caught.value)


def test_missing_path(tmp_path: Path) -> None:
    assert "nowhere" in refused(tmp_path / "nowhere")


def test_unknown_folder_says_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert "notes.txt" in refused(tmp_path)
    assert ".txt" in refused(tmp_path / "notes.txt")


def test_dict_of_data_sets_points_to_its_folders(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert "one of its folders" in refused(tmp_path)


@pytest.mark.parametrize(
    ("second", "values"),
    [({"width": 5}, ("6", "5")), ({"dtype": torch.float16}, ("float32", "float16"))],
)
def test_shards_that_differ_are_both_named(
    tmp_path: Path, second: dict[str, object], values: tuple[str, str]
) -> None:
    shard(tmp_path / "a.safetensors")
    shard(tmp_path / "b.safetensors", **second)
    message = refused(tmp_path)
    for part in ("a.safetensors", "b.safetensors", *values):
        assert part in message


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def cut_in_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def scrawl(path: Path) -> None:
    path.write_bytes(b"\x05" + b"\0" * 7 + b"no{{}" + b"0" * 50)


@pytest.mark.parametrize("damage", [cut, cut_in_header, scrawl])
@pytest.mark.parametrize("suffix", [".safetensors", ".npy"])
def test_damaged_file_is_named(tmp_path: Path, damage: Callable[[Path], None], suffix: str) -> None:
    path = tmp_path / f"part{suffix}"
    if suffix == ".npy":
        np.save(path, np.ones((4, 6), np.float32))
    else:
        shard(path)
    damage(path)
    assert path.name in refused(path)


def test_truncated_arrow_file_is_named(tmp_path: Path) -> None:
    from datasets import Array2D, Dataset, Features

    features = Features({"hook": Array2D(shape=(2, 3), dtype="float32")})
    Dataset.from_dict({"hook": np.ones((9, 2, 3), np.float32)}, features=features).save_to_disk(
        tmp_path
    )
    (file,) = tmp_path.glob("*.arrow")
    file.write_bytes(file.read_bytes()[:-300])
    assert file.name in refused(tmp_path)


@pytest.mark.parametrize(
    "array",
    [
        np.ones(4, np.float32),
        np.ones((2, 3), np.int32),
        np.ones((2, 3), ">f4"),
        np.asfortranarray(np.ones((2, 3), np.float32)),
    ],
)
def test_npy_of_another_layout(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array)
    assert "a.npy" in refused(tmp_path / "a.npy")


def test_no_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((0, 3), np.float32))
    assert "no rows" in refused(tmp_path)


def test_several_tensors_need_a_name(tmp_path: Path) -> None:
    path = tmp_path / "two.safetensors"
    save_file({"one": torch.ones(2, 3), "two": torch.ones(2, 3)}, path)
    assert "one" in refused(path)
    assert "three" in refused(path, name="three")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_row_that_is_not_finite_is_named_with_its_shard(
    tmp_path: Path, bad: float, dtype: torch.dtype
) -> None:
    shard(tmp_path / "a.safetensors", rows=4, dtype=dtype)
    rows = torch.ones(5, 6, dtype=dtype)
    rows[3, 2] = bad
    save_file({"acts": rows}, tmp_path / "b.safetensors")
    found = open_activations(tmp_path)
    assert found.__getitems__([6, 0, 8]).shape == (3, 6)
    with pytest.raises(DataError) as caught:
        found.__getitems__([8, 7, 0])
    assert caught.value.values["row"] == 3
    assert caught.value.values["file"] == str(tmp_path / "b.safetensors")
    assert "Row 3" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_bad_row_among_the_largest_numbers_is_named(tmp_path: Path, dtype: torch.dtype) -> None:
    rows = torch.full((40, 6), torch.finfo(dtype).max, dtype=dtype)
    rows[::2] *= -1
    rows[17, 5], rows[23, 0] = float("nan"), float("-inf")
    save_file({"acts": rows}, tmp_path / "a.safetensors")
    found = open_activations(tmp_path)
    assert found.__getitems__(range(17)).shape == (17, 6)
    with pytest.raises(DataError) as caught:
        found.__getitems__(range(39, 9, -1))
    assert caught.value.values["row"] == 17


def test_rows_of_a_later_arrow_batch_are_counted_from_the_file(tmp_path: Path) -> None:
    from datasets import Array2D, Dataset, Features

    values = np.ones((8, 2, 3), np.float32)
    values[6, 1, 0] = np.nan
    features = Features({"hook": Array2D(shape=(2, 3), dtype="float32")})
    part = Dataset.from_dict({"hook": values}, features=features)
    part = part.map(lambda batch: batch, batched=True, batch_size=2, writer_batch_size=2)
    part.save_to_disk(tmp_path, num_shards=2)
    with pytest.raises(DataError) as caught:
        open_activations(tmp_path).__getitems__(range(16))
    assert (caught.value.values["number"], caught.value.values["row"]) == (13, 5)
