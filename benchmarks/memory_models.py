"""Models of the memory benchmark besides the SAE: a small language model, an actor-critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.utils.checkpoint import checkpoint


class Samples:
    """A data set whose samples are all alike: tensors of given shapes and dtypes."""

    def __init__(self, count: int, *parts: tuple[tuple[int, ...], torch.dtype]) -> None:
        self.count, self.parts = count, parts

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(index)
        return tuple(_values(shape, dtype, generator) for shape, dtype in self.parts)


def _values(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 4, shape, generator=generator, dtype=dtype)


@dataclass(frozen=True)
class LanguageModelSize:
    width: int = 512
    heads: int = 8
    layers: int = 8
    vocabulary: int = 16_384
    length: int = 256
    dropout: float = 0.1
    checkpointed: bool = False


class TransformerBlock(nn.Module):
    def __init__(self, size: LanguageModelSize) -> None:
        super().__init__()
        self.heads, self.dropout = size.heads, size.dropout
        self.before_attention = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.before_mlp = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        qkv = self.qkv(self.before_attention(hidden))
        query, key, value = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        hidden = hidden + F.dropout(mixed, self.dropout, self.training)
        mlp = self.down(F.gelu(self.up(self.before_mlp(hidden))))
        return hidden + F.dropout(mlp, self.dropout, self.training)


class LanguageModel(nn.Module):
    def __init__(self, size: LanguageModelSize) -> None:
        super().__init__()
        self.size = size
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(TransformerBlock(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def tensor_plan(self) -> dict[str, ParallelStyle]:
        """Each block's two wide layers are split."""
        return {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device)
        hidden = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            if self.size.checkpointed:
                hidden = checkpoint(block, hidden, use_reentrant=False)
            else:
                hidden = block(hidden)
        return self.head(self.norm(hidden))


def next_token_loss(model: nn.Module, batch: Any) -> Tensor:
    """[samples]: the mean over a sequence's tokens."""
    (tokens,) = batch
    logits = model(tokens[:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return losses.view(len(tokens), -1).mean(dim=1)


class ActorCritic(nn.Module):
    """An encoder, an LSTM over the steps of a rollout, and two heads."""

    def __init__(self, observation: int = 256, hidden: int = 1024, actions: int = 18) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(observation, hidden), nn.ReLU())
        self.memory = nn.LSTM(hidden, hidden, batch_first=True)
        self.actor = nn.Linear(hidden, actions)
        self.critic = nn.Linear(hidden, 1)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        hidden, _ = self.memory(self.encoder(observations))
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def ppo_loss(model: nn.Module, batch: Any) -> Tensor:
    """[samples]: PPO's clipped objective, value error and entropy, mean over a rollout's steps."""
    observations, actions, advantages, returns = batch
    logits, values = model(observations)
    log_probabilities = F.log_softmax(logits, dim=-1)
    chosen = log_probabilities.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    ratio = (chosen - chosen.detach()).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=-1)
    return (-surrogate + 0.5 * (values - returns).square() - 0.01 * entropy).mean(dim=1)
