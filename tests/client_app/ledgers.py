"""A ledger for tests, and a process that charges it, and may be killed while it does."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.policy.rules import Budget
from edelweiss.client_app.privacy.ledger import Ledger
from edelweiss.federation.privacy_account import Query, spent

SECRET = b"s" * 32
COST = spent({Query(0.1): 10}, 1.0)


def ledger(folder: Path, epsilon: float = 20.0, secret: bytes = SECRET, witness: str = "") -> Ledger:
    """Return the ledger in a folder."""
    budget = Budget.model_validate({"epsilon": epsilon, "delta": 1e-5, "witness": witness})
    return Ledger(folder / "state" / "policy", secret, budget, "data")


class Killed(Ledger):
    """A ledger whose process is killed once so many lines are written, before they are sealed."""

    at = -1

    def _write_seal(self, known: Any) -> None:
        if known.lines == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        super()._write_seal(known)


def main(folder: str, first: str, kill_at: str) -> None:
    """Charge for 40 answers, or until the budget is spent, and print which."""
    book = ledger(Path(folder))
    book.__class__ = Killed
    Killed.at = int(kill_at)
    for i in range(int(first), int(first) + 40):
        try:
            book.charge([str(i).encode()], COST, run=first)
        except RefusedError:
            break
        print(i, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
