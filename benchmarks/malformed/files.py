"""What a run and a site left on a disk, damaged: models, states, memories, kept outcomes.

A lambda in a loop keeps the value of its turn as a default, whose type mypy cannot infer: hence `ignore[misc]`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.malformed import Case, Kind
from benchmarks.malformed.spoil import Spoil, flips, in_its_place, values

if TYPE_CHECKING:
    from torch import Tensor

Tensors = dict[str, "Tensor"]
JOB: dict[str, Any] = {"sites": 2, "rounds": 3, "hidden": 4, "local-steps": 1, "workers": 1, "device": "cpu"}
OPTIONAL = {"problem", "model", "hidden", "columns", "classes", "prior", "shift", "scale", "format", "data"}
"""Entries that older files of models lack."""


@lru_cache
def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that ends with this process."""
    return tempfile.TemporaryDirectory(prefix="malformed-")


@lru_cache
def finished() -> Path:
    """Return the folder of a run that is complete."""
    from edelweiss.server_app import simulate

    return simulate({**JOB, "runs-dir": scratch_folder().name, "run-name": "finished"}).folder


@lru_cache
def stopped() -> Path:
    """Return the folder of a run that was stopped after its second round."""
    from edelweiss.server_app import run_state, simulate
    from edelweiss.server_app.run_state import RunState

    reached, share = RunState.reached, run_state.SHARE

    def then_stop(state: RunState, snapshot: Any) -> None:
        reached(state, snapshot)
        if snapshot.round == 2:
            raise KeyboardInterrupt

    folder = scratch_folder().name
    RunState.reached, run_state.SHARE = then_stop, 1e9  # type: ignore[method-assign]
    try:
        simulate({**JOB, "runs-dir": folder, "run-name": "stopped"})
    except KeyboardInterrupt:
        pass
    finally:
        RunState.reached, run_state.SHARE = reached, share  # type: ignore[method-assign]
    return Path(folder) / "stopped"


def given(folder: Path) -> None:
    """Let a new hospital begin with the model of a run."""
    from edelweiss.client_app.personalise import FinishedRun, personalise
    from edelweiss.datasets import load_site

    run = FinishedRun.read(folder)
    personalise(run, load_site(run.config.data(), 0, run.config.sites), steps=1)


def used(folder: Path) -> None:
    """Predict with the model of a run, for the patients of a table beside it."""
    from edelweiss.problems.prediction import predict
    from edelweiss.problems.trained_model import TrainedModel

    predict(TrainedModel.read(folder), folder / "patients.csv", folder / "scores.csv")


@lru_cache
def usable() -> Path:
    """Return the folder of a finished run, with patients to predict for."""
    from edelweiss.datasets.sources.bundled import BREAST_CANCER

    folder = Path(shutil.copytree(finished(), Path(scratch_folder().name) / "usable"))
    lines = [",".join(BREAST_CANCER), *(",".join([f"{row}.5"] * len(BREAST_CANCER)) for row in range(200))]
    (folder / "patients.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder


def resumed(folder: Path) -> None:
    """Let a run go on."""
    from edelweiss.server_app import simulate

    simulate({"resume": str(folder), "workers": 1})


def spoilt(
    folder: Callable[[], Path], name: str, spoils: Iterator[Spoil], use: Callable[[Path], None], fine: bool = False
) -> Iterator[Case]:
    """Yield a copy of a folder for each way to spoil a file in it; ``fine``: what can be used is what it was."""
    for what, spoil in spoils:

        def attempt(spoil: Callable[[Path], None] = spoil) -> bool | None:
            with tempfile.TemporaryDirectory() as scratch:
                copy = shutil.copytree(folder(), Path(scratch) / "run")
                spoil(next(iter(copy.glob(name))))
                use(copy)
            return fine or None

        yield f"{name} {what}", attempt


def rewritten(change: Callable[[Tensors, dict[str, Any]], tuple[Tensors, dict[str, Any]]]) -> Callable[[Path], None]:
    """Return what writes a file of tensors anew, as whole as before, with something changed."""
    from edelweiss.models.storage import Stored, write_tensors

    def spoil(file: Path) -> None:
        stored = Stored.read(file)
        write_tensors(file, *change(stored.tensors, stored.facts))

    return spoil


def tensors(file: Path) -> Iterator[Spoil]:
    """Yield what can be wrong with one tensor of a file."""
    from edelweiss.models.storage import Stored

    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "is one number": lambda v: v.reshape(-1)[:1].clone(),
        "has one more": lambda v: torch.cat([v.reshape(-1), v.reshape(-1)[:1]]),
        "is a row": lambda v: v[None],
        "is empty": lambda v: v.reshape(-1)[:0].clone(),
        "is int64": lambda v: v.long(),
        "is complex": lambda v: v.to(torch.complex64),
        "is NaN": lambda v: v * torch.nan,
        "is infinite": lambda v: v + torch.inf,
    }
    found = Stored.read(file).tensors
    for name in found:
        yield f"lacks {name}", rewritten(lambda t, f, name=name: ({n: v for n, v in t.items() if n != name}, f))
        shape = found[name].shape
        for what, kind in kinds.items():
            if what.startswith("is one") and shape == (1,):
                continue
            change = lambda t, f, name=name, kind=kind: (t | {name: kind(t[name])}, f)  # noqa: E731
            yield f"{name} {what}", rewritten(change)
    yield "has one tensor more", rewritten(lambda t, f: (t | {"strange": torch.ones(3)}, f))


def facts_of_models(rng: Random) -> Iterator[Case]:
    """Yield models whose metadata are others."""
    from edelweiss.models.storage import Stored

    facts = Stored.read(finished() / "model.safetensors").facts
    for what, other, then, now in values(facts):
        key = what.removeprefix("lacks ").removeprefix("has ").partition(" ")[0]
        numbers = all(type(value) in (int, float) for value in (then, now)) and key not in ("prior", "hidden")
        fine = (what.startswith("lacks") and key in OPTIONAL) or (numbers and abs(now) < 1e38) or key == "classes"
        spoil = rewritten(lambda t, f, other=other: (t, other))
        yield from spoilt(finished, "model.safetensors", iter([(what, spoil)]), given, fine=fine)


def state_facts(rng: Random) -> Iterator[Case]:
    """Yield states whose facts are others."""
    from edelweiss.models.storage import Stored

    for what, other, _, _ in values(Stored.read(stopped() / "state.safetensors").facts):
        spoil = rewritten(lambda t, f, other=other: (t, other))
        yield from spoilt(stopped, "state.safetensors", iter([(what, spoil)]), resumed)


def state_files(rng: Random) -> Iterator[Case]:
    """Yield run folders in which a file is another thing."""
    for name in ("state.safetensors", "memory-*.tar", "status.json", "config.toml", "metrics.jsonl"):
        fine = name == "metrics.jsonl"  # later lines are written anew
        yield from spoilt(stopped, name, in_its_place(rng), resumed, fine=fine)
    for name in ("state.safetensors", "memory-*.tar"):
        yield from spoilt(stopped, name, flips(rng), resumed)


def statuses(rng: Random) -> Iterator[Case]:
    """Yield run folders whose status says something else."""
    status = json.loads((stopped() / "status.json").read_text())
    for what, other, _, _ in values(status):
        spoil = lambda file, other=other: file.write_text(json.dumps(other))  # noqa: E731
        fine = not any(bound in what for bound in ("run", "app", "config"))
        yield from spoilt(stopped, "status.json", iter([(what, spoil)]), resumed, fine=fine)


def memories(rng: Random) -> Iterator[Case]:
    """Yield memories of a site that are another thing: it says so in its log and goes on without, or refuses."""
    from edelweiss.client_app.memory import Memory, path_of
    from edelweiss.models.storage import Stored

    own: dict[str, str | int] = {"algorithm": "codasca", "problem": "auc", "model": "mlp", "d": 50}
    for what, spoil in (*in_its_place(rng), *flips(rng)):

        def attempt(spoil: Callable[[Path], None] = spoil) -> bool | None:
            with tempfile.TemporaryDirectory() as scratch:
                memory = Memory(scratch, "7", "north", own)
                memory.save({"x": torch.ones(50)}, (1, 0), 1)
                file = path_of(memory.folder, (1, 0))
                spoil(file)
                found = memory.load(torch.device("cpu"), (2, 0))
                return not found or (Stored.read(file).whole or None)

        yield f"a memory {what}", attempt


def outcomes(rng: Random) -> Iterator[Case]:
    """Yield kept outcomes of a study that are others."""
    from benchmarks.studies import STUDIES
    from benchmarks.sweep import Sweep
    from edelweiss.lab.compare.runs import OUTCOME
    from edelweiss.lab.sweep.job import Job, parsed

    end = {"diverged": "", "seconds": 1.5, "version": "1"}
    line = {"round": 1, "gradients": 8.0, "samples": 160.0, "bytes-down": 3e6, "bytes-up": 1e6, "central": {"loss": 1}}

    def kept(scratch: str) -> tuple[Sweep, Job, Path]:
        sweep = Sweep(STUDIES["saddle"], Path(scratch))
        job = sweep.reported(sweep.study.methods[0], sweep.grid(sweep.study.methods[0])[0])[0]
        folder = sweep.folder / job.name
        folder.mkdir()
        (folder / "config.toml").write_text(parsed(job.settings).to_toml())
        (folder / OUTCOME).write_text(json.dumps(end))
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        return sweep, job, folder

    def tried(name: str, what: str, spoil: Callable[[Path], None], fine: bool) -> Case:
        def attempt() -> bool | None:
            with tempfile.TemporaryDirectory() as scratch:
                sweep, job, folder = kept(scratch)
                spoil(folder / name)
                return fine or sweep.outcome(job) is None or None

        return f"{name} {what}", attempt

    for name in (OUTCOME, "config.toml", "metrics.jsonl"):
        for what, spoil in in_its_place(rng):
            yield tried(name, what, spoil, fine=name == "metrics.jsonl" and what in ("is empty", "is cut at 0.0%"))
    for name, record in ((OUTCOME, end), ("metrics.jsonl", line)):
        for what, other, then, now in values(record):
            number = name == "metrics.jsonl" and isinstance(then, float | dict) and not isinstance(now, str | list)
            right = what in ("has diverged = 'x'", "has seconds = 2.5", "has version = 'x'", "has version = ''")
            fine = right or what == "lacks central" or (number and not what.startswith("lacks"))
            spoil = lambda file, other=other: file.write_text(json.dumps(other) + "\n")  # noqa: E731
            yield tried(name, what, spoil, fine=fine)


KINDS: dict[str, Kind] = {
    "metadata of a model": facts_of_models,
    "tensors of a model": lambda rng: spoilt(
        finished, "model.safetensors", tensors(finished() / "model.safetensors"), given
    ),
    "a model, or what is in its place": lambda rng: spoilt(finished, "model.safetensors", in_its_place(rng), given),
    "a model to predict with": lambda rng: spoilt(
        usable, "model.safetensors", chain(in_its_place(rng), flips(rng)), used
    ),
    "patients to predict for": lambda rng: spoilt(usable, "patients.csv", in_its_place(rng), used, fine=True),
    "facts of a state": state_facts,
    "tensors of a state": lambda rng: spoilt(stopped, "state.safetensors", _torn(rng), resumed),
    "files of a run that goes on": state_files,
    "status of a run": statuses,
    "memory of a site": memories,
    "kept outcomes": outcomes,
}


def _torn(rng: Random) -> Iterator[Spoil]:
    """Yield states whose tensors are not those that were written, under the facts and the checksum that were."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    names = list(load_file(stopped() / "state.safetensors"))
    for what, change in (("NaN", torch.nan), ("larger", 2.0), ("zero", 0.0)):
        for name in names:

            def spoil(file: Path, name: str = name, change: float = change) -> None:
                with safe_open(file, "pt") as opened:
                    facts = opened.metadata()
                found = load_file(file)
                save_file(found | {name: found[name] * change + 1}, file, facts)

            yield f"{name} is {what}", spoil
