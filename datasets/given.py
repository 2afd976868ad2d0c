"""Data that a researcher gives as Python objects: written to a file while a simulation runs, and read as files are.

A file has room for any engine and worker, and passes the same checks as a table on disk. It lies in a private folder
for temporary files, under a hash of its content, and is removed when the last run that uses it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edelweiss.common import repeated
from edelweiss.common.files import as_path
from edelweiss.datasets.config import ARRAYS, TABLE
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.source import Source
from edelweiss.datasets.sources.arrays import FOLDER
from edelweiss.datasets.sources.table import read_grouped

if TYPE_CHECKING:
    import pandas as pd

    from edelweiss.common import Value

MOST_CLASSES = 1000


@dataclass(frozen=True, eq=False)
class Table:
    """A table that a simulation deals to sites; made by `table`.

    Attributes
    ----------
    rows : Path or DataFrame
        A CSV or Parquet file, or rows in memory.
    settings : dict
        The run-config keys that describe it.
    """

    rows: Path | pd.DataFrame
    settings: dict[str, Value] = field(default_factory=dict)

    def count(self, column: str) -> int:
        """Return how many sites a column names."""
        import pandas as pd

        try:
            if not isinstance(self.rows, Path):
                return int(self.rows[column].nunique())
            parquet = self.rows.suffix == ".parquet"
            read: Any = (
                partial(pd.read_parquet, columns=[column]) if parquet else partial(pd.read_csv, usecols=[column])
            )
            return int(read(self.rows)[column].nunique())
        except Exception:  # whatever is wrong with the file or its columns, the run says in full
            return 0

    @contextmanager
    def as_keys(self) -> Iterator[dict[str, Value]]:
        """Give the block the run-config keys with which a simulation reads it."""
        keys: dict[str, Value] = {"dataset": TABLE, **self.settings}
        if group := str(keys.get("group-column", "")) if keys.get("partition") == "sites" else "":
            keys |= {"sites": count} if (count := self.count(group)) else {}
        if isinstance(self.rows, Path):
            yield keys | {"data-file": str(self.rows)}
            return
        rows = self.rows
        with _file("the DataFrame", _hash_of_frame(rows), ".parquet", partial(_write, rows)) as path:
            yield keys | {"data-file": str(path)}


@dataclass(frozen=True, eq=False)
class Arrays:
    """Inputs and labels in memory; made by `arrays`.

    Attributes
    ----------
    inputs : Tensor
        Shape (n, F) float32, NaN where missing, or (n, C, H, W) uint8 or float32.
    classes : Tensor
        Shape (n,) int64, from 0.
    owner : Tensor, optional
        Shape (n,) int64: the site of each sample; None where the run's ``partition`` deals them.
    names : tuple of str
        Names of the sites.
    """

    inputs: torch.Tensor
    classes: torch.Tensor
    owner: torch.Tensor | None = None
    names: tuple[str, ...] = ()

    @contextmanager
    def as_keys(self) -> Iterator[dict[str, Value]]:
        """Give the block the run-config keys with which a simulation reads it."""
        from safetensors.torch import save_file

        tensors = {"inputs": self.inputs, "classes": self.classes}
        keys: dict[str, Value] = {"dataset": ARRAYS}
        if self.owner is not None:
            tensors["owner"] = self.owner
            keys |= {"partition": "sites", "sites": len(self.names)}
        digest = hashlib.blake2b(json.dumps(self.names).encode(), digest_size=8)
        for name, tensor in tensors.items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.numpy().data)
        facts = {"names": json.dumps(self.names)}
        with _file("data", digest.hexdigest(), ".safetensors", lambda path: save_file(tensors, path, facts)) as path:
            yield keys | {"data-file": str(path)}


def table(
    rows: Any,
    *,
    sites: str = "",
    label: str = "label",
    group: str = "",
    study: str | os.PathLike[str] = "",
    uncertain: str = "",
    blank: str = "",
) -> Table:
    """Describe a table that a simulation deals to its sites.

    Parameters
    ----------
    rows : path, DataFrame or Hugging Face dataset
        A CSV or Parquet file, or rows in memory: features, a label, and perhaps a column of sites. A column
        ``"patient"`` says whose a row is; patients are never split.
    sites : str
        The column that names each row's site, such as ``"clinic"``; each becomes one of the run's sites. Empty: the
        run's keys ``sites`` and ``partition`` deal the rows.
    label : str
        The label column, or several, separated by commas.
    group : str
        Without ``sites``, the column name groups stay whole when rows are dealt, such as ``"household"``.
    study : path
        A study file that says what the columns mean.
    uncertain, blank : str
        What -1 and a blank in label columns stand for, as the run-config keys have it.

    Returns
    -------
    Table
        For the argument ``data`` of `edelweiss.simulate`.
    """
    settings: dict[str, Value] = {"label": label} if not study else {}
    if sites:
        settings |= {"group-column": sites, "partition": "sites"}
    elif group:
        settings["group-column"] = group
    given = {"study": os.fspath(study), "uncertain": uncertain, "blank": blank}
    settings |= {key: value for key, value in given.items() if value}
    if isinstance(rows, str | os.PathLike):
        return Table(as_path(os.fspath(rows)), settings)
    frame = rows.to_pandas() if _is_hugging_face(rows) else rows
    if not (hasattr(frame, "columns") and hasattr(frame, "to_parquet")):
        raise DataError.plain(f"a table is a file, a DataFrame or a Hugging Face dataset, not {_kind(rows)}")
    if twice := repeated(map(str, frame.columns)):
        raise DataError.plain(f"the DataFrame has columns twice: {examples(twice)}: rename or drop one of each")
    return Table(frame, settings)


def arrays(inputs: Any, labels: Any, sites: Sequence[Any] | None = None) -> Arrays:
    """Describe inputs and labels in memory.

    Parameters
    ----------
    inputs : array or tensor
        Shape (n, F), NaN where a value is missing; or images (n, C, H, W) or (n, H, W). Levels from 0 to 255 take least
        memory as uint8; all else becomes float32.
    labels : array or tensor
        Shape (n,): classes from 0.
    sites : sequence, optional
        Shape (n,): the name of each sample's site. None: the run's keys ``sites`` and ``partition`` deal the samples.

    Raises
    ------
    DataError
        Naming what does not fit.
    """
    x, y = _inputs(inputs, "data"), _classes(labels, "data")
    _require_equal("data", len(x), len(y))
    if sites is None:
        return Arrays(x, y)
    _require_equal("data", len(x), len(sites), "sites")
    names, owner = np.unique(np.asarray(sites).astype(str), return_inverse=True)
    return Arrays(x, y, torch.from_numpy(owner.reshape(-1).astype(np.int64)), tuple(names.tolist()))


def per_site(sites: Mapping[Any, Any] | Sequence[Any]) -> Arrays:
    """Join what each site has: pairs of inputs and labels, or torch Datasets of such pairs.

    Parameters
    ----------
    sites : mapping or sequence
        By the site's name, or in the order of the sites.

    Raises
    ------
    DataError
        Naming the site, and what does not fit.
    """
    each = dict(sites) if isinstance(sites, Mapping) else {f"site-{i}": own for i, own in enumerate(sites)}
    if not each:
        raise DataError.plain("data has no sites")
    names = tuple(map(str, each))
    pairs = [_pair(own, f"data of site {name!r}") for name, own in zip(names, each.values(), strict=True)]
    kinds = {(tuple(x.shape[1:]), x.dtype) for x, _ in pairs}
    if len(kinds) > 1:
        said = "; ".join(
            f"{name} has {tuple(x.shape[1:])} {x.dtype}" for name, (x, _) in zip(names, pairs, strict=True)
        )
        raise DataError.plain(f"inputs must have one shape and type at all sites: {said}")
    owner = torch.repeat_interleave(torch.arange(len(pairs)), torch.tensor([len(y) for _, y in pairs]))
    return Arrays(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]), owner, names)


def as_data(data: Any) -> Table | Arrays:
    """Return what a researcher gave for data as a `Table` or `Arrays`.

    Raises
    ------
    DataError
        Saying what is allowed, for anything else.
    """
    if isinstance(data, Table | Arrays):
        return data
    if isinstance(data, str | os.PathLike) or hasattr(data, "to_parquet") or _is_hugging_face(data):
        return table(data)
    if isinstance(data, tuple) and len(data) in (2, 3) and not _is_pair(data[0]) and not _is_dataset(data[0]):
        return arrays(*data)
    if isinstance(data, Mapping | list | tuple):
        return per_site(data)
    if _is_dataset(data):
        return arrays(*_pair(data, "data"))
    raise DataError.plain(
        f"data is {_kind(data)}: allowed are the name of a data set, ew.table(...), ew.arrays(...), a DataFrame, a "
        "Hugging Face dataset, or for each site a pair (inputs, labels) or a torch Dataset, in a dict or a list"
    )


def as_source(data: Any) -> Source:
    """Return what a data set from outside gave as a source: anything that a simulation takes for ``data``.

    Raises
    ------
    DataError
        When it cannot be used.
    """
    given = as_data(data)
    if isinstance(given, Arrays):
        owner = None if given.owner is None else given.owner.numpy()
        classes = given.classes.numpy()
        return Source(given.inputs, classes, max(2, int(classes.max()) + 1), groups=owner, group_names=given.names)
    with given.as_keys() as keys:
        texts = {key: str(keys.get(key, "")) for key in ("data-file", "label", "group-column")}
        if {"study", "uncertain", "blank"} & keys.keys():
            raise DataError.plain("a data set's ew.table(...) names rows, sites and label only; all else is the run's")
        return read_grouped(texts["data-file"], texts["label"], True, texts["group-column"], None)


# ---------------------------------------------------------------------- files


@contextmanager
def _file(name: str, digest: str, suffix: str, write: Callable[[Path], object]) -> Iterator[Path]:
    """Give the block a file with this content, which errors call ``name``; the last process that uses it removes it."""
    folder = FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise DataError.plain(f"{folder} must be your own folder, which nobody else may read: remove it")
    path = folder / f"{digest}{suffix}"
    with (folder / f"{digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not path.exists():
            draft = path.with_name(f"{digest}-{os.getpid()}{suffix}")
            try:
                write(draft)
                os.replace(draft, path)
            finally:
                draft.unlink(missing_ok=True)
        try:
            with naming(path, name):
                yield path
        finally:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
                Path(lock.name).unlink(missing_ok=True)


@contextmanager
def naming(path: Path, name: str) -> Iterator[None]:
    """Let errors of the block call a file by another name."""
    try:
        yield
    except Exception as error:
        error.args = tuple(
            text.replace(str(path), name).replace(path.name, name) if isinstance(text, str) else text
            for text in error.args
        )
        raise


def _write(frame: pd.DataFrame, path: Path) -> None:
    """Write a Parquet file; numbers among texts are written as texts, so that readers find the rows that are wrong."""
    import pandas as pd

    mixed = [name for name in frame if pd.api.types.infer_dtype(frame[name]).startswith("mixed")]
    texts: dict[Any, pd.Series] = {name: frame[name].map(str, na_action="ignore") for name in mixed}
    frame.assign(**texts).to_parquet(path, index=False)


def _hash_of_frame(frame: pd.DataFrame) -> str:
    import pandas as pd

    digest = hashlib.blake2b(json.dumps([str(name) for name in frame.columns]).encode(), digest_size=8)
    try:
        digest.update(pd.util.hash_pandas_object(frame, index=False).to_numpy().data)
    except TypeError as error:
        raise DataError.plain(f"the DataFrame has values that are neither numbers nor text ({error})") from None
    return digest.hexdigest()


# ---------------------------------------------------------------------- what counts as what


def _kind(data: object) -> str:
    return f"of type {type(data).__module__}.{type(data).__qualname__}".replace("builtins.", "")


def _is_hugging_face(data: object) -> bool:
    return hasattr(data, "column_names") and hasattr(data, "to_pandas")


def _is_dataset(data: object) -> bool:
    """Whether it is a torch Dataset with a length, or behaves like one; arrays and sequences do not count."""
    plain = isinstance(data, Mapping | list | tuple | str) or hasattr(data, "dtype") or hasattr(data, "columns")
    return not plain and hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _is_pair(data: object) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2 and all(hasattr(each, "__len__") for each in data)


def _pair(data: Any, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    if _is_dataset(data):
        if not len(data):
            raise DataError.plain(f"{name}: it has no samples")
        samples = [data[i] for i in range(len(data))]
        if not all(isinstance(sample, tuple | list) and len(sample) == 2 for sample in samples):
            raise DataError.plain(f"{name}: each item of a Dataset must be a pair, (input, label)")
        data = np.stack([_numpy(x) for x, _ in samples]), np.array([int(y) for _, y in samples])
    if not _is_pair(data):
        raise DataError.plain(f"{name} is {_kind(data)}: must be a pair (inputs, labels) or a torch Dataset")
    x, y = _inputs(data[0], name), _classes(data[1], name)
    _require_equal(name, len(x), len(y))
    return x, y


def _require_equal(name: str, inputs: int, others: int, what: str = "labels") -> None:
    if not inputs or inputs != others:
        raise DataError.plain(f"{name}: {inputs} inputs and {others} {what}: must be equally many, 1 or more")


def _numpy(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def _inputs(values: Any, name: str) -> torch.Tensor:
    found = _numpy(values)
    if found.ndim == 3:
        found = found[:, None]
    if found.ndim not in (2, 4) or found.dtype.kind not in "buif" or not found.size:
        raise DataError.plain(
            f"{name}: inputs of shape {found.shape} and type {found.dtype}: must be numbers of shape (n, features), "
            "(n, height, width) or (n, channels, height, width)"
        )
    if found.ndim == 4 and found.shape[3] in (1, 3, 4) and found.shape[1] > 4:
        raise DataError.plain(
            f"{name}: inputs of shape {found.shape}: channels come first, (n, channels, height, width): "
            "pass inputs.transpose(0, 3, 1, 2)"
        )
    if found.ndim == 2 or found.dtype != np.uint8:
        found = found.astype(np.float32)
        if (bad := np.isinf(found).reshape(len(found), -1).any(1)).any():
            row = int(bad.argmax()) + 1
            text = f"{name}: the inputs of row {row} hold infinity: a missing value is NaN, others are finite"
            raise DataError.plain(text, row=row)
    return torch.from_numpy(np.ascontiguousarray(found))


def _classes(values: Any, name: str) -> torch.Tensor:
    found = _numpy(values)
    found = found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found
    if found.dtype.kind not in "buif" or found.ndim != 1:
        raise DataError.plain(
            f"{name}: labels of shape {found.shape} and type {found.dtype}: must be whole numbers from 0, shape (n,); "
            "several labels a sample are columns of an ew.table"
        )
    if (bad := ~((found >= 0) & (found < MOST_CLASSES) & (found == np.floor(found)))).any():
        row = int(bad.argmax())
        text = (
            f"{name}: the label of row {row + 1} is {found[row]:g}: must be a whole number from 0 to {MOST_CLASSES - 1}"
        )
        raise DataError.plain(text, row=row + 1, value=found[row].item())
    return torch.from_numpy(found.astype(np.int64))
