"""Columns of a Parquet file as arrays; pyarrow, an extra, reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocean_runtime.errors import InputError


def read_parquet(path: Path) -> dict[str, NDArray[Any]]:
    """Each column, (N,): numbers (NaN where there is none), datetime64, or text; all others as objects.

    Raises InputError where pyarrow is not installed, or the file can't be read.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError("reading Parquet needs pyarrow: pip install 'oceanstate[parquet]'") from None
    try:
        table = parquet.ParquetFile(path).read()
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path} can't be read as Parquet: {' '.join(str(error).split())}") from None
    names = table.column_names
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{path} has two columns named {twice[0]!r}; give each its own name")
    return {name: _array(table.column(name)) for name in names}


def _array(column: Any) -> NDArray[Any]:
    import pyarrow

    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pyarrow.types.is_boolean(kind) or pyarrow.types.is_decimal(kind):
        column = column.cast(pyarrow.float64())
    elif pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
        return np.array(column.fill_null("").to_pylist(), str)
    array: NDArray[Any] = column.to_numpy()
    return array
