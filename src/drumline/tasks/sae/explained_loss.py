"""Explained loss: how much of a language model's loss survives the SAE's reconstruction.

The activations after a layer are replaced once by their reconstruction and once by zeros; the
explained loss is (zero - spliced) / (zero - clean), 1 for a perfect SAE (as "loss recovered" in
Bricken et al. 2023, "Towards Monosemanticity", and after). The sequences are the last of the packed
text, which extraction leaves out (`held_out`), so the SAE was not trained on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from drumline.errors import DataError
from drumline.planning.shares import cut_shares
from drumline.tasks.sae.language_model import LanguageModel, hidden_of, load_language_model
from drumline.tasks.sae.positions import kept_positions
from drumline.tasks.sae.text import PYDOC, pack_texts, read_texts

if TYPE_CHECKING:
    from drumline.distributed import World

_BATCH = 4  # a batch stays on one rank, so its losses do not depend on how many ranks there are
Change = Callable[[Tensor], Tensor]


class ExplainedLossSection(Protocol):
    """What is measured on; the SAE task's config has one."""

    @property
    def model(self) -> Path | str:
        """A Hugging Face folder, GGUF file or `builtin:smollm2`."""

    @property
    def layer(self) -> int:
        """The layer whose output is replaced, from 0."""

    @property
    def text(self) -> Sequence[Path | str] | str:
        """Text files or folders, or "builtin" for the Python documentation."""

    @property
    def sequences(self) -> int:
        """Sequences to read, from the end of the text."""

    @property
    def length(self) -> int:
        """Tokens in a sequence."""


@dataclass(frozen=True)
class _Batch:
    """Sequences, and what does not depend on the SAE.

    Attributes:
        tokens: int64 [sequences, length].
        output: What the layer returned on them.
        clean: Summed loss, float64.
        zero: The same with zeros after the layer.
        count: Number of predictions, float64.
    """

    tokens: Tensor
    output: Any
    clean: Tensor
    zero: Tensor
    count: Tensor


class ExplainedLoss:
    """A language model and held-out text, for measuring an SAE again and again.

    Args:
        section: The model, the layer and the text.
        world: The ranks that share the sequences; all make the same calls.
        drop_first, outlier_ratio: As in the extraction that the SAE was trained on; positions
            left out there keep their activations here.
        dtype: Type the language model computes in.
        cache: Where converted GGUF models are kept.

    Raises:
        DataError: If the model or text cannot be read, or the text is too short.
        BadInput: If the model has no such layer.
    """

    def __init__(
        self,
        section: ExplainedLossSection,
        world: World,
        *,
        drop_first: bool = True,
        outlier_ratio: float | None = None,
        dtype: str = "bfloat16",
        cache: Path | None = None,
    ) -> None:
        self.world, self.layer = world, section.layer
        self.drop_first, self.outlier_ratio = drop_first, outlier_ratio
        self.language_model = load_language_model(
            str(section.model), dtype=dtype, device=world.device, cache=cache
        )
        self.language_model.check_layer(section.layer)
        self._batches: list[_Batch] = []
        self.sequences = _held_out(section, self.language_model.tokenizer)

    def measure(self, sae: nn.Module) -> dict[str, float]:
        """The mean loss of a token clean, with the SAE's reconstruction, and with zeros.

        The first call also computes what does not depend on the SAE, so later ones only run the
        layers after the replaced one, once.

        Args:
            sae: Has `reconstruct`: rows [n, width] to rows [n, width].

        Returns:
            `loss_clean`, `loss_spliced` and `loss_zero` in nats, and `explained_loss`, which is
            not a number where zeros do no harm. Equal on all ranks.
        """
        sums = torch.zeros(4, dtype=torch.float64, device=self.world.device)
        with torch.inference_mode():
            self._batches = self._batches or [self._prepared(part) for part in self._share()]
            for batch in self._batches:
                spliced = self._loss_with(batch, lambda rows: _reconstruct(sae, rows))
                sums += torch.stack([batch.clean, spliced, batch.zero, batch.count])
        clean, spliced, zero, count = self.world.all_reduce(sums).tolist()
        harm = zero - clean
        return {
            "loss_clean": clean / count,
            "loss_spliced": spliced / count,
            "loss_zero": zero / count,
            "explained_loss": (zero - spliced) / harm if harm else float("nan"),
        }

    def _share(self) -> Iterator[Tensor]:
        """This rank's sequences, a batch at a time."""
        counts = cut_shares(len(self.sequences), [1] * self.world.size, _BATCH)
        start = sum(counts[: self.world.rank])
        mine = self.sequences[start : start + counts[self.world.rank]]
        for first in range(0, len(mine), _BATCH):
            yield torch.from_numpy(mine[first : first + _BATCH]).to(self.world.device)

    def _prepared(self, tokens: Tensor) -> _Batch:
        outputs: list[Any] = []
        layer = self.language_model.layers[self.layer]
        hook = layer.register_forward_hook(lambda *call: outputs.append(call[-1]))
        try:
            clean = self._loss(tokens)
        finally:
            hook.remove()
        count = torch.tensor(float(tokens[:, 1:].numel()), device=tokens.device).double()
        batch = _Batch(tokens, outputs[0], clean, clean, count)
        return replace(batch, zero=self._loss_with(batch, torch.zeros_like))

    def _loss_with(self, batch: _Batch, change: Change) -> Tensor:
        """Summed loss of a batch with the layer's output changed."""
        with _replayed(self.language_model, self.layer, self._changed(batch.output, change)):
            return self._loss(batch.tokens)

    def _loss(self, tokens: Tensor) -> Tensor:
        """Cross-entropy of the next token, summed, float64."""
        model = self.language_model.model
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
        losses = F.cross_entropy(
            logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none"
        )
        return losses.sum(dtype=torch.float64)

    def _changed(self, output: Any, change: Change) -> Any:
        """What the layer returned, with its hidden state changed."""
        hidden = hidden_of(output)
        replaced = kept_positions(
            hidden, drop_first=self.drop_first, outlier_ratio=self.outlier_ratio
        )
        changed = hidden.clone()
        changed[replaced] = change(hidden[replaced]).to(hidden.dtype)
        return (changed, *output[1:]) if isinstance(output, tuple) else changed


def _reconstruct(sae: nn.Module, rows: Tensor) -> Tensor:
    reconstruct: Change = sae.reconstruct  # type: ignore[assignment]
    return reconstruct(rows.float())


@contextmanager
def _replayed(model: LanguageModel, layer: int, output: Any) -> Iterator[None]:
    """Within it, the layers up to this one compute nothing, and this one returns `output`.

    Their `forward` is shadowed, not the module replaced, since models look at attributes of their
    layers.
    """
    modules = list(model.layers)[: layer + 1]
    for module in modules:
        module.forward = lambda *_, **__: output
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _held_out(section: ExplainedLossSection, tokenizer: Any) -> NDArray[np.int64]:
    """The last sequences of the text, int64 [sequences, length]."""
    text = section.text
    sources = [PYDOC] if text == "builtin" else [text] if isinstance(text, str) else text
    packed = pack_texts(read_texts([str(source) for source in sources]), tokenizer, section.length)
    if len(packed.sequences) < section.sequences:
        raise DataError(
            f"The text makes {len(packed.sequences)} sequences of {section.length} tokens, and "
            f"{section.sequences} were asked for.",
            remedy="Give more text, or lower sequences or length.",
            there=len(packed.sequences),
        )
    return packed.sequences[-section.sequences :]
