"""Extraction: right values, the same files from any number of ranks, and resuming."""

import errno
import hashlib
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_language_model import (
    LAYERS,
    WIDTH,
    Recorder,
    ThreadWorld,
    on_every_rank,
    save_tiny_model,
    words,
)

from drumline.errors import BadInput, DataError
from drumline.tasks.sae.activations import open_activations
from drumline.tasks.sae.activations.manifest import Manifest
from drumline.tasks.sae.extract import extract
from drumline.tasks.sae.extract_options import ExtractOptions
from drumline.tasks.sae.language_model import load_tokenizer
from drumline.tasks.sae.text import pack_texts

LENGTH = 8
SEQUENCES = 11  # of which 2 are held out, and the others fill 3 shards of 4, 4 and 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(words(SEQUENCES * LENGTH))
    return path


def options(model: Path, text: Path, out: Path, **changes: object) -> ExtractOptions:
    values = {
        "model": str(model),
        "layer": 2,
        "text": (str(text),),
        "out": out,
        "length": LENGTH,
        "held_out": 2,
        "dtype": "float32",
        "sequences_per_shard": 4,
        "batch": 2,
        **changes,
    }
    return ExtractOptions.model_validate(values)


def alone(asked: ExtractOptions) -> Manifest:
    return extract(asked, ThreadWorld(), Recorder())


def expected(model: Path, text: Path, layer: int) -> torch.Tensor:
    """[sequences, length, width] straight from transformers."""
    from transformers import AutoModelForCausalLM

    packed = pack_texts([text.read_text()], load_tokenizer(str(model)), LENGTH)
    tokens = torch.from_numpy(packed.sequences[:-2])
    reader = AutoModelForCausalLM.from_pretrained(model).eval()
    with torch.no_grad():
        # hidden_states[0] is the embedding, so layer N's output is number N + 1.
        return reader(tokens, output_hidden_states=True).hidden_states[layer + 1]


@pytest.mark.parametrize("drop_first", [True, False])
def test_rows_are_the_layers_output(
    model: Path, text: Path, tmp_path: Path, drop_first: bool
) -> None:
    manifest = alone(options(model, text, tmp_path / "acts", drop_first=drop_first))
    wanted = expected(model, text, 2)[:, int(drop_first) :].reshape(-1, WIDTH)
    found = open_activations(tmp_path / "acts", verify=True)
    assert [shard.rows for shard in manifest.shards] == [4 * (8 - drop_first)] * 2 + [
        8 - drop_first
    ]
    assert (len(found), manifest.count) == (len(wanted), len(wanted))
    torch.testing.assert_close(found.__getitems__(range(len(found))), wanted, rtol=1e-5, atol=1e-5)


def test_last_layer_is_taken_before_the_final_norm(model: Path, text: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    alone(options(model, text, tmp_path / "acts", layer=LAYERS - 1))
    rows = open_activations(tmp_path / "acts").__getitems__(range(63))
    norm = AutoModelForCausalLM.from_pretrained(model).model.norm
    normed = expected(model, text, LAYERS - 1)[:, 1:].reshape(-1, WIDTH)
    torch.testing.assert_close(norm(rows), normed, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(rows, normed, atol=0.1)


def test_bfloat16_is_stored_as_such(model: Path, text: Path, tmp_path: Path) -> None:
    alone(options(model, text, tmp_path / "acts", dtype="bfloat16"))
    found = open_activations(tmp_path / "acts")
    assert found.dtype is torch.bfloat16
    wanted = expected(model, text, 2)[:, 1:].reshape(-1, WIDTH)
    rows = found.__getitems__(range(len(found))).float()
    assert (rows - wanted).norm() / wanted.norm() < 0.05


def test_two_ranks_write_the_files_that_one_writes(model: Path, text: Path, tmp_path: Path) -> None:
    alone(options(model, text, tmp_path / "one"))
    on_every_rank(
        2, lambda world: extract(options(model, text, tmp_path / "two"), world, Recorder())
    )
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "two").iterdir())
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_manifest_says_what_the_shards_are(model: Path, text: Path, tmp_path: Path) -> None:
    manifest = alone(options(model, text, tmp_path / "acts"))
    assert (manifest.layer, manifest.hook_point) == (2, "blocks.2.hook_resid_post")
    assert (manifest.dtype, manifest.width, manifest.length) == ("float32", WIDTH, LENGTH)
    for shard in manifest.shards:
        data = (tmp_path / "acts" / shard.file).read_bytes()
        assert hashlib.sha256(data).hexdigest() == shard.sha256
    assert list(load_file(tmp_path / "acts" / manifest.shards[0].file)) == ["activations"]


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    stats = {path.name: path.stat() for path in folder.glob("shard-*.safetensors")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


@pytest.mark.parametrize("finished", [True, False])
def test_only_a_missing_shard_is_computed_again(
    model: Path, text: Path, tmp_path: Path, finished: bool
) -> None:
    out = tmp_path / "acts"
    first = alone(options(model, text, out))
    before = stamps(out)
    lost = first.shards[1].file
    (out / lost).unlink()
    if not finished:
        (out / "manifest.json").unlink()
        (out / f".{lost}.99").write_bytes(b"half a shard")
    assert alone(options(model, text, out)) == first
    after = stamps(out)
    assert {name for name in before if before[name] != after[name]} == {lost}
    assert not list(out.glob(".shard-*"))
    open_activations(out, verify=True)


def test_complete_extraction_returns_at_once(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = alone(options(model, text, tmp_path / "acts"))
    monkeypatch.setattr("drumline.tasks.sae.extract.load_language_model", None)
    monkeypatch.setattr("drumline.tasks.sae.extract.load_tokenizer", None)
    assert alone(options(model, text, tmp_path / "acts")) == first


def test_unfinished_folder_is_not_read(model: Path, text: Path, tmp_path: Path) -> None:
    alone(options(model, text, tmp_path / "acts"))
    (tmp_path / "acts" / "manifest.json").unlink()
    with pytest.raises(DataError, match="not finished"):
        open_activations(tmp_path / "acts")


@pytest.mark.parametrize("finished", [True, False])
def test_other_options_in_the_same_folder(
    model: Path, text: Path, tmp_path: Path, finished: bool
) -> None:
    alone(options(model, text, tmp_path / "acts"))
    if not finished:
        (tmp_path / "acts" / "manifest.json").unlink()
    with pytest.raises(BadInput, match="another layer: 2, not 1"):
        alone(options(model, text, tmp_path / "acts", layer=1))
    text.write_text(words(SEQUENCES * LENGTH, start=1))
    with pytest.raises(BadInput, match="content of the text"):
        alone(options(model, text, tmp_path / "acts"))


def test_progress_counts_tokens_to_the_end(model: Path, text: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    extract(options(model, text, tmp_path / "acts"), ThreadWorld(), recorder)
    assert {event["what"] for event in recorder.events} == {"extract"}
    done = [event["done"] for event in recorder.events]
    assert done == sorted(done)
    assert done[-1] == recorder.events[-1]["total"] == (SEQUENCES - 2) * LENGTH


def test_no_more_tokens_than_asked(model: Path, text: Path, tmp_path: Path) -> None:
    manifest = alone(options(model, text, tmp_path / "acts", tokens=5 * LENGTH + 3))
    assert manifest.count == 5 * (LENGTH - 1)


def test_layer_out_of_range_says_how_many_there_are(
    model: Path, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=f"{LAYERS} layers.*from 0 to {LAYERS - 1}"):
        alone(options(model, text, tmp_path / "acts", layer=LAYERS))
    assert not (tmp_path / "acts").exists()


def test_too_little_text(model: Path, text: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="11 sequences of 8"):
        alone(options(model, text, tmp_path / "acts", held_out=11))


@pytest.mark.parametrize("what", ["missing", "empty folder"])
def test_no_model_there(model: Path, text: Path, tmp_path: Path, what: str) -> None:
    (tmp_path / "empty folder").mkdir()
    with pytest.raises(DataError, match=what):
        alone(options(tmp_path / what, text, tmp_path / "acts"))


def test_full_disk_leaves_no_half_written_shard(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:  # extraction.json, then the first shard and its record, fit
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "acts"
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="Free space") as caught:
        alone(options(model, text, out))
    assert caught.value.values["out"] == str(out)
    assert sorted(path.name for path in out.iterdir()) == [
        "extraction.json",
        "shard-00000.json",
        "shard-00000.safetensors",
    ]
    assert alone(options(model, text, out)).count == 63


def test_folder_that_cannot_be_made(model: Path, text: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="--out"):
        alone(options(model, text, tmp_path / "file" / "acts"))


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def test_flipped_bit_is_found_by_its_checksum(model: Path, text: Path, tmp_path: Path) -> None:
    manifest = alone(options(model, text, tmp_path / "acts"))
    flip_a_bit(tmp_path / "acts" / manifest.shards[1].file)
    open_activations(tmp_path / "acts")
    with pytest.raises(DataError, match=r"shard-00001.*checksum"):
        open_activations(tmp_path / "acts", verify=True)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (('"count": 63', '"count": 64'), "63 rows.*counts 64"),
        (('"rows": 28', '"rows": 27'), "rows 27.*28"),
        (('"width": 32', '"width": 31'), "width 31.*32"),
        (('"version": 1', '"version": 9'), "version"),
        (("{", ""), "manifest"),
    ],
)
def test_manifest_at_odds_with_the_shards(
    model: Path, text: Path, tmp_path: Path, change: tuple[str, str], wanted: str
) -> None:
    alone(options(model, text, tmp_path / "acts"))
    path = tmp_path / "acts" / "manifest.json"
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change, 1))
    with pytest.raises(DataError, match=wanted):
        open_activations(tmp_path / "acts")
