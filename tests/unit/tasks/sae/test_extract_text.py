"""Texts become fixed-length sequences, in one order."""

from pathlib import Path

import pytest
from tiny_language_model import WORDS, save_tiny_model

from drumline.errors import DataError
from drumline.tasks.sae.language_model import load_tokenizer
from drumline.tasks.sae.text import pack_texts, read_texts, texts_sha256


def test_files_of_a_folder_by_name_and_lines_of_jsonl(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "d.jsonl").write_text('{"text": "third"}\n\n{"text": "fourth"}\n')
    (tmp_path / "e.csv").write_text("no text")
    assert read_texts([str(tmp_path)]) == ["first", "second", "third", "fourth"]
    assert read_texts([str(tmp_path / "b.md"), str(tmp_path / "a.txt")]) == ["second", "first"]


def test_builtin_text_is_the_topics_in_order_of_their_names() -> None:
    from pydoc_data.topics import topics

    documents = read_texts(["builtin:pydoc"])
    assert documents == [topics[name] for name in sorted(topics)]


def test_documents_are_joined_by_the_end_token_and_cut(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(save_tiny_model(tmp_path)))
    packed = pack_texts(["w0 w1 w2", "w3", "w4 w5 w6 w7"], tokenizer, length=4)
    # Words begin at 2, after <unk> and <end>; the last two tokens make no whole sequence.
    assert packed.sequences.tolist() == [[2, 3, 4, 1], [5, 1, 6, 7]]
    assert packed.separator == 1
    assert len(WORDS) == 60


def test_checksum_knows_where_documents_end() -> None:
    assert texts_sha256(["ab", "c"]) != texts_sha256(["a", "bc"])


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("a.csv", "x", ".csv"),
        ("a.jsonl", '{"text": "fine"}\n{"txt": "no"}', "Line 2"),
        ("a.jsonl", "not json", "Line 1"),
        ("a.txt", "  \n ", "no text"),
        ("a.txt", None, "no such file"),
    ],
)
def test_unusable_text(tmp_path: Path, name: str, content: str | None, wanted: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=wanted) as caught:
        read_texts([str(tmp_path / name)])
    assert name in str(caught.value)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(DataError, match="UTF-8"):
        read_texts([str(tmp_path / "a.txt")])
