"""Extraction: the residual stream of a language model on a text, stored in shards.

A shard is a fixed run of sequences, computed in fixed batches, so it is the same file whoever
computes it: rank r takes shards r, r + W, r + 2W, ... A shard is written aside and renamed, and its
small .json beside it is written last; what has one is done, so an interrupted extraction goes on
with the shards that are missing. What is NOT promised: equal bits on other hardware, another
number of threads or another release of torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from drumline.config import ClusterEnvironment
from drumline.distributed import World, open_world
from drumline.errors import BadInput
from drumline.events import EventLog
from drumline.run_directory import RunDirectory
from drumline.tasks.sae.activations.manifest import Manifest
from drumline.tasks.sae.extract_options import ExtractOptions
from drumline.tasks.sae.extraction_folder import ExtractionFolder, Identity
from drumline.tasks.sae.language_model import (
    LanguageModel,
    load_language_model,
    load_tokenizer,
    locate_model,
    model_fingerprint,
)
from drumline.tasks.sae.positions import kept_positions
from drumline.tasks.sae.text import PackedText, pack_texts, read_texts, texts_sha256

_BATCH_ON_CPU = 8
_PROGRESS_EVERY_S = 0.5


class Emitter(Protocol):
    """Where progress goes; an `EventLog` is one."""

    def emit(self, kind: str, **fields: Any) -> None:
        """Append one event."""


def extract(
    options: ExtractOptions, world: World, events: Emitter, *, cache: Path | None = None
) -> Manifest:
    """Store activations as the options say, sharing the shards among the world's ranks.

    Returns at once if they are all there already.

    Args:
        options: What to extract, and where to.
        world: The ranks that take part; every one makes this call.
        events: Gets `progress` events with `what="extract"`, tokens done and in total, from rank
            0 for all ranks.
        cache: Where converted GGUF models are kept.

    Raises:
        BadInput: If the folder holds an extraction with other options (naming one), or the model
            has no such layer.
        DataError: If the model or the text cannot be read, the text is too short, or the disk full.
    """
    documents = read_texts(options.text)
    identity = Identity.of(
        options, texts_sha256(documents), model_fingerprint(locate_model(options.model))
    )
    folder = ExtractionFolder(options.out)
    folder.check(identity)
    done = folder.complete_manifest()
    if done is not None:
        return done
    tokenizer = load_tokenizer(options.model, dtype=options.dtype, cache=cache)
    packed = _sequences(options, documents, tokenizer)
    model = load_language_model(
        options.model,
        dtype=options.dtype,
        device=world.device,
        cut_after=options.layer,
        cache=cache,
    )
    if world.is_main:
        folder.begin(identity)
    world.barrier("extraction begins")
    progress = _Progress(events if world.is_main else None, folder, options, packed)
    for number in _rounds(shard_count(options, packed), world, progress):
        if folder.record(number) is None:
            folder.write(number, _shard(number, options, model, packed, progress.batch))
    if world.is_main:
        folder.finish(_manifest(options, identity, model, packed, folder))
    world.barrier("extraction ends")
    return folder.manifest()


def finished(options: ExtractOptions) -> Manifest | None:
    """The manifest, if the folder holds all that the options ask for; loads no model.

    Raises:
        BadInput: If the folder holds an extraction with other options.
        DataError: If the model or the text cannot be found.
    """
    identity = Identity.of(
        options,
        texts_sha256(read_texts(options.text)),
        model_fingerprint(locate_model(options.model)),
    )
    folder = ExtractionFolder(options.out)
    folder.check(identity)
    return folder.complete_manifest()


def extract_in_rank(payload: dict[str, Any]) -> None:
    """`extract` as one rank of a launched world; the payload is the options as plain data."""
    options = ExtractOptions.model_validate(payload)
    environment = ClusterEnvironment.detect()
    assert environment.run_dir is not None, "a launcher names the run directory"
    events = EventLog(
        RunDirectory(environment.run_dir).events_path,
        attempt=environment.attempt,
        rank=environment.rank,
    )
    with open_world() as world:
        extract(options, world, events)


def shard_count(options: ExtractOptions, packed: PackedText) -> int:
    """Shards that a text makes; the last may be smaller."""
    return -(-len(packed.sequences) // options.sequences_per_shard)


def _sequences(options: ExtractOptions, documents: list[str], tokenizer: Any) -> PackedText:
    """The sequences to read: all but those held out at the end, up to the number of tokens."""
    packed = pack_texts(documents, tokenizer, options.length)
    there = len(packed.sequences)
    left = there - options.held_out
    if options.tokens is not None:
        left = min(left, options.tokens // options.length)
    if left < 1:
        raise BadInput(
            f"Nothing is left to read: the text makes {there} sequences of {options.length} "
            f"tokens, {options.held_out} are held out, and tokens is {options.tokens}.",
            remedy="Give more text, or lower length or held_out.",
            sequences=there,
            held_out=options.held_out,
        )
    return PackedText(packed.sequences[:left], packed.separator)


def _rounds(shards: int, world: World, progress: _Progress) -> Iterator[int]:
    """This rank's shards, in step with the others.

    The barrier after each round keeps a slow rank from making the others wait longer than for one
    shard at a time, which is what the control plane's timeout allows for.
    """
    for first in range(0, shards, world.size):
        if first + world.rank < shards:
            yield first + world.rank
        world.barrier("shards written")
        progress.round(min(first + world.size, shards))


def _shard(
    number: int,
    options: ExtractOptions,
    model: LanguageModel,
    packed: PackedText,
    report: Callable[[int], None],
) -> Tensor:
    """All rows of a shard, [rows, width] on the CPU, computed in fixed batches."""
    start = number * options.sequences_per_shard
    sequences = packed.sequences[start : start + options.sequences_per_shard]
    device = next(model.model.parameters()).device
    batch = options.batch or (_BATCH_ON_CPU if device.type == "cpu" else len(sequences))
    dtype = getattr(torch, options.dtype)
    rows: list[Tensor] = []
    for low in range(0, len(sequences), batch):
        tokens = torch.from_numpy(sequences[low : low + batch]).to(device)
        hidden = model.residual_stream(tokens, options.layer)
        kept = kept_positions(
            hidden, drop_first=options.drop_first, outlier_ratio=options.outlier_ratio
        )
        rows.append(hidden[kept].to("cpu", dtype))
        report(tokens.numel())
    return torch.cat(rows)


def _manifest(
    options: ExtractOptions,
    identity: Identity,
    model: LanguageModel,
    packed: PackedText,
    folder: ExtractionFolder,
) -> Manifest:
    shards = tuple(folder.written(number) for number in range(shard_count(options, packed)))
    return Manifest(
        model=options.model,
        model_fingerprint=identity.model_fingerprint,
        layer=options.layer,
        hook_point=f"blocks.{options.layer}.hook_resid_post",
        dtype=options.dtype,
        width=model.width,
        count=sum(shard.rows for shard in shards),
        length=options.length,
        drop_first=options.drop_first,
        outlier_ratio=options.outlier_ratio,
        separator_token=packed.separator,
        text=options.text,
        text_sha256=identity.text_sha256,
        options=identity.options,
        shards=shards,
    )


class _Progress:
    """Tells how many tokens are done: whole shards of all ranks, and this rank's current one."""

    def __init__(
        self,
        events: Emitter | None,
        folder: ExtractionFolder,
        options: ExtractOptions,
        packed: PackedText,
    ) -> None:
        self.events, self.total = events, packed.sequences.size
        self.per_shard = options.sequences_per_shard * options.length
        there = [folder.record(number) for number in range(shard_count(options, packed))]
        self.missing = [number for number, record in enumerate(there) if record is None]
        self.done = self.total - sum(map(self._tokens, self.missing))
        self.at_start, self.started_s = self.done, time.monotonic()
        self.current, self.told_s = 0, 0.0

    def batch(self, tokens: int) -> None:
        """Some tokens of the current shard are done."""
        self.current += tokens
        if time.monotonic() - self.told_s > _PROGRESS_EVERY_S:
            self._tell()

    def round(self, shards: int) -> None:
        """All ranks are done with the shards below this number."""
        self.current = 0
        left = [number for number in self.missing if number >= shards]
        self.done = self.total - sum(map(self._tokens, left))
        self._tell()

    def _tokens(self, number: int) -> int:
        return min(self.per_shard, self.total - number * self.per_shard)

    def _tell(self) -> None:
        self.told_s = time.monotonic()
        done = self.done + self.current
        rate = (done - self.at_start) / max(1e-9, self.told_s - self.started_s)
        if self.events is None:
            return
        self.events.emit(
            "progress",
            what="extract",
            done=done,
            total=self.total,
            unit="tokens",
            tokens_per_s=round(rate, 1),
        )
