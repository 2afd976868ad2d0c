"""Whole runs for tests: hospitals with folders of their own in the local engine, and algorithms that misbehave."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from PIL import Image
from pydantic import Field

from edelweiss.client_app.policy.records import Records
from edelweiss.common import Value, to_record
from edelweiss.common.files import write_private
from edelweiss.config import RunConfig
from edelweiss.datasets import DataSummary
from edelweiss.federation import Oracle, RoundContext, Site, Table, down, pack
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.federation.run_messages import RunMessages
from edelweiss.lab.report import write_report
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import Result, coordinate
from edelweiss.server_app.local import LocalGrid, unused_run_id
from edelweiss.strategies.local_sgda import LocalSGDA

if TYPE_CHECKING:
    from edelweiss.problems import Arrays

FEATURES = 4
NAP = 600.0  # seconds that a site hangs
OPEN = """[policy]
fewest-training = 1
fewest-in-update = 1
fewest-held-out = 1
fewest-of-each-class = 1
seed = "tests"
holdout-share = {share}
folds = {folds}
"""  # what tests of other things need: small tables, the same samples held out each time, and as a run says
NAMES = tuple(f"marker_{number}" for number in range(FEATURES))
STUDY = """missing = ["none"]
[label]
column = "label"
negative = ["0"]
positive = ["1"]
[columns.marker_0]
unit = "mmol/l"
range = [-50, 50]
[columns.marker_1]
[columns.marker_2]
[columns.marker_3]
"""


class SiteGrid(LocalGrid):
    """The local engine with a node-config for each site, as in a deployment; notes every question and answer.

    Unless a node-config names a policy, the site's is `OPEN`; ``""`` is the default one.
    """

    def __init__(self, config: RunConfig, node_configs: Sequence[Mapping[str, Value]] = ()) -> None:
        super().__init__(config, unused_run_id())
        self.node_configs = node_configs
        self.answers: list[Message] = []
        self.questions: dict[str, Message] = {}  # by the identifier of their message

    def __enter__(self) -> SiteGrid:
        super().__enter__()
        policy = Path(self.config.runs_dir).with_name("open.toml")
        policy.parent.mkdir(parents=True, exist_ok=True)
        config = self.config
        policy.write_text(OPEN.format(share=config.holdout_share, folds=config.folds), encoding="utf-8")
        for place, (context, own) in enumerate(zip(self.contexts, self.node_configs, strict=False)):
            alone = "data-dir" in own and "partition-id" not in own
            state = f"{self.scratch.path}/state" + (f"/{place}" if alone else "")
            context.node_config = {"state-dir": state, "policy": str(policy), **own}
        return self

    def fix_secrets(self) -> SiteGrid:
        """Give each site a known secret, so that a test draws the same batches whenever it runs."""
        for place, context in enumerate(self.contexts):
            records = Records(str(context.node_config["state-dir"]))
            write_private(records.folder / "randomness", f"{place:064x}".encode())
        return self

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Note what the coordinator asks."""
        messages = list(messages)
        identifiers = list(super().push_messages(messages))
        self.questions |= dict(zip(identifiers, messages, strict=True))
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Note what the coordinator gets."""
        answers = list(super().pull_messages(message_ids))
        self.answers += answers
        return answers

    def ask(self, kind: str, site: int, content: RecordDict | None = None) -> Message:
        """Send one message and return its answer."""
        content = content or RecordDict({"config": ConfigRecord({"app": fingerprint()})})
        [answer] = self.send_and_receive([Message(content, site + 1, kind)])
        return answer


class Elsewhere:
    """A grid of which nobody knows that it is the local engine's: its sites keep what they remember themselves."""

    def __init__(self, grid: LocalGrid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def question(run: RunConfig, kind: str = "train", model: Arrays | None = None, /, **facts: object) -> RecordDict:
    """Return a message of a coordinator to a site with `table`'s features: in round 1 and its first phase, or the last.

    Vectors other than the model's are zeros. ``facts`` are other values of the config; None leaves a key out.
    """
    strategy, last = run.strategy, kind == "evaluate"
    told: dict[str, object] = {**to_record(DataSummary(shape=(FEATURES,), prior=0.3)), "app": fingerprint(), "site": 0}
    told["sites"] = run.sites
    told |= {"round": run.rounds if last else 1, "phase": strategy.phases[-1 if last else 0], "name": "north"}
    told |= {"run": "key", "committed": 0, **({} if last else {"evaluate": False}), **facts}
    problem = run.build_problem(run.setting(DataSummary(shape=(FEATURES,)), "cpu", site=0))
    messages = RunMessages(strategy, problem.initial(), run.rounds, run.sites, problem)
    context = messages.context(min(run.rounds, int(str(told["round"]))), str(told["phase"]))
    expected = (messages.final() if last else messages.down(context))[0]
    arrays = {name: torch.zeros(v.shape, dtype=getattr(torch, v.dtype)) for name, v in expected.items()}
    arrays |= {name: vector for name, vector in (model or problem.initial()).items() if name in arrays}
    config = ConfigRecord({key: value for key, value in told.items() if value is not None})  # type: ignore[misc]
    return RecordDict({"arrays": pack(arrays), "config": config})


def with_secret(name: str, folder: Path, state: Path, secret: str, randomness: str = "") -> dict[str, Value]:
    """Describe a hospital with the default policy and known secrets: it holds out and draws whom another one would."""
    (state / "policy").mkdir(parents=True)
    (state / "policy" / "secret").write_text(secret, encoding="ascii")
    (state / "policy" / "randomness").write_text(randomness or secret, encoding="ascii")
    return {"site": name, "data-dir": str(folder), "state-dir": str(state), "policy": ""}


def run_at(config: RunConfig, node_configs: Sequence[Mapping[str, Value]], quiet: bool = True) -> Result:
    """Run a job at hospitals with their own node-configs."""
    with SiteGrid(config, node_configs) as grid:
        return coordinate(config, grid, Progress(quiet), write_report)


def table(rows: int, seed: int, positives: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels that a linear model can tell apart; a quarter is positive unless said otherwise."""
    rng = np.random.default_rng(seed)
    labels = (np.arange(rows) < (rows // 4 if positives is None else positives)).astype(int)
    features = rng.normal(size=(rows, FEATURES)) + 1.5 * labels[:, None]
    return features, labels


def write_table(folder: Path, features: np.ndarray, labels: Iterable[object], names: Sequence[str] = ()) -> Path:
    """Write data.csv and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    names = names or [f"marker_{column}" for column in range(features.shape[1])]
    lines = [",".join([*names, "label"])]
    lines += [",".join([*map(str, row), str(label)]) for row, label in zip(features.tolist(), labels, strict=True)]
    (folder / "data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def images(folder: Path, site: int, brightness: int) -> dict[str, Value]:
    """Write a few grey images and their labels; return the site's node-config."""
    place = folder / f"images-{site}-{brightness}"
    place.mkdir()
    rng = np.random.default_rng(site)
    for number in range(10):
        pixels = np.clip(rng.normal(brightness + 30 * (number % 2), 20, (16, 16)), 0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")
    lines = ["path,label", *(f"{number}.png,{number % 2}" for number in range(10))]
    (place / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    return {"site": f"s{site}", "data-dir": str(place), "partition-id": site}


def hospitals(folder: Path, rows: Sequence[int] = (60, 40, 80)) -> list[dict[str, Value]]:
    """Write a good table for each hospital; returns their node-configs."""
    names = ["north", "south", "west", "east"]
    return [
        {"site": names[i], "data-dir": str(write_table(folder / f"private-{names[i]}", *table(n, seed=i)))}
        for i, n in enumerate(rows)
    ]


def site_job(folder: Path, **keys: Value) -> RunConfig:
    """A short run over three hospitals' own tables."""
    job: dict[str, Value] = {
        "dataset": "site",
        "model": "linear",
        "sites": 3,
        "rounds": 2,
        "local-steps": 3,
        "workers": 1,
        "thin-share": 0.0,
        "device": "cpu",
        "runs-dir": str(folder / "runs"),
    }
    return RunConfig.parse(job | {key.replace("_", "-"): value for key, value in keys.items()})


REPORT = ("about.json", "report.html", "curves.png", "curves.pdf", "model-card.md", "tripod-ai.md")


def saddle_job(folder: Path, **keys: Value) -> dict[str, Value]:
    """A run that takes no time: the saddle problem."""
    job: dict[str, Value] = {
        "problem": "saddle",
        "algorithm": "local-sgda",
        "saddle.dimension": 5,
        "sites": 4,
        "rounds": 4,
        "local-steps": 2,
        "workers": 1,
        "device": "cpu",
        "runs-dir": str(folder / "runs"),
        "local-sgda.lr": 0.02,
        "local-sgda.lr-dual": 0.02,
    }
    return job | {key.replace("_", "-"): value for key, value in keys.items()}


MARKED = Table(down(lost={"marked": "1"}))
"""A message may bear a mark."""


@dataclass(frozen=True, kw_only=True)
class Sabotage(LocalSGDA):
    """Local SGDA, but for one site in one round, or from that round on."""

    name = "sabotage"
    messages = LocalSGDA.messages + MARKED
    stacks = True

    harm: Literal["none", "nan", "inf", "raise", "kill", "hang"] = Field("none", description="what happens")
    victim: int = Field(2, ge=0, description="index of the site")
    when: int = Field(2, ge=1, description="round")
    again: int = Field(0, ge=0, description="1: in every later round, too")

    def broadcast(self, state: Arrays, round_context: RoundContext, site: Site) -> Arrays:
        """Mark the message to the victim; a site does not know its own number."""
        due = round_context.round == self.when or (self.again and round_context.round > self.when)
        return state | {"marked": torch.ones(1)} if due and site.index == self.victim else state

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, round_context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Do it."""
        reply, memory = super().local_update(sent, memory, oracle, round_context)
        if "marked" not in sent:
            return reply, memory
        match self.harm:
            case "nan":
                reply["x"][0] = torch.nan
            case "inf":
                reply["y"][-1] = -torch.inf
            case "raise":
                raise RuntimeError("patient 4711 in /secret/folder")
            case "kill":
                os.kill(os.getpid(), 9)
            case "hang":
                time.sleep(NAP)
        return reply, memory


def sabotage(folder: Path, harm: str, **keys: Value) -> dict[str, Value]:
    """A saddle run that one site disturbs in round 2; needs the algorithm to be registered."""
    own: dict[str, Value] = {"harm": harm, "lr": 0.02, "lr-dual": 0.02}
    own |= {key: keys.pop(key) for key in ("victim", "when", "again") if key in keys}
    return saddle_job(folder, algorithm="sabotage", **keys) | {f"sabotage.{key}": v for key, v in own.items()}


def job(folder: Path, **keys: Value) -> dict[str, Value]:
    """Describe a short run over real patients: three sites, a small network."""
    base: dict[str, Value] = {
        "sites": 3,
        "rounds": 3,
        "hidden": 8,
        "local-steps": 3,
        "workers": 1,
        "device": "cpu",
        "runs-dir": str(folder / "runs"),
    }
    return base | {key.replace("_", "-"): value for key, value in keys.items()}


def with_study(folder: Path, text: str = STUDY) -> str:
    """Write a study file of `hospitals`' tables."""
    file = folder / "study.toml"
    file.write_text(text, encoding="utf-8")
    return str(file)
