"""Checks of the sites' replies, before anything in them is used.

A rejected reply is treated like a refusal: its site is left out of the exchange.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from edelweiss.common import Schema, in_a_line, plain, record_errors, record_in, shown
from edelweiss.common.schema import NAMED, number, whole
from edelweiss.evidence import Reported
from edelweiss.evidence.noised import Noised
from edelweiss.evidence.paired import Spread, asked_for
from edelweiss.evidence.reported import record_names
from edelweiss.federation.encoding import unfit
from edelweiss.federation.errors import BadReplyError, BadValuesError
from edelweiss.federation.messages import Cost, EvaluateReply, TrainReply, Vectors
from edelweiss.federation.wire import LARGEST, magnitudes, not_finite
from edelweiss.problems.metrics import METRICS, by_label, split
from edelweiss.problems.metrics_record import Form, contradictions, undefined

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flwr.app import Message, RecordDict

    from edelweiss.federation.exchange import Read
    from edelweiss.federation.run_messages import RunMessages
    from edelweiss.federation.sites import Site
    from edelweiss.federation.stages import RoundContext
    from edelweiss.problems import Metrics

MUCH = 1e6  # an update that exceeds the model by this factor is a mistake or a sign of divergence
COST = Schema(
    {
        "gradients": whole(0, 10**15),
        "samples": whole(0, 10**15),
        "seconds": number(0, 1e9),
        "memory-from": whole(0, 10**15),
        "memory-kept": whole(0, 10**15),
    }
)


def require_records(content: Mapping[str, Any], **kinds: type) -> None:
    """Check that exactly these records exist, each of its kind (``ArrayRecord``, ...).

    Raises
    ------
    BadReplyError
        With the missing and unexpected ones.
    """
    wrong = [f"{shown(name)} is an unexpected record" for name in content if name not in kinds]
    wrong += [f"record {name!r} is missing" for name, kind in kinds.items() if not isinstance(content.get(name), kind)]
    if wrong:
        raise BadReplyError(in_a_line(wrong))


@dataclass
class ReplyChecker:
    """Checks the replies of one run."""

    messages: RunMessages  # the declared vectors
    # an evaluation by the problem on any samples, for its metrics; None accepts every known metric
    example: Metrics | None = None
    loss_bound: float = math.inf  # see `federation.Rounds`
    evidence: bool = False  # whether the final evaluation includes `evidence.Reported`
    noised: bool = False  # or, with differential privacy, `evidence.noised.Noised` in place of all
    _counted: dict[Site, dict[str, Any]] = field(default_factory=dict, init=False)  # samples of evaluations

    def to_training(self, context: RoundContext, largest: float, *, evaluate: bool) -> Read[TrainReply]:
        """Return the reader of a phase's replies; ``largest`` is the model's largest absolute value."""
        largest = min(LARGEST, MUCH * max(1.0, largest))

        def read(site: Site, question: Message, answer: Message) -> TrainReply:
            content = dict(answer.content.items())  # Flower's own mapping takes ten times as long at a look
            require_records(content, arrays=ArrayRecord, metrics=ConfigRecord, cost=MetricRecord)
            vectors, cost = Vectors(content["arrays"]), plain(content, "cost", MetricRecord)  # type: ignore[arg-type]
            wrong = record_errors(cost, COST)
            if text := vectors.misfit(self.messages.up(context)):
                if lost := not_finite(vectors.decoded):  # a diverged site sends one NaN; a mask has any length
                    raise BadValuesError(f"sent NaN or infinity in {', '.join(map(shown, lost[:NAMED]))}")
                wrong.append(text)
            if wrong:
                raise BadReplyError(in_a_line(wrong))
            arrays = vectors.decoded
            if bad := {name: most for name, most in magnitudes(arrays).items() if not most <= largest}:
                lost = [name for name, most in bad.items() if not most < math.inf]
                what = "NaN or infinity" if lost else f"entries beyond {largest:.3g}"
                raise BadValuesError(f"sent {what} in {', '.join(map(repr, lost or bad))}")
            text = unfit(vectors.encoded) if vectors.rounded else ""
            if text := text or self.messages.algorithm.unfit(arrays, context, self.messages.d):
                raise BadReplyError(text)
            metrics = plain(content, "metrics", ConfigRecord)
            self._evaluated(site, metrics, asked=evaluate)
            return TrainReply(arrays, metrics, Cost.of(cost))

        return read

    def to_the_end(self, site: Site, question: Message, answer: Message) -> EvaluateReply:
        """Read a reply to the final evaluation."""
        content = answer.content
        names = record_names(self.labels) if self.evidence or self.noised else {}
        require_records(content, metrics=ConfigRecord, **dict.fromkeys(names.values(), ConfigRecord))
        metrics = plain(content, "metrics", ConfigRecord)
        self._evaluated(site, metrics, asked=True)
        if self.noised:
            return EvaluateReply(metrics, noised={label: one for label, one in self._noised(content, names) if one})
        found = {}
        for label, name in names.items():
            if record := plain(content, name, ConfigRecord):
                if not metrics:
                    raise BadReplyError("sent evidence without an evaluation")
                n, positives, fewest = self._size(site, label)
                if wrong := Reported.wrong(record, n, positives, grouped=fewest > 1):
                    raise BadReplyError(in_a_line(wrong))
                found[label] = Reported.of(record)
        return EvaluateReply(metrics, found)

    @staticmethod
    def _noised(content: RecordDict, names: Mapping[str, str]) -> Iterator[tuple[str, Noised | None]]:
        """Yield the noised histograms by label; None from a site that has nobody to evaluate on."""
        for label, name in names.items():
            record = plain(content, name, ConfigRecord)
            if record and (wrong := Noised.wrong(record)):
                raise BadReplyError(in_a_line(wrong))
            yield label, Noised.read(record) if record else None

    def to_the_comparison(self, site: Site, question: Message, answer: Message) -> dict[str, Spread]:
        """Read a reply to the comparison of two models, by label."""
        names = record_names(self.labels)
        merged = record_in(question.content, "config", ConfigRecord)["merged"]
        asked = [label for label, one in zip(self.labels, asked_for(merged), strict=True) if one]  # type: ignore[arg-type]
        require_records(answer.content, **{names[label]: ConfigRecord for label in asked})
        found = {label: plain(answer.content, names[label], ConfigRecord) for label in asked}
        for label, record in found.items():
            if wrong := Spread.wrong(record, *self._size(site, label)[:2]):
                raise BadReplyError(in_a_line(wrong))
        return {label: Spread.of(record) for label, record in found.items()}

    @cached_property
    def _form(self) -> Form | None:
        """The form of an evaluation where the problem is known."""
        return Form(self.example) if self.example else None

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Names of the evaluated labels; an empty name for a single one."""
        return tuple(filter(None, by_label(self.example or {}))) or ("",)

    def _size(self, site: Site, label: str) -> tuple[int, int, int]:
        """Return (known, positives, fewest) of a site's evaluation for a label."""
        n, positives, fewest = (
            self._counted[site][f"{kind}.{label}" if label else kind] for kind in ("n", "positives", "fewest")
        )
        return n, positives, fewest

    def _evaluated(self, site: Site, metrics: Mapping[str, Any], *, asked: bool) -> None:
        """Check an evaluation; a site that has too few samples, or was not asked, sends an empty one."""
        if not metrics:
            return
        if not asked:
            raise BadReplyError("sent an evaluation that was not requested")
        form = self._form or Form({name: value for name, value in metrics.items() if split(name)[0] in METRICS})
        diverging = {name: value for name in form.diverging if isinstance(value := metrics.get(name), float)}
        wrong = record_errors({**metrics, **dict.fromkeys(diverging, 0.0)}, form.schema)
        wrong = wrong or contradictions(metrics)
        counts = {name: metrics[name] for name in form.counts if name in metrics}
        if not wrong and site.held_out is not None and counts.get("n", 0) > site.held_out:
            wrong.append(f"n = {counts['n']}: it has {site.held_out} samples to evaluate on")
        before = self._counted.get(site, counts)
        changed = [name for name, count in counts.items() if count != before.get(name)]
        wrong = wrong or [f"{name} = {shown(counts[name])}: it was {shown(before.get(name))}" for name in changed]
        if wrong:
            raise BadReplyError(in_a_line(wrong))
        for name, value in diverging.items():
            if not abs(value) <= self.loss_bound:
                bound = f"loss-bound = {self.loss_bound:g}"
                raise BadValuesError(f"says that the {name} of the model is {value:g} ({bound})")
        if names := undefined(metrics):
            raise BadValuesError(f"says that the {names[0]} of the model is nan")
        self._counted[site] = counts
