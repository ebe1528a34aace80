"""Tokenizers: any text in, the same text back up to unknowns, in one piece or in many."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ocean_runtime.tokenizer import REPLACEMENT, UNKNOWN, Tokenizer

Kind = Literal["char", "word"]
kinds = st.sampled_from(("char", "word"))
# Any Unicode text without surrogates (UTF-8 has none), and texts dense in what the word pattern cuts at.
anything = st.text(st.characters(exclude_categories=["Cs"]))
dense = st.text("ab 'é\n\t.!-_9 \u0301\u2003🌊" + REPLACEMENT)
long_words = st.text("ab ", min_size=35, max_size=130).map(lambda text: text.replace(" ", "", 3))
texts = anything | dense | long_words
learned = texts.filter(lambda text: text.strip(REPLACEMENT) != "")


def pieces_of(kind: Kind, text: str) -> list[str]:
    """The pieces of a text, from a tokenizer that knows them all."""
    tokenizer = Tokenizer.train(text + "\nx", kind)
    return [tokenizer.tokens[i] for i in tokenizer.encode(text)]


@given(learned, kinds)
def test_what_was_encoded_decodes_to_the_same_text(text: str, kind: Kind) -> None:
    tokenizer = Tokenizer.train(text, kind)
    ids = tokenizer.encode(text)
    assert all(0 <= i < tokenizer.size for i in ids)
    assert tokenizer.decode(ids) == text  # U+FFFD itself is the unknown token's text


@given(learned, texts, kinds, st.none() | st.integers(2, 20))
def test_any_text_encodes_and_differs_only_in_unknown_pieces(
    text: str, other: str, kind: Kind, size: int | None
) -> None:
    tokenizer = Tokenizer.train(text, kind, size)
    assert size is None or tokenizer.size <= size
    ids, pieces = tokenizer.encode(other), pieces_of(kind, other)
    assert "".join(pieces) == other
    assert len(ids) == len(pieces)
    assert all(
        tokenizer.tokens[i] == piece or (i == UNKNOWN and piece not in tokenizer.tokens)
        for i, piece in zip(ids, pieces, strict=True)
    )


@given(learned, texts, kinds, st.data())
def test_a_text_read_in_pieces_gives_the_ids_of_the_whole(
    text: str, other: str, kind: Kind, data: st.DataObject
) -> None:
    tokenizer = Tokenizer.train(text, kind)
    whole = text + other
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    reader, ids = tokenizer.reader(), []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        ids += reader.feed(whole[start:end])
        held = end - len("".join(pieces_of(kind, whole)[: len(ids)]))
        assert 0 <= held <= (41 if kind == "word" else 0)
    assert ids + reader.flush() == tokenizer.encode(whole)
    assert reader.flush() == []


@given(learned, kinds, st.none() | st.integers(2, 20))
def test_a_tokenizer_survives_json_and_does_not_depend_on_order(
    text: str, kind: Kind, size: int | None
) -> None:
    tokenizer = Tokenizer.train(text, kind, size)
    assert Tokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict()))) == tokenizer
    assert list(tokenizer.tokens[1:]) == sorted(tokenizer.tokens[1:])


def test_words_keep_the_space_before_them_and_contractions_fall_apart() -> None:
    text = "I don't know,  'tis 42.\n"
    tokenizer = Tokenizer.train(text, "word")
    assert [tokenizer.tokens[i] for i in tokenizer.encode(text)] == [
        "I", " don", "'t", " know", ",", " ", " '", "tis", " 42", ".", "\n",
    ]  # fmt: skip


def test_the_most_frequent_are_kept() -> None:
    assert Tokenizer.train("aaabbc", "char", 3).tokens == (REPLACEMENT, "a", "b")
    assert Tokenizer.train("cba", "char", 3).tokens == (REPLACEMENT, "a", "b")  # a tie: the lower code point


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"kind": "char"}, "no list of tokens"),
        ({"kind": "char", "tokens": "abc"}, "no list of tokens"),
        ({"kind": "bytes", "tokens": [REPLACEMENT, "a"]}, "unknown tokenizer 'bytes'; choose char or word"),
        ({"tokens": [REPLACEMENT, "a"]}, "unknown tokenizer ''"),
        ({"kind": "char", "tokens": []}, r"U\+FFFD"),
        ({"kind": "char", "tokens": ["a", "b"]}, r"U\+FFFD"),
        ({"kind": "char", "tokens": [REPLACEMENT, 1]}, "must be strings"),
        ({"kind": "char", "tokens": [REPLACEMENT, "a", "a"]}, "'a' is listed twice"),
    ],
)
def test_what_is_no_tokenizer_is_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Tokenizer.from_dict(values)


def test_ids_outside_the_vocabulary_and_useless_sizes_are_refused() -> None:
    tokenizer = Tokenizer.train("ab")
    for wrong in (-1, 3):
        with pytest.raises(ValueError, match=f"token {wrong} is outside the vocabulary, 0 to 2"):
            tokenizer.decode([wrong])
    with pytest.raises(ValueError, match="got a size of 1"):
        Tokenizer.train("ab", size=1)
    with pytest.raises(ValueError, match="at least one token more"):
        Tokenizer.train("")
