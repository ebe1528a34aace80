"""One cell of a table: whether it holds a number, none, or something that only looks like a number."""

from __future__ import annotations

import math
import re

_NO_VALUE = """
nan na n/a <na> null none nil missing ? - -- --- . #n/a #na #null! #div/0! #value! #num! 1.#qnan -1.#ind 1.#ind
1.#snan 1.#inf -1.#inf
"""
MISSING = frozenset(["", "#n/a n/a", *_NO_VALUE.split()])
"""Cells, in small letters, that stand for no value."""
BOOLEANS = {"true": 1.0, "false": 0.0}
THOUSANDS = {",": ",", ".": ".", "'": "'\u2019", "space": " \u00a0\u202f\u2009", " ": " \u00a0\u202f\u2009"}
"""What may separate thousands: as it is told, and the characters that are meant."""
_MINUS = "\u2212"
_FORTRAN = re.compile(r"([+-]?\d*\.?\d*)[dD]([+-]?\d+)")
_COMMA_NUMBER = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
_COMMA_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_MARKS = "[.,'\u2019 \u00a0\u202f\u2009]"
_LOOKS_LIKE = re.compile(
    rf"[($€£¥\s]*[+-]?[$€£¥\s]*(?:\d{{1,3}}(?:{_MARKS}\d{{3}})+|\d+)(?:[.,]\d+)?(?:[eE][+-]?\d+)?[%‰°)\s]*(.*)"
)
_UNIT_ATOM = (
    r"(?:[munµμkMGcd]?(?:s|sec|m|g|N|Nm|rad|V|A|W|J|Pa|Hz|T|F|Wh|Ah|bar)|deg|degrees|radians|meters?|metres?|seconds?|"
    r"°|°C|°F|degC|C|K|h|min|rpm|RPM|%|gauss|G|lx|lux|dB|dBm|px|pixels?|counts?|bool|mmHg|inch|in|ft|mph|kmh|1)"
)
_UNIT = re.compile(rf"-|{_UNIT_ATOM}(?:\s?[\^*/·.]?\s?-?(?:{_UNIT_ATOM}|[-⁻]?[0-9²³⁻¹]+))*")


def number(cell: str) -> float:
    """A cell's number, NaN where it is missing; raises ValueError for anything else."""
    try:
        value = float(cell)
    except ValueError:
        text = cell.strip().lower()
        if text in MISSING:
            return math.nan
        if text in BOOLEANS:
            return BOOLEANS[text]
        plain = _FORTRAN.sub(r"\1e\2", text.replace(_MINUS, "-"))
        if plain == text:
            raise
        value = float(plain)
    if "_" in cell:  # Python reads 2026_11_30 as a number of eight digits; a date is none
        raise ValueError(cell)
    return value


def is_number(text: str) -> bool:
    """Whether a cell is a number, with either decimal sign, or a date and time."""
    text = text.strip()
    if re.match(r"\d{4}[-/]\d\d[-/]\d\d", text) or _COMMA_NUMBER.fullmatch(text):
        return True
    try:
        float(_FORTRAN.sub(r"\1e\2", text))
    except ValueError:
        return False
    return True


def looks_like_number(text: str) -> bool:
    """Whether a cell that is no number is one with something added: thousands, a unit, a percent sign, brackets."""
    match = _LOOKS_LIKE.fullmatch(text.strip().replace(_MINUS, "-"))
    return match is not None and (not match[1] or is_unit(match[1]))


def is_unit(text: str) -> bool:
    """Whether a cell is a unit: `m/s`, `[rad]`, `(-)`."""
    inner = re.fullmatch(r"\s*[\[(]?\s*(.*?)\s*[\])]?\s*", text)
    return inner is not None and _UNIT.fullmatch(inner[1]) is not None


def comma_number(cell: str, decimal: str | None) -> tuple[str, str | None] | None:
    """A cell with a comma as text with a point, and the decimal sign that it settles; None where it is no number.

    A cell that could be thousands or a fraction gives itself with None: it must be asked about.
    """
    text = cell.strip()
    if not _COMMA_NUMBER.fullmatch(text):
        return None
    if decimal == "." or (decimal is None and _COMMA_THOUSANDS.fullmatch(text)):
        return text, None
    return text.replace(",", "."), ","


def without_thousands(cell: str, mark: str) -> str:
    """A number with separators of thousands, without them; any other cell as it is.

    mark: one of THOUSANDS.
    """
    marks = THOUSANDS[mark]
    text = cell.strip()
    if re.fullmatch(rf"[+\-{_MINUS}]?\d{{1,3}}(?:[{re.escape(marks)}]\d{{3}})+(?:[.,]\d*)?", text):
        integer = re.compile(rf"(?<=\d)[{re.escape(marks)}](?=\d{{3}})")
        return integer.sub("", text)
    return cell
