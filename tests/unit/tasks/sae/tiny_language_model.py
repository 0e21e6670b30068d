"""A random language model of four layers with its tokenizer, and worlds without processes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

WORDS = [f"w{number}" for number in range(60)]
LAYERS = 4
WIDTH = 32


def save_tiny_model(folder: Path) -> Path:
    """Write the model and its tokenizer; every word is one token, `<end>` ends a document."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["<unk>", "<end>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.4,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def words(count: int, start: int = 0) -> str:
    """A text of so many words, each of which is one token."""
    return " ".join(WORDS[(start + 7 * number * number) % len(WORDS)] for number in range(count))


@dataclass
class ThreadWorld:
    """One rank of a world whose ranks are threads of this process, running one at a time.

    A rank gives way to the others only where it waits for them: transformers changes global state
    while it loads a model, so two ranks must not load at once.
    """

    rank: int = 0
    size: int = 1
    shared: Any = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def of_size(cls, size: int) -> list[ThreadWorld]:
        shared = Shared(threading.Barrier(size, timeout=60))
        return [cls(rank, size, shared) for rank in range(size)]

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def barrier(self, name: str = "barrier") -> None:
        if self.size > 1:
            self.shared.turn.release()
            try:
                self.shared.barrier.wait()
            finally:
                self.shared.turn.acquire()

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
        if self.size == 1:
            return tensor
        self.shared.tensors[self.rank] = tensor.clone()
        self.barrier()
        total = sum(self.shared.tensors[rank] for rank in range(self.size))
        self.barrier()
        return tensor.copy_(total)


@dataclass
class Shared:
    """What the ranks of a ThreadWorld have in common."""

    barrier: threading.Barrier
    turn: threading.Lock = field(default_factory=threading.Lock)
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass
class Recorder:
    """Keeps the events it is given."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def emit(self, kind: str, **fields: Any) -> None:
        self.events.append({"kind": kind, **fields})


def on_every_rank(size: int, action: Any) -> list[Any]:
    """Call `action(world)` on all ranks at once; the results in rank order."""
    from concurrent.futures import ThreadPoolExecutor

    def in_turn(world: ThreadWorld) -> Any:
        with world.shared.turn:
            return action(world)

    with ThreadPoolExecutor(size) as pool:
        pending = [pool.submit(in_turn, world) for world in ThreadWorld.of_size(size)]
        return [future.result() for future in pending]
