"""What each performance switch brings to a transformer, a convolutional network and an LSTM.

    python benchmarks/performance_switches.py [--models transformer cnn lstm]
    torchrun --nproc-per-node 2 benchmarks/performance_switches.py     (in a run of the Trainer)

Both sides of every ratio are steps of the same process, in turn; see docs/performance.md. One row a
switch, as CSV. On several ranks the transformer is trained by the Trainer in mode distributed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from drumline.config import ClusterEnvironment, parse_config
from drumline.events import read_events
from drumline.training import Trainer
from drumline.training.performance import Rules, in_trainer, optimize

COLUMNS = "device,torch,ranks,model,batch,arithmetic,switch,outcome,before_ms,after_ms,gain,noise,"
COLUMNS += "deviation,reason"
QUICK = Rules(block_s=0.05, budget_s=3.0)
VOCABULARY, CONTEXT = 512, 256


class Transformer(nn.Module):
    """A decoder without dropout; attention by torch's own kernel."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.mix(self.before(x)).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Recurrent(nn.Module):
    """Two LSTM layers over a sequence, and a prediction of its next values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


def convolutional(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    sizes = [3, width, width, 2 * width, 2 * width, 4 * width]
    for place, (one, other) in enumerate(pairwise(sizes)):
        layers += [nn.Conv2d(one, other, 3, stride=1 + place % 2, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(other), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 100))


Case = tuple[Callable[[], nn.Module], TensorDataset, Callable[[nn.Module, Any], Tensor], int]


def case(name: str, cuda: bool, samples: int = 8) -> Case:
    """How to build it, `samples` batches of data, the loss of a batch, and the batch size."""
    size, draw = (1, torch.Generator().manual_seed(0)) if cuda else (8, torch.Generator())
    if name == "transformer":
        batch = 32 // size
        rows = torch.randint(VOCABULARY, (samples * batch, CONTEXT + 1), generator=draw)
        return (lambda: Transformer(512 // size, 4)), TensorDataset(rows), next_token, batch
    if name == "cnn":
        batch = 128 // size
        images = torch.randn(samples * batch, 3, 64 // (size // 4 or 1), 64 // (size // 4 or 1))
        labels = torch.randint(100, (len(images),))
        return (lambda: convolutional(64 // size)), TensorDataset(images, labels), label, batch
    batch = 128 // size
    series = torch.randn(samples * batch, 129, 64)
    return (lambda: Recurrent(512 // size)), TensorDataset(series), next_value, batch


def next_token(model: nn.Module, batch: Any) -> Tensor:
    (rows,) = batch
    logits = model(rows[:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
    return losses.unflatten(0, (len(rows), -1)).mean(1)


def label(model: nn.Module, batch: Any) -> Tensor:
    images, labels = batch
    return F.cross_entropy(model(images), labels, reduction="none")


def next_value(model: nn.Module, batch: Any) -> Tensor:
    (series,) = batch
    return (model(series[:, :-1]) - series[:, 1:]).square().mean((1, 2))


def in_bf16(loss: Callable[[nn.Module, Any], Tensor], device: str) -> Any:
    def narrow(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return loss(model, batch)

    return narrow


def alone(name: str, arithmetic: str) -> tuple[dict[str, Any], int]:
    """`optimize` on this process's device."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    build, data, loss, batch = case(name, device == "cuda")
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    given = in_bf16(loss, device) if arithmetic == "bf16" else loss
    loader = DataLoader(data, batch, shuffle=True)
    report = optimize(model, loader, optimizer, given, allow_tf32=True, rules=QUICK)
    return report.as_dict(), batch


def together(name: str, arithmetic: str, environment: ClusterEnvironment) -> tuple[Any, int]:
    """A short run of the Trainer on all ranks; its report."""
    build, data, loss, batch = case(name, torch.cuda.is_available())
    in_trainer.Rules = lambda: QUICK  # type: ignore[assignment,misc]
    with tempfile.TemporaryDirectory() as folder:
        config = parse_config(
            {
                "steps": 2,
                "global_batch": batch * environment.world_size,
                "precision": arithmetic,
                "distributed": {"mode": "distributed", "timeout_s": 120},
                "performance": {"measure": True, "cudnn_autotune": False},
                "checkpoint": {"at_end": False},
                "run_dir": f"{folder}/run",
            }
        )
        run = Trainer(config, model=build, data=data, loss=loss).fit().run_dir  # type: ignore[arg-type]
        events = read_events(Path(run) / "events.jsonl")
    found = [event for event in events if event["kind"] == "performance_report"]
    return (found[0] if found else None), batch


def show(report: dict[str, Any], name: str, batch: int, arithmetic: str) -> None:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    whole = {"switch": "together", "outcome": "", "reason": "", **report}
    for row in [*report["rows"], {**whole, "noise": None, "deviation": None}]:
        times = [None if row.get(k) is None else 1000 * row[k] for k in ("before_s", "after_s")]
        fields = [device, torch.__version__, report["ranks"], name, batch, arithmetic]
        fields += [row["switch"], row["outcome"]]
        fields += ["" if t is None else f"{t:.3f}" for t in times]
        for key, form in (("gain", "+.1%"), ("noise", ".1%"), ("deviation", ".0e")):
            fields.append("" if row.get(key) is None else format(row[key], form))
        print(",".join(map(str, fields)), '"' + row["reason"].replace('"', "'") + '"', sep=",")
        for found in (row.get("details") or {}).get("graph_breaks", ()):
            print(f"#   graph break at {found['where']}: {found['reason']}")
    print(f"#   {name}: {report['seconds']:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["transformer", "cnn", "lstm"])
    parser.add_argument("--arithmetic", choices=("fp32", "bf16"), default="bf16")
    options = parser.parse_args()
    began, environment = time.perf_counter(), ClusterEnvironment.detect()
    several = environment.world_size > 1
    if environment.rank == 0:
        print(COLUMNS)
    for name in ["transformer"] if several else options.models:
        if several:
            report, batch = together(name, options.arithmetic, environment)
        else:
            report, batch = alone(name, options.arithmetic)
        if environment.rank == 0:
            show(report, name, batch, options.arithmetic)
    if environment.rank == 0:
        print(f"# all: {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
