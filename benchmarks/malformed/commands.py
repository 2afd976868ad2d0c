"""What a user may type behind the commands for finished runs and of a hospital's operator."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from types import ModuleType

from benchmarks.malformed import Case, Kind
from benchmarks.malformed.files import JOB, scratch_folder, usable

NUMBERS = ("0", "-1", "1e300", "nan", "inf", "1e12", "x", "", "\0", "1 2", "٣")
WORDS = ("", " ", "\0", "nosuch", "../../evil", "x" * 10_000, "a\x1b[31m", "ä" * 300, "--", "*")
NAMES = {"site": ("\0", "x" * 10_000, "../../evil", "a\x1b[31m")}
"""What is none where any other word is a name."""


def places(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield what a path may lead to that is no file or folder of the kind that is wanted, with what it is."""
    made = {"an empty folder": folder / "empty", "a text": folder / "text", "a pipe": folder / "pipe"}
    (folder / "empty").mkdir()
    (folder / "text").write_text("hello\n")
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    yield from ((name, str(path)) for name, path in made.items())
    yield "a loop", str(folder / "loop")
    yield "nothing", str(folder / "nothing")
    yield "a file's part", str(folder / "text" / "x")
    names = ("\0", "~nobody/x", "x" * 5000, "x" * 300, "/".join(["x" * 200] * 30), "/dev/zero/x")
    yield from ((f"no path, {text[:9]!r} of {len(text)}", text) for text in names)
    yield "a device without end", "/dev/zero"


def said(module: ModuleType, words: list[str]) -> str:
    """Call a command; return what it says of a mistake, nothing where it ends as if all were well."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = module.main(words)
        except SystemExit as end:  # argparse's, or a line of the command's own
            if isinstance(end.code, str):
                return end.code
            code = int(end.code or 0)
    return (errors.getvalue() or out.getvalue())[-500:].strip() if code else ""


def hospital(folder: Path) -> Path:
    """Write a hospital's table of the run's features, and return its folder."""
    folder.mkdir()
    header, *rows = (usable() / "patients.csv").read_text(encoding="utf-8").splitlines()
    labelled = [f"{row},{i % 2}" for i, row in enumerate(rows)]
    (folder / "data.csv").write_text("\n".join([f"{header},label", *labelled]), encoding="utf-8")
    return folder


@lru_cache
def of_a_table() -> Path:
    """Return the folder of a finished run over such a table."""
    from edelweiss.server_app import simulate

    folder = Path(scratch_folder().name)
    table = {"dataset": "table", "data-file": str(hospital(folder / "hospital") / "data.csv")}
    return simulate({**JOB, **table, "runs-dir": str(folder), "run-name": "of-a-table"}).folder


def typed(module: ModuleType, command: list[str], wrong: dict[str, str], right: Sequence[str] = ()) -> Iterator[Case]:
    """Yield a command as it should be, if anything of it is to be spoilt, and with one of its arguments replaced.

    Parameters
    ----------
    module : module
        Whose ``main`` takes the words.
    command : list of str
        The command; ``{run}`` is a finished run with patients, ``{data}`` a hospital's folder, ``{table}`` a run over
        such.
    wrong : dict of str to str
        What each of the arguments is, by its number or by the option before it: "path", "number" or "word".
    right : sequence of str
        What an argument may be after all.
    """
    wrong = {"": "nothing"} | wrong
    for place, kind in wrong.items():
        for what, value in values(place, kind):

            def attempt(place: str = place, what: str = what, value: str | None = value) -> str | bool | None:
                with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
                    run = shutil.copytree(usable(), Path(scratch) / "run")
                    data = hospital(Path(scratch) / "data")
                    table = of_a_table() if "{table}" in command else ""
                    words = [word.format(run=run, data=data, table=table) for word in command]
                    if place:
                        where = words.index(place) + 1 if place in words else int(place)
                        words[where] = dict(places(Path(scratch)))[what] if value is None else value
                        return said(module, words) or what in right or None
                    if text := said(module, words):
                        raise AssertionError(f"it does not even work as it should: {text}")
                    return True

            yield f"{command[0]}: {place} is {what}"[:80], attempt


def values(place: str, kind: str) -> Iterator[tuple[str, str | None]]:
    """Yield what an argument may wrongly be, and the text; None of a path that has to be made first."""
    if kind == "nothing":
        yield "as it should be", ""
    elif kind == "path":
        with tempfile.TemporaryDirectory() as scratch:
            yield from ((what, None) for what in dict(places(Path(scratch))))
    else:
        texts = NUMBERS if kind == "number" else NAMES.get(place.strip("-"), WORDS)
        yield from ((repr(text), text) for text in texts)


def of_the_coordinator(rng: Random) -> Iterator[Case]:
    """Yield commands of ``edelweiss``."""
    from edelweiss.lab import cli as module

    run = "{run}"
    compare = ["compare", run, "--metric", "auroc", "--against", "rounds", "--to", "out"]
    yield from typed(module, compare, {"1": "path", "--metric": "word", "--against": "word"})
    yield from typed(module, ["report", run], {"1": "path"})
    predict = ["predict", run, "{run}/patients.csv", "--device", "cpu"]
    yield from typed(module, predict, {"1": "path", "2": "path", "--device": "word"})
    yield from typed(module, ["export", run, "--onnx", "model.onnx"], {"1": "path"})


def of_a_site(rng: Random) -> Iterator[Case]:
    """Yield commands of ``edelweiss-site``."""
    from edelweiss.client_app import cli as module

    for command in ("audit", "runs"):
        yield from typed(module, [command, "--state-dir", "{data}"], {"--state-dir": "path"}, ("an empty folder",))
    predict = ["predict", "{run}/patients.csv", "--model", "{run}", "--device", "cpu"]
    yield from typed(module, predict, {"1": "path", "--model": "path", "--device": "word"})
    train = ["personalise", "--model", "{table}", "--data-dir", "{data}", "--steps", "1", "--lr", "0.1"]
    train += ["--lr-dual", "0.1", "--label", "label", "--site", "here", "--state-dir", "state", "--device", "cpu"]
    paths = {"--model": "path", "--data-dir": "path"}
    numbers = {"--steps": "number", "--lr": "number", "--lr-dual": "number"}
    words = {"--site": "word", "--device": "word", "--label": "word"}
    right = ("'٣'", "'1e12'", "''")  # a three, within the range of a step size, and the run's own
    yield from typed(module, train, {**paths, **numbers, **words}, right)


KINDS: dict[str, Kind] = {"of the coordinator": of_the_coordinator, "of a site": of_a_site}
