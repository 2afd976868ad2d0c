"""A hospital's own folder: one table, or images with their labels.

All problems are collected and reported together. The full message goes to the site's own log; the public one holds
counts and no column name. Rows count from 1, after the header.
"""

from __future__ import annotations

import contextlib
from bisect import bisect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edelweiss.common import shorter
from edelweiss.common.files import as_path, reason
from edelweiss.common.overrides import toml_value
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.labels import UNKNOWN, VALUES, Labels
from edelweiss.datasets.memory_mapped import tensor_of
from edelweiss.datasets.numbers import canonical
from edelweiss.datasets.patient_ids import blocks, digests, row_bytes
from edelweiss.datasets.site.clinical import read_clinical, tally
from edelweiss.datasets.site.data_warnings import DataWarnings
from edelweiss.datasets.site.formats import FOUND, READERS, convertible
from edelweiss.datasets.site.images import PLAIN, ImageRules, Listed, read_listed
from edelweiss.datasets.site.study import Study
from edelweiss.datasets.site.table import as_text, numbers_in, read_labels, read_numbers, read_patients, read_table
from edelweiss.datasets.source import Change, Digests, Ints, Source

if TYPE_CHECKING:
    import pandas as pd

PATIENT = "patient"
TABLES = ("csv", "csv.gz", "xlsx", "parquet", "dta", "sas7bdat", "xpt", "sav")
TEXTS = (".csv", ".csv.gz", ".tsv", ".txt", ".tab", ".dat", ".data")  # ends of names
PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".dcm", ".dicom", ".nii", ".nii.gz")
SQLITE = (".sqlite", ".sqlite3", ".db")  # ends of names
FILES = (*(f"data.{kind}" for kind in TABLES), "labels.csv")


def read_site(
    folder: str,
    label: str,
    binary: bool,
    images: ImageRules = PLAIN,
    patient: str | None = "",
    study: Study | None = None,
    labels: Labels | None = None,
) -> Source:
    """Read a hospital's folder.

    Parameters
    ----------
    folder
        Holds either a table, ``data.csv`` or another of `FILES`, with numbers in all columns but the label (empty, NaN,
        NA or ? if missing), or ``labels.csv`` with the columns ``path`` and the label, and the images at these paths.
        Features are sorted by name, so that the order of a site's columns does not matter.
    label
        Name of the label column.
    binary
        True: labels are 0/1, -1/+1, no/yes or false/true, in any case. False: class indices from 0.
    images
        Which images are read, and how.
    patient
        Name of the column with the patient ids. Empty: the study's, or none. None: ``"patient"``, if it exists.
    study
        Describes a table in the hospital's own spelling and under its own name; the label is then the study's.
    labels
        How to read the label columns, if there are several or values may be uncertain; ``binary`` is then ignored.

    Returns
    -------
    source
        Without test rows and groups. With `binary` false the class count is the largest class found plus 1. Without a
        patient column, the values of a table's row, or an image's path, identify a patient.

    Raises
    ------
    DataError
        With all problems.
    """
    if study:
        return read_described(study, study.place(folder), binary, patient or "")
    file = file_of(folder)
    listed = file.name == "labels.csv"
    frame = read_table(file, None if listed else texts(label, labels, patient or PATIENT))
    if patient is None:
        patient = PATIENT if PATIENT in frame.columns else ""
    found = read_rows(frame, file, label, binary, patient, listed=listed, images=images, labels=labels)
    said = frame.attrs.get(FOUND, "")
    return replace(found, notes=(f"{file.name}: {said}", *found.notes)) if said else found


def read_described(study: Study, file: Path, binary: bool, patient: str = "") -> Source:
    """Read a table by a study file; see `read_site`."""
    patient = patient or study.patient
    described = study.read(file, also=patient)
    found = read_rows(described.frame, file, study.label, binary, patient, indicators=described.indicators)
    notes = tuple(f"{file.name}: {change}" for change in described.changes) + described.notes
    return replace(found, changes=described.changes, notes=notes)


def texts(label: str, labels: Labels | None, *others: str) -> set[str]:
    """Return the columns whose texts matter, not only their numbers."""
    return {*others, *((*labels.names, labels.healthy) if labels else (label,))}


def read_rows(
    frame: pd.DataFrame,
    file: Path,
    label: str,
    binary: bool,
    patient: str = "",
    *,
    listed: bool = False,
    images: ImageRules = PLAIN,
    labels: Labels | None = None,
    maps: bool = False,
    indicators: Collection[str] = (),
) -> Source:
    """Read the rows of a frame as features, or, if it is ``listed``, as a list of images.

    ``indicators`` are the features that are 1 for one word of a category, which a site may lack.
    """
    problems: list[DataError] = []
    columns = list(labels.names) if labels else [label]
    if labels:
        classes, written = read_clinical(frame, file, labels, problems)
    else:
        classes, names = read_labels(frame, file, label, binary, problems, maps)
        written = classes.astype(np.float32)
    patients = read_patients(frame, file, patient, columns, problems) if patient else None
    warnings = DataWarnings(file, classes)
    if patients is not None:
        warnings.patients(as_text(frame[patient]).unique())
    kept, left_out, notes, changes = np.ones(len(frame), np.bool_), list[DataError](), list[str](), list[Change]()
    if listed:
        found = _images(frame, file, images, labels, columns, patient, problems)
        inputs: NDArray[np.float32] | NDArray[np.uint8] = found.pixels
        features: tuple[str, ...] = ()
        kept, left_out, notes, changes = found.kept, found.warnings, found.notes, found.changes
    else:
        if images.views:
            text = f"holds a table, and views = {', '.join(images.views)!r} chooses among images; leave views empty"
            problems.append(DataError(f"{file} {text}", f"{file.name} {text}"))
        none = {*columns, patient, labels.healthy if labels else ""}
        features = tuple(sorted(name for name in frame.columns if name not in none))
        inputs = read_numbers(frame, file, features, warnings, problems, indicators)
    if problems:
        raise DataError.join(problems)
    classes, written = classes[kept], written[kept]
    changes += _read_as(labels, written, classes) if labels else ()
    who = None if patients is None else patients[kept]
    if features:
        values, labelled = np.asarray(inputs, np.float32), written.reshape(len(written), -1)
        said = _said(frame, values, features, dict(zip(columns, labelled.T, strict=True)), labels)
        content, patient_ids, row_ids = _hashes(len(values), said, who)
        warnings.rows(content, values, labelled)
        if who is None:
            warnings.visits(values)
    else:
        who = as_text(frame["path"])[kept] if who is None else who
        _, patient_ids, row_ids = _hashes(len(who), _listed(frame[kept]).__getitem__, who)
    return Source(
        tensor_of(inputs),
        classes,
        2 if labels else len(names),
        features=features,
        patient_ids=patient_ids,
        row_ids=row_ids,
        by_patient=patients is not None,
        warnings=(*warnings.errors(), *left_out),
        notes=tuple(notes),
        changes=tuple(changes),
        class_names=() if labels else names,
    )


def _read_as(labels: Labels, written: NDArray[np.float32], classes: Ints) -> Iterator[Change]:
    """Yield how many values of labels, shape (n,) or (n, L), are uncertain or blank, and how they are read."""
    written, classes = written.reshape(len(written), -1), classes.reshape(len(classes), -1)
    there = ~np.isnan(written).all(0)  # else the site lacks the label
    said = {"ones": "read as 1", "zeros": "read as 0", "ignore": "treated as unknown"}
    for rule in dict.fromkeys((*labels.uncertain, labels.blank)):
        for what, rows, of in (
            ("uncertain (-1)", written == UNKNOWN, there & np.array([own == rule for own in labels.uncertain])),
            ("blank", np.isnan(written), there & (labels.blank == rule)),
        ):
            if rule and (count := int((rows & of & (classes == VALUES[rule])).sum())):
                yield Change(count, int(of.sum()) * len(written), f"values of labels are {what}, and {said[rule]}")


def _hashes(rows: int, said: Callable[[slice], list[bytes]], who: pd.Series | None) -> tuple[Digests, Digests, Digests]:
    """Return hashes of each row's content, of its patient, ``who`` or else the content itself, and of both."""
    content, patients, both = [], [], []
    for part in blocks(rows):
        block = said(part)
        content.append(digests(block))
        owners = block if who is None else [text.encode() for text in who.iloc[part]]
        patients.append(content[-1] if who is None else digests(owners))
        both.append(digests(b"%b\0%b" % pair for pair in zip(owners, block, strict=True)))
    none = digests(())
    return tuple(np.concatenate([*parts, none]) for parts in (content, patients, both))  # type: ignore[return-value]


def _said(
    frame: pd.DataFrame,
    values: NDArray[np.float32],
    features: Sequence[str],
    named: dict[str, NDArray[Any]],
    labels: Labels | None,
) -> Callable[[slice], list[bytes]]:
    """Return what gives the whole content of rows of a table, independent of the columns that a run uses."""
    if labels and labels.healthy in frame.columns:
        named[labels.healthy] = numbers_in(frame[labels.healthy])[1]
    elif not labels:
        (name,) = named
        numbers = numbers_in(frame[name])[1]
        named[name] = np.where(np.isnan(numbers), named[name], numbers)  # as when it is a feature
    order = sorted(named)
    others = np.column_stack([named[name].astype(np.float32) for name in order])
    places = [bisect(features, name) for name in order]
    return lambda part: row_bytes(values[part], others[part], places)


def _listed(frame: pd.DataFrame) -> list[bytes]:
    """Return the whole content of each row of a list of images, independent of the columns that a run uses."""
    cells = [as_text(frame[name]).map(canonical) for name in sorted(frame.columns)]
    return ["\0".join(row).encode() for row in zip(*cells, strict=True)]


def _images(
    frame: pd.DataFrame,
    file: Path,
    rules: ImageRules,
    labels: Labels | None,
    columns: list[str],
    patient: str,
    problems: list[DataError],
) -> Listed:
    """Read the images that a file lists, restricted to the views of the run or of the labels' preset."""
    if labels and labels.views and "view" in frame and not rules.views:
        there = {text.casefold() for text in as_text(frame["view"])}
        some = tuple(view for view in labels.views if view.casefold() in there)
        rules = replace(rules, views=some or labels.views)
    also = [labels.healthy] if labels and labels.healthy else []
    found = read_listed(frame, file, rules, problems, [*columns, *also], patient)
    if PATIENT in frame.columns and not patient:
        text = f"there is a column {PATIENT!r}, but it is not declared as the patient ids"
        mend = f"with patient = {PATIENT!r} under [policy] a patient's images are held out together"
        found.warnings.append(DataError(f"{file}: {text}; {mend}", f"{file.name}: {text}"))
    return found


def label_values(folder: str, names: Sequence[str]) -> dict[str, tuple[int, int, int, int]]:
    """Return how many values of label columns are 1, 0, uncertain and blank, in a folder that `read_site` can read."""
    frame = read_table(file := file_of(folder), None if file_of(folder).name == "labels.csv" else names)
    if file.name == "labels.csv" and "path" in frame:
        frame = frame[~as_text(frame["path"]).duplicated()]  # an image may have a row for each box
    return tally(frame, names)


def stamp(folder: str, study: Study | None = None, file: str = "") -> tuple[int, int]:
    """Return the size and modification time of a file, or of a folder's only file; zeros if it cannot be read."""
    with contextlib.suppress(OSError, DataError):
        status = (as_path(file) if file else study.place(folder) if study else file_of(folder)).stat()
        return status.st_size, status.st_mtime_ns
    return 0, 0


def file_of(folder: str) -> Path:
    """Return the table, or the list of images, of a hospital's folder.

    Raises
    ------
    DataError
        If there is none, or it is unclear which.
    """
    if not folder:
        text = "data-dir is empty; the data set 'site' needs the folder of the site's data"
        raise DataError.plain(text, key="data-dir", value=folder)
    try:
        place = as_path(folder)
        found = sorted(shorter(entry.name) for entry in place.iterdir())
    except OSError as error:
        raise DataError(
            f"data-dir {shorter(folder)} cannot be read: {reason(error)}; set data-dir to the folder that holds "
            f"one of {', '.join(FILES)}",
            "the data folder does not exist or cannot be read",
            key="data-dir",
            value=folder,
        ) from error
    known = [name for name in FILES if name in found]
    if len(known) == 1:
        return place / known[0]
    if known:
        text = f"holds {' and '.join(known)}, and it is unclear which one to use; keep one of them"
        raise DataError(f"data-dir {place} {text}", f"the data folder {text}", key="data-dir", value=folder)
    there = examples(found) or "nothing"
    raise DataError(
        f"data-dir {place} holds none of {', '.join(FILES)}; found: {there}{_way_in(place, found)}",
        f"the data folder holds none of {', '.join(FILES)}",
        key="data-dir",
        value=folder,
    )


def _way_in(place: Path, found: Sequence[str]) -> str:
    """Return what makes a folder's files readable; empty if nothing is known."""
    source = next((f"fhir:{place.absolute()}" for name in found if ".ndjson" in name), "")
    source = source or next((f"sqlite:///{place.absolute() / name}" for name in found if name.endswith(SQLITE)), "")
    if source:
        return f"; a table is made of it by edelweiss-site extract --study STUDY.toml --source {source}"
    tables = [name for name in found if name.lower().endswith((*TEXTS, *READERS)) and not name.startswith("labels.")]
    for name in found:
        if command := convertible(name):
            return f"; {name} is not read: convert it, with {command}"
        if name in tables:
            kind = PurePath(name).suffix.lower()
            plain = f"data{kind}" if kind in READERS else "data.csv.gz" if kind == ".gz" else "data.csv"
            return f"; rename {name} as {plain}, or name it in a study file: file = {toml_value(name)}"
    if any(name.lower().endswith(PICTURES) or (place / name).is_dir() for name in found):
        return "; images need a file labels.csv here, with the columns path (from here) and the label"
    return ""
