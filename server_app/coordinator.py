"""A run, from the first question to the sites to the last line of the report; the same for all engines."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from client_app.fingerprint import fingerprint
from client_app.site import resolve_device
from datasets import load_test, standardisation
from problems import PROBLEMS, build_problem
from problems.network import NetworkProblem
from server_app.local import LocalGrid
from server_app.report import Report, plain
from strategies import ALGORITHMS, Exchange, RunError, Site, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from flwr.app import ArrayRecord
    from flwr.serverapp import Grid
    from torch import Tensor

    from config import RunConfig
    from problems import Arrays, Metrics, Problem
    from server_app.console import Progress
    from server_app.report import Record

Facts = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What a run returns.

    Attributes
    ----------
    metrics : list of dict
        One per round: round, loss, auroc, auprc (or the problem's own), ``central``, ``pooled`` and ``sites`` with
        the same per evaluation, ``over-sites`` with mean, std and worst-decile of each (see `problems.metrics.across`),
        gradients, bytes-down, bytes-up, seconds, seconds-waiting. NaN where a metric is not defined, as AUROC is on
        samples of one class. Of a personalised algorithm loss and the like are the means over the sites.
    arrays : dict of ndarray
        The final model, flat, by name: "x", "y" where there is one, "buffers" where there are batch norms. Of a
        personalised algorithm what the server keeps; the sites' own models stay there.
    folder : Path
        The run folder.
    """

    metrics: list[Record]
    arrays: dict[str, np.ndarray]
    folder: Path


def coordinate(config: RunConfig, grid: Grid, progress: Progress) -> Result:
    """Run a job on the sites of a grid.

    Raises
    ------
    RunError
        When it cannot go on; the run folder keeps what was reached.
    """
    started = time.monotonic()
    report = Report(config, progress)
    try:
        nodes = wait_for_sites(config, grid)
        exchange = Exchange(
            grid,
            config.round_timeout,
            [Site(i, f"node {node}", node) for i, node in enumerate(nodes)],
            config.min_replies,
            config.on_bad_update,
            progress.warn,
            report.heard,
        )
        facts = ask(exchange)
        exchange.sites = named(config, exchange.sites, facts)
        exchange.by_node = {site.node_id: site for site in exchange.sites}
        common = agree(config, exchange.sites, facts, progress)
        report.inputs = common | {"columns": facts[exchange.sites[0].node_id].get("columns", "")}
        problem = report.problem = build(config, common)
        check(problem, exchange.sites, facts, progress)
        start = problem.initial()
        if (buffers := problem.buffers()).numel():
            start["buffers"] = buffers
        progress.say(
            f"{config.algorithm} on {config.problem}: {len(exchange.sites)} sites, {describe(config, common, start)}, "
            f"started after {time.monotonic() - started:.1f} s"
        )
        strategy = config.strategy()
        result = strategy.start(
            grid,
            pack(start),
            config.rounds,
            train_config=ConfigRecord(common),
            evaluate_config=ConfigRecord(common),
            evaluate_fn=central_evaluation(config, problem, common, report),
            exchange=exchange,
            evaluate_every=config.evaluate_every,
            loss_bound=config.loss_bound,
            project=lambda y: problem.project(y.to(problem.device)).cpu(),
            observer=report,
            head=problem.head if "head" in problem.offers else None,
        )
        if strategy.personalised and strategy.exchanges:
            report.model = given_to_new_sites(problem, unpack(result.arrays)["x"], start)
    except BaseException:  # Ctrl-C, too
        report.close()
        progress.say(f"stopped; what was reached is in {report.folder}", "red")
        raise
    report.close()
    sizes = {site.name: facts[site.node_id] for site in exchange.sites}
    progress.sites(report.records, sizes, personalised=strategy.personalised)
    if strategy.personalised:
        progress.say(where_models_are(grid))
    progress.say(f"{config.rounds} rounds in {time.monotonic() - started:.1f} s; results in {report.folder}", "green")
    arrays = {name: vector.numpy().copy() for name, vector in unpack(result.arrays).items()}
    return Result(report.records, arrays, report.folder)


def wait_for_sites(config: RunConfig, grid: Grid) -> list[int]:
    """Return the addresses of exactly ``sites`` nodes.

    Raises
    ------
    RunError
        When they are not there within ``wait-timeout``, or when there are more.
    """
    deadline = time.monotonic() + config.wait_timeout
    pause = 0.05
    while len(nodes := sorted(grid.get_node_ids())) < config.sites:
        if time.monotonic() > deadline:
            raise RunError(
                f"{len(nodes)} of sites = {config.sites} are connected after wait-timeout = {config.wait_timeout:g} s. "
                f"Start the others, set sites={len(nodes)}, or in a simulation: flwr run . --federation-config "
                f'"num-supernodes={config.sites}"'
            )
        time.sleep(pause)
        pause = min(1.0, 1.5 * pause)
    if len(nodes) > config.sites:
        raise RunError(
            f"{len(nodes)} sites are connected, but sites = {config.sites}: end the others, set sites={len(nodes)}, or "
            f'in a simulation: flwr run . --federation-config "num-supernodes={config.sites}"'
        )
    return nodes


def ask(exchange: Exchange) -> dict[int, Facts]:
    """Ask every site for its counts, by node; all must answer."""
    config = ConfigRecord({"app": fingerprint()})
    messages = [Message(RecordDict({"config": config}), site.node_id, "query") for site in exchange.sites]
    return {
        answer.metadata.src_node_id: dict(answer.content["facts"])
        for answer in exchange(messages, min_replies=len(messages))
    }


def named(config: RunConfig, sites: Sequence[Site], facts: dict[int, Facts]) -> list[Site]:
    """Give every site its name, place and weight; the place depends on nothing that changes from run to run."""
    order = sorted(sites, key=lambda s: (facts[s.node_id]["partition-id"], facts[s.node_id]["name"], s.node_id))
    names = [facts[site.node_id]["name"] or f"site-{place}" for place, site in enumerate(order)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RunError(f"two sites have the same name ({', '.join(twice)}): set another site= in their --node-config")
    uniform = config.strategy().weighting == "uniform"
    return [
        Site(place, name, site.node_id, 1.0 if uniform else float(facts[site.node_id].get("examples", 1)))
        for place, (name, site) in enumerate(zip(names, order, strict=True))
    ]


def agree(config: RunConfig, sites: list[Site], facts: dict[int, Facts], progress: Progress) -> Facts:
    """Check that the sites' data go together, and sum up what every site must know.

    Raises
    ------
    RunError
        Listing all that does not go together.
    """
    common: Facts = {"app": fingerprint(), "shape": [], "classes": 2, "prior": 0.5, "shift": [], "scale": []}
    common["shares"] = []
    problem = PROBLEMS[config.problem]
    if not problem.needs_data:
        return common
    by_name = {site.name: facts[site.node_id] for site in sites}
    shapes = {name: tuple(fact["shape"]) for name, fact in by_name.items()}
    wrong = []
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} has {'x'.join(map(str, shape))}" for name, shape in shapes.items())
        wrong.append(f"the sites' inputs differ: {listed}. Every site needs the same features in its data")
    elif len({fact["columns"] for fact in by_name.values()}) > 1:
        listed = ", ".join(f"{name}: {fact['columns']}" for name, fact in by_name.items())
        wrong.append(f"the sites' feature columns have different names (fingerprints {listed}): rename them")
    examples = sum(fact["examples"] for fact in by_name.values())
    positives = sum(fact.get("positives", 0) for fact in by_name.values())
    if not problem.multiclass and not 0 < positives < examples:
        only = "positive" if positives else "negative"
        wrong.append(f"all {examples} training samples of all sites are {only}: a ranking needs both classes")
    class_counts = (fact.get("class-counts", ()) for fact in by_name.values())  # a site knows only the labels it has
    counts = [sum(column) for column in zip_longest(*class_counts, fillvalue=0)]
    if problem.multiclass and sum(map(bool, counts)) < 2:
        wrong.append(f"all {examples} training samples of all sites are of one class: there is nothing to tell apart")
    none = [name for name, fact in by_name.items() if not fact.get("positives", 1)]
    if config.sampler == "fixed-positives" and none:
        needed = 'sampler = "fixed-positives"'
        fix = f'use another partition than {config.partition!r}, such as "iid", or fewer sites'
        if config.dataset == "site":
            fix = "check their label columns, or leave these sites out"
        if problem.sampler == config.sampler:  # the problem's own: it can do with no other
            needed = f"problem = {config.problem!r}"
        else:
            fix = f'use sampler = "uniform", or {fix}'
        wrong.append(
            f"{needed} needs positives at every site, and these have none to train on: {', '.join(none)}; {fix}"
        )
    if wrong:
        raise RunError("\n".join(wrong))
    for name, fact in by_name.items():
        if fact.get("positives") in (0, fact["examples"]):
            only = "positive" if fact["positives"] else "negative"
            progress.warn(
                f"site {name!r} has only {only} training samples: it still helps to train, but AUROC is not defined on "
                "one class (shown as -); check its label column if this is a surprise"
            )
        if fact["missing"]:
            filled = "the mean over all sites" if config.standardise else "0, because standardise = false"
            progress.say(f"site {name!r}: {fact['missing']} missing values, imputed by {filled}")
    # The largest number of classes is everybody's.
    common["classes"] = max(fact["classes"] for fact in by_name.values())
    common["shape"] = list(next(iter(shapes.values())))
    if problem.multiclass:
        common["shares"] = [count / examples for count in counts]
    else:
        common["prior"] = positives / examples
    if config.standardise:
        sums = ([sum(column) for column in zip(*(f[key] for f in by_name.values()), strict=True)] for key in MOMENTS)
        shift, scale = standardisation(*sums)
        common |= {"shift": shift.tolist(), "scale": scale.tolist()}
    return common


MOMENTS = ("count", "total", "squares")


def build(config: RunConfig, common: Facts) -> Problem:
    """Build the coordinator's own copy of the problem: those of an earlier run in this process hold its last model."""
    device = resolve_device(config.device)
    facts = (tuple(common["shape"]), common["classes"], common["prior"], -1, config.sites, tuple(common["shares"]))
    return build_problem(config.task(device, *facts))


def check(problem: Problem, sites: list[Site], facts: dict[int, Facts], progress: Progress) -> None:
    """Check that each site has what the problem asks of samples of many classes.

    Raises
    ------
    RunError
        Listing all sites that cannot train. Of those that cannot evaluate it warns.
    """
    if not problem.multiclass:
        return
    lacks = {site.name: problem.lacks(facts[site.node_id]["class-counts"]) for site in sites}
    if wrong := [f"site {name!r} has, to train on, {text}" for name, text in lacks.items() if text]:
        raise RunError("\n".join(wrong))
    for site in sites:
        counts = facts[site.node_id]["held-out-counts"]
        if sum(counts) and (text := problem.lacks(counts)):
            progress.warn(f"site {site.name!r} is not evaluated: it has, held out, {text}, or raise holdout-share")


def describe(config: RunConfig, common: Facts, start: dict[str, Any]) -> str:
    """Say what is trained, in a few words."""
    parameters = f"{len(start['x']):,} parameters"
    if not PROBLEMS[config.problem].needs_data:
        return parameters
    multiclass = PROBLEMS[config.problem].multiclass
    labels = f"{common['classes']} classes" if multiclass else f"{common['prior']:.1%} positive"
    return f"{config.dataset}, {labels}, {config.model} with {parameters}"


def given_to_new_sites(problem: Problem, shared: Tensor, start: Arrays) -> Arrays:
    """Return the model that a personalised run leaves to new sites, for a head of their own; empty without a body.

    That is the body of what the sites share, x as the run returns it, and the start's head, scalars of the problem, y
    and batch-norm statistics.
    """
    if not isinstance(problem, NetworkProblem) or not problem.head:
        return {}
    return {**start, "x": torch.cat([shared[: problem.head].to(problem.device), start["x"][problem.head :]])}


def where_models_are(grid: Grid) -> str:
    """Say where the sites' own models are after a personalised run."""
    if not isinstance(grid, LocalGrid):
        return "each site has kept its own model, in the folder models of its state-dir"
    if grid.config.state_dir:
        return f"the sites' own models are in {grid.state / 'models'}"
    return 'the sites\' own models ended with the run; state-dir="state" would have kept them'


def central_evaluation(config: RunConfig, problem: Problem, common: Facts, report: Report) -> Any:
    """Return the function that evaluates a model at the coordinator, where there is a common test set."""
    needs_data, personalised = PROBLEMS[config.problem].needs_data, ALGORITHMS[config.algorithm].personalised
    # A hospital's own folder is nowhere but there; models or statistics that stay at the sites leave none to test here.
    wanted = needs_data and config.central_test and config.dataset != "site"
    wanted = wanted and config.bn == "average" and not personalised
    test = load_test(config.data()) if wanted else None
    if test is not None:
        if common["shift"]:
            test = test.standardised(torch.tensor(common["shift"]), torch.tensor(common["scale"]))
        test = test.to(problem.device)
        if problem.multiclass and (text := problem.lacks(test.targets().bincount().tolist())):
            report.progress.warn(f"no evaluation on the common test set: it has {text}")
            test = None

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        started = time.monotonic()
        model = unpack(arrays)
        due = (config.evaluate_every and server_round % config.evaluate_every == 0) or server_round == config.rounds
        metrics: Metrics = {}
        if due and not personalised and (test is not None or not needs_data):
            here = unpack(arrays, problem.device)
            if "buffers" in here:
                problem.load_buffers(here["buffers"])
            metrics = problem.metrics(here["x"], here.get("y"), test)
        report.central(model, metrics, time.monotonic() - started)
        return MetricRecord({**plain(metrics)}) if metrics else None

    return evaluate
