"""Inverted rankings are reported, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edelweiss.evidence import multilabel_summary, summary
from edelweiss.evidence.inverted import inverted_rankings
from edelweiss.server_app import simulate
from tests.evidence.cases import Scored, as_sites, drawn
from tests.server_app.sites import job


def evaluate(sites: list[Scored], *, common: bool = True) -> dict[str, Any]:
    named = {f"site-{place}": site for place, site in enumerate(as_sites(sites))}
    return summary(named, common=common, log_odds=False)


def ranked(gaps: list[float], n: int = 200) -> list[Scored]:
    """Draw sites where positives score higher by ``gaps`` on average."""
    rng = np.random.default_rng(1)
    labels = (np.arange(n) % 4 == 0).astype(float)
    return [(rng.normal(size=n) + gap * labels, labels) for gap in gaps]


@pytest.mark.parametrize(
    ("gaps", "where", "sites"),
    [
        ([1.0, 1.0, 1.0], [], []),
        ([0.0, 0.0, 0.0], [], []),
        ([-1.0, -1.0, -1.0], ["all sites pooled", "within sites"], ["site-0", "site-1", "site-2"]),
        ([2.0, 2.0, -1.5], [], ["site-2"]),
    ],
    ids=str,
)
def test_an_interval_below_one_half_is_reported(gaps: list[float], where: list[str], sites: list[str]) -> None:
    evidence = evaluate(ranked(gaps))
    found = inverted_rankings(evidence)
    assert len(found) == bool(where or sites)
    text = "".join(found)
    every = ["all sites pooled", "within sites", "site-0", "site-1", "site-2"]
    assert [one for one in every if one in text] == where + sites
    assert ("the steps are too long" in text) == bool(where)
    assert ("label is coded the other way round" in text) == bool(found)
    assert [note for note in evidence["notes"] if "wrong way round" in note] == found, "also in the report"


def test_the_label_is_named() -> None:
    evidence = multilabel_summary({"Edema": evaluate(ranked([-1.0, -1.0])), "Mass": evaluate(ranked([1.0, 1.0]))})
    [text] = inverted_rankings(evidence)
    assert text.startswith("Edema: The model ranks patients the wrong way round")


def test_personal_models_and_single_classes() -> None:
    own = evaluate(ranked([-1.0, 1.0]), common=False)
    assert "site-0" in inverted_rankings(own)[0]
    [(scores, _)] = drawn(0, sites=1)
    assert inverted_rankings(evaluate([(scores, np.zeros(len(scores)))])) == []


def test_a_run_that_overshoots_warns_at_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], evidence: None
) -> None:
    keys = {
        "algorithm": "fedavg",
        "problem": "bce",
        "model": "linear",
        "standardise": False,
        "sites": 3,
        "batch-size": 32,
        "thin-share": 0.0,
        "local-steps": 10,
    }
    turned = {}
    for rounds in (2, 3):
        result = simulate(job(tmp_path, **{**keys, "rounds": rounds}), quiet=False)  # type: ignore[arg-type]
        found = json.loads((result.folder / "evidence.json").read_bytes())
        turned[rounds] = found["common-test-set"]["auroc"]["high"] < 0.5
        said = " ".join(capsys.readouterr().out.split())
        assert ("warning: The model ranks patients the wrong way round" in said) == turned[rounds]
        assert result.metrics[-1]["pooled"]["auroc"] == pytest.approx(found["pooled"]["auroc"]["value"], abs=1e-12)
        assert result.metrics[-1]["pooled"]["auprc"] == pytest.approx(found["pooled"]["auprc"]["value"], abs=1e-12)
    assert turned == {2: True, 3: False}
