"""A run from meeting the sites to the report, on any engine."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edelweiss.common import amount, to_record
from edelweiss.common.files import reason
from edelweiss.config.plug_ins import packages_of
from edelweiss.datasets.config import SITE
from edelweiss.evidence.inverted import inverted_rankings
from edelweiss.federation import AwaitsApprovalError, Exchange, RunError, Site, pack, unpack
from edelweiss.federation.fingerprint import covering
from edelweiss.federation.returned_iterate import returned
from edelweiss.federation.rounds import Rounds
from edelweiss.models import prepare_device, resolve_device
from edelweiss.problems import PROBLEMS, ranks
from edelweiss.problems.network import NetworkProblem
from edelweiss.server_app import about
from edelweiss.server_app.claims import in_accord
from edelweiss.server_app.connected_sites import wait_for_sites
from edelweiss.server_app.console import volume
from edelweiss.server_app.data_summary import (
    ask,
    assign_places,
    bring_receipts,
    build_model_schema,
    pooled,
    require_alike,
    require_enough,
    summary,
    warn_of_shared_patients,
)
from edelweiss.server_app.data_warnings import data_warnings
from edelweiss.server_app.evaluation import central_evaluation, common_test_set, judged_on
from edelweiss.server_app.evidence import compared_with, evidence_of, in_words
from edelweiss.server_app.init_model import InitModel
from edelweiss.server_app.local import LocalGrid
from edelweiss.server_app.memory_estimate import make_ready, remembered
from edelweiss.server_app.model_file import ModelFile
from edelweiss.server_app.preflight import LoadedModels, check
from edelweiss.server_app.recorder import Recorder
from edelweiss.server_app.run_folder import RunFolder
from edelweiss.server_app.run_notes import RunWarnings, login
from edelweiss.server_app.run_state import RunState
from edelweiss.server_app.secure import ask_all, summed
from edelweiss.server_app.site_status import SiteStatus
from edelweiss.server_app.tickets import seals_of
from edelweiss.server_app.trackers import Tracking
from edelweiss.server_app.training_warnings import outliers, training_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np
    from flwr.serverapp import Grid

    from edelweiss.config import RunConfig
    from edelweiss.datasets import DataSummary, Facts
    from edelweiss.federation.robust import Robustness
    from edelweiss.federation.seals import Seals
    from edelweiss.federation.summed import AllFacts
    from edelweiss.problems import Arrays, Problem
    from edelweiss.server_app.console import Progress
    from edelweiss.server_app.recorder import Record


HELD = 2 * 10**9  # most bytes of a round's replies that the default aggregation keeps at a time


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    # one per round: round, loss, auroc, auprc (or the problem's own), `central`, `pooled` and `sites` with the
    # same per evaluation, `over-sites` with mean, std and worst-decile of each (see `problems.pooling.across`),
    # gradients, bytes-down, bytes-up, seconds, seconds-waiting. NaN if undefined, like AUROC of one class. For a
    # personalised algorithm, loss etc. are means over the sites
    metrics: list[Record]
    # the final model as flat vectors: "x", and "y" and "buffers" (batch norm) if there are any. For a personalised
    # algorithm, the server's state; the personal models stay at the sites
    arrays: dict[str, np.ndarray]
    folder: Path  # the run folder


def coordinate(
    config: RunConfig, grid: Grid, progress: Progress, write_report: Callable[[Path], object] | None = None
) -> Result:
    """Run a job on the sites of a grid.

    Parameters
    ----------
    config, grid, progress : RunConfig, Grid, Progress
        The job, its engine, and its console output.
    write_report : callable, optional
        Writes the report into the run folder at the end; `lab.report`, above this package, provides one.

    Raises
    ------
    RunError
        If the run cannot continue; the run folder keeps its results so far.
    MISTAKES
        If something named by the run-config is unusable; no run folder is created.
    """
    with covering(packages_of(config.flat())):
        return _coordinate(config, grid, progress, write_report)


def _coordinate(
    config: RunConfig, grid: Grid, progress: Progress, write_report: Callable[[Path], object] | None
) -> Result:
    started = time.monotonic()
    loaded, seals = check(config, simulated=isinstance(grid, LocalGrid)), seals_of(config)
    record = loaded.start.record if loaded.start else ""
    run = getattr(grid, "run", None)  # Flower's; the local engine has none
    number = run.run_id if run else 0
    folder = RunFolder.again(config, number) if config.resume else RunFolder.new(config, record, number)
    progress.keep = RunWarnings(folder.path).keep
    recorder = Recorder(config, progress, folder.path, Tracking(config, folder.path, progress.warn))
    state = RunState(folder, recorder, grid)
    if config.resume:
        try:
            state.read()
        except RunError as error:  # leave the folder unchanged
            folder.note("failed", reason=str(error))
            recorder.tracking.close()
            folder.close()
            raise
        folder.note_act("resumed", config.started_by or ("" if number else login()))
    try:
        arrays, sizes = _play(config, loaded, grid, recorder, state, seals, started)
        recorder.close()
        progress.close()
    except BaseException as error:  # includes Ctrl-C
        progress.close()
        with suppress(OSError, RunError):  # a full disk has been reported by now
            recorder.close()
            state.write()
            folder.note(how_ended(error), reason=str(error) or "it was interrupted")
            if isinstance(error, KeyboardInterrupt) and not number:  # who pressed Ctrl-C, at this machine
                folder.note_act("stopped", login())
        leave_report(config, recorder, write_report)
        progress.say(f"{how_ended(error)}; results so far are in {recorder.folder}", "red")
        if how_ended(error) == "stopped":
            progress.say(f"continue with --run-config 'resume=\"{recorder.folder}\"'")
        raise
    else:
        warnings = [*training_warnings(config.strategy, recorder.records), *outliers(config, recorder.records)]
        folder.note("complete", **({"warnings": warnings} if warnings else {}))
        state.remove()
        leave_report(config, recorder, write_report)
    finally:
        recorder.tracking.close()
        folder.close()
    personalised = config.personalised
    progress.sites(recorder.records, sizes, personalised=personalised)
    for line in in_words(recorder.evidence) if recorder.evidence else ():
        progress.say(line)
    for line in [*(inverted_rankings(recorder.evidence) if recorder.evidence else ()), *warnings]:
        progress.warn(line)
    if personalised or config.share_model:
        progress.say(where_models_are(grid, common=not personalised))
    seconds = time.monotonic() - started
    progress.say(f"{amount(config.rounds, 'round')} in {seconds:.1f} s; results in {recorder.folder}", "green")
    return Result(recorder.records, {name: vector.numpy().copy() for name, vector in arrays.items()}, recorder.folder)


def how_ended(error: BaseException) -> str:
    """Return the status of a run that an error has ended: "stopped" if somebody wanted that, or is still to decide."""
    return "failed" if isinstance(error, Exception) and not isinstance(error, AwaitsApprovalError) else "stopped"


def _play(
    config: RunConfig,
    loaded: LoadedModels,
    grid: Grid,
    recorder: Recorder,
    state: RunState,
    seals: Seals | None,
    started: float,
) -> tuple[Arrays, dict[str, Record]]:
    """Meet the sites, build the problem, run all rounds; return the final model and each site's facts by name."""
    strategy, progress = config.strategy, recorder.progress
    exchange, sites, every = meet(config, grid, recorder, state, seals)
    # Read here only if a stopped run restarts from its beginning.
    begins = loaded.start or (None if state.last else InitModel.read(config))
    data_summary = agree_on_data(config, begins, sites, state, progress, every)
    model_schema = build_model_schema(config, data_summary, progress)
    warnings = data_warnings(config, sites, model_schema.features, progress)
    device = resolve_device(config.device)
    prepare_device(device, config.matmul_precision)
    problem = config.build_problem(config.setting(data_summary, device))
    require_enough(problem, sites, progress)
    privacy = promised(config, problem, sites, progress)
    other = compared_with(config, problem, loaded.other)
    start = problem.initial() | state.start if state.last else starting_point(problem, begins, progress)
    state.note_start(sites, data_summary, start)
    states = remembered(config, problem, start) if isinstance(grid, LocalGrid) else 0
    state.require_room(len(start["x"]), states)
    recorder.about(
        about.gathered(sites, data_summary, start, str(problem.device), judged_on(config, grid), warnings) | privacy
    )
    if isinstance(grid, LocalGrid):
        make_ready(grid, problem, len(start["x"]), states, state)
    elif config.stack != 1:
        progress.say(f'stack = {config.stack} needs engine = "local": here each client trains by itself')
    model = ModelFile(
        recorder.folder,
        problem,
        data_summary,
        model_schema,
        personalised=strategy.personalised,
        own_statistics=config.bn == "local",
    )
    recorder.keep(model)
    words = summary(config, data_summary, len(exchange.sites), len(start["x"]))
    progress.say(f"{words}, started after {time.monotonic() - started:.1f} s")
    if text := returned(strategy):
        progress.say(text)
    summary_fields = to_record(data_summary)
    test = common_test_set(config, problem, data_summary, recorder)
    rounds = Rounds(
        algorithm=strategy,
        exchange=exchange,
        start={name: vector.detach().cpu().clone() for name, vector in start.items()},
        count=config.rounds,
        train_config=summary_fields,
        evaluate_config=summary_fields,
        evaluate=central_evaluation(config, problem, test, recorder),
        evaluate_every=config.evaluate_every,
        loss_bound=config.loss_bound,
        project=lambda y: problem.project(y.to(problem.device)).cpu(),
        observer=recorder,
        head=problem.head if isinstance(problem, NetworkProblem) else None,
        checkpoints=state,
        problem=problem,
        evidence=config.evidence and ranks(type(problem)) and not config.private,
        noised=config.evidence and ranks(type(problem)) and config.private,
        other=None if other is None else pack(other),
        encoding=config.encoding,
        robustness=robustness_of(config, len(start["x"]), progress),
        summed=summed(config, problem, every.site) if every else None,
    )
    arrays = unpack(rounds.play().arrays)
    model.note(arrays)
    if strategy.personalised and strategy.exchanges:
        model.note_body(arrays["x"], start)
    if isinstance(problem, NetworkProblem):
        noised = recorder.records[-1].get("noised") if recorder.records else None
        recorder.evidence = evidence_of(config, problem, recorder.scores, arrays, other, test, noised)
    if seals:
        bring_receipts(exchange, state.key, progress)
    return arrays, {site.name: to_record(facts) for site, facts in sites.items()}


def promised(config: RunConfig, problem: Problem, sites: Mapping[Site, Facts], progress: Progress) -> dict[str, Any]:
    """Say what a private run promises and the noise that it takes; return the record of it, empty without.

    Raises
    ------
    ConfigError
        When the problem cannot be private, or no noise is enough.
    """
    if not config.private:
        return {}
    from edelweiss.config.privacy import promise, record, require_private

    require_private(problem)
    if config.secure_aggregation:
        progress.say(
            f"differential privacy: epsilon = {config.dp_epsilon:g}, delta = {config.dp_delta:g} for each patient"
        )
        return {"privacy": promise(config, problem)}
    found = record(config, {site.name: facts for site, facts in sites.items()}, problem)
    noise = [one["noise"] for one in found["sites"].values()]
    tight = max(one["tight-epsilon"] for one in found["sites"].values())
    progress.say(
        f"differential privacy: epsilon = {config.dp_epsilon:g}, delta = {config.dp_delta:g} for each patient, by "
        f"noise of {min(noise):.3g} to {max(noise):.3g} times the clip of {found['clip']:.3g}; by itself the run "
        f"costs {tight:.3g}"
        + ". Simulated sites protect nobody: their secrets follow from the seed"
        * (config.dataset != SITE)
    )
    return {"privacy": found}


def robustness_of(config: RunConfig, d: int, progress: Progress) -> Robustness:
    """Return how replies are averaged: by default plainly where all replies of a round would take much memory."""
    how, held = config.robustness, 4 * d * config.strategy.clients_per_round(config.sites)
    if config.aggregation == "auto" and how.aggregation != "mean" and held > HELD:
        progress.say(
            f'aggregation = "auto" is "mean" here: a round\'s replies take {volume(held)}, and "clipped" keeps them all'
        )
        return replace(how, aggregation="mean")
    return how


def meet(
    config: RunConfig, grid: Grid, recorder: Recorder, state: RunState, seals: Seals | None
) -> tuple[Exchange, dict[Site, Facts], AllFacts | None]:
    """Wait for the sites and ask for their facts.

    Returns
    -------
    Exchange
        With the participating sites.
    dict of Site to Facts
        Their facts; with secure aggregation those of all sites, as if they were one.
    AllFacts or None
        The same with what only sums tell; None without secure aggregation.
    """
    progress = recorder.progress
    exchange = Exchange(
        grid,
        config.round_timeout,
        [Site(i, f"node {node}", node) for i, node in enumerate(wait_for_sites(config, grid, progress.say))],
        config.min_replies,
        config.on_bad_update,
        progress.warn,
        recorder.on_reply,
        f"Lower {config.strategy.step_sizes}",
        progress.say,
        seals,
        config.approval_timeout,
        (lambda *_: None) if isinstance(grid, LocalGrid) else SiteStatus(recorder.folder).noted,
    )
    facts, shares = ask(config, exchange, state.key)
    sites = assign_places(config, in_accord(config, facts, progress))
    if config.secure_aggregation:
        require_alike({site.name: one for site, one in sites.items()})
        exchange, every = ask_all(config, exchange, sites, shares, state.key)
        if not shares:
            progress.say("secure aggregation without masks: simulated sites are summed as masked ones are")
        return exchange, {every.site: every.facts}, every
    sites = warn_of_shared_patients(sites, progress)
    return replace(exchange, sites=list(sites)), sites, None


def agree_on_data(
    config: RunConfig,
    init_model: InitModel | None,
    sites: dict[Site, Facts],
    state: RunState,
    progress: Progress,
    every: AllFacts | None,
) -> DataSummary:
    """Return the summary of all sites' data, or that of the resumed run.

    Raises
    ------
    RunError
        If the data are unusable, or the sites have changed since the run began.
    """
    if state.last:
        state.require_same(sites)
        return state.data_summary
    data_summary = pooled(config, sites, progress)
    if every and PROBLEMS[config.problem].needs_data:
        data_summary = replace(data_summary, prior=every.prior, priors=every.priors)
    return init_model.standardising(data_summary) if init_model else data_summary


def leave_report(config: RunConfig, recorder: Recorder, write_report: Callable[[Path], object] | None) -> None:
    """Write the report if the run asks for one; failure is only a warning."""
    if not (write_report and config.report and recorder.records):
        return
    try:
        write_report(recorder.folder)
    except (OSError, RunError) as error:
        why = reason(error) if isinstance(error, OSError) else error
        recorder.progress.warn(
            f"{recorder.folder}: the report cannot be written ({why}); the run's other results are complete"
        )


def starting_point(problem: Problem, init_model: InitModel | None, progress: Progress) -> Arrays:
    """Return the starting model (x, and y and buffers if there are any), drawn by the seed or from a file."""
    start = problem.initial()
    if init_model:
        assert isinstance(problem, NetworkProblem), "the run-config's checks reject others"
        start, description = init_model.start(problem)
        progress.say(description)
    if (buffers := problem.buffers()).numel():
        start["buffers"] = buffers
    return start


def where_models_are(grid: Grid, *, common: bool = False) -> str:
    """Say where the sites have saved their own models or the common one."""
    folder = str(grid.states.folder) if isinstance(grid, LocalGrid) else ""
    if not isinstance(grid, LocalGrid) or any(c.node_config["state-dir"] != folder for c in grid.contexts):
        what = "this model, with its card," if common else "its own model"
        return f"each site has saved {what} in the folder models of its state-dir"
    what = "the sites' copies of this model" if common else "the sites' own models"
    if grid.config.state_dir:
        return f"{what} are in {grid.states.folder / 'models'}"
    return f'{what} were discarded; state-dir="state" would have kept them'
