"""Explained loss against a calculation by hand on a tiny model."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_language_model import ThreadWorld, on_every_rank, save_tiny_model, words

from drumline.errors import BadInput, DataError
from drumline.tasks.sae.explained_loss import ExplainedLoss
from drumline.tasks.sae.language_model import load_tokenizer
from drumline.tasks.sae.text import pack_texts


@dataclass(frozen=True)
class Section:
    model: Path
    text: list[Path] = field(default_factory=list)
    layer: int = 1
    sequences: int = 6
    length: int = 8


@pytest.fixture(scope="module")
def section(tmp_path_factory: pytest.TempPathFactory) -> Section:
    folder = tmp_path_factory.mktemp("explained")
    text = folder / "text.txt"
    text.write_text(words(90))
    return Section(save_tiny_model(folder / "model"), [text])


class Scaling(torch.nn.Module):
    """Multiplies its input; 1 is a perfect SAE, 0 none at all."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def reconstruct(self, rows: torch.Tensor) -> torch.Tensor:
        assert rows.ndim == 2
        return rows * self.factor


def by_hand(section: Section, factor: float, first: int) -> float:
    """Mean loss with the output of the layer scaled from position `first` on."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(section.model).eval()
    packed = pack_texts([section.text[0].read_text()], load_tokenizer(str(section.model)), 8)
    tokens = torch.from_numpy(packed.sequences[-section.sequences :])

    def scale(module: object, inputs: object, output: torch.Tensor) -> torch.Tensor:
        changed = output.clone()
        changed[:, first:] *= factor
        return changed

    model.model.layers[section.layer].register_forward_hook(scale)
    with torch.no_grad():
        logits = model(tokens).logits.double()
    return float(F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()))


def measured(section: Section, sae: Scaling, world: Any, **choices: Any) -> dict[str, float]:
    return ExplainedLoss(section, world, **choices).measure(sae)


@pytest.mark.parametrize("drop_first", [True, False])
def test_losses_are_those_calculated_by_hand(section: Section, drop_first: bool) -> None:
    found = measured(section, Scaling(0.6), ThreadWorld(), drop_first=drop_first, dtype="float32")
    clean, spliced, zero = (by_hand(section, factor, int(drop_first)) for factor in (1, 0.6, 0))
    assert found["loss_clean"] == pytest.approx(clean, rel=1e-5)
    assert found["loss_spliced"] == pytest.approx(spliced, rel=1e-5)
    assert found["loss_zero"] == pytest.approx(zero, rel=1e-5)
    assert found["explained_loss"] == pytest.approx((zero - spliced) / (zero - clean), abs=1e-3)
    assert len({round(loss, 3) for loss in (clean, spliced, zero)}) == 3


@pytest.mark.parametrize(("factor", "explained"), [(1.0, 1.0), (0.0, 0.0)])
def test_identity_explains_all_and_zeros_nothing(
    section: Section, factor: float, explained: float
) -> None:
    found = measured(section, Scaling(factor), ThreadWorld(), dtype="float32")
    assert found["explained_loss"] == explained


def test_measuring_leaves_the_model_as_it_was(section: Section) -> None:
    meter = ExplainedLoss(section, ThreadWorld(), dtype="float32")
    first = meter.measure(Scaling(0.5))
    assert meter.measure(Scaling(0.0))["loss_clean"] == first["loss_clean"]
    assert meter.measure(Scaling(0.5)) == first


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_number_of_ranks_gives_the_same(section: Section, ranks: int) -> None:
    alone = measured(section, Scaling(0.5), ThreadWorld(), dtype="float32")
    shared = on_every_rank(
        ranks, lambda world: measured(section, Scaling(0.5), world, dtype="float32")
    )
    for found in shared:
        assert found == pytest.approx(alone, rel=1e-12)


def test_bad_layer_and_too_little_text(section: Section) -> None:
    with pytest.raises(BadInput, match="4 layers"):
        measured(replace(section, layer=4), Scaling(1), ThreadWorld())
    with pytest.raises(DataError, match="11 sequences of 8 tokens, and 12"):
        measured(replace(section, sequences=12), Scaling(1), ThreadWorld())
