"""The table of claims: what counts as shown, and that it has no line without results."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy.stats import ttest_1samp

from benchmarks.claims import (
    CLAIMS,
    FAILS,
    HOLDS,
    IN_PART,
    UNSHOWN,
    Claim,
    Order,
    Reach,
    first,
    holm,
    main,
    p_value,
    reported,
    table,
)
from benchmarks.studies import REPO, STUDIES
from edelweiss.lab.compare.groups import half_width

(MNIST,) = first("FMGDA", "best", "AUROC", "fmgda", ["codasca", "coda-plus"], "order-mnist")


def lines(**values: list[float]) -> list[dict[str, str]]:
    """Runs of a study without keys to compare: a method's metric by seed."""
    return [
        {"method": label.replace("_", "-"), "seed": str(seed), "AUROC": str(value)}
        for label, found in values.items()
        for seed, value in enumerate(found)
    ]


@pytest.mark.parametrize(
    ("fmgda", "codasca", "coda_plus", "verdict"),
    [
        ([0.9, 0.8, 0.7], [0.89, 0.79, 0.69], [0.87, 0.78, 0.68], HOLDS),
        ([0.9, 0.8, 0.7], [0.91, 0.81, 0.71], [0.92, 0.82, 0.73], FAILS),
        ([0.9, 0.8, 0.7], [0.91, 0.81, 0.71], [0.7, 0.81, 0.9], FAILS),
        ([0.9, 0.8, 0.7], [0.89, 0.79, 0.69], [0.92, 0.82, 0.73], FAILS),
        ([0.9, 0.8, 0.7], [0.89, 0.79, 0.69], [0.7, 0.8, 0.9], IN_PART),
        ([0.9, 0.8, 0.7], [0.7, 0.8, 0.9], [0.7, 0.81, 0.9], UNSHOWN),
    ],
)
def test_an_order_holds_where_every_difference_is_beyond_its_interval(
    fmgda: list[float], codasca: list[float], coda_plus: list[float], verdict: str
) -> None:
    found = MNIST.verdict(lines(fmgda=fmgda, codasca=codasca, coda_plus=coda_plus))
    assert found is not None
    assert found[1] == verdict
    assert "of 2 comparisons" in found[0]


def drawn(rng: np.random.Generator, cells: int, seeds: int, effect: float) -> list[dict[str, str]]:
    """Runs of fmgda against so many others, half of whose true differences are the effect and half are none."""
    values = {f"other-{n}": rng.normal(-effect * (n % 2), 0.01, seeds) for n in range(cells)}
    found = {"fmgda": np.zeros(seeds)} | values
    return [
        {"method": label, "seed": str(seed), "AUROC": repr(float(value))}
        for label, of_seeds in found.items()
        for seed, value in enumerate(of_seeds)
    ]


@pytest.mark.slow
def test_where_nothing_differs_a_claim_seldom_shows_anything_whatever_the_number_of_its_comparisons() -> None:
    """Holm's promise: an error anywhere in the family in 5 % of families. One by one it would be 46 % of twelve."""
    rng, shown, alone = np.random.default_rng(0), 0, 0
    claim = replace(MNIST, worse=tuple({"method": f"other-{n}"} for n in range(12)))
    families = 400
    for _ in range(families):
        found = claim.verdict(drawn(rng, 12, 5, 0.0))
        assert found is not None
        shown, alone = shown + (found[1] != UNSHOWN), alone + (found[2] != UNSHOWN)
    assert shown / families < 0.08
    assert alone / families > 0.3


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.sampled_from([3, 5]), st.sampled_from([0.0, 0.01, 0.1]))
def test_a_correction_takes_away_and_adds_nothing_and_leaves_a_single_comparison_alone(
    seed: int, cells: int, seeds: int, effect: float
) -> None:
    rng = np.random.default_rng(seed)
    claim = replace(MNIST, worse=tuple({"method": f"other-{n}"} for n in range(cells)))
    runs = drawn(rng, cells, seeds, effect)
    ps = [p_value(pairs) for pairs in claim.differences(runs)]
    corrected = holm(ps)
    assert all(p <= c <= min(1.0, len(ps) * p) or c == pytest.approx(p) for p, c in zip(ps, corrected, strict=True))
    assert [corrected[place] for place in np.argsort(ps)] == sorted(corrected)
    assert min(corrected) == pytest.approx(min(1.0, len(ps) * min(ps))), "the smallest is Bonferroni's"
    for pairs, p in zip(claim.differences(runs), ps, strict=True):
        assert p == pytest.approx(ttest_1samp(pairs, 0).pvalue)
        assert (p < 0.05) == (abs(np.mean(pairs)) > half_width(pairs)), "as the interval has it"
    if cells == 1:
        found = claim.verdict(runs)
        assert found is not None
        assert found[1] == found[2]


def test_a_method_that_was_picked_from_a_ranking_is_ahead_only_where_its_pair_is_among_all_pairs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What ``--pairs`` prints of the same two methods, corrected for all pairs, decides."""
    picked = [claim for claim in CLAIMS if isinstance(claim, Order) and claim.picked]
    verdicts = {}
    for claim in picked:
        assert main(["--pairs", claim.study]) == 0
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
        asked = {"codasca", "fedavg-bce"}
        ps = [float(row[-1]) for row in rows if row and {row[-5], row[-4]} == asked]
        found = claim.verdict(reported(REPO / "docs" / "results", claim.study))
        assert found is not None
        verdicts[claim.study] = found
        assert (found[1] == UNSHOWN) == all(p >= 0.05 for p in ps), claim.study
    assert verdicts["order-mnist"][1:] == (UNSHOWN, HOLDS)


def test_distances_to_a_saddle_point_are_compared_in_orders_of_ten() -> None:
    """A method that is always ten times nearer is shown to be, however much the seeds differ in scale."""
    (claim, *_) = (each for each in CLAIMS if each.study == "saddle")
    assert isinstance(claim, Order)
    runs = [
        {"method": method, "saddle.heterogeneity": "1.0", "seed": str(seed), claim.metric: str(factor * 10.0**-seed)}
        for method, factor in (("fgda", 0.1), ("local-sgda", 1.001), ("fednest", 1.0), ("momentum-local-sgda", 1.002))
        for seed in range(3)
    ]
    for place, run in enumerate(runs):  # not the same ratio to the last digit
        run[claim.metric] = str(float(run[claim.metric]) * (1 + 0.01 * (place % 7)))
    found = claim.verdict(runs)
    assert found is not None
    assert found[1] == HOLDS
    assert found[0].startswith("log10 ‖x-x*‖²")


def test_lines_that_do_not_bear_on_a_claim_give_no_verdict() -> None:
    assert MNIST.verdict(lines(fmgda=[0.9, 0.8], sagda=[0.7, 0.6])) is None
    assert MNIST.verdict(lines(fmgda=[0.9], codasca=[0.7])) is None, "one pair has no interval"


def test_values_of_a_key_are_compared_with_the_same_method_and_seed_where_the_claim_says() -> None:
    ratio, inner = "invariant-logistic.sigma-ratio", "invariant-logistic.inner-samples"
    claim = Order(
        paper="FCSG",
        text="more",
        study="invariant-logistic",
        metric="loss",
        better={inner: "10"},
        worse=({inner: "1"},),
        only={ratio: "2.0"},
        lower=True,
    )
    runs = [
        {"method": method, ratio: r, inner: m, "seed": str(seed), "loss": str(loss + seed * (1.001 if m == "1" else 1))}
        for method in ("fcsg", "fcsg-m")
        for r, m, loss in (("2.0", "10", 0.1), ("2.0", "1", 0.3), ("1.0", "10", 0.5), ("1.0", "1", 0.2))
        for seed in (0, 1, 2)
    ]
    assert claim.verdict(runs) == ("loss +0.201; shown in 2 of 2 comparisons", HOLDS, HOLDS)


def test_what_a_claim_says_nothing_of_is_left_out() -> None:
    (claim, *_) = first(
        "CODASCA", "higher", "AUROC", "codasca", ["coda-plus"], "codasca-intervals", without={"local-steps": "1"}
    )
    runs = [
        {"method": method, "local-steps": steps, "seed": str(seed), "AUROC": str(auc + seed / 100)}
        for method, steps, auc in (
            ("codasca", "1", 0.7),
            ("coda-plus", "1", 0.9),
            ("codasca", "8", 0.8),
            ("coda-plus", "8", 0.7),
        )
        for seed in (0, 1)
    ]
    assert claim.verdict(runs) == ("AUROC +0.1; shown in 1 of 1 comparisons", HOLDS, HOLDS)


@pytest.mark.parametrize(("codasca", "verdict"), [((0.9, 0.89, 0.85), HOLDS), ((0.9, 0.8, 0.7), UNSHOWN)])
def test_a_method_reaches_further_where_its_metric_stays_longer(codasca: tuple[float, ...], verdict: str) -> None:
    (claim, *_) = (claim for claim in CLAIMS if isinstance(claim, Reach))
    values = STUDIES[claim.study].compare["local-steps"]
    curves = {"codasca": codasca, "coda-plus": (0.9, 0.8, 0.7)}
    runs = [
        {"method": method, "local-steps": str(value), "seed": "0", "AUROC": str(auc)}
        for method, curve in curves.items()
        for value, auc in zip(values, (*curve, *[0.5] * (len(values) - len(curve))), strict=True)
    ]
    found = claim.verdict(runs)
    assert found is not None
    assert found[1] == verdict
    reached = values[1] if verdict == HOLDS else values[0]
    assert found[0].startswith(f"local-steps up to {reached} against {values[0]}, ")
    assert claim.verdict([run for run in runs if run["method"] == "codasca"]) is None, "half of the runs are missing"


def test_the_table_leaves_out_what_has_no_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, missing = table(tmp_path, [MNIST])
    assert text.count("\n") == 2
    assert missing == ["FMGDA: best (order-mnist)"]
    runs = lines(fmgda=[0.9, 0.8, 0.7], codasca=[0.89, 0.79, 0.69], coda_plus=[0.87, 0.78, 0.68])
    with (tmp_path / "order-mnist.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["use", "outcome", *runs[0]])
        writer.writeheader()
        writer.writerows({"use": "reported", "outcome": "done", **run} for run in runs)
        writer.writerow({"use": "tuning", "outcome": "done", **runs[0], "AUROC": "0.1"})
        writer.writerow({"use": "reported", "outcome": "diverged", **runs[0], "AUROC": ""})
    text, missing = table(tmp_path, [MNIST])
    assert "| FMGDA | best | AUROC +0.01 to +0.0233; shown in 2 of 2 comparisons | **holds** | [The order" in text
    assert not missing
    assert main(["--results-dir", str(tmp_path)]) == 0
    assert "CODASCA" in capsys.readouterr().err
    assert "| CODASCA |" not in (tmp_path / "claims.md").read_text()


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.paper}-{claim.study}")
def test_a_claim_names_methods_and_metrics_of_its_study(claim: Claim) -> None:
    study = STUDIES[claim.study]
    assert claim.metric in study.report.values()
    labels = {method.label for method in study.methods}
    if isinstance(claim, Reach):
        assert {claim.better, claim.worse} <= labels
        assert list(study.compare)[-1] == claim.key
        assert study.within
    if isinstance(claim, Order):
        for where in (claim.better, *claim.worse, claim.only):
            for column, value in where.items():
                known = labels if column == "method" else set(map(str, study.compare[column]))
                assert value in known


def test_the_published_table_is_that_of_the_results() -> None:
    page = (REPO / "docs" / "results" / "claims.md").read_text(encoding="utf-8")
    assert table(REPO / "docs" / "results")[0] in page, "python -m benchmarks.claims"


def test_the_page_on_the_order_says_what_its_pairs_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pairs", "order-mnist"]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert len([row for row in rows if row]) == 21
    page = (REPO / "docs" / "results" / "order-mnist.md").read_text(encoding="utf-8")
    (left,) = (row for row in rows if row and float(row[4]) < 0.05)
    assert {left[0], left[1]} == {"codasca", "fmgda"}
    assert "Holm's correction leaves one: FMGDA behind CODASCA" in " ".join(page.split())
    ahead = [row[0] for row in rows if row and row[1] == "fedavg-bce" and row[2].partition("(")[2].startswith("+")]
    assert ahead == ["codasca", "local-sgda"]
    said = "the intervals of CODASCA (+0.006) and Local SGDA (+0.003) beside cross-entropy leave out zero"
    assert said in " ".join(page.split())
