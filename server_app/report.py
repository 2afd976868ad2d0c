"""The run folder: what a run leaves behind, written as it goes so that an end at any point loses nothing before it."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client_app.site import FACTS
from problems import PROBLEMS
from problems.metrics import across, pool
from strategies import ALGORITHMS, RunError

if TYPE_CHECKING:
    from torch import Tensor

    from config import RunConfig
    from problems import Arrays, Metrics, Problem
    from server_app.console import Progress
    from strategies import Site

Record = dict[str, Any]
"""One line of metrics.jsonl."""

HEADLINE = ("loss", "auroc", "auprc", "accuracy", "worst-class", "robust-accuracy", "distance-x", "distance-y")


def plain(metrics: Metrics) -> dict[str, float]:
    """Drop the histograms, which only pooling needs."""
    return {name: value for name, value in metrics.items() if not isinstance(value, list)}


def without_nan(value: Any) -> Any:
    """Replace NaN and infinity by None: JSON has neither."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Report:
    """Collects what a run tells, line by line; an observer of `FederatedStrategy.start`.

    A line is complete when the sites have evaluated the round's model, which they do when they receive it: at the
    start of the next round. Then it is printed and written.

    Parameters
    ----------
    config : RunConfig
        Of the run.
    progress : Progress
        Where lines are printed.

    Raises
    ------
    RunError
        When the folder cannot be made.
    """

    def __init__(self, config: RunConfig, progress: Progress) -> None:
        self.config, self.progress = config, progress
        try:
            self.folder = _new_folder(Path(config.runs_dir).expanduser(), config)
            (self.folder / "config.toml").write_text(config.to_toml(), encoding="utf-8")
        except OSError as error:
            raise RunError(f"runs-dir = {config.runs_dir!r}: no run folder can be made there ({error})") from None
        self.records: list[Record] = []
        self.problem: Problem | None = None
        self.personalised = ALGORITHMS[config.algorithm].personalised
        self.inputs: Record = {}
        """What the sites agreed on; ``shift`` and ``scale`` standardise inputs."""
        self.model: Arrays = {}
        """What is written at the end; of a personalised algorithm only what new sites start from."""
        self._open = False

    # ------------------------------------------------------------------ as a run goes

    def trained(self, server_round: int, cost: dict[str, float], work: dict[str, float]) -> None:
        """Open the line of a round; the one before it is as complete as it will get."""
        self.flush()
        self.records.append({"round": server_round, **cost, "site-gradients": work})
        self._open = True

    def central(self, model: Arrays, metrics: Metrics, seconds: float) -> None:
        """Note the model and how it does on the common test set (empty without one)."""
        self.model = {} if self.personalised else model
        record = self.records[-1]
        if metrics:
            record |= {"central": plain(metrics), "seconds-evaluating": seconds}
            record |= {name: metrics[name] for name in HEADLINE if name in metrics}
        every = self.config.checkpoint_every
        if every and record["round"] % every == 0:
            self.save_model()
        self.heard(0, self.config.sites)

    def heard(self, answered: int, sites: int) -> None:
        """Show how many sites have answered, in the last evaluation: in all others lines of rounds come and go."""
        if self.records and self.records[-1]["round"] == self.config.rounds:
            self.progress.evaluating(answered, sites)

    def evaluated(self, server_round: int, sites: list[tuple[Site, Metrics]]) -> None:
        """Complete the line of a round with the sites' evaluations, pooled and one by one.

        Where each site has a model of its own, the headline is the mean over the sites; else that of all samples.
        """
        if not self.records or self.records[-1]["round"] != server_round:
            return
        record, pooled = self.records[-1], pool([metrics for _, metrics in sites])
        record["pooled"] = pooled
        record["sites"] = {site.name: plain(metrics) for site, metrics in sites}
        record["over-sites"] = over_sites = across(list(record["sites"].values()), HEADLINE)
        if self.personalised:
            record |= {name: summary["mean"] for name, summary in over_sites.items()}
        else:
            for name in HEADLINE:
                if name in pooled:
                    record.setdefault(name, pooled[name])
        self.flush()

    def flush(self) -> None:
        """Write and print the line that is still open."""
        if not self._open:
            return
        record = self.records[-1]
        line = json.dumps(without_nan(record)) + "\n"
        self._open = False
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)
        self.progress.round(record, self.config.rounds)  # last: whoever presses Ctrl-C at this line has it in the file

    # ------------------------------------------------------------------ at its end

    def save_model(self) -> None:
        """Write the model: a torch state dict, with what else it takes to use it as metadata.

        That is one entry, ``edelweiss``, of JSON: what the sites agreed on, such as ``shift`` and ``scale`` of the
        inputs where they are standardised, and the problem's own scalars. The file keeps no order between entries; with
        one, equal runs give equal bytes. Where each site has a model of its own, there is a file at the end of a run
        only, and only if sites share a body: it has that, a fresh head, and the entry ``"head": "fresh"``.
        """
        if self.problem is None or not self.model:
            return
        from safetensors.torch import save_file

        state, scalars = state_dict(self.problem, self.model)
        draft = self.folder / "model.safetensors.draft"
        facts: Record = scalars
        if PROBLEMS[self.config.problem].needs_data:
            facts |= {name: self.inputs[name] for name in (*FACTS, "columns") if self.inputs.get(name)}
        if self.personalised:
            facts["head"] = "fresh"
        save_file(state, draft, metadata={"edelweiss": json.dumps(facts)})
        draft.replace(self.folder / "model.safetensors")

    def close(self) -> None:
        """Write what is there: the last line, the model, the curves."""
        self.flush()
        self.save_model()
        if self.records:
            draw(self.records, self.folder / "curves.png", personalised=self.personalised)


def state_dict(problem: Problem, model: Arrays) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return a model as a torch state dict, and the problem's scalars (a, b, alpha) beside it.

    A problem without a network has its vectors themselves for a state dict.
    """
    from problems.network import NetworkProblem

    if not isinstance(problem, NetworkProblem):
        return {name: vector.clone() for name, vector in model.items()}, {}
    x = model["x"].to(problem.device)
    buffers = model["buffers"].to(problem.device) if "buffers" in model else None
    state = {name: tensor.cpu() for name, tensor in problem.network.state_dict(x, buffers).items()}
    own = model["x"][problem.network.size :].tolist()
    scalars = dict(zip(("a", "b"), own, strict=True)) if own else {}
    if "y" not in model:
        return state, scalars
    return state, scalars | ({"alpha": model["y"].item()} if own else {"y": model["y"].tolist()})


def draw(records: list[Record], path: Path, *, personalised: bool) -> None:
    """Draw the curves of a run: a panel per metric, a thin line per site.

    Where each site has a model of its own, also the standard deviation over the sites and the worst decile.
    """
    from matplotlib.figure import Figure

    names = [name for name in HEADLINE if any(record.get(name) is not None for record in records)]
    if not names:
        return
    figure = Figure(figsize=(4.2 * len(names), 3.4), layout="constrained")
    rounds = [record["round"] for record in records]
    sites = sorted({site for record in records for site in record.get("sites", {})})
    over_sites: list[Record] = [record.get("over-sites", {}) for record in records]
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for site in sites:
            values = [record.get("sites", {}).get(site, {}).get(name, math.nan) for record in records]
            axes.plot(rounds, values, color="tab:blue", alpha=0.25, linewidth=0.8)
        means = [record.get(name, math.nan) for record in records]
        if personalised:
            summaries = [summary.get(name, {}) for summary in over_sites]
            spread, worst = ([s.get(key, math.nan) for s in summaries] for key in ("std", "worst-decile"))
            ends = [[m + sign * s for m, s in zip(means, spread, strict=True)] for sign in (-1, 1)]
            axes.fill_between(rounds, *ends, color="tab:red", alpha=0.15, linewidth=0)
            axes.plot(rounds, worst, color="tab:red", linewidth=1, linestyle="--")
        axes.plot(rounds, means, color="tab:red", linewidth=2)
        axes.set(xlabel="round", title=name)
        if name.startswith("distance"):
            axes.set_yscale("log")
        axes.grid(alpha=0.3)
    shared, own = "red: all sites together", "red: mean over sites, ± one standard deviation, dashed: worst decile"
    figure.suptitle(f"{own if personalised else shared}; blue: each site", fontsize=9)
    figure.savefig(path, dpi=110)


def _new_folder(root: Path, config: RunConfig) -> Path:
    """Make a folder that no other run has."""
    what = config.dataset if PROBLEMS[config.problem].needs_data else config.problem
    name = config.run_name or f"{datetime.now():%Y%m%d-%H%M%S}-{config.algorithm}-{what}"
    name = re.sub(r"[^\w.+-]+", "-", name)
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        folder = root / (name + suffix)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder.resolve()
    raise FileExistsError(f"{root / name} and 998 folders with a number after it exist: remove some")
