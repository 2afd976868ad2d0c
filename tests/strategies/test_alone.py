"""``alone``: what a site does by itself, that nobody else has a part in it, and what a run tells of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

from edelweiss.client_app.memory import Memory
from edelweiss.common import Value
from edelweiss.config import ConfigError, RunConfig
from edelweiss.datasets import DataSummary, load_site, standardisation
from edelweiss.datasets.samples import moments
from edelweiss.federation import DivergedError, RoundContext, unpack
from edelweiss.server_app import simulate
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from edelweiss.strategies.local_only import Alone
from edelweiss.strategies.local_sgda import LocalSGDA
from tests.reference.games import RegressionGame
from tests.said import has
from tests.server_app.sites import SiteGrid, images, job, run_at, saddle_job, site_job, table, write_table
from tests.strategies.halves import drive, regression_oracles

pytestmark = pytest.mark.usefixtures("public_batches")

K, ROUNDS, LR, LR_DUAL = 4, 5, 0.04, 0.06


# ---------------------------------------------------------------------- the halves


def test_each_site_follows_descent_ascent_on_its_own_data() -> None:
    """Against NumPy, step by step; through the wire, with stages; the server's state stays the start."""
    game = RegressionGame(K, clip=True)
    memories: list[dict[str, torch.Tensor]] = [{} for _ in range(K)]
    strategy = Alone(local_steps=3, lr=LR, lr_dual=LR_DUAL, stage_iterations=6, stage_decay=2.0)
    start = {"x": torch.from_numpy(game.x), "y": torch.from_numpy(game.y)}
    expected = [(game.x, game.y) for _ in range(K)]
    for r in range(1, ROUNDS + 1):
        context: RoundContext = strategy.context(r, ROUNDS, "train", K)
        rate = 2.0 ** -((r - 1) // 2)
        for k in range(K):
            reply, memories[k] = strategy.local_update(start, memories[k], regression_oracles(game)(k, r), context)
            assert reply == {}
            x, y = expected[k]
            for t in range(3):
                gx, gy = game.gradients(k, x, y, r, t)
                x, y = x - LR * rate * gx, np.maximum(y + LR_DUAL * rate * gy, 0)
            expected[k] = x, y
            np.testing.assert_allclose(memories[k]["x"].numpy(), x, rtol=0, atol=1e-9)
            np.testing.assert_allclose(memories[k]["y"].numpy(), y, rtol=0, atol=1e-9)
    assert np.abs(expected[0][0] - expected[1][0]).max() > 1e-3, "the sites differ"
    states = drive(strategy, start, regression_oracles(game), ROUNDS, K, wire=True)
    assert all(torch.equal(state[name], start[name]) for state in states for name in ("x", "y"))


def test_a_site_that_lost_its_memory_starts_anew() -> None:
    game = RegressionGame(K)
    strategy = Alone(local_steps=3, lr=LR, lr_dual=LR_DUAL)
    start = {"x": torch.from_numpy(game.x), "y": torch.from_numpy(game.y)}
    context = strategy.context(4, ROUNDS, "train", K)
    _, memory = strategy.local_update(start, {}, regression_oracles(game)(2, 4), context)
    reply, _ = LocalSGDA(local_steps=3, lr=LR, lr_dual=LR_DUAL).local_update(
        start, {}, regression_oracles(game)(2, 4), context
    )
    assert all(torch.equal(memory[name], reply[name]) for name in ("x", "y"))
    assert strategy.personal(start, {}, {}) is start
    assert strategy.personal(start, memory, {}) is memory


# ---------------------------------------------------------------------- runs


class Keeping(SiteGrid):
    """The local engine; it keeps what sites remember, and loses a memory if told to."""

    lose: tuple[int, int] = (0, 0)  # (round, site)

    def push_messages(self, messages: Sequence[Message]) -> Sequence[str]:  # type: ignore[override]
        messages = list(messages)
        for message in messages:
            config = message.content.config_records["config"]
            if message.metadata.message_type == "train" and (config["round"], config["site"]) == self.lose:
                self.memory(message).forget()
        if messages[0].metadata.message_type == "evaluate":
            self.models = [self.memory(message).load(torch.device("cpu"), before=(99, 0)) for message in messages]
        return list(super().push_messages(messages))

    def memory(self, message: Message) -> Memory:
        """Return the memory that a message is about."""
        config = message.content.config_records["config"]
        own = f"/{config['site']}" if "partition-id" not in self.node_configs[0] else ""
        return Memory(f"{self.scratch.path}/state{own}", str(config["run"]), str(config["name"]))


def run(folder: Path, lose: tuple[int, int] = (0, 0), **keys: Value) -> tuple[list[dict[str, Any]], Keeping]:
    """Run; return the metrics, and the grid with what each site ended with and every answer."""
    config = RunConfig.parse(job(folder, algorithm="alone", **keys))
    torch.set_num_threads(1)
    nodes = [{"partition-id": site} for site in range(config.sites)]
    with Keeping(config, nodes) as grid:
        grid.lose = lose
        return coordinate(config, grid, Progress(quiet=True)).metrics, grid


@pytest.mark.parametrize(
    ("problem", "other"),
    [("bce", "fedavg"), ("cross-entropy", "fedavg"), ("auc-margin", "local-sgda"), ("fair", "local-sgda")],
)
def test_one_site_alone_is_the_federated_run_of_one_site(tmp_path: Path, problem: str, other: str) -> None:
    keys: dict[str, Value] = {"problem": problem, "sites": 1, "rounds": 4, "stage-iterations": 6}
    records, grid = run(tmp_path, **keys, **{"alone.lr": 0.05})
    federated = simulate(job(tmp_path, algorithm=other, **keys) | {f"{other}.lr": 0.05})
    [model] = grid.models
    assert set(model) == set(federated.arrays)
    assert all(np.array_equal(model[name].numpy(), vector) for name, vector in federated.arrays.items())
    for one, two in zip(records, federated.metrics, strict=True):
        assert one["pooled"] == two["pooled"]
        assert one["sites"] == two["sites"]


def test_nothing_goes_up_and_the_start_comes_down(tmp_path: Path) -> None:
    records, grid = run(tmp_path, problem="auc")
    x, y = (4 * len(grid.models[0][name]) for name in ("x", "y"))
    for record in records:
        assert record["bytes-up"] == 0
        assert record["bytes-down"] == 3 * (x + y)
    for answer in grid.answers:
        assert not unpack(answer.content.array_records["arrays"]) if "arrays" in answer.content else True
    trained = [answer for answer in grid.answers if "cost" in answer.content]
    assert len(trained) == 9


@pytest.mark.slow
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_sites_never_influence_each_other(tmp_path: Path, model: str) -> None:
    """Other patients at one hospital change nothing at the others, in no digit. (Standardisation is shared: off.)"""

    def metrics(seed: int) -> list[dict[str, Any]]:
        features = [table(60, 0), table(40, seed), table(80, 2)]
        names = ("north", "south", "west")
        nodes = [
            {"site": name, "data-dir": str(write_table(tmp_path / f"{seed}-{name}", *data))}
            for name, data in zip(names, features, strict=True)
        ]
        config = site_job(tmp_path, algorithm="alone", problem="bce", model=model, standardise=False, rounds=4)
        return [record["sites"] for record in run_at(config, nodes).metrics]

    for one, other in zip(metrics(1), metrics(7), strict=True):
        assert one["north"] == other["north"]
        assert one["west"] == other["west"]
        assert one["south"] != other["south"]


@pytest.mark.slow
@pytest.mark.usefixtures("small_resnet")
def test_batch_norm_statistics_stay_at_the_site(tmp_path: Path) -> None:
    """With bn = "average", which is the default, they would be what sites tell each other."""
    resnet: dict[str, Value] = {"model": "resnet18", "sites": 2, "rounds": 2, "local_steps": 1, "batch_size": 4}
    config = site_job(tmp_path, algorithm="alone", problem="bce", standardise=False, **resnet)
    first = images(tmp_path, 0, brightness=100)
    seen = []
    for brightness in (60, 200):
        with Keeping(config, [first, images(tmp_path, 1, brightness)]) as grid:
            records = coordinate(config, grid, Progress(quiet=True)).metrics
        seen.append((grid.models, [record["sites"]["s0"] for record in records]))
        assert not any(unpack(a.content.array_records["arrays"]) for a in grid.answers if "arrays" in a.content)
    (dark, there), (bright, again) = seen
    assert there == again
    assert torch.equal(dark[0]["buffers"], bright[0]["buffers"])
    assert not torch.equal(dark[1]["buffers"], bright[1]["buffers"])


def test_sites_evaluate_their_own_models_to_the_end(tmp_path: Path) -> None:
    """The last evaluation, too, is of what the site itself trained last, on its own held-out samples."""
    records, grid = run(tmp_path, problem="bce", rounds=3)
    config = grid.config
    shift, scale = standardised(config)
    problem = config.build_problem(config.setting(DataSummary(shape=(30,)), "cpu"))
    for site, model in enumerate(grid.models):
        held_out = load_site(config.data(), site, 3).held_out.standardised(shift, scale)
        metrics = problem.metrics(model["x"], None, held_out)
        for name in ("loss", "auroc", "n"):
            assert metrics[name] == pytest.approx(records[-1]["sites"][f"site-{site}"][name], nan_ok=True)
    losses = [record["sites"]["site-0"]["loss"] for record in records]
    assert len(set(losses)) == 3, "each round's line is of that round's model"


def standardised(config: RunConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the sites of a run standardise with."""
    parts = [moments(load_site(config.data(), site, config.sites).train) for site in range(config.sites)]
    return standardisation(*([sum(c) for c in zip(*m, strict=True)] for m in zip(*parts, strict=True)))


@pytest.mark.slow
def test_a_lost_memory_costs_that_sites_model_and_no_other(tmp_path: Path) -> None:
    _, whole = run(tmp_path, problem="bce", rounds=4)
    _, hurt = run(tmp_path, lose=(3, 1), problem="bce", rounds=4)
    assert torch.equal(whole.models[0]["x"], hurt.models[0]["x"])
    assert torch.equal(whole.models[2]["x"], hurt.models[2]["x"])
    assert not torch.equal(whole.models[1]["x"], hurt.models[1]["x"])
    assert hurt.models[1]["x"].isfinite().all()


def test_nothing_misleading_is_reported(tmp_path: Path) -> None:
    """The server's model is the start: it is not tested, and no file of it is left."""
    for keys in (
        job(tmp_path, algorithm="alone", run_name="data"),
        saddle_job(tmp_path, algorithm="alone", run_name="saddle"),
    ):
        keys = {key: value for key, value in keys.items() if not key.startswith("local-sgda")}
        result = simulate(keys | {"alone.lr": 0.05})
        for record in result.metrics:
            assert "central" not in record
            name = "auroc" if "auroc" in record else "distance-x"
            assert record[name] == record["over-sites"][name]["mean"]
        assert not (result.folder / "model.safetensors").exists()
        lines = (result.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(lines) == len(result.metrics)
        assert all("central" not in json.loads(line) for line in lines)


@pytest.mark.slow
def test_alone_each_site_reaches_the_optimum_of_its_own_function(tmp_path: Path) -> None:
    """Not that of their mean: the distances to the common saddle point stay, and grow with how the sites differ."""
    keys = saddle_job(tmp_path, algorithm="alone", rounds=60, local_steps=10)
    keys |= {"alone.lr": 0.05, "alone.lr-dual": 0.2}
    near, far = (simulate(keys | {"saddle.heterogeneity": s}).metrics[-1] for s in (0.5, 5.0))
    assert far["distance-y"] > 50 * near["distance-y"] > 0
    assert near["distance-y"] > 1e-3


def test_a_site_that_diverges_by_itself_is_told(tmp_path: Path) -> None:
    """Its reply is empty, so it is what it remembers that tells: as with any other update that is not finite."""
    keys: dict[str, Value] = {
        "problem": "bce",
        "model": "linear",
        "evaluate-every": 0,
        "rounds": 3,
        "standardise": False,
    }
    with pytest.raises(DivergedError, check=has("'x'", "alone.lr")):
        run(tmp_path, **keys, **{"alone.lr": 1e38})


def test_only_the_last_output_is_there() -> None:
    for output in ("average", "random"):
        with pytest.raises(ConfigError, check=has(f"output = '{output}'", '"last"')):
            RunConfig.parse({"algorithm": "alone", "output": output})
