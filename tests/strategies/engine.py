"""Runs an algorithm in the real local engine, in this process, and keeps the model of every round."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from edelweiss.client_app.memory import run_folder
from edelweiss.common import flatten, to_record
from edelweiss.config import RunConfig
from edelweiss.datasets import DataSummary
from edelweiss.federation import Exchange, Site, pack, unpack
from edelweiss.server_app.local import LocalGrid, unused_run_id

Model = dict[str, np.ndarray]


class OutlierCounter(LocalGrid):
    """The local engine; it notes which sites training messages went to."""

    def __init__(self, config: RunConfig, run_id: int) -> None:
        super().__init__(config, run_id)
        self.asked: list[list[int]] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if messages[0].metadata.message_type == "train":
            self.asked.append([message.metadata.dst_node_id - 1 for message in messages])
        return super().push_messages(messages)


class Forgetful(LocalGrid):
    """The local engine; all that sites remember is deleted before the messages of some rounds leave."""

    rounds: Collection[int] = ()
    deleted = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        config = messages[0].content.config_records["config"]
        if messages[0].metadata.message_type == "train" and config["round"] in self.rounds:
            folder = run_folder(self.states.folder, str(config["run"]))
            if folder.exists():
                shutil.rmtree(folder)
                self.deleted += 1
        return super().push_messages(messages)


def run_saddle(keys: dict[str, Any], weights: list[float] | None = None) -> tuple[Model, list[Model], list[list[int]]]:
    """Run on the saddle problem.

    Returns
    -------
    tuple
        The model that the run returns; the model after each round (of the last round, again what it returns); the
        sites that were asked in each round.
    """
    config = RunConfig.parse(flatten({"problem": "saddle", "workers": 1, "device": "cpu", **keys}))
    rounds: list[Model] = []

    def note(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round:
            rounds.append(read(arrays))
        return None

    facts = ConfigRecord(to_record(DataSummary()))
    start = config.build_problem(config.setting(DataSummary(), "cpu")).initial()
    grid = OutlierCounter(config, unused_run_id())
    with grid:
        sites = [Site(k, f"site-{k}", k + 1, 1.0 if weights is None else weights[k]) for k in range(config.sites)]
        result = config.strategy.start(
            grid,
            pack(start),
            config.rounds,
            train_config=facts,
            evaluate_config=facts,
            evaluate_fn=note,
            exchange=Exchange(grid, 60.0, sites),
            evaluate_every=0,
        )
    return read(result.arrays), rounds, grid.asked


def read(arrays: ArrayRecord) -> Model:
    """Return copies of the vectors of a record."""
    return {name: vector.numpy().copy() for name, vector in unpack(arrays).items()}
