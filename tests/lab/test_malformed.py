"""What a command is given that it cannot use: one clear message, exit code 1 or 2, nothing written, and no hang."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from edelweiss.client_app.cli import main as site
from edelweiss.config import MISTAKES, ConfigError
from edelweiss.datasets.sources.bundled import BREAST_CANCER
from edelweiss.lab.cli import main as edelweiss
from edelweiss.server_app import simulate

JOB: dict[str, Any] = {"sites": 2, "rounds": 2, "hidden": 4, "local-steps": 1, "workers": 1, "device": "cpu"}
Main = Callable[[list[str]], int]
Said = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with patients to predict for and a hospital's table."""
    place = tmp_path_factory.mktemp("malformed")
    folder = simulate({**JOB, "report": False, "runs-dir": str(place), "run-name": "run"}).folder
    header, rows = ",".join(BREAST_CANCER), [",".join([f"{row}.5"] * len(BREAST_CANCER)) for row in range(40)]
    (folder / "patients.csv").write_text("\n".join([header, *rows]), encoding="utf-8")
    (folder / "data").mkdir()
    labelled = [f"{row},{number % 2}" for number, row in enumerate(rows)]
    (folder / "data" / "data.csv").write_text("\n".join([f"{header},label", *labelled]), encoding="utf-8")
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in a folder where commands may write."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(finished, tmp_path / "run")


def contents(folder: Path) -> dict[str, bytes]:
    """Return how the files in a folder begin: one may have a terabyte."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                found[str(path.relative_to(folder))] = file.read(10_000)
    return found


def ended(main: Main, words: list[str], said: Said) -> tuple[int, str]:
    """Call a command; return its exit code and its message, which is checked."""
    try:
        code = main(words)
    except SystemExit as end:  # of argparse, or a line of the command's own
        code = int(end.code) if isinstance(end.code, int) else 1
        print(end.code)
    out, err = said.readouterr()
    text = (err or out).strip()
    if code:
        assert code in (1, 2), text
        assert text
        assert "Traceback" not in text
        message = text.partition("error: ")[2] or text
        assert len(message) < 2000
        assert all(line.isprintable() for line in message.splitlines())
    return code, text


# ---------------------------------------------------------------------- arguments


PLACES = (
    "empty",
    "text",
    "pipe",
    "loop",
    "nothing",
    "text/x",
    "/dev/zero",
    "/dev/zero/x",
    "~nobody-of-this-name/x",
    "\0",
    "x" * 5000,
)
TAKES_FOLDERS = {"audit", "runs"}  # an empty one has no runs


def made(folder: Path) -> None:
    """Make what the paths in `PLACES` lead to."""
    (folder / "empty").mkdir()
    (folder / "text").write_text("hello\n")
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")


COMMANDS: list[tuple[Main, str]] = [
    (edelweiss, "compare PLACE"),
    (edelweiss, "compare run --metric auroc --to PLACE"),
    (edelweiss, "report PLACE"),
    (edelweiss, "predict PLACE run/patients.csv"),
    (edelweiss, "predict run PLACE"),
    (edelweiss, "export PLACE --onnx model.onnx"),
    (edelweiss, "sweep PLACE"),
    (edelweiss, "import nih PLACE target"),
    (site, "audit --state-dir PLACE"),
    (site, "runs --state-dir PLACE"),
    (site, "predict PLACE --model run"),
    (site, "predict run/patients.csv --model PLACE"),
    (site, "personalise --model PLACE --data-dir run/data --site here --state-dir state"),
    (site, "personalise --model run --data-dir PLACE --site here --state-dir state"),
]


@pytest.mark.parametrize(("main", "command"), COMMANDS, ids=[command for _, command in COMMANDS])
def test_a_path_to_something_else_is_one_message(main: Main, command: str, run: Path, capsys: Said) -> None:
    made(run.parent)
    for place in PLACES:
        if "--to" in command and place in ("empty", "nothing"):
            continue  # it may be written there
        before = contents(run.parent)
        words = [place if word == "PLACE" else word for word in command.split()]
        code, _ = ended(main, words, capsys)
        assert (code == 0) == (words[0] in TAKES_FOLDERS and place == "empty"), place
        if code:
            assert contents(run.parent) == before, place


WORDS = ("", " ", "\0", "nosuch", "x" * 1000, "a\x1b[31m", "--", "*")
NUMBERS = ("0", "-1", "1e300", "nan", "inf", "x", "", "\0", "1 2")
OPTIONS: list[tuple[Main, str, tuple[str, ...]]] = [
    (edelweiss, "compare run --metric VALUE", WORDS),
    (edelweiss, "compare run --versus VALUE", WORDS[1:]),
    (edelweiss, "compare run --against VALUE --to out", WORDS),
    (edelweiss, "predict run run/patients.csv --device VALUE", WORDS),
    (edelweiss, "sweep sweep.toml --jobs VALUE", NUMBERS),
    (edelweiss, "import VALUE run target", WORDS),
    (edelweiss, "VALUE run", WORDS[1:]),
    (site, "VALUE run", WORDS[1:]),
    (site, "predict run/patients.csv --model run --device VALUE", WORDS),
    (site, "personalise --model run --data-dir run/data --site here --state-dir state --steps VALUE", NUMBERS),
    (site, "personalise --model run --data-dir run/data --site here --state-dir state --lr VALUE", NUMBERS),
    (site, "personalise --model run --data-dir run/data --site VALUE --state-dir state", ("\0", "x" * 5000, "../evil")),
]


@pytest.mark.parametrize(("main", "command", "values"), OPTIONS, ids=[command for _, command, _ in OPTIONS])
def test_a_word_or_a_number_that_is_not_taken_is_one_message(
    main: Main, command: str, values: tuple[str, ...], run: Path, capsys: Said
) -> None:
    (run.parent / "sweep.toml").write_text("[tune]\ncodasca.lr = [0.1, 1.0]\n")
    before = contents(run.parent)
    for value in values:
        code, _ = ended(main, [word if word != "VALUE" else value for word in command.split()], capsys)
        assert code, repr(value)
        assert contents(run.parent) == before, repr(value)


# ---------------------------------------------------------------------- files of a finished run


def replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def spoil(file: Path) -> None:
        file.unlink()
        make(file)

    return spoil


SPOILED: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "a folder": replaced(Path.mkdir),
    "a pipe": replaced(os.mkfifo),
    "a device without end": replaced(lambda file: file.symlink_to("/dev/zero")),
    "a link to itself": replaced(lambda file: file.symlink_to(file.name)),
    "a terabyte": lambda file: os.truncate(file, 10**12),
    "empty": lambda file: file.write_bytes(b""),
    "a header of 2^40 bytes": lambda file: file.write_bytes((2**40).to_bytes(8, "little") + b"{}"),
    "random": lambda file: file.write_bytes(bytes(range(255, 0, -1)) * 20),
    "cut": lambda file: os.truncate(file, file.stat().st_size * 2 // 3),
    "deep": lambda file: file.write_bytes(b"[" * 10**5),
}
NEEDED = {"compare": {"config.toml", "metrics.jsonl", "status.json"}, "predict": {"model.safetensors"}}
FINE = {("metrics.jsonl", "empty"), *((name, "missing") for name in ("metrics.jsonl", "status.json", "about.json"))}
FINE |= {("model.safetensors", "missing")}  # for a report, which reads what there is


@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize(
    ("command", "name"),
    [
        *product(("compare run", "report run"), ("config.toml", "status.json", "metrics.jsonl", "about.json")),
        ("report run", "model.safetensors"),
        ("predict run run/patients.csv --to scores.csv", "model.safetensors"),
    ],
)
def test_a_damaged_file_of_a_run_is_one_message_where_it_is_needed(
    command: str, name: str, run: Path, capsys: Said
) -> None:
    reader, kept = command.split()[0], shutil.copytree(run, run.parent / "kept")
    for what, spoil in SPOILED.items():
        shutil.rmtree(run)
        shutil.copytree(kept, run)
        spoil(run / name)
        before = contents(run)
        code, text = ended(edelweiss, command.split(), capsys)
        needed = (name, what) not in FINE if reader == "report" else name in NEEDED[reader]
        assert bool(code) == needed, f"{what}: {text}"
        assert contents(run) == before or (reader == "report" and not code), what
        assert (run.parent / "scores.csv").exists() == (reader == "predict" and not code)
        (run.parent / "scores.csv").unlink(missing_ok=True)


# ---------------------------------------------------------------------- run-configs


def mappings() -> Iterator[Any]:
    """Yield what is no table of keys."""
    yield from (None, [], "rounds=3", 5, {1: 2}, {None: 1}, {("a",): 1}, {"rounds": {1: 2}})
    within: dict[str, Any] = {}
    within["a"] = within
    yield within
    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(10**4):
        inner["a"] = inner = {}
    yield deep


def test_what_is_no_table_of_keys_is_a_mistake_in_the_run_config() -> None:
    for config in mappings():
        with pytest.raises(ConfigError) as told:
            simulate(config)
        assert all(line.isprintable() and len(line) < 2000 for line in told.value.problems)


TEXTS = ["rounds 3", "rounds==1", "rounds='", "=1", ".=1", "rounds=2020-01-01", "rounds=[1]", "rounds={a=1}"]
TEXTS += ["x=" + "[" * 10**5, "x=" + "{a=" * 3000, ".".join("a" * 50_000) + "=1", "a" * 10**6, "rounds=1" + "0" * 5000]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:12])
def test_a_text_that_is_no_run_config_ends_with_2(text: str, capsys: Said) -> None:
    assert ended(edelweiss, ["--run-config", text], capsys)[0] == 2


PATHS = ("a\0b", "~nobody-of-this-name/x", "x" * 5000, "/".join(["x" * 200] * 40), "\udcff", "/dev/null/x", "loop/x")


@pytest.mark.parametrize(
    "key", ["runs-dir", "state-dir", "init-from", "pretrained", "resume", "saddle.file", "data-root"]
)
def test_a_key_that_names_a_place_which_cannot_be_is_refused(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    network = {"algorithm": "fedavg", "problem": "bce", "dataset": "digits"}
    jobs = {
        "init-from": network,
        "pretrained": network | {"model": "resnet18"},
        "data-root": network | {"dataset": "heart-disease"},
    }
    saddle = {"algorithm": "local-sgda", "problem": "saddle"}
    for path in PATHS:
        named = f"{path}.npz" if key == "saddle.file" else path
        job = {**JOB, "rounds": 1, "report": False, "runs-dir": "runs", **jobs.get(key, saddle), key: named}
        with pytest.raises((ConfigError, *MISTAKES)) as told:
            simulate(job)
        assert all(line.isprintable() for line in str(told.value).splitlines()), path
        assert len(str(told.value)) < 2000
        assert not list(tmp_path.glob("runs/*/model.safetensors")), "it is refused before it trains"
