"""What the papers claim, and what the studies' results say of it: writes the table of docs/results/claims.md.

    python -m benchmarks.claims
    python -m benchmarks.claims --pairs NAME      # instead: each method of a study against each other

It runs nothing. It reads the reported runs of docs/results/NAME.csv, as `python -m benchmarks.reproduce NAME` writes
them; a claim whose study has no results is left out of the table, and named on the terminal.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from pathlib import Path

from benchmarks.comparisons import stays
from benchmarks.pages import insert
from benchmarks.studies import REPO, STUDIES
from edelweiss.lab.compare.groups import CONFIDENCE, Difference, half_width
from edelweiss.lab.compare.runs import name_of
from edelweiss.lab.compare.text import markdown
from edelweiss.problems.metrics import METRICS

Line = Mapping[str, str]
Where = Mapping[str, str]
"""Columns of a CSV and the values that a line has there."""

HOLDS, FAILS, IN_PART, UNSHOWN = "holds", "does not hold", "in part", "not shown"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper says, in our words, and the study that can show it."""

    # paper, text: its short name; the claim, with where it stands
    paper: str
    text: str
    # study, metric: of `STUDIES`, and a heading of its CSV
    study: str
    metric: str

    def verdict(self, lines: Sequence[Line]) -> tuple[str, str, str] | None:
        """Return the evidence in few words, whether the claim holds, and whether it would without a correction.

        None where the lines do not bear on it.
        """
        raise NotImplementedError

    def identity(self) -> list[str]:
        """Return the columns that tell two runs apart."""
        study = STUDIES[self.study]
        return ["method", *study.compare, *study.repeat]

    @property
    def log(self) -> bool:
        """Whether the metric is compared by its logarithm: a distance that methods differ in by orders of ten."""
        report = STUDIES[self.study].report
        path = next((path for path, heading in report.items() if heading == self.metric), "")
        return name_of(path) in METRICS and METRICS[name_of(path)].log

    def value(self, line: Line) -> float:
        """Return the metric of a run, or its log10."""
        value = float(line[self.metric])
        return math.log10(max(value, sys.float_info.min)) if self.log else value


@dataclass(frozen=True, kw_only=True)
class Order(Claim):
    """One kind of run is better than others: shown by differences of runs that agree in all the rest."""

    better: Where  # what distinguishes it
    worse: tuple[Where, ...]  # what distinguishes each of the others, by the same columns
    # only, without: to which lines the claim is confined, and of which it says nothing
    only: Where = field(default_factory=dict)
    without: Where = field(default_factory=dict)
    lower: bool = False  # whether a smaller metric is the better one
    picked: bool = False  # whether it is of any method, and the one named was picked from the study's ranking

    def verdict(self, lines: Sequence[Line]) -> tuple[str, str, str] | None:
        """Compare in each cell: ahead or behind where Student's t, corrected by Holm for the claim's cells, says so.

        Where a method was picked from the study's ranking, all pairs of its methods count, as in `pairs`.
        """
        found = list(self.differences(lines))
        if not found:
            return None
        means, ps = [statistics.mean(pairs) for pairs in found], [p_value(pairs) for pairs in found]
        if self.picked:
            own = {each["method"] for each in (self.better, *self.worse)}
            for one, other in combinations(sorted({line["method"] for line in lines}), 2):
                if {one, other} != own:
                    found += replace(self, better={"method": one}, worse=({"method": other},)).differences(lines)
        corrected = holm([p_value(pairs) for pairs in found])[: len(ps)]
        (ahead, behind), (alone, against) = (
            [
                sum(p < 1 - CONFIDENCE and mean * side > 0 for p, mean in zip(each, means, strict=True))
                for side in (1, -1)
            ]
            for each in (corrected, ps)
        )
        sizes = " to ".join(f"{mean:+.3g}" for mean in sorted({min(means), max(means)}))
        evidence = f"{'log10 ' * self.log}{self.metric} {sizes}; shown in {ahead} of {len(means)} comparisons"
        if behind:
            evidence += f", the reverse in {behind}"
        if (alone, against) != (ahead, behind):
            evidence += f"; uncorrected in {alone}" + f", the reverse in {against}" * bool(against)
        return evidence, _verdict(ahead, behind, len(means)), _verdict(alone, against, len(means))

    def differences(self, lines: Sequence[Line]) -> Iterator[list[float]]:
        """Yield how much better each pair of runs is, by cell and opponent; two pairs at least."""
        repeats, rest = set(STUDIES[self.study].repeat), [c for c in self.identity() if c not in self.better]
        lines = [line for line in lines if line[self.metric] and not (self.without and fits(line, self.without))]
        mine = {tuple(line[c] for c in rest): self.value(line) for line in lines if fits(line, self.better, self.only)}
        for other in self.worse:
            cells: dict[tuple[str, ...], list[float]] = defaultdict(list)
            for line in lines:
                place = tuple(line[c] for c in rest)
                if fits(line, other, self.only) and place in mine:
                    difference = mine[place] - self.value(line)
                    cell = tuple(line[c] for c in rest if c not in repeats)
                    cells[cell].append(-difference if self.lower else difference)
            yield from (pairs for pairs in cells.values() if len(pairs) > 1)


@dataclass(frozen=True, kw_only=True)
class Reach(Claim):
    """One method bears larger values of a key than another before its metric falls."""

    # better, worse: methods
    better: str
    worse: str
    key: str  # of the study's `compare`, its last; how far it may fall is the study's `within`

    def verdict(self, lines: Sequence[Line]) -> tuple[str, str, str] | None:
        """Compare the largest values in each choice of the other keys."""
        study = STUDIES[self.study]
        others, values = [key for key in study.compare if key != self.key], [str(v) for v in study.compare[self.key]]
        found: dict[tuple[str, ...], dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
        for line in lines:
            found[tuple(line[key] for key in others)][line["method"], line[self.key]].append(self.value(line))
        texts, larger, smaller = [], 0, 0
        for cell, by_place in found.items():
            reached = []
            for method in (self.better, self.worse):
                means = [statistics.mean(by_place[method, v]) if by_place[method, v] else None for v in values]
                reached.append(sum(stays(means, study.within or 0.0)))
            if 0 in reached:  # runs are missing
                return None
            larger, smaller = larger + (reached[0] > reached[1]), smaller + (reached[0] < reached[1])
            place = ", ".join(f"{key} {value}" for key, value in zip(others, cell, strict=True))
            texts.append(f"{values[reached[0] - 1]} against {values[reached[1] - 1]}{f' ({place})' * bool(place)}")
        if not texts:
            return None
        evidence = f"{self.key} up to {'; '.join(texts)}, within {study.within:g} of the smallest"
        verdict = _verdict(larger, smaller, len(texts))  # of means: there is nothing to correct
        return evidence, verdict, verdict


def _verdict(shown: int, reverse: int, comparisons: int) -> str:
    """Return whether a claim holds that is made of all comparisons: one that shows the reverse refutes it."""
    if reverse:
        return FAILS
    return HOLDS if shown == comparisons else IN_PART if shown else UNSHOWN


def fits(line: Line, *wheres: Where) -> bool:
    """Return whether a line has all these values."""
    return all(line.get(column) == value for where in wheres for column, value in where.items())


# ---------------------------------------------------------------------- the claims


def first(
    paper: str,
    text: str,
    metric: str,
    best: str,
    others: Sequence[str],
    *studies: str,
    without: Where | None = None,
    lower: bool = False,
    picked: bool = False,
) -> tuple[Order, ...]:
    """Return the claim that a method is ahead of others, for each study that can show it."""
    better, worse = {"method": best}, tuple({"method": other} for other in others)
    return tuple(
        Order(
            paper=paper,
            text=text,
            study=study,
            metric=metric,
            better=better,
            worse=worse,
            without=without or {},
            lower=lower,
            picked=picked,
        )
        for study in studies
    )


def _reach(study: str) -> Reach:
    text = "It bears longer intervals between exchanges than CODA+ (section 6.1)"
    return Reach(
        paper="CODASCA", text=text, study=study, metric="AUROC", better="codasca", worse="coda-plus", key="local-steps"
    )


_INTERVALS = tuple(f"codasca-intervals{share}{sites}" for share in ("", "-30") for sites in ("", "-16-sites"))
_ORDERS = ("order-mnist", "order-cifar10")
_HIGHEST = "Its AUC is the highest (Table 2 and Figure 2, with 80 % of the negatives removed)"
_TABLE_1 = ("local-sgda", "fednest", "momentum-local-sgda", "sagda", "cdma")  # what AdaFGDA is compared with
_OTHERS = ("fedrep", "d-psgd, ring", "dispfl, ring")  # of DePRL's Table 9
_SIX = ("fedavg", "fedrep", "ditto", "fedrod", "d-psgd, ring", "dispfl, ring")

CLAIMS: tuple[Claim, ...] = (
    *map(_reach, _INTERVALS),
    *first(
        "CODASCA",
        "At equal iterations and I > 1 its AUC is higher than that of CODA+ (Figure 1)",
        "AUROC",
        "codasca",
        ["coda-plus"],
        *_INTERVALS,
        without={"local-steps": "1"},
    ),
    *first(
        "CODASCA",
        "On chest X-rays of five sources its AUC is higher than that of CODA+ (Table 3, in four of five findings)",
        "AUROC",
        "codasca",
        ["coda-plus"],
        "chest-xrays",
    ),
    *first(
        "CODASCA",
        "With more sources AUC on CheXpert is higher (Tables 4 and 5): five against one",
        "AUROC",
        "K = 5: and VinDr",
        ["K = 1: CheXpert"],
        "chest-sources",
    ),
    *first(
        "FMGDA",
        f"{_HIGHEST}; here positives are removed, and CODA+ stands for CODA",
        "AUROC",
        "fmgda",
        ["momentum-local-sgda", "codasca", "coda-plus"],
        *_ORDERS,
    ),
    *first(
        "FMGDA",
        _HIGHEST,
        "AUROC",
        "fmgda",
        ["momentum-local-sgda", "codasca", "coda"],
        "auc-cifar10",
        "auc-fashion-mnist",
    ),
    *first(
        "all for AUC",
        "A method for AUC ranks better than cross-entropy (their premise, which none of them measures): CODASCA",
        "AUROC",
        "codasca",
        ["fedavg-bce"],
        *_ORDERS,
        "codasca-mnist",
        "auc-mnist",
        "auc-cifar10",
        "auc-fashion-mnist",
        "chest-xrays",
        picked=True,
    ),
    *(
        claim
        for name in ("fgda", "adafgda")
        for claim in first(
            "AdaFGDA",
            f"Saddle problem: {name} comes nearer to the saddle point (Figure 2)",
            "‖x-x*‖²",
            name,
            ["local-sgda", "momentum-local-sgda", "fednest"],
            "saddle",
            lower=True,
        )
    ),
    *first("AdaFGDA", "Its AUC is the highest (Figure 3)", "AUROC", "adafgda", ["codasca", *_TABLE_1], "auc-mnist"),
    *first(
        "AdaFGDA",
        "Robust training: it is the most accurate (Figure 5)",
        "accuracy under ν",
        "adafgda",
        ["fgda", "local-sgda-plus", "momentum-local-sgda-plus", *_TABLE_1],
        "robust-mnist",
    ),
    *(
        claim
        for name in ("fcsg", "fcsg-m", "acc-fcsg-m")
        for claim in first(
            "FCSG",
            f"{name}: average precision is higher than with cross-entropy or CODA+ (Table 2)",
            "AP",
            name,
            ["fedavg-bce", "coda-plus"],
            "auprc-mnist",
            "auprc-cifar10",
        )
    ),
    *first(
        "FCSG",
        "acc-fcsg-m: average precision is the highest of its three (Table 2)",
        "AP",
        "acc-fcsg-m",
        ["fcsg", "fcsg-m"],
        "auprc-mnist",
        "auprc-cifar10",
    ),
    *first(
        "FCSG",
        "CODA+: average precision is higher than with cross-entropy (Table 2)",
        "AP",
        "coda-plus",
        ["fedavg-bce"],
        "auprc-mnist",
        "auprc-cifar10",
    ),
    *(
        claim
        for name in ("fcsg", "fcsg-m", "acc-fcsg-m")
        for claim in first(
            "FCSG",
            f"Few-shot: {name} is ahead of compositional methods (Figures 2 and 3)",
            "accuracy",
            name,
            ["local-scgd", "local-scgdm"],
            "omniglot-1shot",
            "omniglot-5shot",
        )
    ),
    Order(
        paper="FCSG",
        text="Where inner samples scatter most, more of them are needed (Figure 1): ten against one",
        study="invariant-logistic",
        metric="accuracy",
        better={"invariant-logistic.inner-samples": "10"},
        worse=({"invariant-logistic.inner-samples": "1"},),
        only={"invariant-logistic.sigma-ratio": "2.0"},
    ),
    *first(
        "DePRL",
        "On the ring it is ahead of the six other methods (Table 7)",
        "accuracy",
        "deprl, ring",
        _SIX,
        "deprl-cifar10",
        "deprl-mnist",
        "deprl-mnist-128",
    ),
    *first(
        "DePRL",
        "A fully connected graph gives more accurate models than a ring (Table 1)",
        "accuracy",
        "deprl, full",
        ["deprl, ring"],
        "deprl-cifar10",
        "deprl-mnist",
        "deprl-mnist-128",
    ),
    *first(
        "DePRL",
        "It ends most accurate with 4 to 32 workers (Table 9)",
        "accuracy",
        "deprl, ring",
        _OTHERS,
        "deprl-speedup-methods",
    ),
    *first(
        "DePRL",
        "It is ahead with every number of steps on the head (Figure 8)",
        "accuracy",
        "deprl, ring",
        _OTHERS,
        "deprl-head-steps",
    ),
    *first(
        "DePRL",
        "It is ahead with every number of workers (Figure 9)",
        "accuracy",
        "deprl, ring",
        ["fedavg", *_OTHERS],
        "deprl-workers",
    ),
)


# ---------------------------------------------------------------------- the table


def reported(folder: Path, study: str) -> list[Line]:
    """Return the runs that a study's CSV reports and that came to an end; none without the file."""
    file = folder / f"{study}.csv"
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        return [line for line in csv.DictReader(stream) if line["use"] == "reported" and line["outcome"] == "done"]


def table(folder: Path, claims: Sequence[Claim] = CLAIMS) -> tuple[str, list[str]]:
    """Return the table of the claims that have results, and what it leaves out."""
    lines = ["| paper | claim | our evidence | | at which size |", "| --- | --- | --- | --- | --- |"]
    missing = []
    for claim in claims:
        study, runs = STUDIES[claim.study], reported(folder, claim.study)
        usable = all(column in line for line in runs for column in (*claim.identity(), claim.metric))
        if not usable or (found := claim.verdict(runs)) is None:
            missing.append(f"{claim.paper}: {claim.text} ({claim.study})")
            continue
        evidence, verdict, alone = found
        said = f"**{verdict}**" + f" (uncorrected: {alone})" * (alone != verdict)
        size = f"[{study.title}]({study.name}.md). {study.size}"
        lines.append(f"| {claim.paper} | {claim.text} | {evidence} | {said} | {size} |")
    return "\n".join(lines) + "\n", missing


def pairs(folder: Path, study: str) -> str:
    """Return a table of all differences between methods in a study's first metric, best means first."""
    of = STUDIES[study]
    claim = Order(paper="", text="", study=study, metric=next(iter(of.report.values())), better={}, worse=())
    lines = [line for line in reported(folder, study) if line[claim.metric]]
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        found[line["method"]].append(claim.value(line))
    methods = sorted(found, key=lambda method: -statistics.mean(found[method]))
    rows: list[tuple[list[str], list[float]]] = []
    for values in product(*of.compare.values()):
        cell = dict(zip(of.compare, map(str, values), strict=True))
        for one, other in combinations(methods, 2):
            claim = replace(claim, better={"method": one}, worse=({"method": other},), only=cell)
            rows += [([*cell.values(), one, other], each) for each in claim.differences(lines)]
    corrected = holm([p_value(each) for _, each in rows])
    heading = [*of.compare, f"{'log10 ' * claim.log}{claim.metric} of", "less that of", "difference", "p", "p, Holm"]
    lines_of_table = [heading, ["---"] * (len(heading) - 3) + ["---:"] * 3]
    for (place, each), p in zip(rows, corrected, strict=True):
        difference = Difference(statistics.mean(each), half_width(each), len(each))
        lines_of_table.append([*place, str(difference), f"{p_value(each):.2g}", f"{p:.2g}"])
    return markdown(lines_of_table)


def p_value(values: Sequence[float]) -> float:
    """Return Student's two-sided p of a mean of zero, from two values or more; below 1 - `CONFIDENCE` as `half_width`
    leaves out zero."""
    from scipy.stats import t

    mean, error = statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))
    if not error:
        return float(mean == 0)
    return float(2 * t.sf(abs(mean) / error, len(values) - 1))


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm, Scand. J. Statist. 6:65-70, 1979), in the same order.

    The smallest is multiplied with their number, the next with one less, and so on; none is below a smaller one.
    """
    corrected, least = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        least = max(least, min(1.0, ps[place] * (len(ps) - rank)))
        corrected[place] = least
    return corrected


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.claims", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results-dir", type=Path, default=REPO / "docs" / "results", help="where the results are")
    parser.add_argument("--pairs", choices=STUDIES, metavar="NAME", help="print how each two methods of a study differ")
    options = parser.parse_args(arguments)
    if options.pairs:
        print(pairs(options.results_dir, options.pairs))
        return 0
    text, missing = table(options.results_dir)
    note = (
        "<!-- Written by `python -m benchmarks.claims`; do not edit. -->\n\n"
        "Differences are positive where the claim holds; the smallest to the largest of all opponents and settings is "
        "given. Distances to a saddle point are compared by their log10, for methods differ in them by orders of ten. "
        f"A difference counts as shown where Student's t over seeds tells it from zero with p < {1 - CONFIDENCE:.2g} "
        "after Holm's correction for the number of comparisons in its line; where a claim is of any method for AUC and "
        "its line names one, for all pairs of the study's methods. What changes without the correction, "
        "comparison by comparison, is given behind it. Of few seeds and many comparisons only large and steady "
        "differences are left.\n\n"
        f"A claim **{HOLDS}** where all comparisons show it, **{IN_PART}** where some do and none shows the reverse; "
        f"it **{FAILS}** where one or more show the reverse, and is **{UNSHOWN}** where none shows anything. `instead "
        "of` compares with the file in experiments/, which has the paper's size where the paper names one. Claims "
        "whose study has no results yet are left out.\n\n"
    )
    insert(options.results_dir / "claims.md", "claims", "What the papers claim, and what holds here", note + text)
    for claim in missing:
        print(f"left out: {claim}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
