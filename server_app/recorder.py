"""Writes a run's results into its folder as it goes, so that an interruption loses nothing."""

from __future__ import annotations

import json
import math
import os
import zlib
from typing import TYPE_CHECKING, Any

from edelweiss.common.files import json_in, read_file, reason
from edelweiss.evidence.noised import estimates
from edelweiss.federation import RunError
from edelweiss.federation.observer import Observer
from edelweiss.models.storage import atomic_writer
from edelweiss.problems.metrics import HEADLINE, TIES, ties
from edelweiss.problems.pooling import across_sites, all_ties, pool
from edelweiss.server_app import about
from edelweiss.server_app.evidence import write as write_evidence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from edelweiss import evidence
    from edelweiss.config import RunConfig
    from edelweiss.evidence.noised import Noised
    from edelweiss.federation import Site
    from edelweiss.problems import Arrays, Metrics
    from edelweiss.server_app.console import Progress
    from edelweiss.server_app.model_file import ModelFile
    from edelweiss.server_app.trackers import Tracking

Record = dict[str, Any]
"""One line of metrics.jsonl."""


def plain(metrics: Metrics) -> dict[str, float]:
    """Replace the histograms, which only pooling needs, by the largest errors of AUROC and AP, which they imply."""
    return {name: value for name, value in metrics.items() if not isinstance(value, (list, bytes))} | all_ties(metrics)


def to_json(record: Record) -> str:
    """Return a line of JSON, which has no NaN and no infinity: null stands for them."""
    try:
        return json.dumps(record, allow_nan=False)
    except ValueError:
        return json.dumps(without_nan(record))


def without_nan(value: Any) -> Any:
    """Replace NaN and infinity by None."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def with_nan(value: Any) -> Any:
    """Undo `without_nan`, which took NaN alone: a run whose numbers are infinite has stopped."""
    if isinstance(value, dict):
        return {key: with_nan(item) for key, item in value.items()}
    return math.nan if value is None else value


class Recorder(Observer):
    """Records a run in metrics.jsonl, a line per round.

    Sites evaluate a round's model when they receive it, at the start of the next round; then the line is complete,
    printed and written.

    Parameters
    ----------
    config : RunConfig
        The run-config.
    progress : Progress
        Where lines are printed.
    folder : Path
        The run folder.
    tracking : Tracking
        Logs each line.
    """

    def __init__(self, config: RunConfig, progress: Progress, folder: Path, tracking: Tracking) -> None:
        self.config, self.progress, self.folder, self.tracking = config, progress, folder, tracking
        self.lines = folder / "metrics.jsonl"
        self.records: list[Record] = []
        self.checksum = 0  # CRC-32 of the lines that are written
        self.personalised = config.personalised
        self.scores: dict[str, Mapping[str, evidence.Site]] = {}
        self.evidence: dict[str, Any] | None = None
        self._model: ModelFile | None = None
        self._open = False

    def keep(self, model: ModelFile) -> None:
        """Set the model's file, to be written from now on."""
        self._model = model

    def take_up(self, record: Record | None, done: int, checksum: int) -> None:
        """Resume after a round whose line is still open; lines of it and later rounds are removed.

        Raises
        ------
        RunError
            If the earlier lines do not have this checksum.
        """
        try:
            written = read_file(self.lines).splitlines(keepends=True) if os.path.lexists(self.lines) else []
        except OSError as error:
            text = f"resume: {self.lines} cannot be read ({reason(error)}); start the run anew"
            raise RunError(text, key="resume", value=self.lines) from None
        before = written[: max(0, done - 1)]
        self.checksum = zlib.crc32(b"".join(before))
        if self.checksum != checksum:
            text = "was altered: restore it from a backup, or start a new run"
            raise RunError(f"resume: {self.lines} {text}", key="resume", value=self.lines)
        if written:
            with atomic_writer(self.lines) as file:
                file.writelines(before)
        self.records = [with_nan(json_in(line)) for line in before]
        if record is not None:
            self.records.append(record)
            self._open = True

    # ------------------------------------------------------------------ as a run goes

    def trained(self, server_round: int, cost: dict[str, float], work: dict[str, float]) -> None:
        """Open the line of a round, and write the previous one."""
        self.flush()
        self.records.append({"round": server_round, **cost, "site-gradients": work})
        self._open = True

    def central(self, model: Arrays, metrics: dict[str, float], seconds: float) -> None:
        """Note the model and its numbers on the common test set (empty without one)."""
        assert self._model is not None, "a run has a model before it has rounds"
        self._model.note(model)
        record = self.records[-1]
        if metrics:
            record |= {"central": metrics, "seconds-evaluating": seconds}
            record |= {name: metrics[name] for name in HEADLINE if name in metrics}
        self.on_reply(0, self.config.sites)

    def on_reply(self, answered: int, sites: int) -> None:
        """Show the progress of the final evaluation; other exchanges end with the line of a round."""
        if self.records and self.records[-1]["round"] == self.config.rounds:
            self.progress.evaluating(answered, sites)

    def evaluated(self, server_round: int, sites: list[tuple[Site, Metrics]]) -> None:
        """Complete the line of a round with the sites' evaluations, pooled and by site.

        The headline is over all samples; with personal models it is the mean over the sites.
        """
        if not self.records or self.records[-1]["round"] != server_round:
            return
        record, pooled = self.records[-1], pool([metrics for _, metrics in sites])
        record["pooled"] = pooled
        record["sites"] = {site.name: plain(metrics) for site, metrics in sites}
        record["over-sites"] = over_sites = across_sites(list(record["sites"].values()))
        if self.personalised:
            record |= {name: over_sites[name]["mean"] for name in (*HEADLINE, *TIES.values()) if name in over_sites}
        else:
            for name in HEADLINE:
                if name in pooled and name not in record:
                    record[name] = pooled[name]
                    if off := ties(pooled, name):
                        record[TIES[name]] = off
        self.flush()

    def noised(self, labels: Mapping[str, Sequence[Noised]]) -> None:
        """Note what noised histograms of the held-out patients say of the final model."""
        if self.records:
            self.records[-1]["noised"] = {
                f"{name}.{label}" if label else name: value
                for label, sites in labels.items()
                for name, value in estimates(sites, common=not self.personalised).items()
            }

    def outlying(self, sites: Mapping[str, float]) -> None:
        """Note whose replies were far longer than usual in the open round."""
        self.records[-1]["outliers"] = dict(sites)

    def flush(self) -> None:
        """Write and print the open line."""
        if not self._open:
            return
        record = self.records[-1]
        line = to_json(record) + "\n"
        self._open = False
        try:
            with self.lines.open("a", encoding="utf-8") as file:
                file.write(line)
            self.checksum = zlib.crc32(line.encode(), self.checksum)
        except OSError as error:
            raise self._unwritten(self.lines, error) from None
        self.tracking.log(record)
        self.progress.round(record, self.config.rounds)  # last: a line that is on the screen is in the file

    def about(self, content: Mapping[str, Any]) -> None:
        """Write about.json."""
        try:
            about.write(content, self.folder)
        except OSError as error:
            raise self._unwritten(self.folder / about.FILE, error) from None

    def reported(self, labels: Mapping[str, Mapping[str, evidence.Site]]) -> None:
        """Keep the sites' statistics of scores, for evidence.json."""
        self.scores = dict(labels)

    def _unwritten(self, path: Path, error: OSError) -> RunError:
        """Return the error for an unwritable file, with a fix."""
        if not self.folder.exists():
            text = f"{self.folder} was removed during the run: start it again"
            return RunError(text, key="run-name", value=self.folder)
        how_on = f"then continue with --run-config 'resume=\"{self.folder}\"'"
        return RunError(f"{path} cannot be written ({reason(error)}); {how_on}", key="resume", value=path)

    # ------------------------------------------------------------------ at its end

    def write(self) -> None:
        """Write the last model, and flush the lines to disk."""
        if self._model is not None:
            self._model.write()
        if self.lines.exists():
            with self.lines.open("rb") as file:
                os.fsync(file.fileno())

    def close(self) -> None:
        """Write the last line and the model."""
        self.flush()
        try:
            self.write()
            if self.evidence is not None:
                write_evidence(self.evidence, self.folder)
        except OSError as error:
            raise self._unwritten(self.folder, error) from None
