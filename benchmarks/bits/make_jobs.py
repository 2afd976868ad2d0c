"""Write jobs.json, the list of jobs that every checkout runs (once: the checkouts compared must run the same list).

    python benchmarks/bits/make_jobs.py

Which pairs are allowed asks `strategies.can_solve`; which keys of a variant an algorithm takes asks `RunConfig.parse`.
"""

import json
from itertools import combinations
from pathlib import Path

from edelweiss.config import ConfigError, RunConfig
from edelweiss.problems import PROBLEMS
from edelweiss.strategies import ALGORITHMS, can_solve

HERE = Path(__file__).resolve().parent
DATA = "@here/data"
BASE = {
    "dataset": "breast-cancer",
    "sites": 3,
    "rounds": 3,
    "hidden": 4,
    "local-steps": 2,
    "batch-size": 8,
    "device": "cpu",
    "report": False,
    "seed": 1,
    "wait-timeout": 120.0,
    "round-timeout": 120.0,
}
NEEDS = {
    "maml": {"maml.ways": 2, "maml.queries": 3, "maml.test-tasks": 5, "partition": "iid", "batch-size": 2},
    "invariant-logistic": {"invariant-logistic.inner-samples": 3},
    "saddle": {"saddle.dimension": 5},
}
OWN = {"npa": {"local-steps": 1, "npa.batch": 32}, "fedbn": {"model": "mlp-bn", "bn": "local"}}
ALL = ("local", "ray", "deployment")
jobs: list[dict] = []


def base(algorithm: str, problem: str) -> dict:
    more = {"state-dir": "@state"} if ALGORITHMS[algorithm].personalised else {}
    return BASE | {"algorithm": algorithm, "problem": problem} | NEEDS.get(problem, {}) | OWN.get(algorithm, {}) | more


def add(name: str, keys: dict, engines=("local",), drop=(), **how) -> None:
    """Add a job; with `drop`, leave out keys that this algorithm does not take."""
    keys = dict(keys)

    def wrong(keys: dict) -> str:
        plain = {k: v.replace("@here", str(HERE)) if isinstance(v, str) else v for k, v in keys.items()}
        if any(isinstance(v, str) and v.startswith("@run") for v in keys.values()):
            plain = {k: v for k, v in plain.items() if k != "init-head" and not str(v).startswith("@run")}
        try:
            RunConfig.parse(plain)
        except ConfigError as error:
            return str(error)
        return ""

    text = wrong(keys)
    for count in range(1, 8 if drop and text else 0):  # the fewest keys
        for some in combinations([key for key in drop if key in keys], count):
            less = {k: v for k, v in keys.items() if k not in some}
            if not wrong(less):
                print(f"{name}: without {', '.join(some)}")
                keys, text = less, ""
                break
        if not text:
            break
    if text:
        raise SystemExit(f"{name}: {text}")
    jobs.append({"name": name, "keys": keys, "engines": list(engines), **how})


# ---------------------------------------------------------------------- every pair, on every engine
first = {}
for a, A in ALGORITHMS.items():
    for p, P in PROBLEMS.items():
        if can_solve(A, P):
            first.setdefault(a, p)
            add(f"pair/{a}/{p}", base(a, p), ALL)

# ---------------------------------------------------------------------- every algorithm, other paths
RICH = {
    "rounds": 5,
    "fraction": 0.67,
    "weighting": "examples",
    "stage-iterations": 4,
    "stage-decay": 2.0,
    "stage-growth": 1.5,
    "stage-steps-growth": 2.0,
    "output": "average",
}
ORDER = ["fraction", "output", "stage-steps-growth", "weighting"]
for a, A in ALGORITHMS.items():
    for p, P in PROBLEMS.items():
        if not can_solve(A, P):
            continue
        more = ("local", "ray") if p in (first[a], "saddle") else ("local",)
        add(f"rich/{a}/{p}", base(a, p) | RICH, more, ORDER)
        wired = {"wire": "bf16", "hidden": 32, "rounds": 4} | (
            {"wire-estimators": "int8"} if A.messages.estimates else {}
        )
        wired |= {"saddle.dimension": 300} if p == "saddle" else {}
        wired |= {"invariant-logistic.dimension": 300} if p == "invariant-logistic" else {}
        add(f"wire/{a}/{p}", base(a, p) | wired, more)
        add(f"stack/{a}/{p}", base(a, p) | {"stack": 3, "engine": "local", "sites": 5})

for a in ("codasca", "deprl", "fedavg", "fcsg-m", "ditto", "fednest", "d-psgd", "acc-fcsg-m"):
    add(f"workers/{a}", base(a, first[a]) | {"workers": 2})
    add(f"workers-stack/{a}", base(a, first[a]) | {"workers": 2, "stack": 2, "engine": "local", "sites": 5})
    add(f"float16/{a}", base(a, first[a]) | {"wire": "float16", "hidden": 32})
    add(f"random/{a}", base(a, first[a]) | {"output": "random"}, drop=["output"])

# ---------------------------------------------------------------------- options of algorithms
OPTIONS = {
    "fedavg": (
        "bce",
        [
            {"optimiser": "adam", "lr": 0.001},
            {"momentum": 0.9, "weight-decay": 0.01, "decay": 0.9},
            {"optimiser": "adam", "beta1": 0.8, "beta2": 0.9, "eps": 1e-6},
        ],
    ),
    "alone": ("auc", [{"momentum": 0.5, "decay": 0.9, "weight-decay": 0.01, "lr-dual": 0.05}]),
    "local-sgda-plus": ("auc", [{"snapshot-steps": 2}]),
    "momentum-local-sgda": ("robust", [{"alpha": 0.5, "beta": 0.3, "beta-dual": 0.4}]),
    "momentum-local-sgda-plus": ("fair", [{"alpha": 0.5, "snapshot-steps": 2}]),
    "fess-gda": ("auc", [{"smoothing": 0.2, "beta": 0.3, "server-lr": 0.7, "server-lr-dual": 0.8}]),
    "coda": ("auc", [{"dual-batch": 8, "gamma": 0.5}]),
    "coda-plus": ("auc", [{"gamma": 0.5}]),
    "codasca": ("auc", [{"server-lr": 0.7, "gamma": 0.5}]),
    "fmgda": ("auc", [{"schedule": "cube-root", "initial-batch": 8}, {"schedule": "corollary-1", "fresh-weight": 0.3}]),
    "fgda": ("auc", [{"schedule": "cube-root", "initial-batch": 8}, {"schedule": "corollary-1"}]),
    "adafgda": ("auc", [{"matrix": "belief", "schedule": "cube-root"}, {"varrho": 0.5, "rho": 0.1}]),
    "acc-fcsg-m": ("auprc", [{"schedule": "cube-root", "initial-batch": 8}, {"schedule": "corollary-1"}]),
    "sagda": ("auc", [{"control-batch": 16, "server-lr": 0.5}]),
    "cdma": ("auc", [{"alpha": 0.5}]),
    "fednest": ("auc", [{"inner-rounds": 2, "anchor-batch": 16}]),
    "fcsg": ("auprc", [{"initial-batch": 16}]),
    "fcsg-m": ("partial-auc", [{"initial-batch": 16, "beta": 0.5}]),
    "local-scgdm": ("maml", [{"mu": 0.5, "beta": 0.5}]),
    "d-psgd": (
        "auc",
        [
            {"topology": "random", "mean-degree": 1.5, "regraph": "every-round"},
            {"topology": "full", "mixing": "client"},
            {"topology": "star", "momentum": 0.5},
            {"topology": "file", "graph-file": f"{DATA}/edges.csv"},
            {"mixing": "client", "decay": 0.9},
        ],
    ),
    "deprl": (
        "bce",
        [
            {"first-head": "common", "head-unit": "epochs", "body-unit": "epochs"},
            {"body-steps": 3, "mixing": "client", "momentum": 0.5},
        ],
    ),
    "dispfl": ("bce", [{"density": 0.3, "prune": 0.2, "topology": "full"}, {"mixing": "client"}]),
    "fedrep": ("bce", [{"first-head": "common", "head-unit": "epochs"}, {"body-steps": 3, "momentum": 0.5}]),
    "ditto": ("auc", [{"lam": 0.7, "momentum": 0.5}]),
    "fedrod": ("cross-entropy", [{"lr-head": 0.05, "momentum": 0.5, "weight-decay": 0.01}]),
}
for a, (p, all_options) in OPTIONS.items():
    for n, options in enumerate(all_options):
        epochs = {"local-steps": 1} if "epochs" in options.values() else {}
        add(f"options/{a}/{n}", base(a, p) | epochs | {f"{a}.{k}": v for k, v in options.items()}, ("local", "ray"))

# ---------------------------------------------------------------------- options of problems
PROBLEM_OPTIONS = {
    "auc": [{"prior": 0.2, "score": "identity"}],
    "auc-margin": [{"margin": 0.5, "score": "identity"}, {"prior": 0.3}],
    "robust": [{"radius": 0.5, "criterion": "squared"}],
    "auprc": [{"margin": 0.5}],
    "partial-auc": [{"margin": 0.5, "temperature": 0.1}],
    "invariant-logistic": [{"dimension": 4, "sigma-ratio": 2.0}],
    "saddle": [{"heterogeneity": 3.0}, {"file": f"{DATA}/saddle.npz"}],
    "maml": [{"inner-steps": 2, "inner-lr": 0.1, "shots": 2}],
}
SOLVER = {"auprc": "fcsg", "partial-auc": "fcsg-m", "invariant-logistic": "acc-fcsg-m", "maml": "local-scgd"}
for p, all_options in PROBLEM_OPTIONS.items():
    for n, options in enumerate(all_options):
        a = SOLVER.get(p, "codasca")
        add(f"problem-options/{p}/{n}", base(a, p) | {f"{p}.{k}": v for k, v in options.items()}, ("local", "ray"))

# ---------------------------------------------------------------------- data, splits, samplers, models
BCE, AUC, XENT = base("fedavg", "bce"), base("codasca", "auc"), base("fedavg", "cross-entropy")
MAML = base("local-scgd", "maml")
ONCE = {"evaluate-every": 0, "central-test": False, "holdout-share": 0.001, "local-steps": 1}
FOLDER = {"dataset": "image-folder", "data-root": f"{DATA}/folder"}
PICTURES = {"dataset": "site-folders", "data-root": f"{DATA}/pictures", "partition": "sites", "batch-size": 4}
TABLE = {"dataset": "table", "label": "died"}
CLINICS = TABLE | {"data-file": f"{DATA}/patients.csv", "group-column": "clinic"}
OMNIGLOT = {"dataset": "omniglot", "partition": "by-group", "model": "conv4", "rounds": 2, "local-steps": 1}
DATASETS = {
    "digits": BCE | {"dataset": "digits", "positive-classes": "5-9"},
    "digits-classes": BCE | {"dataset": "digits", "positive-classes": "1", "negative-classes": "0,2"},
    "digits-multiclass": XENT | {"dataset": "digits", "model": "linear", "partition": "by-class"},
    "mnist-cnn": BCE | ONCE | {"dataset": "mnist", "model": "cnn-mnist", "rounds": 2},
    "cifar10-cnn": BCE | ONCE | {"dataset": "cifar10", "model": "cnn-cifar", "rounds": 1},
    "heart": AUC | {"dataset": "heart-disease", "partition": "sites", "sites": 4},
    "heart-split": BCE | {"dataset": "heart-disease", "partition": "split-sites", "sites": 6},
    "omniglot": MAML | OMNIGLOT | {"maml.ways": 5},
    "omniglot-fcsg": base("fcsg", "maml") | OMNIGLOT | {"maml.ways": 3},
    "image-folder": XENT | FOLDER | {"model": "lenet5", "image-size": 28},
    "image-folder-pad": BCE | FOLDER | {"model": "linear", "image-size": 9, "image-fit": "pad", "image-colour": "grey"},
    "site-folders-pictures": BCE | PICTURES | {"model": "conv4", "image-size": 20},
    "site-folders-views": BCE | PICTURES | {"model": "linear", "image-size": 8, "views": "AP"},
    "table": AUC | TABLE | {"data-file": f"{DATA}/wards.csv", "group-column": "ward", "partition": "by-group"},
    "table-sites": AUC | CLINICS | {"partition": "sites", "sites": 4},
    "table-iid": BCE | CLINICS | {"partition": "iid"},
    "table-study": BCE
    | {"dataset": "table", "data-file": f"{DATA}/words.csv", "study": f"{DATA}/study.toml"}
    | {"group-column": "clinic", "partition": "sites"},
    "hospitals": AUC | {"dataset": "site-folders", "data-root": f"{DATA}/hospitals", "partition": "sites"},
}
for name, keys in DATASETS.items():
    ray = ("local", "ray") if keys["sites"] == 3 else ("local",)
    add(f"data/{name}", keys, ray)
LABELLED = {"dataset": "site-folders", "data-root": f"{DATA}/labelled", "partition": "sites", "model": "linear"}
LABELLED |= {"label": "Edema,Effusion,Mass", "uncertain": "Edema=ones,ignore", "blank": "ignore"}
for a, p in (
    ("codasca", "auc"),
    ("fedavg", "bce"),
    ("coda", "auc-margin"),
    ("fcsg", "auprc"),
    ("ditto", "auc"),
    ("fedrep", "bce"),
    ("alone", "auc"),
):
    add(f"labels/{a}/{p}", base(a, p) | LABELLED | ({"model": "mlp"} if a == "fedrep" else {}), ("local", "ray"))
add("labels/preset", BCE | LABELLED | {"label-preset": "torchxrayvision", "uncertain": "", "blank": ""})
add("labels/one", BCE | LABELLED | {"label": "Edema", "uncertain": "zeros"})
SPLITS = {
    "iid": {"partition": "iid"},
    "concentration": {"concentration": 0.3},
    "thin": {"thin-share": 0.1},
    "thin-negative": {"thin-class": "negative", "thin-share": 0.2},
    "folds": {"folds": 3, "fold": 1},
    "personal-test": {"personal-test": True},
    "data-seed": {"data-seed": 5},
    "shares": {"test-share": 0.4, "holdout-share": 0.3},
    "raw": {"standardise": False},
    "fixed-positives": {"sampler": "fixed-positives", "positives-per-batch": 3},
    "no-central": {"central-test": False},
    "evaluate-2": {"evaluate-every": 2, "rounds": 5},
    "evaluate-0": {"evaluate-every": 0},
    "no-evidence": {"evidence": False},
    "min-replies": {"min-replies": 2},
    "checkpoint-0": {"checkpoint-every": 0},
    "share-model": {"share-model": True, "state-dir": "@state"},
    "state-dir": {"state-dir": "@state", "rounds": 4, "fraction": 0.67},
    "threads": {"threads": 2},
    "bf16": {"amp": "bf16"},
    "seed": {"seed": 77},
    "many": {"sites": 12, "fraction": 0.3, "rounds": 6},
}
for name, keys in SPLITS.items():
    engines = ("local", "ray") if keys.get("sites", 3) == 3 and "threads" not in keys else ("local",)
    for a, p in (("codasca", "auc"), ("fedavg", "bce")):
        add(f"split/{name}/{a}", base(a, p) | keys, engines)
add("split/personal-test/deprl", base("deprl", "bce") | {"personal-test": True}, ("local", "ray"))
add("split/folds/ditto", base("ditto", "auc") | {"folds": 3, "fold": 2}, ("local", "ray"))
for model in ("linear", "mlp", "dnn"):
    add(f"model/{model}", BCE | {"model": model, "hidden": 6})
SHORT = {"image-size": 32, "local-steps": 1}
for model, keys in {
    "lenet5": {"image-size": 28},
    "cnn7": {"image-size": 32},
    "resnet18": SHORT | {"rounds": 2},
    "vgg11": SHORT | {"rounds": 1},
}.items():
    add(f"model/{model}", BCE | FOLDER | {"model": model, "batch-size": 4} | keys)
CONV = PICTURES | {"model": "conv4", "image-size": 20}
for a, p in (
    ("fedavg", "bce"),
    ("codasca", "auc"),
    ("fcsg", "auprc"),
    ("deprl", "bce"),
    ("d-psgd", "auc"),
    ("dispfl", "bce"),
):
    add(f"conv4/{a}", base(a, p) | CONV | ({"positives-per-batch": 2} if p == "auprc" else {}), ("local", "ray"))
for bn, model, a, p in (
    ("average", "efficientnet-b0", "fedavg", "bce"),
    ("local", "efficientnet-b0", "fedavg", "bce"),
    ("average", "resnet18", "codasca", "auc"),
    ("average", "resnet18", "fcsg", "auprc"),
    ("local", "resnet18", "fedrep", "bce"),
    ("local", "resnet18", "ditto", "auc"),
):
    engines = ("local", "ray") if a in ("fedavg", "fedrep") else ("local",)
    more = {"positives-per-batch": 2} if p == "auprc" else {"fedavg.lr": 0.001} if a == "fedavg" else {}
    add(
        f"batch-norm/{bn}/{a}",
        base(a, p)
        | CONV
        | SHORT
        | {"rounds": 2, "bn": bn, "model": model}
        | more
        | ({"state-dir": "@state"} if bn == "local" else {}),
        engines,
    )
AUGMENT = {"augment-flip": True, "augment-crop": 0.2, "augment-rotate": 20.0, "augment-brightness": 0.3}
for a, p in (("fedavg", "bce"), ("codasca", "auc")):
    add(f"augment/{a}", base(a, p) | {"dataset": "digits", "model": "linear"} | AUGMENT, ("local", "ray"))
add("head/fedrep", base("fedrep", "bce") | {"model": "mlp", "head": "body.3"}, drop=["head"])

# ---------------------------------------------------------------------- runs that follow others
add("init-from/keep", AUC | {"init-from": "@run:pair/codasca/auc", "seed": 3}, ("local", "ray"))
add("init-from/fresh", AUC | {"init-from": "@run:pair/codasca/auc", "init-head": "fresh", "seed": 3}, ("local", "ray"))
add(
    "init-from/fedrep",
    base("fedrep", "bce") | {"init-from": "@run:pair/fedavg/bce", "init-head": "fresh"},
    ("local", "ray"),
)
add("init-from/body-of-fedrep", BCE | {"init-from": "@run:pair/fedrep/bce", "init-head": "fresh"}, ("local",))
add("compare-with/auc", AUC | {"compare-with": "@run:pair/fedavg/bce", "seed": 1}, ("local", "ray"))
add("compare-with/bce", BCE | {"compare-with": "@run:pair/codasca/auc"}, ("local", "ray"))
for a in ("codasca", "fmgda", "deprl", "fedavg", "ditto", "dispfl", "fcsg-m", "fednest"):
    keys = base(a, first[a]) | {"rounds": 40, "checkpoint-every": 1, "fraction": 0.67, "report": False}
    keys.pop("state-dir", None)
    add(f"resume/{a}", keys, drop=["fraction"], resume=3)
add(
    "resume/wire",
    base("codasca", "auc") | {"rounds": 40, "hidden": 32, "wire": "bf16", "wire-estimators": "int8"},
    resume=3,
)
add("resume/workers", base("codasca", "auc") | {"rounds": 40, "workers": 2}, resume=3)

# ---------------------------------------------------------------------- hospitals' own tables, joined
SITE = {"dataset": "site", "model": "mlp", "central-test": False}
for policy in ("open", "default"):
    SITE["batch-size"] = 8 if policy == "open" else 32
    for a, p in (
        ("codasca", "auc"),
        ("fedavg", "bce"),
        ("fcsg", "auprc"),
        ("fedrep", "bce"),
        ("ditto", "auc"),
        ("coda", "auc-margin"),
    ):
        add(
            f"hospital-{policy}/{a}/{p}",
            {k: v for k, v in base(a, p).items() if k != "state-dir"} | SITE,
            ("deployment",),
            group=policy,
        )
    add(f"hospital-{policy}/share-model", {**BCE, **SITE, "share-model": True}, ("deployment",), group=policy)
    add(
        f"hospital-{policy}/wire",
        {**AUC, **SITE, "wire": "bf16", "wire-estimators": "int8", "hidden": 32},
        ("deployment",),
        group=policy,
    )

# which pairs are enough where a run costs seconds: each algorithm's first two problems, each problem once
seen: dict[str, int] = {}
problems_seen: set[str] = set()
for job in jobs:
    kind, *rest = job["name"].split("/")
    if kind != "pair":
        continue
    a, p = rest
    seen[a] = seen.get(a, 0) + 1
    job["core"] = seen[a] <= 2 or p not in problems_seen
    problems_seen.add(p)

names = [job["name"] for job in jobs]
assert len(names) == len(set(names)), [n for n in names if names.count(n) > 1]
(HERE / "jobs.json").write_text(json.dumps(jobs, indent=1) + "\n")
for engine in ALL:
    mine = [job for job in jobs if engine in job["engines"]]
    print(engine, len(mine), "of which pairs", sum(job["name"].startswith("pair/") for job in mine))
print("core pairs", sum(bool(job.get("core")) for job in jobs))
