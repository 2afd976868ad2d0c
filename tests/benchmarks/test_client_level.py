"""Client-level differential privacy beside a site's own: what is compared."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from benchmarks.peers.client_level import SITES, auroc, main, site_rows


def test_auroc_counts_ties_half() -> None:
    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 9, 500).astype(float), rng.random(500) < 0.2
    assert auroc(scores, positive) == pytest.approx(roc_auc_score(positive, scores))
    assert auroc(np.where(positive, np.nan, scores), positive) == 0.5


def test_no_image_is_at_two_sites() -> None:
    rows = np.concatenate([site_rows(site, 7500) for site in range(SITES)])
    assert len(np.unique(rows)) == 60_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds", "1"], "seeds 1"),
        (["--patients", "10"], "patients 10"),
        ([], "EDELWEISS_DATA is not set"),
    ],
)
def test_bad_arguments_are_named(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EDELWEISS_DATA", raising=False)
    with pytest.raises(SystemExit):
        main(arguments)
    assert said in capsys.readouterr().err
