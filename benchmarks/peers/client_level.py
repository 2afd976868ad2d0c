"""Flower's client-level differential privacy beside a site's own; into docs/results/client-level.md.

    EDELWEISS_DATA=folder/with/mnist python -m benchmarks.peers.client_level

Both train FedAvg with cross-entropy to tell one digit from the rest, at eight sites. Flower's strategy wrapper protects
a *site*: the coordinator sees all sites' models, clips what each changed, and adds noise to their mean. Here a
*patient* is protected, from the coordinator as well: each site adds noise to its own gradients. Steps and clips are
chosen at a seed of its own, of the same number of points for both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import insert
from benchmarks.peers.job import mnist

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "client-level.md"
SITES, DIGIT, BATCH = 8, 8, 64
ROUNDS, STEPS = 10, 10
DELTA = 1e-5
EPSILONS = (0.0, 8.0, 3.0, 1.0)  # 0: without privacy
POINTS = tuple(product((0.3, 1.0), (0.1, 0.3, 1.0, 3.0)))
"""Step size, and what a contribution is clipped to: a site's change of the model, or a patient's gradient."""

Point = tuple[float, float]


def site_rows(site: int, patients: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a site's rows of the training set, all of it dealt out at random."""
    return np.random.default_rng(0).permutation(60_000)[site * patients : (site + 1) * patients]


def flower(patients: int, epsilon: float, point: Point, seed: int) -> float:
    """Return the test AUROC of Flower's FedAvg in its simulation, with its wrapper unless ``epsilon`` is 0."""
    import torch
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Strategy
    from flwr.simulation import run_simulation

    from edelweiss.federation.privacy_account import Query, noise_for

    lr, clip = point

    def network() -> torch.nn.Sequential:
        torch.manual_seed(seed)
        linear, relu = torch.nn.Linear, torch.nn.ReLU
        return torch.nn.Sequential(linear(784, 32), relu(), linear(32, 32), relu(), linear(32, 1))

    client, server, results = ClientApp(), ServerApp(), []

    @client.train()
    def fit(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model, site = network(), int(context.node_config["partition-id"])
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        round_number = int(message.content.config_records["config"]["server-round"])
        rng = np.random.default_rng([seed, site, round_number])
        inputs, labels = mnist()
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for _ in range(STEPS):
            rows = rng.choice(site_rows(site, patients), BATCH, replace=False)
            scores = model(torch.from_numpy(inputs[rows]))[:, 0]
            truth = torch.from_numpy((labels[rows] == DIGIT).astype(np.float32))
            optimizer.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(scores, truth).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        metrics = MetricRecord({"num-examples": patients})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy: Strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=SITES, min_available_nodes=SITES)
        if epsilon:
            noise = noise_for({Query(1.0): ROUNDS}, epsilon, DELTA)
            strategy = DifferentialPrivacyServerSideFixedClipping(strategy, noise, clip, SITES)
        np.random.seed(seed)  # of Flower's noise
        results.append(strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=ROUNDS))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": {"num_cpus": 2}}
    run_simulation(server, client, num_supernodes=SITES, backend_config=resources)
    model = network()
    model.load_state_dict(results[0].arrays.to_torch_state_dict())
    inputs, labels = mnist("t10k")
    with torch.no_grad():
        scores = model(torch.from_numpy(inputs))[:, 0].double().numpy()
    return auroc(scores, labels == DIGIT)


def auroc(scores: np.ndarray[Any, Any], positive: np.ndarray[Any, Any]) -> float:
    """Return the area under the ROC curve; half if a score is not finite."""
    if not np.isfinite(scores).all():
        return 0.5
    order = np.sort(scores[~positive])
    ranks = np.searchsorted(order, scores[positive], "left") + np.searchsorted(order, scores[positive], "right")
    return float(ranks.mean() / 2 / len(order))


def edelweiss(patients: int, epsilon: float, point: Point, seed: int) -> float:
    """Return the test AUROC of the same job here, each patient's gradients noised by the patient's site."""
    from edelweiss.lab.compare.runs import Outcome, final
    from edelweiss.lab.sweep.workers import compute

    lr, clip = point
    settings = {
        "algorithm": "fedavg", "problem": "bce", "model": "mlp", "dataset": "mnist", "positive-classes": str(DIGIT),
        "data-root": os.environ["EDELWEISS_DATA"], "sites": SITES, "rounds": ROUNDS, "local-steps": STEPS,
        "batch-size": BATCH, "evaluate-every": 0, "holdout-share": 1 - patients / (60_000 / SITES), "seed": seed,
        "fedavg.lr": lr, "dp.epsilon": epsilon,
    } | ({"dp.clip": clip, "dp.delta": DELTA} if epsilon else {})  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        if wrong := compute(settings, Path(folder)):
            raise SystemExit(wrong)
        return final(Outcome.read(Path(folder)), "central.auroc") or 0.5


ENGINES = {"Edelweiss: a patient, by each site": edelweiss, "Flower: a site, by the coordinator": flower}


def measured(patients: int, seeds: Sequence[int], tuning: int) -> Iterator[tuple[str, float, Point, list[float]]]:
    """Yield engine, ε, the chosen point and the AUROC at each seed."""
    for (title, engine), epsilon in product(ENGINES.items(), EPSILONS):
        points = POINTS if epsilon else tuple(dict.fromkeys((lr, 0.0) for lr, _ in POINTS))
        chosen = max(points, key=lambda point: engine(patients, epsilon, point, tuning))
        found = [engine(patients, epsilon, chosen, seed) for seed in seeds]
        print(f"{title}, epsilon = {epsilon:g}: {statistics.fmean(found):.3f} with {chosen}", file=sys.stderr)
        yield title, epsilon, chosen, found


def table(rows: Mapping[str, Mapping[float, Sequence[float]]]) -> str:
    """Return a line for each engine."""
    head = " | ".join("without" if not epsilon else f"ε = {epsilon:g}" for epsilon in EPSILONS)
    lines = [f"| protected, by whom | {head} |", f"| --- {'| ---: ' * len(EPSILONS)}|"]
    for title, each in rows.items():
        cells = (f"{statistics.fmean(found):.3f} ± {statistics.stdev(found):.3f}" for found in each.values())
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patients", type=int, default=2000, help="of a site, to train on")
    parser.add_argument("--seeds", type=int, default=5, help="2 or more")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table goes")
    options = parser.parse_args(arguments)
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds}: the spread needs 2 or more")
    if not BATCH <= options.patients <= 60_000 // SITES:
        parser.error(f"--patients {options.patients}: must be from {BATCH} to {60_000 // SITES}")
    if not os.environ.get("EDELWEISS_DATA"):
        parser.error("EDELWEISS_DATA is not set: it names the folder that holds mnist/")
    rows: dict[str, dict[float, list[float]]] = {}
    for title, epsilon, _, found in measured(options.patients, range(options.seeds), tuning=100):
        rows.setdefault(title, {})[epsilon] = found
    text = (
        f"AUROC on MNIST's test set, digit {DIGIT} against the rest: {SITES} sites of {options.patients:,} images, "
        f"{ROUNDS} rounds of {STEPS} steps with batches of {BATCH}, an MLP of 32 + 32, δ = {DELTA:g}. Step size and "
        f"clip were chosen of {len(POINTS)} points, at a seed of their own, by the test set; mean ± standard deviation "
        f"over {options.seeds} other seeds.\n\n{table(rows)}\n"
    )
    print(text)
    insert(options.page, "client-level", "Client-level differential privacy, beside a site's own", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
