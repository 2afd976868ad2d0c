"""How long honest replies are beside the sites' median, and what one hostile site of eight does to a model.

    python -m benchmarks.robust honest           # the largest norm of a reply over the median, over many honest runs
    python -m benchmarks.robust attacks          # AUROC under four attacks, by aggregation

docs/robust-aggregation.md has the tables.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from edelweiss.common import ConfigError, Value
from edelweiss.config import RunConfig
from edelweiss.federation import RunError, pack, unpack
from edelweiss.problems import PROBLEMS
from edelweiss.server_app import simulate
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from edelweiss.server_app.local import LocalGrid, unused_run_id
from edelweiss.strategies import ALGORITHMS, can_solve

if TYPE_CHECKING:
    from flwr.app import Message

    from edelweiss.problems import Arrays

    Lie = Callable[[Any], None]
    Attack = Callable[[int, Arrays, Arrays], Arrays]

BASE: dict[str, Value] = {
    "rounds": 30,
    "stack": 0,
    "workers": 1,
    "device": "cpu",
    "report": False,
    "evidence": False,
    "evaluate-every": 0,
    "checkpoint-every": 0,
}
SETTINGS: dict[str, dict[str, Value]] = {
    "the built-in job": {},
    "label skew, Dirichlet 0.1": {"concentration": 0.1},
    "label skew, digits": {"dataset": "digits", "concentration": 0.1},
    "a class per site": {"dataset": "digits", "partition": "by-class", "sites": 4},
    "1 % positive": {"dataset": "digits", "thin-share": 0.01},
    "10 % positive, Dirichlet 0.1": {"dataset": "digits", "thin-share": 0.1, "concentration": 0.1},
    "four hospitals": {"dataset": "heart-disease", "partition": "sites", "sites": 4, "thin-share": 0.0, "hidden": 16},
    "two sites": {"sites": 2},
    "three sites, Dirichlet 0.1": {"sites": 3, "concentration": 0.1},
    "half of 16 sites a round": {"sites": 16, "fraction": 0.5, "concentration": 0.5},
    "a quarter of 16 sites a round": {"sites": 16, "fraction": 0.25, "concentration": 0.1},
    "20 sites, digits": {"sites": 20, "dataset": "digits", "concentration": 0.1},
    "one local step": {"local-steps": 1, "concentration": 0.1},
    "50 local steps": {"local-steps": 50, "concentration": 0.1, "rounds": 10},
    "stages": {"stage-iterations": 50, "concentration": 0.3},
}
FIRST = ("auc", "bce", "auprc")  # of the problems that an algorithm solves


def averaging() -> dict[str, str]:
    """Return each algorithm whose server averages, with a problem that it solves."""
    found = {}
    for name, algorithm in sorted(ALGORITHMS.items()):
        if algorithm.messages.averages:
            able = [problem for problem in (*FIRST, *PROBLEMS) if can_solve(algorithm, PROBLEMS[problem])]
            found[name] = able[0]
    return found


def largest(keys: Mapping[str, Value]) -> tuple[float, str, int]:
    """Return the largest ratio of a run to its median norm, at which site and in which round; 0 if it has none."""
    with tempfile.TemporaryDirectory() as folder:
        asked: dict[str, Any] = {**BASE, **keys, "aggregation": "mean", "outlier-multiple": 1.0, "runs-dir": folder}
        result = simulate(asked)
    ratios = [
        (ratio, name, record["round"])
        for record in result.metrics
        for name, ratio in record.get("outliers", {}).items()
    ]
    return max(ratios, default=(0.0, "", 0))


def honest(only: str, algorithms: str) -> None:
    """Print the largest ratio of each setting and algorithm, and then of each setting, as a table."""
    rows = []
    for label, keys in SETTINGS.items():
        if only and only not in label:
            continue
        found: dict[bool, list[tuple[float, str]]] = {True: [(0.0, "-")], False: [(0.0, "-")]}
        for algorithm, problem in averaging().items():
            if algorithms and algorithm not in algorithms.split(","):
                continue
            try:
                ratio, site, when = largest({"algorithm": algorithm, "problem": problem, **keys})
            except (ConfigError, RunError) as error:
                print(f"{label}, {algorithm}: {str(error).splitlines()[-1]}", flush=True)
                continue
            print(f"{label}, {algorithm}, {problem}: {ratio:.2f} at {site} in round {when}", flush=True)
            found[PROBLEMS[problem].kind == "conditional"].append((ratio, algorithm))
        cells = (f"{ratio:.3g} ({name})" for ratio, name in (max(found[False]), max(found[True])))
        rows.append(f"| {label} | {' | '.join(cells)} |")
    print("\n| setting | largest, by algorithm | conditional |\n|---|---|---|", *rows, sep="\n")


# ---------------------------------------------------------------------- one hostile site of eight

HOSTILE = 8  # its node
JOB: dict[str, Value] = {"rounds": 20, "min-replies": 7, "evaluate-every": 0}
CLAIMED = 2**31  # most samples that facts may have


class Hostile(LocalGrid):
    """The local engine, where one site answers what an attacker makes of its answers.

    Parameters
    ----------
    config : RunConfig
        The run.
    lie : callable
        Changes the record of the site's facts, in place.
    attack : callable
        Returns the vectors to answer with, given the round, the vectors that it was sent, and its own answer.
    """

    def __init__(self, config: RunConfig, lie: Lie, attack: Attack) -> None:
        super().__init__(config, unused_run_id())
        self.lie, self.attack = lie, attack
        self.sent: Arrays = {}
        self.round = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; note what the site is sent."""
        messages = list(messages)
        for message in messages:
            if message.metadata.dst_node_id == HOSTILE and message.metadata.message_type == "train":
                self.sent = unpack(message.content.array_records["arrays"])
                self.round = int(message.content.config_records["config"]["round"])  # type: ignore[arg-type]
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return answers, one of them changed."""
        answers = list(super().pull_messages(message_ids))
        for answer in answers:
            if answer.metadata.src_node_id != HOSTILE or not answer.has_content():
                continue
            if "facts" in answer.content:
                self.lie(answer.content.config_records["facts"])
            elif "arrays" in answer.content:
                own = unpack(answer.content.array_records["arrays"])
                answer.content["arrays"] = pack(own | self.attack(self.round, self.sent, own))
        return answers


def reversed_steps(times: float) -> Attack:
    """Return an attack that takes the site's own steps backwards, ``times`` as long."""
    return lambda server_round, sent, own: {
        name: sent[name] - times * (own[name] - sent[name]) for name in ("x", "y") if name in own and name in sent
    }


def other_head(server_round: int, sent: Arrays, own: Arrays) -> Arrays:
    """Replace the head of the network in the last round: all scores turn round."""
    if server_round < JOB["rounds"] or "x" not in own:  # type: ignore[operator]
        return {}
    x = own["x"].clone()
    x[-33:] *= -100
    return {"x": x}


def claims(record: Any) -> None:
    """Claim the most samples that facts may have."""
    record["examples"], record["positives"] = CLAIMED, CLAIMED // 2


def impossible(record: Any) -> None:
    """Claim more samples than facts may have."""
    record["examples"] = 2**52


def sums(record: Any) -> None:
    """Claim 2^40 values of a million each, of the features."""
    claims(record)
    features = len(record["count"])
    record["count"] = [float(CLAIMED)] * features
    record["total"], record["squares"] = [CLAIMED * 1e15] * features, [CLAIMED * 2e30] * features


def nothing(*_: Any) -> Any:
    """Change nothing."""
    return {}


ATTACKS: dict[str, tuple[Lie, Attack, dict[str, Value]]] = {
    "none": (nothing, nothing, {}),
    "head replaced in the last round": (nothing, other_head, {}),
    "steps backwards, 8 times as long": (nothing, reversed_steps(8.0), {}),
    "examples = 2^31, steps backwards": (claims, reversed_steps(1.0), {"weighting": "examples"}),
    "examples = 2^52": (impossible, nothing, {"weighting": "examples"}),
    "facts of 2^31 values of 1e15": (sums, nothing, {}),
}


def auroc(attack: str, **keys: Value) -> float:
    """Return the AUROC on the common test set after a run under an attack; NaN if the others diverge."""
    lie, attacks, more = ATTACKS[attack]
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig.parse({**BASE, **JOB, **more, "stack": 1, **keys, "runs-dir": folder})
        with Hostile(config, lie, attacks) as grid:
            try:
                result = coordinate(config, grid, Progress(quiet=True))
            except RunError:  # too few of the others' replies are finite
                return math.nan
    return float(result.metrics[-1]["central"]["auroc"])


AGGREGATIONS: dict[str, dict[str, Value]] = {
    "mean": {"aggregation": "mean"},
    "clipped, the default": {},
    "clipped at 5": {"aggregation": "clipped", "outlier-multiple": 5.0},
    "clipped at 3": {"aggregation": "clipped", "outlier-multiple": 3.0},
    "trimmed-mean": {"aggregation": "trimmed-mean"},
    "median": {"aggregation": "median"},
}


def attacked() -> None:
    """Print AUROC by attack and aggregation, as a table."""
    print(f"| attack | {' | '.join(AGGREGATIONS)} |\n|---{'|---' * len(AGGREGATIONS)}|")
    for attack in ATTACKS:
        values = []
        for own in AGGREGATIONS.values():
            weighting = {"weighting": "uniform"} if own.get("aggregation") in ("trimmed-mean", "median") else {}
            values.append(auroc(attack, **own, **weighting))
        cells = ("diverges" if math.isnan(value) else f"{value:.3f}" for value in values)
        print(f"| {attack} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("honest", "attacks"))
    parser.add_argument("--only", default="", help="settings with this in their name")
    parser.add_argument("--algorithms", default="", help="names, separated by commas; all by default")
    given = parser.parse_args()
    if given.what == "honest":
        honest(given.only, given.algorithms)
    else:
        attacked()


if __name__ == "__main__":
    main()
