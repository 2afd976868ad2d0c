"""A query's rows as a Parquet file, whatever types a driver returns, in memory for one part at a time.

Parts are written one by one, each with the types that its own values have; when all are there, the types of the table
are known, and the parts become one file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from edelweiss.client_app.extract.source import ExtractError, Part
from edelweiss.common import repeated
from edelweiss.datasets.errors import examples
from edelweiss.datasets.numbers import MISSING
from edelweiss.datasets.patient_ids import digests, patient_key

if TYPE_CHECKING:
    import pyarrow as pa

WORDS = {"null": "empty", "bool": "truth", "int64": "whole number", "double": "number", "string": "text"}
EXACT = 2**53  # whole numbers beyond are not exact as a float


@dataclass(frozen=True)
class Column:
    """What is known of a column, for people."""

    name: str
    type: str  # a word of WORDS
    missing: int


@dataclass(frozen=True)
class Table:
    """What was written."""

    rows: int
    patients: int  # 0: no patient column
    columns: tuple[Column, ...]


def write(names: Sequence[str], parts: Iterable[Part], folder: Path, file: Path, patient: str = "") -> Table:
    """Write rows to a Parquet file.

    Parameters
    ----------
    names
        Of the columns.
    parts
        Rows, a list at a time.
    folder
        An empty folder for the parts.
    file
        The Parquet file.
    patient
        The column whose distinct values are counted, by the rule `patient_key`; empty: none.

    Raises
    ------
    ExtractError
        If there are no rows, or a column holds what a table cannot.
    """
    import pyarrow as pa
    from pyarrow import parquet

    if twice := repeated(names):
        raise ExtractError(f"query: {examples(twice)} names more than one column: rename them with AS")
    kinds: dict[str, set[str]] = {name: set() for name in names}
    missing, written = dict.fromkeys(names, 0), list[Path]()
    for part in parts:
        arrays = {name: _array(name, values) for name, values in zip(names, zip(*part, strict=True), strict=True)}
        for name, array in arrays.items():
            kinds[name].add(str(array.type))
            missing[name] += array.null_count
        written.append(folder / f"{len(written):06}.parquet")
        parquet.write_table(pa.table(arrays), written[-1])
    if not written:
        raise ExtractError("query: it returns no rows; nothing is written")
    types = {name: _common(name, kinds[name]) for name in names}
    schema = pa.schema(
        [
            (name, {"double": pa.float64(), "string": pa.string()}.get(kind, pa.type_for_alias(kind)))
            for name, kind in types.items()
        ]
    )
    hashes, rows = list[Any](), 0
    with parquet.ParquetWriter(file, schema) as writer:
        for place in written:
            table = _cast(parquet.read_table(place), schema)
            writer.write_table(table)
            rows += len(table)
            if patient:
                hashes.append(_hashes(table[patient]))
            place.unlink()
    patients = len(np.unique(np.concatenate(hashes))) if hashes else 0
    columns = tuple(Column(name, WORDS[kind], missing[name]) for name, kind in types.items())
    return Table(rows, patients, columns)


def _array(name: str, values: Sequence[Any]) -> pa.Array:
    """Return a part of a column as nothing, truths, whole numbers, numbers or text, as its values are."""
    import pyarrow as pa

    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return pa.nulls(len(values))
    if kinds <= {bool}:
        return pa.array(values, pa.bool_())
    if kinds <= {int, float, Decimal, bool}:
        whole = kinds <= {int, bool} or all(
            value is None or (_is_number(value) and value == int(value)) for value in values if type(value) is not bool
        )
        if whole and not (kinds & {float}):
            try:
                return pa.array([None if value is None else int(value) for value in values], pa.int64())
            except OverflowError:
                text = "holds whole numbers of more than 64 bits: write CAST(... AS VARCHAR(40)) in the query"
                raise ExtractError(f"query: column {name!r} {text}") from None
        # NaN is what some databases have for a missing number.
        numbers = [None if value is None or math.isnan(value) else float(value) for value in values]
        return pa.array(numbers, pa.float64())
    if wrong := [kind.__name__ for kind in kinds if not issubclass(kind, str | int | float | Decimal | date | UUID)]:
        text = f"holds {examples(sorted(wrong))}, which a table cannot: choose numbers or texts in the query"
        raise ExtractError(f"query: column {name!r} {text}")
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _is_number(value: Any) -> bool:
    return math.isfinite(value)


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        at_midnight = value.tzinfo is None and value == datetime(value.year, value.month, value.day)
        return value.date().isoformat() if at_midnight else value.isoformat(" ")
    return value.isoformat() if isinstance(value, date) else str(value)


def _common(name: str, kinds: set[str]) -> str:
    """Return the type of a column from those of its parts."""
    kinds = kinds - {"null"} or {"null"}
    if len(kinds) == 1:
        return next(iter(kinds))
    return "double" if kinds <= {"int64", "double", "bool"} else "string"


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    arrays = []
    for field in schema:
        column = table[field.name]
        if pa.types.is_boolean(column.type) and pa.types.is_floating(field.type):
            column = column.cast(pa.int8())
        try:
            arrays.append(column.cast(field.type))
        except pa.ArrowInvalid:
            text = (
                f"holds fractions and whole numbers beyond {EXACT:,}, which no number holds exactly: write CAST in it"
            )
            raise ExtractError(f"query: column {field.name!r} {text}") from None
    return pa.table(arrays, schema=schema)


def _hashes(column: pa.ChunkedArray) -> Any:
    """Return 64-bit hashes of patients, those of one alike, as a site reads them; a missing one is none."""
    import pandas as pd

    values = column.drop_null().unique()
    if str(values.type) != "string":  # equal numbers are one patient
        return pd.util.hash_array(values.to_numpy(zero_copy_only=False))
    return digests(patient_key(text).encode() for text in values.to_pylist() if text.strip().lower() not in MISSING)
