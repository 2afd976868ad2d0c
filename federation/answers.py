"""What a coordinator may be answered: every answer is held against it, whole, before any of it is used.

An answer that fails costs its site its part in the exchange, as a refusal does, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord

from evidence import Told
from evidence.told import wrong_counts
from federation.errors import BadAnswerError, BadValuesError
from federation.schema import misfits, sound
from federation.wire import LARGEST, beyond, magnitude, not_finite, unpack
from keys import Number, in_a_line, mistakes, shown
from keys.schema import NAMED
from problems.metrics import METRICS, contradictions, schema_like, undefined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flwr.app import Array, Message, RecordDict

    from federation.rehearsal import Rehearsal
    from federation.sites import Site
    from federation.stages import Turn
    from problems import Arrays, Metrics

Check = Callable[["Site", "Message", "Message"], None]
"""Given a site, what it was sent and its answer, raises BadAnswerError, or BadValuesError."""

MUCH = 1e6  # times as large as the model: no update, but a mistake or a run that diverges
COST = {
    "gradients": Number(0, 1e15, whole=True),
    "samples": Number(0, 1e15, whole=True),
    "seconds": Number(0, 1e9),
}


def require_records(content: RecordDict, **kinds: str) -> None:
    """Check that these records are there, each of its kind ("array_records", ...), and no other.

    Raises
    ------
    BadAnswerError
        Naming those that are missing or too many.
    """
    wrong = [f"{shown(name)} is no record that it may have" for name in content if name not in kinds]
    wrong += [f"record {name!r} is missing" for name, kind in kinds.items() if name not in getattr(content, kind)]
    if wrong:
        raise BadAnswerError(in_a_line(wrong))


@dataclass
class Answers:
    """What the sites of one run may answer.

    Parameters
    ----------
    rehearsal : Rehearsal
        Knows the vectors.
    example : Metrics, optional
        An evaluation as the problem makes it, of whatever samples; without, any metric that has a row may come.
    loss_bound : float
        See `federation.Rounds`.
    evidence : bool
        Whether the last evaluation comes with what `evidence.Told` says.
    """

    rehearsal: Rehearsal
    example: Metrics | None = None
    loss_bound: float = math.inf
    evidence: bool = False
    _counted: dict[Site, dict[str, Any]] = field(default_factory=dict, init=False)  # what evaluations were over

    def to_training(self, turn: Turn, model: Arrays, *, evaluate: bool) -> Check:
        """Return the check of the answers in a phase, from a server with this model."""
        largest = min(LARGEST, MUCH * max(1.0, *(magnitude(v) for v in model.values() if v.numel())))

        def check(site: Site, question: Message, answer: Message) -> None:
            content = answer.content
            kinds = {"arrays": "array_records", "metrics": "metric_records", "cost": "metric_records"}
            require_records(content, **kinds)
            record = content.array_records["arrays"]
            sent = unpack(question.content.array_records["arrays"])
            if record and all(map(_says_nan, record.values())):
                raise BadValuesError(f"says that it diverged, in {', '.join(map(shown, list(record)[:NAMED]))}")
            wrong = mistakes(content.metric_records["cost"], COST)
            if text := misfits(record, self.rehearsal.answered(turn, sent)):
                wrong.append(text)
            if wrong:
                raise BadAnswerError(in_a_line(wrong))
            arrays = unpack(record)
            if bad := beyond(arrays, largest):
                what = "NaN or infinity" if not_finite(arrays) else f"entries beyond {largest:.3g}"
                raise BadValuesError(f"sent {what} in {', '.join(map(repr, not_finite(arrays) or bad))}")
            if text := self.rehearsal.algorithm.unfit(arrays, turn, self.rehearsal.d):
                raise BadAnswerError(text)
            self._evaluated(site, dict(content.metric_records["metrics"]), asked=evaluate)

        return check

    def to_the_end(self, site: Site, question: Message, answer: Message) -> None:
        """Check an answer to the last evaluation."""
        content = answer.content
        told = {"evidence": "config_records"} if self.evidence else {}
        require_records(content, metrics="metric_records", **told)
        metrics = dict(content.metric_records["metrics"])
        self._evaluated(site, metrics, asked=True)
        if told and (record := dict(content.config_records["evidence"])):
            if not metrics:
                raise BadAnswerError("sent evidence, and no evaluation")
            if wrong := Told.wrong(record, *self._size(site)):
                raise BadAnswerError(in_a_line(wrong))

    def on_a_grid(self, site: Site, question: Message, answer: Message) -> None:
        """Check the counts of a site that has answered to the last evaluation before."""
        require_records(answer.content, evidence="config_records")
        bins = len(question.content.config_records["config"]["cuts"])  # type: ignore[arg-type]
        if wrong := wrong_counts(dict(answer.content.config_records["evidence"]), bins, *self._size(site)):
            raise BadAnswerError(in_a_line(wrong))

    def _size(self, site: Site) -> tuple[int, int]:
        """Return how many samples a site has evaluated on, and how many of them are positive."""
        return self._counted[site]["n"], self._counted[site]["positives"]

    def _evaluated(self, site: Site, metrics: Mapping[str, Any], *, asked: bool) -> None:
        """Check an evaluation; a site that has too few samples, or was not asked, sends an empty one."""
        if not metrics:
            return
        if not asked:
            raise BadAnswerError("sent an evaluation that nobody asked for")
        diverging = {
            name: value
            for name, value in metrics.items()
            if name in METRICS and METRICS[name].diverges and isinstance(value, float)
        }
        example = self.example or {name: value for name, value in metrics.items() if name in METRICS}
        wrong = mistakes({**metrics, **dict.fromkeys(diverging, 0.0)}, schema_like(example))
        wrong = wrong or contradictions(metrics)
        counts = {name: metrics[name] for name in ("n", "positives", "class-counts") if name in metrics}
        if not wrong and site.held_out is not None and counts.get("n", 0) > site.held_out:
            wrong.append(f"n = {counts['n']}: it has {site.held_out} samples to evaluate on")
        before = self._counted.get(site, counts)
        changed = [name for name, count in counts.items() if count != before.get(name)]
        wrong = wrong or [f"{name} = {shown(counts[name])}: it was {shown(before.get(name))}" for name in changed]
        if wrong:
            raise BadAnswerError(in_a_line(wrong))
        for name, value in diverging.items():
            if not abs(value) <= self.loss_bound:
                bound = f"loss-bound = {self.loss_bound:g}"
                raise BadValuesError(f"says that the {name} of the model is {value:g} ({bound})")
        if names := undefined(metrics):
            raise BadValuesError(f"says that the {names[0]} of the model is nan")
        self._counted[site] = counts


def _says_nan(array: Array) -> bool:
    """Whether an array is one NaN: what of a model stays at the site holds NaN, and nothing but that is told."""
    return sound(array) and array.shape == (1,) and bool(unpack(ArrayRecord({"": array}))[""].isnan())
