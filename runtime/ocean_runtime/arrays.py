"""Rows from arrays on disk: in .npz each array of shape (N,) is a column, of shape (N, K) several; or Parquet."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocean_runtime.clocks import Clock, find_clock, from_array
from ocean_runtime.contract import Element
from ocean_runtime.errors import InputError, NoColumnError
from ocean_runtime.named_columns import find_named, names_column
from ocean_runtime.parquet import read_parquet
from ocean_runtime.tables import Row, element, label

NAMES = ("name", "names")
SUFFIXES = (".npz", ".parquet")
BLOCK_ROWS = 4096


class Arrays:
    """The columns of an .npz or Parquet file, as `tables.Table` has those of a CSV.

    The K columns of an array of shape (N, K) are `imu[0]`, `imu[1]`, ...; or `position[elbow]`, ... where an array of
    K texts called `position_names`, `names` or `name` names them.
    """

    def __init__(self, path: Path) -> None:
        """Raises InputError where the file can't be read, holds pickles, or arrays of several lengths."""
        self.name = str(path)
        self.unused: list[str] = []
        """Arrays that are no columns: their names, and why."""
        found = read_parquet(path) if path.suffix == ".parquet" else _read_npz(path)
        names = self._take_names(found)
        items: list[tuple[Element, NDArray[Any]]] = []
        for key, array in found.items():
            item = element(key)
            if array.ndim == 1:
                items.append((item, array))
            elif array.ndim == 2:
                inner = names.get(key) or [str(i) for i in range(array.shape[1])]
                items += [
                    (Element(f"{item.name}[{text}]", item.unit), array[:, i]) for i, text in enumerate(inner)
                ]
            else:
                self.unused.append(f"{key} (of shape {array.shape}; a column has one or two axes)")
        self.columns = tuple(item for item, _ in items)
        self.arrays = [array for _, array in items]
        lengths = {len(array) for array in self.arrays}
        if len(lengths) != 1 or lengths == {0}:
            raise InputError(
                f"{path} must hold arrays of one length, one row a step; it has {sorted(lengths) or 'none'}"
            )
        twice = [c.name for c in self.columns if [d.name for d in self.columns].count(c.name) > 1]
        if twice:
            raise InputError(f"{path} has two columns named {twice[0]!r}; give each its own name")

    def _take_names(self, found: dict[str, NDArray[Any]]) -> dict[str, list[str]]:
        """Names along the second axis, and those arrays taken out."""
        names: dict[str, list[str]] = {}
        used = set()
        for key, array in found.items():
            if array.ndim != 2:
                continue
            for candidate in (f"{element(key).name}_names", *NAMES):
                given = found.get(candidate)
                if (
                    given is not None
                    and given.dtype.kind == "U"
                    and given.shape == (array.shape[1],) != (len(array),)
                ):
                    texts = [str(text) for text in given]
                    if len(set(texts)) == len(texts):
                        names[key] = texts
                        used.add(candidate)
                    break
        for candidate in used:
            del found[candidate]
        return names

    def find(self, wanted: Element) -> int:
        """The column of that name; one that is looked up by name in each row becomes a column.

        Raises InputError where there is none, its unit is another, or no row has the name.
        """
        places = {column.name: i for i, column in enumerate(self.columns)}
        index = places.get(wanted.lookup) if wanted.lookup else None
        if index is None and wanted.lookup:
            index = self._look_up(places, wanted, wanted.lookup)
        if index is None and (index := places.get(wanted.name)) is not None:
            self._check_order(places, wanted.name)
        if index is None:
            index = self._look_up(places, wanted, wanted.name)
        if index is None:
            known = ", ".join(column.name for column in self.columns)
            raise NoColumnError(f"{self.name} has no column {wanted.name!r}; its columns are {known}")
        unit = self.columns[index].unit
        if unit and wanted.unit and unit != wanted.unit:
            raise InputError(
                f"{self.name} has {wanted.name!r} in {unit}, expected in {wanted.unit}; convert it first"
            )
        return index

    def _look_up(self, places: dict[str, int], wanted: Element, text: str) -> int | None:
        """Makes the column of what is looked up in each row."""
        named = find_named(places, text)
        if named is None or named.listed:
            return None
        values = np.full(len(self.arrays[0]), np.nan)
        found = np.zeros(len(values), bool)
        for names, numbers in zip(named.names, named.values, strict=True):
            here = ~found & (np.char.strip(self.arrays[names].astype(str)) == named.name)
            values[here], found = self.numbers(numbers)[here], found | here
        if not found.any():
            known = ", ".join(dict.fromkeys(str(self.arrays[i][0]) for i in named.names))
            raise InputError(f"{self.name}: no row has the name {named.name!r}; the first has {known}")
        self.columns += (Element(text, self.columns[named.values[0]].unit),)
        self.arrays.append(values)
        return len(self.columns) - 1

    def _check_order(self, places: dict[str, int], name: str) -> None:
        """Raises InputError where the name of an element that an index names is not the same in every row."""
        beside = names_column(places, name)
        if beside is None or self.arrays[beside[1]].dtype.kind not in "US":
            return
        before, index, after = beside
        found = np.unique(self.arrays[index])
        if len(found) > 1:
            raise InputError(
                f"{self.name} has the names {', '.join(found[:3])} in column {self.columns[index].name!r}, so "
                f"{name!r} is now one element, now another; give {before}[{found[0]}]{after}"
            )

    def clock(self, wanted: Element, otherwise: str = "") -> Clock:
        """The column of the time, or the pair of columns; raises as `ocean_runtime.clocks.find_clock`."""
        return find_clock(self.name, self.columns, wanted, self.find, otherwise)

    def numbers(self, index: int) -> NDArray[Any]:
        """A column of numbers. Raises InputError where it holds others."""
        array = self.arrays[index]
        if array.dtype.kind not in "fiub":
            raise InputError(
                f"{self.name} has {array.dtype} in column {self.columns[index].name!r}, which is not numeric"
            )
        return array

    def times(self, clock: Clock) -> NDArray[np.float64]:
        """(N,) seconds. Raises InputError where a row has none."""
        arrays = [
            self.arrays[index] if self.arrays[index].dtype.kind in "mM" else self.numbers(index)
            for index in clock.columns
        ]
        times = from_array(clock, arrays)
        missing = ~np.isfinite(times)
        if missing.any():
            raise InputError(
                f"{self.name} row {int(missing.argmax()) + 1} has no time in column {clock.names[0].name!r}; fill it "
                "in, or leave such rows out"
            )
        return times

    def rows(
        self, wanted: Sequence[Element], episode: Element | None = None, time: Clock | None = None
    ) -> Iterator[Row]:
        """As `tables.Table.rows`."""
        numbers = [self.numbers(self.find(item)) for item in wanted]
        whose = None if episode is None else self.arrays[self.find(episode)]
        times = None if time is None else self.times(time)
        clocks = [] if time is None else [(label(self.columns[i]), self.arrays[i]) for i in time.columns]
        for i in range(len(self.arrays[0])):
            yield Row(
                i + 1,
                None if times is None else float(times[i]),
                "" if whose is None else str(whose[i]),
                [float(array[i]) for array in numbers],
                tuple((name, str(array[i])) for name, array in clocks),
            )


def is_arrays(path: Path) -> bool:
    """Whether a file is one of arrays, by its name."""
    return path.suffix in SUFFIXES


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise InputError(f"{path} holds one array without a name; write it by numpy.savez, as name=array")
        with loaded as arrays:
            return {key: arrays[key] for key in arrays.files}
    except InputError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} can't be read as .npz without pickle: {error}") from None
