"""Run folders of runs that never were, with the numbers that a test wants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edelweiss.config import RunConfig

COST = {"bytes-down": 3e6, "bytes-up": 1e6, "gradients": 8.0, "samples": 160.0, "seconds": 0.5}


def leave(
    folder: Path,
    values: Sequence[float],
    held_out: Sequence[float] | None = None,
    reason: str = "",
    n: int = 100,
    **keys: Any,
) -> Path:
    """Leave a run folder: AUROC on the test set, and on the held-out samples, by round; a reason ends it early."""
    folder.mkdir(parents=True)
    config = {"rounds": len(values), "sites": 2} | {key.replace("_", "-"): value for key, value in keys.items()}
    (folder / "config.toml").write_text(RunConfig.parse(config).to_toml())
    lines = [
        {
            "round": r,
            **COST,
            "central": {"auroc": value, "loss": 1 - value, "n": n, "positives": 10},
            "pooled": {"auroc": inside, "n": 50.0, "positives": 5.0},
        }
        for r, (value, inside) in enumerate(zip(values, held_out or values, strict=True), start=1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    status = {"status": "stopped", "reason": reason} if reason else {"status": "complete"}
    (folder / "status.json").write_text(json.dumps(status | {"since": "", "run": "0" * 32, "app": "1"}))
    return folder
