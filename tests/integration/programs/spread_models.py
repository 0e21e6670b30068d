"""Small models with what makes spreading hard, each with data and a loss for each sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.utils.data import TensorDataset

from drumline.distributed import cut_stages

SAMPLES = 66
"""Four steps of 16 and one of 2: fewer samples than there may be ranks."""


class Transformer(nn.Module):
    """Tied embedding and head, a block used twice, frozen and unused parameters, a buffer."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.position = nn.Parameter(torch.randn(1, 6, 8) * 0.1, requires_grad=False)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.unused = nn.Linear(8, 3)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens) + self.position
        for block in (self.blocks[0], self.blocks[1], self.blocks[0]):
            hidden = block(hidden)
        return self.head(hidden) * self.scale


class StagedTransformer(nn.Module):
    """For pipelines: frozen and unused parameters, a layer used twice, a buffer of two stages."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([0.5]))
        self.embedding = Embedded()
        self.blocks = nn.ModuleList(
            Twice(block()) if number == 1 else block() for number in range(3)
        )
        self.unused = nn.Linear(8, 3)
        self.head = Scaled(nn.Linear(8, 11), self.scale)

    def forward(self, tokens: Tensor) -> Tensor:
        for stage in self.pipeline_stages(1):
            tokens = stage(tokens)
        return tokens

    def pipeline_stages(self, count: int) -> list[nn.Module]:
        first = Scaled(self.embedding, self.scale)
        return cut_stages([first, *self.blocks, self.head], count)


class TiedTransformer(StagedTransformer):
    """Weights of the first stage are the last one's, too."""

    def __init__(self) -> None:
        super().__init__()
        self.head.inner.weight = self.embedding.tokens.weight


def block() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.position = nn.Parameter(torch.randn(1, 6, 8) * 0.1, requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.position


class Twice(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor) -> Tensor:
        return self.inner(self.inner(hidden))


class Scaled(nn.Module):
    def __init__(self, inner: nn.Module, scale: Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.inner(hidden) * self.scale


class Convolutions(nn.Module):
    """A CNN with BatchNorm.

    Its convolutions have no bias: BatchNorm takes it out again, so its gradient would be nothing
    but rounding, which Adam scales up to steps of the size of its learning rate.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, bias=False),
        )
        self.norm = nn.BatchNorm2d(6)
        self.out = nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(F.relu(self.norm(self.layers(images))).mean(dim=(2, 3)))

    def pipeline_stages(self, count: int) -> list[nn.Module]:
        pooled = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return cut_stages([*self.layers, self.norm, pooled, self.out], count)


class Recurrent(nn.Module):
    """An LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 7, num_layers=2, batch_first=True)
        self.out = nn.Linear(7, 2)

    def forward(self, sequences: Tensor) -> Tensor:
        hidden, _ = self.lstm(sequences)
        return self.out(hidden[:, -1])

    def pipeline_stages(self, count: int) -> list[nn.Module]:
        return cut_stages([Outputs(self.lstm), Answered(self.out)], count)


class Answered(nn.Module):
    def __init__(self, out: nn.Module) -> None:
        super().__init__()
        self.out = out

    def forward(self, hidden: Tensor, cells: Tensor) -> Tensor:
        return self.out(hidden[:, -1])


class Outputs(nn.Module):
    def __init__(self, lstm: nn.Module) -> None:
        super().__init__()
        self.lstm = lstm

    def forward(self, sequences: Tensor) -> tuple[Tensor, Tensor]:
        """Two tensors, the second of which the next stage does not use."""
        hidden, (_, cells) = self.lstm(sequences)
        return hidden, cells.transpose(0, 1)


class Perceptron(nn.Module):
    """Blocks whose layers can be split; norms and the last layer are not. In four stages the first
    has no parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Pair() for _ in range(2))
        self.out = nn.Linear(5, 2)

    def forward(self, sequences: Tensor) -> Tensor:
        hidden = sequences.mean(dim=1)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.out(hidden)

    def tensor_plan(self) -> dict[str, ParallelStyle]:
        return {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}

    def pipeline_stages(self, count: int) -> list[nn.Module]:
        return cut_stages([Mean(), *map(Residual, self.blocks), self.out], count)


class Dropped(Perceptron):
    """With dropout in every block."""

    def pipeline_stages(self, count: int) -> list[nn.Module]:
        drops = [nn.Sequential(nn.Dropout(0.5), Residual(block)) for block in self.blocks]
        return cut_stages([Mean(), *drops, self.out], count)


class Mean(nn.Module):
    def forward(self, sequences: Tensor) -> Tensor:
        return sequences.mean(dim=1)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.inner(hidden)


class Pair(nn.Module):
    """One block of it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(5), nn.Linear(5, 8), nn.Linear(8, 5)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(self.norm(hidden))))


def tokens() -> TensorDataset:
    random = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randint(0, 11, (SAMPLES, 7), generator=random))


def images() -> TensorDataset:
    random = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 3, (SAMPLES,), generator=random)
    return TensorDataset(torch.randn(SAMPLES, 1, 6, 6, generator=random).double(), labels)


def sequences() -> TensorDataset:
    random = torch.Generator().manual_seed(3)
    made = torch.randn(SAMPLES, 4, 5, generator=random, dtype=torch.float64)
    return TensorDataset(made, made.sum(dim=1)[:, :2])


def next_token(model: nn.Module, batch: Any) -> Tensor:
    logits = model(batch[0][:, :-1]).flatten(0, 1)
    targets = batch[0][:, 1:].flatten()
    losses = F.cross_entropy(logits.double(), targets, reduction="none")
    return losses.view(len(batch[0]), -1).mean(dim=1)


def classified(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def regressed(model: nn.Module, batch: Any) -> Tensor:
    dtype = next(model.parameters()).dtype
    return (model(batch[0].to(dtype)) - batch[1].to(dtype)).float().square().mean(dim=1).double()


def exactly_regressed(model: nn.Module, batch: Any) -> Tensor:
    difference: Tensor = model(batch[0]) - batch[1]
    return difference.square().mean(dim=1)


Model = tuple[
    Callable[[], nn.Module], Callable[[], TensorDataset], Callable[[nn.Module, Any], Tensor]
]

ALL: dict[str, Model] = {
    "transformer": (Transformer, tokens, next_token),
    "staged": (StagedTransformer, tokens, next_token),
    "tied": (TiedTransformer, tokens, next_token),
    "dropped": (Dropped, sequences, exactly_regressed),
    "cnn": (Convolutions, images, classified),
    "lstm": (Recurrent, sequences, exactly_regressed),
    "perceptron": (Perceptron, sequences, exactly_regressed),
    "perceptron_half": (Perceptron, sequences, regressed),
}
