"""A small transformer whose layers are on different devices. The result is the same either way:

python examples/pipeline.py
drumline run examples/pipeline.py --pipeline 2 --gpus cpu:2
drumline run examples/pipeline.py --pipeline 2 --schedule interleaved_1f1b --gpus cpu:4

It learns to go on with sequences that count up by a constant, modulo a prime.
"""

import argparse
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drumline import DistributedConfig, RunConfig, Trainer
from drumline.distributed import cut_stages

PRIME, LENGTH, WIDTH = 11, 8, 32

start, pace = torch.meshgrid(torch.arange(PRIME), torch.arange(PRIME), indexing="ij")
count = torch.arange(LENGTH + 1)
sequences = (start.reshape(-1, 1) + pace.reshape(-1, 1) * count) % PRIME
data = TensorDataset(sequences.repeat(16, 1))


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(PRIME, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.positions


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.register_buffer("future", torch.ones(LENGTH, LENGTH).triu(1).bool(), persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.layer(hidden, src_mask=self.future)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, PRIME))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)

    def pipeline_stages(self, count: int) -> list[nn.Module]:
        return cut_stages([self.embedding, *self.blocks, self.head], count)


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    tokens = batch[0]
    losses = F.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], reduction="none")
    return losses[:, 1:].mean(dim=1)  # nobody can know the second number


def evaluate(model: nn.Module) -> dict[str, float]:
    tokens = sequences.to(next(model.parameters()).device)
    guesses = model(tokens[:, :-1]).argmax(dim=-1)
    return {"accuracy": float((guesses == tokens[:, 1:])[:, 1:].float().mean())}


parser = argparse.ArgumentParser()
parser.add_argument("--pipeline", type=int, default=1)
parser.add_argument("--schedule", default="1f1b")
asked = parser.parse_args()
config = RunConfig(
    name="pipeline",
    epochs=4,
    global_batch=64,
    micro_batch=16,
    optimizer={"lr": 1e-2},
    schedule={"name": "cosine", "warmup_steps": 10},
    distributed=DistributedConfig(
        mode="hybrid" if asked.pipeline > 1 else "auto",
        mesh={"pipeline": asked.pipeline},
        pipeline={"schedule": asked.schedule},
        timeout_s=120,
    ),
)
result = Trainer(config, model=Transformer, data=data, loss=loss, evaluate=evaluate).fit()
print(f"{result.message}: accuracy {result.metrics.get('accuracy')}, in {result.run_dir}")
sys.exit(result.exit_code)
