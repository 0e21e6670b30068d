"""Texts, and the fixed-length token sequences made from them, always in the same order.

Documents are tokenised without special tokens, each is followed by the tokenizer's end-of-text
token, and the whole is cut into sequences. Nothing is put before a sequence: whatever token comes
first takes the role of the attention sink, and its activation is hundreds of times longer than all
others, which is why extraction leaves position 0 out. Tokens after the last whole sequence are not
used. What is NOT promised: that `builtin:pydoc` is the same text in another release of Python.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.errors import DataError

PYDOC = "builtin:pydoc"
SUFFIXES = (".txt", ".md", ".jsonl")
_DOCUMENTS_AT_ONCE = 256


@dataclass(frozen=True)
class PackedText:
    """Token sequences.

    Attributes:
        sequences: int64 of shape [sequences, length].
        separator: The token after each document, or None if the tokenizer has none.
    """

    sequences: NDArray[np.int64]
    separator: int | None


def read_texts(sources: Sequence[str]) -> list[str]:
    """All documents of the sources in order; files of a folder by name, at any depth.

    Raises:
        DataError: If a source is missing or unreadable, or there is no text in any.
    """
    documents = [text for source in sources for text in _documents(source) if text.strip()]
    if not documents:
        raise DataError(
            f"There is no text in {', '.join(sources)}.",
            remedy=f"Give files ending in {', '.join(SUFFIXES)} that are not empty.",
            text=list(sources),
        )
    return documents


def texts_sha256(documents: Iterable[str]) -> str:
    """SHA-256 of documents and where they end, as hexadecimal digits."""
    digest = hashlib.sha256()
    for document in documents:
        data = document.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def pack_texts(documents: Sequence[str], tokenizer: Any, length: int) -> PackedText:
    """Tokenise documents and cut them into sequences of `length` tokens."""
    separator = tokenizer.eos_token_id
    ending = [] if separator is None else [separator]
    parts: list[NDArray[np.int64]] = []
    for start in range(0, len(documents), _DOCUMENTS_AT_ONCE):
        encoded = tokenizer(
            list(documents[start : start + _DOCUMENTS_AT_ONCE]),
            add_special_tokens=False,
            return_attention_mask=False,
            verbose=False,
        )
        parts += [np.asarray(ids + ending, dtype=np.int64) for ids in encoded["input_ids"]]
    tokens = np.concatenate(parts)
    whole = tokens.size // length
    return PackedText(tokens[: whole * length].reshape(whole, length), separator)


def _documents(source: str) -> Iterator[str]:
    if source == PYDOC:
        from pydoc_data.topics import topics

        yield from (topics[name] for name in sorted(topics))
        return
    path = Path(source)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
        for file in files:
            yield from _documents_of_file(file)
    elif path.exists() and path.suffix in SUFFIXES:
        yield from _documents_of_file(path)
    else:
        why = f"its name does not end in {', '.join(SUFFIXES)}" if path.exists() else "no such file"
        raise DataError(
            f"The text {source} cannot be read: {why}.",
            remedy=f"Give files or folders, or {PYDOC}.",
            text=source,
        )


def _documents_of_file(file: Path) -> Iterator[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"The text {file} cannot be read: {error}.",
            remedy="Texts are UTF-8.",
            text=str(file),
        ) from None
    if file.suffix != ".jsonl":
        yield text
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _text_of_line(file, number, line)


def _text_of_line(file: Path, number: int, line: str) -> str:
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError):
        text = None
    if not isinstance(text, str):
        raise DataError(
            f'Line {number} of {file} is not a JSON object with a string "text".',
            remedy="Mend or remove that line.",
            text=str(file),
            line=number,
        )
    return text
