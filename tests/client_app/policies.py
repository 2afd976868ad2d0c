"""Hospitals with rules of their own, for tests: a site's folder, its policy, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edelweiss.common import Value, from_record
from edelweiss.common.overrides import toml_value
from edelweiss.datasets import Facts
from tests.server_app.sites import FEATURES, SiteGrid, question, site_job, write_table


def site_toml(folder: Path, **keys: Any) -> str:
    """Write a policy and return the file; a dict is a table, ``privacy`` that of the budget."""
    folder.mkdir(parents=True, exist_ok=True)
    privacy = keys.pop("privacy", {})
    tables = {key: keys.pop(key) for key in list(keys) if isinstance(keys[key], dict)}
    lines = ["superlink = 'a:1' # of another reader", "[policy]"]
    lines += [f"{key.replace('_', '-')} = {toml_value(value)}" for key, value in keys.items()]
    for key, table in tables.items():
        lines += [f"[policy.{key}]", *(f'"{name}" = {toml_value(value)}' for name, value in table.items())]
    if privacy:
        lines += ["[privacy]", *(f"{name} = {toml_value(value)}" for name, value in privacy.items())]
    path = folder / "site.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


WAITS = "waits for its operator"
"""What `told` returns of a site whose operator has to decide."""


class Hospital:
    """One site whose folder, state and policy last from run to run; each run is a new one."""

    def __init__(self, folder: Path, features: np.ndarray, labels: Sequence[object], **policy: Any) -> None:
        self.folder, self.state, self.share = folder, folder / "state", policy.get("holdout_share", 0.2)
        self.data = write_table(folder / "data", features, labels)
        self.node: dict[str, Value] = {
            "site": "north",
            "data-dir": str(self.data),
            "state-dir": str(self.state),
            "policy": site_toml(folder, **policy),
            "label": "label" if policy.get("strict") or policy.get("privacy") else "",
        }

    def run(self, **keys: Value) -> SiteGrid:
        """Begin a run, which asks for the hospital's own holdout-share unless said otherwise."""
        return SiteGrid(site_job(self.folder, **{"sites": 1, "holdout_share": self.share, **keys}), [self.node])

    def described(self, **keys: Value) -> Facts | str:
        """Return the facts that a new run is told, or why it is told none."""
        with self.run(**keys) as grid:
            return told(grid)


def told(grid: SiteGrid) -> Facts | str:
    """Ask a site to describe itself: its facts, its refusal, or `WAITS`."""
    records: Mapping[str, Any] = grid.ask("query", 0).content.config_records
    return WAITS if "waiting" in records else error_in(records) or from_record(Facts, dict(records["facts"]))


def error_in(records: Mapping[str, Any]) -> str:
    """Return why a site refused; empty where it did not."""
    return str(records["error"]["message"]) if "error" in records else ""


def train(grid: SiteGrid, kind: str = "train", model: torch.Tensor | None = None, **facts: Value) -> str:
    """Send a message of round 1; return the refusal, if it is one."""
    x = torch.linspace(-1, 1, FEATURES + 3) if model is None else model
    told = {} if kind == "evaluate" else {"evaluate": True}
    content = question(grid.config, kind, {"x": x, "y": torch.zeros(1)}, **told, **facts)
    answer = grid.ask(kind, 0, content)
    assert not answer.has_error(), answer.error.reason
    if "waiting" in answer.content.config_records:
        return WAITS
    if refusal := error_in(answer.content.config_records):
        return refusal
    return "" if answer.content.config_records["metrics"] else "no evaluation"


def reading(feature: int, times: float, less: float) -> torch.Tensor:
    """A linear model whose score is a feature, so many times, and less a number; then a and b."""
    x = torch.zeros(FEATURES + 3)
    x[feature], x[FEATURES] = times, -less
    return x
