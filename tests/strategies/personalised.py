"""What tests of personalised and decentralised methods share: objectives with a head, and runs that are watched."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from safetensors.torch import load_file

from edelweiss.config import RunConfig
from edelweiss.federation import FederatedStrategy, Site, unpack
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from edelweiss.server_app.local import LocalGrid, unused_run_id
from edelweiss.strategies.d_psgd import DPSGD
from edelweiss.strategies.decentralised import Decentralised
from edelweiss.strategies.deprl import DePRL
from edelweiss.strategies.dispfl import DisPFL
from tests.reference import algorithms
from tests.reference.games import RegressionGame, SaddleGame, Vector
from tests.strategies import settings
from tests.strategies.halves import Arrays, Layers, OpenOracle, drive, parted, regression_oracles, saddle_oracles
from tests.strategies.settings import ROUNDS, K, torched

STAGES: dict[str, Any] = settings.STAGES | {"local_steps": 2, "stage_iterations": 6}
PLAN = algorithms.plan(ROUNDS, 2, 6, decay=2, growth=2, steps_growth=2)
PRIMAL, SPLIT = 12, 7
LAYERS: Layers = ((slice(0, 6), (2, 3)), (slice(6, 8), (2,)), (slice(8, 12), (2, 2)))
GAMES = [*settings.GAMES, "minimisation"]
PATH = {(0, 1), (1, 2), (1, 3)}  # another graph than the ring
RING = {(0, 1), (1, 2), (2, 3), (0, 3)}


def setting(name: str, head: int = SPLIT) -> tuple[Any, Vector, Vector, Arrays, OpenOracle]:
    """Return a game, its start in NumPy and in torch, and the product's oracles of the same objective."""
    random = np.random.default_rng(5)
    if name == "saddle":
        slopes, offsets = random.uniform(0, 2, K), random.normal(0, 3, (K, PRIMAL))
        game: Any = SaddleGame(slopes, offsets)
        x, y = random.normal(size=PRIMAL), random.normal(size=PRIMAL)
        oracles = saddle_oracles(slopes, offsets)
    else:
        game = RegressionGame(K, clip=name.endswith("clipped"), primal=PRIMAL)
        x, y, oracles = game.x, game.y if name != "minimisation" else np.zeros(0), regression_oracles(game)
    start = torched(x, y if len(y) else None)
    return game, x, y, start, parted(oracles, start, head, LAYERS)


def held(
    strategy: FederatedStrategy,
    start: Arrays,
    oracles: OpenOracle,
    rounds: int = ROUNDS,
    sites: int = K,
    **options: Any,
) -> list[list[Arrays]]:
    """Return the model of each site after each round: what it would evaluate."""
    memories: list[dict[int, Arrays]] = []
    states = drive(strategy, start, oracles, rounds, sites, memories=memories, **options)
    history = []
    for r, (state, memory) in enumerate(zip(states, memories, strict=True), 1):
        context = strategy.context(r, rounds, "train", sites)
        model = {name: state[name] for name in ("x", "y") if name in state}
        after = [strategy.final(state, model, context, Site(k, "", k + 1)) for k in range(sites)]
        history.append([strategy.personal(after[k], memory[k], oracles(k, r).fresh) for k in range(sites)])
    return history


DECENTRALISED: list[Decentralised] = [
    DPSGD(local_steps=2, lr=0.03),
    DePRL(local_steps=2, lr_head=0.03, lr_body=0.03),
    DisPFL(local_steps=2, lr=0.03, prune=0.6),
]


class Wire(LocalGrid):
    """The local engine; it notes the vectors of every message and answer, and what sites remember."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config, unused_run_id())
        self.seen: list[tuple[str, int, Arrays]] = []
        self.heads: list[torch.Tensor] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        for message in messages:
            self._note("down", message.metadata.dst_node_id - 1, message)
        self._remembered()
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        answers = list(super().pull_messages(message_ids))
        for answer in answers:
            self._note("up", answer.metadata.src_node_id - 1, answer)
        return answers

    def _note(self, way: str, site: int, message: Message) -> None:
        for record in message.content.array_records.values():
            self.seen.append((way, site, {n: v.clone() for n, v in unpack(record).items()}))

    def _remembered(self) -> None:
        folder = Path(self.contexts[0].node_config["state-dir"])
        for path in sorted(folder.glob("run-*/*/*.safetensors")):
            self.heads += [vector for name, vector in load_file(path).items() if name == "head"]


def run(folder: Path, algorithm: str, **keys: Any) -> tuple[Wire, Any]:
    """Run on breast-cancer with a small network; keys of the algorithm itself have no dot."""
    own = {f"{algorithm}.{key[4:].replace('_', '-')}": value for key, value in keys.items() if key.startswith("own_")}
    others = {key.replace("_", "-"): value for key, value in keys.items() if not key.startswith("own_")}
    common: dict[str, Any] = {"problem": "auc", "model": "mlp", "hidden": 4, "sites": 4, "rounds": 4, "local-steps": 2}
    common |= {"workers": 1, "device": "cpu", "runs-dir": str(folder / "runs"), "partition": "iid"}
    config = RunConfig.parse({"algorithm": algorithm, **common, **others, **own})
    torch.set_num_threads(1)
    with Wire(config) as grid:
        result = coordinate(config, grid, Progress(quiet=True))
    return grid, result
