"""How a table of text is written: its encoding, separator, decimal sign, comments, and where its names stand.

Each is found in the first lines, or told by `--csv KEY=VALUE`; what is not certain is an error that says what to
type. Nothing is read ahead but the line of the names and the one after it.
"""

from __future__ import annotations

import codecs
import csv
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ocean_runtime.cells import MISSING, THOUSANDS, is_number
from ocean_runtime.errors import InputError

MAX_LINE_CHARACTERS = 1 << 20
MAX_PREAMBLE_LINES = 1000
SEPARATORS = {",": ",", ";": ";", "tab": "\t", "\t": "\t", "\\t": "\t", "|": "|", "space": " ", " ": " "}
COMMENTS = ("#", "%", "//")
_MAGIC = (
    (b"PAR1", "Parquet, whose name must end with .parquet"),
    (b"PK\x03\x04", "a zip archive, such as .xlsx or .npz"),
    (b"\xfd7zXZ", "an .xz archive"),
    (b"\x28\xb5\x2f\xfd", "a .zst archive"),
    (b"BZh", "a .bz2 archive"),
    (b"\x89HDF", "HDF5"),
    (b"\xd0\xcf\x11\xe0", "an .xls workbook"),
    (b"\x93NUMPY", "an .npy array"),
    (b"SQLite format 3", "a database"),
    (b"ULog\x01\x12\x35", "a flight log (.ulg)"),
)


@dataclass(frozen=True)
class Dialect:
    """What is told of a table; what is None is found in its first lines."""

    separator: str | None = None
    """`,`, `;`, `|`, a tab, or a space for any number of blanks."""
    decimal: str | None = None
    """`.` or `,`."""
    thousands: str | None = None
    """What separates thousands: `,`, `.`, `'`, or `space` for blanks of any kind."""
    comment: str | None = None
    """Lines that begin with it are passed over, wherever they stand."""
    encoding: str | None = None
    """As Python names it; UTF-8 or, with its mark, UTF-16 where none is told."""
    header: bool | None = None
    """Whether the first line names the columns, even where a name is a number; if not, they are c1, c2, ..."""
    names: tuple[str, ...] = ()
    """The columns' names where no line gives them."""
    skip: int = 0
    """Lines before the table."""
    missing: tuple[str, ...] = ()
    """More texts that stand for no value."""


def parse_options(options: Sequence[str], no_header: bool = False) -> Dialect:
    """`separator=;`, `decimal=,`, ... Raises InputError for a key or value that is none."""
    dialect = Dialect(header=False if no_header else None)
    known = [f.name for f in fields(Dialect)]
    for option in options:
        key, equals, value = option.partition("=")
        if key not in known or not equals or (not value and key != "comment"):
            raise InputError(f"--csv {option!r} is not KEY=VALUE with one of {', '.join(known)}")
        if key == "separator" and value not in SEPARATORS:
            raise InputError(f"the separator {value!r} is none of comma, ; | tab and space")
        if key == "decimal" and value not in (".", ","):
            raise InputError(f"the decimal sign {value!r} is neither . nor ,")
        if key == "thousands" and value not in THOUSANDS:
            raise InputError(f"the separator of thousands {value!r} is none of , . ' and space")
        if key == "header" and value not in ("yes", "no"):
            raise InputError(f"header={value} is neither yes nor no")
        if key == "skip" and not (value.isascii() and value.isdigit()):
            raise InputError(f"skip={value} is no number of lines")
        if key == "encoding":
            try:
                "".encode(value)
            except (LookupError, ValueError):
                raise InputError(
                    f"{value!r} is no encoding that Python knows; try utf-16 or cp1252"
                ) from None
        settled: Any = value
        if key == "separator":
            settled = SEPARATORS[value]
        elif key == "header":
            settled = value == "yes"
        elif key == "skip":
            settled = int(value)
        elif key == "names":
            settled = tuple(name.strip() for name in value.split(","))
        elif key == "missing":
            settled = tuple(text.strip().lower() for text in value.split(","))
        dialect = replace(dialect, **{key: settled})
    if dialect.thousands in (",", "."):
        other = "." if dialect.thousands == "," else ","
        if dialect.decimal == dialect.thousands:
            raise InputError(f"{dialect.decimal!r} can't be both decimal sign and separator of thousands")
        dialect = replace(dialect, decimal=other)
    return replace(dialect, header=False) if dialect.names else dialect


def lines_of(chunks: Iterable[bytes], name: str, encoding: str | None) -> Iterator[str]:
    """Whole lines as soon as they are complete, from bytes that are cut anywhere; gzip is unpacked.

    Raises InputError for what is no text, is in another encoding, or has no line breaks.
    """
    source = _unpacked(chunks, name)
    first = next(source, b"")
    while len(first) < 16 and b"\n" not in first and (more := next(source, b"")):
        first += more
    for magic, kind in _MAGIC:
        if first.startswith(magic):
            raise InputError(f"{name} is {kind}, no table of text; convert it to CSV or to .npz first")
    encoding = encoding or _encoding(first)
    inner = codecs.getincrementaldecoder("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)()
    decoder = io.IncrementalNewlineDecoder(inner, translate=True)
    rest = ""

    def wrong() -> InputError:
        return InputError(
            f"{name} is not {'UTF-8' if encoding == 'utf-8' else encoding} text; if it is a table, give its encoding, "
            "such as --csv encoding=cp1252 (Windows, Western Europe) or --csv encoding=utf-16"
        )

    def check(line: str) -> str:
        if "\0" in line:
            raise InputError(
                f"{name} holds zero bytes, as a file does that a power failure cut off, or that is no UTF-8 text; "
                "remove them, or give its encoding, such as --csv encoding=utf-16"
            )
        return line

    marks = True
    try:
        for chunk in _chain(first, source):
            text = decoder.decode(chunk)
            if marks and (text := text.lstrip("\ufeff")):
                marks = False
            *whole, rest = (rest + text).split("\n")
            for line in whole:
                yield check(line) + "\n"
            if len(rest) > MAX_LINE_CHARACTERS:
                raise InputError(
                    f"{name} has a line of over {MAX_LINE_CHARACTERS:,} characters; it is no CSV"
                )
        rest += decoder.decode(b"", final=True)
    except UnicodeError:
        raise wrong() from None
    if rest:
        yield check(rest)


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _encoding(first: bytes) -> str:
    """By the mark at the beginning, or by where zeros stand."""
    if first[:4] in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
        return "utf-32"
    if first[:2] in (b"\xff\xfe", b"\xfe\xff"):
        text = first[: len(first) // 2 * 2].decode("utf-16", errors="replace")
        if any("\t" <= character <= "~" for character in text):
            return "utf-16"
    head = first[: len(first) // 2 * 2][:64]
    if len(head) >= 8:
        for zeros, others, name in (
            (head[1::2], head[::2], "utf-16-le"),
            (head[::2], head[1::2], "utf-16-be"),
        ):
            if not any(zeros) and all(others):
                return name
    return "utf-8"


def _unpacked(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    source = iter(chunks)
    first = next(source, b"")
    if not first.startswith(b"\x1f\x8b"):
        yield from _chain(first, source)
        return
    unpack = zlib.decompressobj(wbits=31)
    try:
        for chunk in _chain(first, source):
            while chunk:
                if unpack.eof:  # one archive may follow another
                    unpack = zlib.decompressobj(wbits=31)
                yield unpack.decompress(chunk, 1 << 16)
                chunk = unpack.unconsumed_tail or unpack.unused_data
    except zlib.error as error:
        raise InputError(f"{name} is no whole gzip archive: {error}") from None
    if not unpack.eof:
        raise InputError(f"{name} is a gzip archive that was cut off; unpack what is left of it first")


def unit_of(text: str) -> str:
    """A units row's cell without its brackets; empty for a quantity without a unit."""
    unit = text.strip().strip("[]()").strip()
    return "" if unit in ("-", "1") else unit


def cells_of(line: str, separator: str) -> list[str]:
    """One line's cells. Raises csv.Error."""
    return next(rows_of([line], separator), [])


def rows_of(lines: Iterable[str], separator: str) -> Iterator[list[str]]:
    """The cells of each row. Raises csv.Error, also for a quote that nobody closes: it would swallow rows."""
    if separator == " ":  # blanks of any kind and number are one separator
        lines = (" ".join(line.split()) for line in lines)
    return csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=separator != "\t")


def find_separator(heading: str, first: str) -> str:
    """What separates the names, and the first row's cells: with it both have as many, most of them numbers."""
    best: tuple[float, int, int] | None = None
    found = next((s for s in ",;\t|" if s in heading), ",")
    by_one = False
    for rank, separator in enumerate((",", ";", "\t", "|", " ")):
        try:
            names, cells = cells_of(heading, separator), cells_of(first, separator)
        except csv.Error:
            continue
        if len(names) != len(cells) or len(names) < 2:
            if best is None and not by_one and len(names) > 1 and len(cells) == len(names) + 1:
                by_one, found = True, separator  # the rows are refused, with both counts
            continue
        numbers = sum(is_number(cell) or cell.strip().lower() in MISSING for cell in cells) / len(cells)
        score = (numbers, len(names), -rank)
        if best is None or score > best:
            best, found = score, separator
    return found
