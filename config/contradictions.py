"""Contradictions between run-config keys: a line each, with keys, values and the fix."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import getattr_static
from typing import TYPE_CHECKING

from edelweiss.common import shown
from edelweiss.common.options import is_number
from edelweiss.config.values import SMALLEST_CLIP, parse_classes, parse_words
from edelweiss.datasets import SOURCES
from edelweiss.datasets.config import ARRAYS, FOLDERS, OWN, SITE, SIZED, TABLE
from edelweiss.datasets.labels import wrong_labels
from edelweiss.datasets.partition import NATURAL
from edelweiss.federation.oracle import not_private
from edelweiss.federation.stages import MOST_STEPS, Stages
from edelweiss.models import STEMS, tracks_statistics
from edelweiss.models.architecture import DEVICE
from edelweiss.problems import KINDS, PROBLEMS, Problem, ranks
from edelweiss.problems.capabilities import readable
from edelweiss.problems.metrics import METRICS
from edelweiss.strategies import ALGORITHMS, can_solve

if TYPE_CHECKING:
    from edelweiss.config.run import RunConfig


STAGES = ("local-steps", "stage-iterations", "stage-growth", "stage-steps-growth")


def contradictions(run: RunConfig) -> list[str]:
    """Return all of them."""
    looks = (
        _algorithm_and_problem,
        _algorithm,
        _stages,
        _start,
        _batches,
        _images,
        _classes,
        _labels,
        _table,
        _split,
        _pooled,
        _fine_tune,
        _private,
        _secure,
        _aggregation,
        _wire,
        _rest,
    )
    return [text for look in looks for text in look(run)]


def _algorithm_and_problem(run: RunConfig) -> Iterator[str]:
    algorithm, problem = ALGORITHMS[run.algorithm], PROBLEMS[run.problem]
    if can_solve(algorithm, problem):
        return
    able = sorted(name for name, other in ALGORITHMS.items() if can_solve(other, problem))
    fit = sorted(name for name, other in PROBLEMS.items() if can_solve(algorithm, other))
    missing = sorted(readable(need) for need in algorithm.needs if need not in problem.__mro__)
    lacks = f" that offers no {' and no '.join(missing)}" if missing else ""
    instead = [f"{key} {' or '.join(names)}" for key, names in (("algorithm", able), ("problem", fit)) if names]
    advice = f"take {', or '.join(instead)}" if instead else f"built in are {', '.join(sorted(KINDS))}"
    yield (
        f"algorithm = {run.algorithm!r} cannot solve problem = {run.problem!r}, a {problem.kind} problem"
        f"{lacks}: {advice}"
    )


def _algorithm(run: RunConfig) -> Iterator[str]:
    """Limits of the algorithm itself."""
    algorithm, problem = ALGORITHMS[run.algorithm], PROBLEMS[run.problem]
    yield from algorithm.misfits(run.flat())
    if algorithm.own_statistics and run.bn == "average" and problem.needs_data and tracks_statistics(run.model):
        yield (
            f"bn = {run.bn!r}: with algorithm = {run.algorithm!r} the batch-norm statistics of model = "
            f'{run.model!r} belong to each site\'s own model, so take bn = "local"'
        )


def _aggregation(run: RunConfig) -> Iterator[str]:
    """Robust means: of what is averaged, and where a site's weight counts."""
    if run.aggregation in ("auto", "mean"):
        return
    if not ALGORITHMS[run.algorithm].messages.averages:
        yield (
            f"aggregation = {run.aggregation!r} is for means of the sites' replies, and algorithm = {run.algorithm!r} "
            'needs each site\'s own: take aggregation = "mean", or another algorithm'
        )
    if run.aggregation != "clipped" and (weighting := run.hyper.get("weighting", "uniform")) != "uniform":
        yield (
            f"weighting = {shown(weighting)}: aggregation = {run.aggregation!r} counts each site once, so take "
            'weighting = "uniform", or aggregation = "clipped"'
        )


def _wire(run: RunConfig) -> Iterator[str]:
    if run.wire_estimators and not ALGORITHMS[run.algorithm].messages.estimates:
        problem = PROBLEMS[run.problem]
        able = sorted(
            name for name, other in ALGORITHMS.items() if other.messages.estimates and can_solve(other, problem)
        )
        instead = f", or take algorithm {' or '.join(able)}" if able else ""
        yield (
            f"wire-estimators = {run.wire_estimators!r} is for control variates and running estimates, and algorithm = "
            f'{run.algorithm!r} sends none: leave it ""{instead}'
        )


def _stages(run: RunConfig) -> Iterator[str]:
    """Stages with too many local steps."""
    values = [run.hyper.get(key, getattr(ALGORITHMS[run.algorithm], key.replace("-", "_"))) for key in STAGES]
    if not all(map(is_number, values)):
        return  # which is an error of the key
    steps, iterations, growth, steps_growth = map(float, values)
    if not (1 <= steps <= MOST_STEPS and iterations >= 0 and 1 <= growth <= 1e6 and 1 <= steps_growth <= 1e6):
        return  # likewise
    if found := Stages(int(steps), int(iterations), growth=growth, steps_growth=steps_growth).beyond(run.rounds):
        yield (
            f"stage-steps-growth = {steps_growth:g}: from round {found[0]} on a site would take {found[1]:,} local "
            f"steps, and {MOST_STEPS:,} are allowed; lower it, or raise stage-iterations"
        )


def _start(run: RunConfig) -> Iterator[str]:
    """The model that a run starts from."""
    named = {key: value for key, value in (("init-from", run.init_from), ("pretrained", run.pretrained)) if value}
    if len(named) > 1:
        yield (
            f"init-from = {shown(run.init_from)} and pretrained = {shown(run.pretrained)}: a run starts from one "
            "model, so leave one of them empty"
        )
    if named and not PROBLEMS[run.problem].needs_data:
        for key, value in named.items():
            mend = f'has no network to start from it, so leave {key} = ""'
            yield f"{key} = {shown(value)}: problem = {run.problem!r} {mend}"
    elif run.pretrained and run.model not in STEMS:
        yield (
            f"pretrained = {shown(run.pretrained)}: torchvision has no weights of model = {run.model!r}; take model "
            f'{" or ".join(STEMS)}, or leave pretrained = ""'
        )
    if run.compare_with and not run.evidence:
        yield f"compare-with = {shown(run.compare_with)} is part of the evidence: take evidence = true, or leave it out"
    if run.compare_with and not ranks(PROBLEMS[run.problem]):
        yield f"compare-with = {shown(run.compare_with)}: problem = {run.problem!r} has no AUROC: leave it out"
    if run.init_head != "keep" and not run.init_from:
        yield (
            f"init-head = {run.init_head!r} is about the model of init-from, which is empty: name one, or leave "
            'init-head = "keep"'
        )


def _batches(run: RunConfig) -> Iterator[str]:
    problem = PROBLEMS[run.problem]
    if not problem.multiclass and run.sampler == "fixed-positives" and run.positives_per_batch >= run.batch_size:
        yield (
            f"positives-per-batch = {run.positives_per_batch}: must be below batch-size = {run.batch_size}, so "
            "lower the one or raise the other"
        )
    if problem.sampler == "fixed-positives" and run.sampler != problem.sampler:
        yield (
            f"sampler = {run.sampler!r}: problem = {run.problem!r} needs positives in every batch, so take "
            'sampler = "fixed-positives" or leave it at "auto"'
        )


def _images(run: RunConfig) -> Iterator[str]:
    """Augmentation without images; for hospitals' data this is known once they have reported shapes."""
    table = run.dataset == TABLE or (run.dataset in SOURCES and SOURCES[run.dataset].features)
    what = f"dataset = {run.dataset!r} is a table" if table else ""
    if not PROBLEMS[run.problem].needs_data:
        what = f"problem = {run.problem!r} has no data"
    for key, value in run.augmentation.keys().items() if what else ():
        yield f"{key} = {shown(value)} is for images, and {what}: leave it out"


def _classes(run: RunConfig) -> Iterator[str]:
    if PROBLEMS[run.problem].multiclass:
        for key, value, default in (
            ("sampler", run.sampler, "uniform"),
            ("positive-classes", run.positive_classes, ""),
            ("negative-classes", run.negative_classes, ""),
        ):
            if value != default:
                yield (
                    f"{key} = {value!r} is for problems of two classes, and problem = {run.problem!r} keeps all "
                    f"classes of the data: take {key} = {default!r}"
                )
    if both := set(parse_classes(run.positive_classes)) & set(parse_classes(run.negative_classes)):
        yield f"positive-classes and negative-classes share {', '.join(map(str, sorted(both)))}"


def _labels(run: RunConfig) -> Iterator[str]:
    """Several, uncertain or blank labels."""
    if wrong := [*wrong_labels(run.label, run.uncertain, run.blank, run.label_preset)]:
        yield from wrong
        return
    if run.label != (default := type(run).model_fields["label"].default) and run.dataset not in OWN:
        yield (
            f"label = {shown(run.label)} names a column of dataset {' or '.join(map(repr, OWN))}, and this is "
            f"{run.dataset!r}: leave it {default!r}"
        )
    if not run.labels.clinical or run.dataset not in OWN:
        for key, value in (("label-preset", run.label_preset), ("uncertain", run.uncertain), ("blank", run.blank)):
            if value:
                yield (
                    f"{key} = {value!r} is about label columns of dataset {' or '.join(map(repr, OWN))}, and this is "
                    f"{run.dataset!r}: leave it empty"
                )
        return
    if PROBLEMS[run.problem].multiclass:
        yield f"problem = {run.problem!r} keeps the classes of one label, and these labels may be unknown"
    elif run.labels.several and not PROBLEMS[run.problem].several:
        able = ", ".join(name for name, problem in PROBLEMS.items() if problem.several)
        yield (
            f"label names {len(run.several)} columns, and problem = {run.problem!r} takes one label: take {able}; "
            "if it is one name with commas in it, put it into double quotes: label = " + shown(f'"{run.label}"')
        )
    if run.study:
        yield f"study = {shown(run.study)} describes one label of a table: leave it empty, or name one label"
    for key, value in (("positive-classes", run.positive_classes), ("negative-classes", run.negative_classes)):
        if value:
            yield f"{key} = {value!r} is for a label of classes, and these are 1, 0, uncertain or blank: leave it empty"


def _table(run: RunConfig) -> Iterator[str]:
    """Keys of tables."""
    if run.dataset == ARRAYS and not run.data_file:
        yield 'dataset = "arrays" is for data given in Python, by the argument data= of edelweiss.simulate'
    if run.dataset == TABLE:
        if not run.data_file:
            yield 'dataset = "table" needs data-file, the CSV or Parquet file to split over sites'
        if run.partition in (*NATURAL, "by-group") and not run.group_column:
            yield (
                f"partition = {run.partition!r} of a table needs group-column, the column that says what each row "
                "belongs to: name it, or take iid, dirichlet or by-class"
            )
        return
    for key, value in (("data-file", run.data_file), ("group-column", run.group_column)):
        if value and not (key == "data-file" and run.dataset == ARRAYS):
            yield f'{key} = {shown(value)} is for dataset = "table", and this is {run.dataset!r}: leave it empty'
    if run.study and run.dataset != SITE:
        yield (
            f'study = {shown(run.study)} says what columns of dataset = "table" or "site" mean, and this is '
            f"{run.dataset!r}: leave it empty"
        )


def _split(run: RunConfig) -> Iterator[str]:
    if run.folds == 1 or run.fold >= max(1, run.folds):
        yield (
            f"folds = {run.folds}, fold = {run.fold}: folds must be 0 (no cross-validation) or at least 2, and "
            "fold from 0 to folds - 1 (0 without cross-validation)"
        )
    if run.personal_test and (run.folds or run.dataset == "site"):
        none = 'dataset = "site" has none' if run.dataset == "site" else f"folds = {run.folds} leave none"
        yield (
            f"personal-test = true splits a common test set over sites, and {none}: take personal-test = false, "
            "with which each site holds out rows of its own"
        )
    if run.image_size and run.dataset not in SIZED:
        yield (
            f"image-size = {run.image_size}: the images of dataset = {run.dataset!r} have one size, so take "
            f"image-size = 0; it is for {', '.join(SIZED)}"
        )
    if run.image_fit != "crop" and not run.image_size:
        yield f"image-fit = {run.image_fit!r} says how images are scaled to image-size, which is 0: set it, such as 224"
    if run.image_colour != "auto" and run.dataset not in SIZED:
        yield (
            f"image-colour = {run.image_colour!r} is for images of {', '.join(SIZED)}, not of {run.dataset!r}: take "
            'image-colour = "auto"'
        )
    for key, value in (("views", run.views), ("bad-images", run.bad_images)):
        if value and run.dataset not in (FOLDERS, SITE):
            yield f"{key} = {shown(value)} is for images that a labels.csv lists, not of {run.dataset!r}: leave it out"
    sites = [name for name, source in SOURCES.items() if source.sites]
    if run.partition in NATURAL and run.dataset not in (*sites, ARRAYS, *OWN):
        yield f"partition = {run.partition!r} needs data with natural sites ({', '.join(sites)}), not {run.dataset!r}"
    groups = {name: source.groups for name, source in SOURCES.items() if source.groups}
    if run.partition == "by-group" and run.dataset not in (*groups, *OWN):
        listed = ", ".join(f"{name}: {what}" for name, what in groups.items())
        yield f'partition = "by-group" needs data with groups ({listed}), not {run.dataset!r}'
    if run.problem == "maml" and run.dataset == "omniglot" and run.partition != "by-group":
        yield (
            f"partition = {run.partition!r} spreads the drawings of a character over sites, and problem = "
            "'maml' needs whole characters with their four rotations: take partition = \"by-group\""
        )


def _pooled(run: RunConfig) -> Iterator[str]:
    """All data in one place: of a simulation, for one model."""
    if not run.pooled:
        return
    if run.dataset == SITE:
        yield 'pooled = true puts all data in one place, and those of dataset = "site" never leave theirs: take false'
    if not PROBLEMS[run.problem].needs_data:
        yield f"pooled = true is about data, and problem = {run.problem!r} has none: take false, or sites = 1"
    if (fraction := run.hyper.get("fraction", 1.0)) != 1:
        yield f"pooled = true leaves no sites to draw from, and fraction = {shown(fraction)}: take 1"
    if ALGORITHMS[run.algorithm].personalised:
        yield (
            f"pooled = true leaves no sites to tell apart, and algorithm = {run.algorithm!r} gives each a model of its "
            'own: take false, or another algorithm, such as "fedavg"'
        )


def _fine_tune(run: RunConfig) -> Iterator[str]:
    """Local fine-tuning of a common model."""
    if not run.fine_tune:
        for key, value, default in (
            ("fine-tune-lr", run.fine_tune_lr, 0.0),
            ("fine-tune-part", run.fine_tune_part, "model"),
        ):
            if value != default:
                yield f"{key} = {shown(value)} is about fine-tune, which is 0: set it, such as 50"
        return
    if ALGORITHMS[run.algorithm].personalised:
        yield (
            f"fine-tune = {run.fine_tune} makes a site's model of a common one, and algorithm = {run.algorithm!r} has "
            "none: take 0"
        )
    if not PROBLEMS[run.problem].needs_data:
        yield f"fine-tune = {run.fine_tune} is on a site's samples, and problem = {run.problem!r} has none: take 0"
    if run.pooled:
        yield f"fine-tune = {run.fine_tune}: with pooled = true a site has no samples of its own: take 0"


def _rest(run: RunConfig) -> Iterator[str]:
    for name in parse_words(run.metrics):
        if name not in METRICS:
            yield f"metrics = {shown(run.metrics)}: {METRICS.missing(name)}; it is for metrics from outside"
        elif METRICS[name].of is None:
            yield f"metrics = {shown(run.metrics)}: {name!r} is built in and needs no naming: leave it out"
    if run.metrics and not ranks(PROBLEMS[run.problem]):
        yield f"metrics = {shown(run.metrics)} are functions of scores, and problem = {run.problem!r} has none"
    if run.min_replies > run.sites:
        yield f"min-replies = {run.min_replies}: there are only sites = {run.sites}"
    if run.device != "auto" and not DEVICE.fullmatch(run.device):
        yield f'device = {run.device!r}: allowed are "auto", "cpu", "cuda", "cuda:0", "cuda:1", ...'


def _private(run: RunConfig) -> Iterator[str]:
    """Differential privacy: what has to be given up for it."""
    keys = type(run).model_fields
    if not run.private:
        for name in ("dp_delta", "dp_clip", "dp_difference_clip"):
            if (value := getattr(run, name)) != keys[name].default:
                key = keys[name].alias
                yield f"{key} = {value:g}: nothing is private with dp.epsilon = 0; set it, as 3, or leave {key} out"
        return
    algorithm, problem = ALGORITHMS[run.algorithm], PROBLEMS[run.problem]
    asked = f"dp.epsilon = {run.dp_epsilon:g}"
    if problem.mixes_patients:
        yield f"{asked}: problem = {run.problem!r} cannot be private ({problem.mixes_patients}): take auc or bce"
    if why := not_private(algorithm.needs):
        yield f"{asked}: algorithm = {run.algorithm!r} cannot be private: {why}"
    for key, value, wanted, why in (
        ("sampler", run.sampler, "uniform", "each patient is in a batch with the same probability"),
        ("pooled", run.pooled, False, "noise is added at each site"),
        ("compare-with", run.compare_with, "", "two models cannot be compared under noise"),
        ("fine-tune", run.fine_tune, 0, "a site's own model is made of noised gradients alone"),
    ):
        if value != wanted:
            yield f"{asked}: {key} = {shown(value)}, and {why}: take {shown(wanted)}"
    for key, clip, default in (
        ("dp.clip", run.dp_clip, "the problem's own"),
        ("dp.difference-clip", run.dp_difference_clip, "dp.clip"),
    ):
        if 0 < clip < SMALLEST_CLIP:
            yield f"{key} = {clip:g}: must be at least {SMALLEST_CLIP:g}, or 0 for {default}"


def _secure(run: RunConfig) -> Iterator[str]:
    """Secure aggregation: what is no sum over all sites."""
    if not run.secure_aggregation:
        return
    algorithm, asked = ALGORITHMS[run.algorithm], "secure-aggregation = true"
    if not algorithm.messages.sums:
        able = ", ".join(name for name, other in ALGORITHMS.items() if other.messages.sums)
        yield (
            f"{asked}: algorithm = {run.algorithm!r} needs the replies of single sites, and the coordinator sees sums "
            f"alone: take one of {able}"
        )
    if getattr_static(PROBLEMS[run.problem], "idle") is not vars(Problem)["idle"]:
        yield (
            f"{asked}: problem = {run.problem!r} leaves out sites without positives; where one site alone has some, "
            'the sum is its own reply: take problem = "auc", "auc-margin" or "bce"'
        )
    for key, value, wanted, why in (
        ("fraction", run.hyper.get("fraction", 1.0), 1.0, "two sums over different sites differ by single ones"),
        ("min-replies", run.min_replies, 0, "two sums over different sites differ by single ones"),
        ("wire", run.wire, "float32", "sums are of whole numbers, which are not rounded"),
        ("wire-estimators", run.wire_estimators, "", "sums are of whole numbers, which are not rounded"),
        ("compare-with", run.compare_with, "", "two models are compared at single sites"),
        ("pooled", run.pooled, False, "there is one place, and nothing to hide"),
    ):
        if value != wanted:
            yield f"{asked}: {key} = {shown(value)}, and {why}: take {shown(wanted)}"
    if run.aggregation not in ("auto", "mean"):
        yield f'{asked}: aggregation = {run.aggregation!r} compares single replies, which nobody sees: take "mean"'
    if run.sites < 2:
        yield f"{asked}: sites = {run.sites}, and the sum over one site is its own: take more"
