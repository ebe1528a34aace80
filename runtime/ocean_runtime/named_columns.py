"""Elements of an array by name in a table that was made from messages: `position[elbow]`.

Such a table has the array's names in columns of their own: `name[0]`, `name[1]`, ... beside `position[0]`,
`position[1]`, ... (or `name_0`, `name.0`), `transforms[0].child_frame_id` beside `transforms[0].transform.rotation.w`,
or lists in one cell each, `name` with ['elbow', 'wrist'] beside `position` with [0.5, 1.25]. Rows may have them in
different orders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OWN_NAMES = ("child_frame_id", "name")
"""Fields that say which of several elements a message is."""
_LABEL = re.compile(r"\[([^\[\]]*[^\[\]\d:][^\[\]]*)\]")
_INDEX = re.compile(r"\[(\d+)\]|[_./](\d+)(?![^_./])")
_STYLES = ("[{}]", "_{}", ".{}", "/{}")
_LISTS = ("name", "names", "joint_names")


@dataclass(frozen=True)
class Named:
    """Where a name is looked up in each row, and its number."""

    name: str
    names: tuple[int, ...]
    """The columns of the names; a single one of lists where `listed`."""
    values: tuple[int, ...]
    """The columns of the numbers in the same order."""
    listed: bool = False


def find_named(columns: Mapping[str, int], wanted: str) -> Named | None:
    """The columns in which `position[elbow]` is to be looked up; None where there are none.

    columns: the place of each column by its name.
    """
    for match in _LABEL.finditer(wanted):
        before, after = wanted[: match.start()], wanted[match.end() :]
        for style in _STYLES:
            values: list[int] = []
            names: list[int] = []
            while (column := f"{before}{style.format(len(values))}{after}") in columns:
                beside = _names_beside(columns, before, style.format(len(values)))
                if beside is None:
                    break
                values.append(columns[column])
                names.append(beside)
            if values:
                return Named(match[1], tuple(names), tuple(values))
        if before in columns and not after and (beside := _names_beside(columns, before, "")) is not None:
            return Named(match[1], (beside,), (columns[before],), listed=True)
    return None


def names_column(columns: Mapping[str, int], wanted: str) -> tuple[str, int, str] | None:
    """Of `position[0]`: what stands before the index, the column with the element's name, and what stands after."""
    for match in _INDEX.finditer(wanted):
        before, after = wanted[: match.start()], wanted[match.end() :]
        beside = _names_beside(columns, before, match[0])
        if beside is not None and columns.get(wanted) != beside:
            return before, beside, after
    return None


def by_name(columns: Mapping[str, int], wanted: str, cells: Sequence[str]) -> str:
    """`position[elbow]` for `position[0]`, where a row of cells names it so; empty where nothing does."""
    found = names_column(columns, wanted)
    if found is None:
        return ""
    before, beside, after = found
    name = cells[beside].strip()
    return f"{before}[{name}]{after}" if _LABEL.fullmatch(f"[{name}]") else ""


def _names_beside(columns: Mapping[str, int], before: str, index: str) -> int | None:
    """The column of the name of an element of the array `before`."""
    for own in OWN_NAMES if index else ():
        for joint in "./_":
            if (found := columns.get(f"{before}{index}{joint}{own}")) is not None:
                return found
    for joint in (".", "/", ":", "_"):
        parent, separator, _ = before.rpartition(joint)
        for names in _LISTS:
            if (found := columns.get(f"{parent}{separator}{names}{index}")) is not None:
                return found
    return None


def items_of(cell: str) -> list[str]:
    """The items of a list in one cell: `['elbow', 'wrist']`, `(0.5, 1.25)`, `[0.5 1.25]`."""
    inner = re.sub(r"^\s*(?:array)?\s*[\[({]+|[\])}]+\s*$", "", cell)
    parts = inner.split(",") if "," in inner else inner.split()
    return [part.strip().strip("'\"").strip() for part in parts if part.strip()]


def place_of(named: Named, names: Sequence[str]) -> int | None:
    """Which element has the name; None where none has."""
    return names.index(named.name) if named.name in names else None
