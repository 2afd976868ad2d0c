"""What Ray's actors call in hashes.py: the tree's ClientApp, with the run-config of the job that is at hand."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict


class Client:
    """Stands for the tree's ClientApp; imports it in the actor, as Flower does."""

    def __init__(self, reference: str, current: str) -> None:
        self.reference, self.current = reference, current

    def __call__(self, message: Any, context: Any) -> Any:
        job = json.loads(Path(self.current).read_text())
        context = Context(job["run_id"], context.node_id, context.node_config, RecordDict(), job["run_config"])
        module, _, name = self.reference.partition(":")
        return getattr(importlib.import_module(module), name)(message, context)
