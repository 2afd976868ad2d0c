"""RunConfig: the whole run, parsed from Flower's flat run-config and checked before anything starts."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from config.errors import ConfigError, explain, unknown, unknown_key
from datasets import DATASETS, PARTITIONS, SAMPLERS, DataConfig
from models import MODELS, WITH_STATISTICS
from problems import PROBLEMS, Task
from strategies import ALGORITHMS, FederatedStrategy, StrategyError, can_solve, own_fields
from strategies.hyper import problems_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Value = bool | int | float | str


def _one_of(kind: str, allowed: Collection[str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in allowed:
            raise ValueError(unknown(kind, name, allowed))
        return name

    return AfterValidator(check)


def _classes(text: str) -> str:
    parse_classes(text)
    return text


def parse_classes(text: str) -> tuple[int, ...]:
    """Parse a list of classes: ``"0,1,5-9"`` is (0, 1, 5, 6, 7, 8, 9); empty is ().

    Raises
    ------
    ValueError
        For anything else.
    """
    classes: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        numbers = (first.strip(), last.strip() if dash else first.strip())
        if not all(re.fullmatch("[0-9]{1,4}", number) for number in numbers) or int(numbers[0]) > int(numbers[1]):
            raise ValueError('must list classes by number, up to 9999, as in "5,6,7" or "5-9"')
        classes += range(int(numbers[0]), int(numbers[1]) + 1)
    return tuple(classes)


Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[int, Field(ge=1, le=10**9)]
Natural = Annotated[int, Field(ge=0, le=10**9)]
Seconds = Annotated[float, Field(gt=0)]

# The fields that all algorithms share are run-config keys too; they are declared once, in strategies/base.py.
SHARED = {f.name.replace("_", "-"): f for f in fields(FederatedStrategy) if f.init}

SITES_OWN = ("site", "data-dir", "partition-id", "num-partitions")  # keys of `SiteConfig` that no run has


class RunConfig(BaseModel):
    """Everything that defines a run. Keys are field names with dashes; pyproject.toml explains each.

    The hyper-parameters are in ``hyper``: those that all algorithms share, and the chosen algorithm's own.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        populate_by_name=True,
        alias_generator=lambda name: name.replace("_", "-"),
    )

    # What is trained, by what.
    algorithm: Annotated[str, _one_of("algorithm", ALGORITHMS)] = "codasca"
    problem: Annotated[str, _one_of("problem", PROBLEMS)] = "auc"
    model: Annotated[str, _one_of("model", MODELS)] = "mlp"
    hidden: Positive = 32
    head: str = ""
    rounds: Positive = 40
    batch_size: Positive = 16

    # The data and how it is split.
    dataset: Annotated[str, _one_of("dataset", DATASETS)] = "breast-cancer"
    data_root: str = ""
    partition: Annotated[str, _one_of("partition", PARTITIONS)] = "dirichlet"
    concentration: Annotated[float, Field(gt=0)] = 1.0
    positive_classes: Annotated[str, AfterValidator(_classes)] = ""
    negative_classes: Annotated[str, AfterValidator(_classes)] = ""
    thin_class: Literal["positive", "negative"] = "positive"
    thin_share: Share = 0.1
    test_share: Share = 0.25
    holdout_share: Share = 0.2
    personal_test: bool = False
    folds: Natural = 0
    fold: Natural = 0
    label: str = "label"
    standardise: bool = True
    sampler: Annotated[str, _one_of("sampler", ("auto", *SAMPLERS))] = "auto"
    positives_per_batch: Positive = 4

    # The problem's own numbers.
    prior: Share = 0.0
    score: Literal["sigmoid", "identity"] = "sigmoid"
    margin: Annotated[float, Field(gt=0)] = 1.0
    radius: Annotated[float, Field(gt=0)] = 1.0
    robust_loss: Literal["cross-entropy", "squared"] = "cross-entropy"
    inner_samples: Positive = 10
    sigma_ratio: Annotated[float, Field(ge=0)] = 1.0
    ways: Annotated[int, Field(ge=2)] = 5
    shots: Positive = 1
    queries: Positive = 15
    inner_lr: Annotated[float, Field(gt=0)] = 0.4
    inner_steps: Positive = 1
    test_inner_steps: Positive = 3
    test_tasks: Positive = 100
    dimension: Natural = 0
    heterogeneity: Annotated[float, Field(ge=0)] = 1.0
    saddle_file: str = ""

    # Who takes part, and what happens when somebody does not.
    sites: Positive = 8
    wait_timeout: Seconds = 60.0
    round_timeout: Seconds = 3600.0
    min_replies: Natural = 0
    loss_bound: Annotated[float, Field(gt=0)] = 1e6
    on_bad_update: Literal["skip", "stop"] = "skip"

    # How it is computed.
    engine: Literal["flower", "local"] = "flower"
    workers: Natural = 0
    threads: Positive = 1
    device: str = "auto"
    amp: Literal["", "bf16"] = ""
    bn: Literal["average", "local"] = "average"

    # What is measured and kept.
    evaluate_every: Natural = 1
    central_test: bool = True
    checkpoint_every: Natural = 10
    runs_dir: str = "runs"
    state_dir: str = ""
    run_name: str = ""

    hyper: dict[str, Value] = {}

    # ------------------------------------------------------------------ from and to flat keys

    @classmethod
    def parse(cls, flat: Mapping[str, Value]) -> RunConfig:
        """Check a run-config and make it a RunConfig.

        Parameters
        ----------
        flat : mapping
            Keys as in pyproject.toml, an algorithm's table as ``"codasca.lr"``. Missing keys take their defaults.

        Raises
        ------
        ConfigError
            Listing everything that is wrong, each with the key, the value and what is allowed.
        """
        problems: list[str] = []
        own = {name: own_fields(algorithm) for name, algorithm in ALGORITHMS.items()}
        tables = {f"{name}.{key}" for name, keys in own.items() for key in keys}
        run_keys = {(f.alias or name) for name, f in cls.model_fields.items()} - {"hyper"}
        algorithm = flat.get("algorithm", cls.model_fields["algorithm"].default)
        run: dict[str, Value] = {}
        for key, value in flat.items():
            if key in run_keys:
                run[key] = value
            elif key not in SHARED and key not in tables:
                problems.append(unknown_key(key, run_keys | set(SHARED) | tables, [str(algorithm)], SITES_OWN))
        config: RunConfig | None = None
        try:
            config = cls.model_validate(run)._settled()
        except ValidationError as error:
            problems += explain(error)
        hyper = {key: flat[key] for key in SHARED if key in flat}
        for name, f in SHARED.items():
            if name in hyper:
                problems += problems_of(name, hyper[name], type(f.default), f.metadata)
        for name, keys in own.items():
            declared = {f.name.replace("_", "-"): f for f in fields(ALGORITHMS[name])}
            for key in keys:
                if (full := f"{name}.{key}") in flat:
                    f = declared[key]
                    problems += problems_of(full, flat[full], type(f.default), f.metadata)
                    if name == algorithm:
                        hyper[key] = flat[full]
        if config is not None:
            problems += config._contradictions()
        if config is None or problems:
            raise ConfigError("run-config", problems)
        config = config.model_copy(update={"hyper": hyper})
        try:
            config.strategy()
        except StrategyError as error:
            raise ConfigError("run-config", str(error).splitlines()) from None
        return config

    def _settled(self) -> RunConfig:
        """Return the same with the problem's own choice where the run leaves it open."""
        problem = PROBLEMS[self.problem]
        sampler = problem.sampler if self.sampler == "auto" else self.sampler
        return self.model_copy(update={"sampler": sampler, "dimension": self.dimension or problem.dimension})

    def _contradictions(self) -> list[str]:
        """Return what is wrong between keys that are right by themselves."""
        found = []
        algorithm, problem = ALGORITHMS[self.algorithm], PROBLEMS[self.problem]
        if not can_solve(algorithm, problem):
            able = sorted(name for name, other in ALGORITHMS.items() if can_solve(other, problem))
            fit = sorted(name for name, other in PROBLEMS.items() if can_solve(algorithm, other))
            missing = sorted(need.replace("-", " ") for need in algorithm.needs - problem.offers)
            lacks = "".join(f" that offers no {need}" for need in missing)
            found.append(
                f"algorithm = {self.algorithm!r} cannot solve problem = {self.problem!r}, a {problem.kind} problem"
                f"{lacks}: take algorithm {' or '.join(able)}, or problem {' or '.join(fit)}"
            )
        if algorithm.last_layer and self.head:
            found.append(
                f"head = {self.head!r}: algorithm = {self.algorithm!r} adds up two linear heads, so its head is the "
                'last layer: leave head = ""'
            )
        if algorithm.own_statistics and self.bn == "average" and self.model in WITH_STATISTICS and problem.needs_data:
            found.append(
                f"bn = {self.bn!r}: with algorithm = {self.algorithm!r} the batch-norm statistics of model = "
                f'{self.model!r} belong to each site\'s own model, so take bn = "local"'
            )
        if self.min_replies > self.sites:
            found.append(f"min-replies = {self.min_replies}: there are only sites = {self.sites}")
        if problem.multiclass:
            found += [
                f"{key} = {value!r} is for problems of two classes, and problem = {self.problem!r} keeps all classes "
                f"of the data: take {key} = {default!r}"
                for key, value, default in (
                    ("sampler", self.sampler, "uniform"),
                    ("positive-classes", self.positive_classes, ""),
                    ("negative-classes", self.negative_classes, ""),
                )
                if value != default
            ]
        elif self.sampler == "fixed-positives" and self.positives_per_batch >= self.batch_size:
            found.append(
                f"positives-per-batch = {self.positives_per_batch}: must be below batch-size = {self.batch_size}, so "
                "lower the one or raise the other"
            )
        if problem.sampler == "fixed-positives" and self.sampler != problem.sampler:
            found.append(
                f"sampler = {self.sampler!r}: problem = {self.problem!r} needs positives in every batch, so take "
                'sampler = "fixed-positives" or leave it at "auto"'
            )
        if self.folds == 1 or self.fold >= max(1, self.folds):
            found.append(
                f"folds = {self.folds}, fold = {self.fold}: folds must be 0 (no cross-validation) or at least 2, and "
                "fold from 0 to folds - 1 (0 without cross-validation)"
            )
        if both := set(parse_classes(self.positive_classes)) & set(parse_classes(self.negative_classes)):
            found.append(f"positive-classes and negative-classes share {', '.join(map(str, sorted(both)))}")
        if self.personal_test and (self.folds or self.dataset == "site"):
            none = 'dataset = "site" has none' if self.dataset == "site" else f"folds = {self.folds} leave none"
            found.append(
                f"personal-test = true deals a common test set over the sites, and {none}: take personal-test = false, "
                "with which each site holds out rows of its own"
            )
        if self.partition == "sites" and self.dataset not in ("heart-disease", "harbox", "site"):
            found.append(
                f'partition = "sites" needs data with natural sites (heart-disease, harbox), not {self.dataset!r}'
            )
        if self.partition == "by-group" and self.dataset not in ("omniglot", "heart-disease", "harbox", "site"):
            found.append(
                'partition = "by-group" needs data with groups (omniglot: characters, heart-disease: hospitals, '
                f"harbox: users), not {self.dataset!r}"
            )
        if self.problem == "maml" and self.dataset == "omniglot" and self.partition != "by-group":
            found.append(
                f"partition = {self.partition!r} spreads the drawings of a character over the sites, and problem = "
                "'maml' deals characters out whole, each with its four turns: take partition = \"by-group\""
            )
        if not _valid_device(self.device):
            found.append(f'device = {self.device!r}: allowed are "auto", "cpu", "cuda", "cuda:0", "cuda:1", ...')
        return found

    def flat(self) -> dict[str, Value]:
        """Return all keys, from which `parse` makes an equal RunConfig."""
        values = self.model_dump(by_alias=True, exclude={"hyper"})
        own = own_fields(ALGORITHMS[self.algorithm])
        for key, value in self.hyper.items():
            values[f"{self.algorithm}.{key}" if key in own else key] = value
        return values

    def to_toml(self) -> str:
        """Return a file that ``flwr run . --run-config FILE`` and ``python -m server_app --run-config FILE`` take."""
        top: list[str] = []
        own_table: list[str] = []
        strategy = self.strategy()
        for key, value in self.model_dump(by_alias=True, exclude={"hyper"}).items():
            top.append(f"{key} = {_toml(value)}")
        own = own_fields(type(strategy))
        for f in fields(strategy):
            key = f.name.replace("_", "-")
            if f.init:
                (own_table if key in own else top).append(f"{key} = {_toml(getattr(strategy, f.name))}")
        return "\n".join([*top, "", f"[{self.algorithm}]", *own_table, ""])

    # ------------------------------------------------------------------ what the parts of the app need of it

    @property
    def seed(self) -> int:
        """The seed of every random choice of the run."""
        return int(self.hyper.get("seed", 0))

    def strategy(self) -> FederatedStrategy:
        """Build the algorithm with its hyper-parameters."""
        values: dict[str, Any] = {key.replace("-", "_"): value for key, value in self.hyper.items()}
        return ALGORITHMS[self.algorithm](**values)

    def data(self, data_dir: str = "", label: str = "", data_root: str = "") -> DataConfig:
        """Describe the data; a site may say where its own lies and what its label column is called."""
        multiclass = PROBLEMS[self.problem].multiclass
        return DataConfig(
            dataset=self.dataset,
            data_root=data_root or self.data_root,
            data_dir=data_dir,
            partition=self.partition,
            concentration=self.concentration,
            positive_classes=parse_classes(self.positive_classes),
            negative_classes=parse_classes(self.negative_classes),
            thin_class=self.thin_class,
            binary=not multiclass,
            # Thinning makes one of two classes of public data rare. A hospital's own patients are never left out.
            thin_share=0.0 if self.dataset == "site" or multiclass else self.thin_share,
            test_share=self.test_share,
            holdout_share=self.holdout_share,
            personal_test=self.personal_test,
            folds=self.folds,
            fold=self.fold,
            label=label or self.label,
            seed=self.seed,
        )

    def task(
        self,
        device: str,
        shape: tuple[int, ...],
        classes: int,
        prior: float,
        site: int,
        sites: int,
        shares: tuple[float, ...] = (),
    ) -> Task:
        """Describe the problem, given the facts that the sites reported."""
        return Task(
            problem=self.problem,
            seed=self.seed,
            device=device,
            model=self.model,
            hidden=self.hidden,
            head=self.head,
            shape=shape,
            classes=classes,
            prior=self.prior or prior,
            shares=shares,
            ways=self.ways,
            shots=self.shots,
            queries=self.queries,
            inner_lr=self.inner_lr,
            inner_steps=self.inner_steps,
            test_inner_steps=self.test_inner_steps,
            test_tasks=self.test_tasks,
            amp=self.amp,
            score=self.score,
            margin=self.margin,
            radius=self.radius,
            robust_loss=self.robust_loss,
            # Only a closed-form problem differs from site to site; a network is shared by the sites of a process.
            site=-1 if PROBLEMS[self.problem].needs_data else site,
            sites=sites,
            inner_samples=self.inner_samples,
            sigma_ratio=self.sigma_ratio,
            dimension=self.dimension,
            heterogeneity=self.heterogeneity,
            saddle_file=self.saddle_file,
        )


@lru_cache(maxsize=8)
def _parsed(items: tuple[tuple[str, Value], ...]) -> RunConfig:
    return RunConfig.parse(dict(items))


def parse_run_config(flat: Mapping[str, Value]) -> RunConfig:
    """Like `RunConfig.parse`, once per process for equal input: a client parses at every message."""
    return _parsed(tuple(flat.items()))


def read_overrides(arguments: list[str]) -> dict[str, Value]:
    """Parse ``--run-config`` values: TOML files and ``key=value`` pairs, as ``flwr run`` reads them; later ones win.

    Raises
    ------
    ConfigError
        For a file that is missing or no TOML, or pairs that cannot be parsed.
    """
    import click
    from flwr.common.config import parse_config_args

    values: dict[str, Value] = {}
    wrong: list[str] = []
    for text in arguments:
        file = text.endswith(".toml")
        # Flower's parser passes over what is no pair, so that `rounds 3` would change nothing and say nothing.
        if not file and (rest := _PAIR.sub(" ", text).split()):
            wrong.append(f"{' '.join(rest)!r} is no key=value pair: write 'rounds=3 algorithm=\"fedavg\"'")
        parts = [text] if file else [match[0] for match in _PAIR.finditer(text)]
        keys = [part.partition("=")[0] for part in parts]
        wrong += [f"{key} is given twice: leave one out" for key in sorted({k for k in keys if keys.count(k) > 1})]
        for part in parts:
            try:
                values |= parse_config_args([part])
            except (OSError, ValueError, click.ClickException) as error:
                reason = error.format_message() if isinstance(error, click.ClickException) else str(error)
                key, _, value = part.partition("=")
                wrong.append(
                    f"{part}: {reason}"
                    if file
                    else f"{part}: is neither a number nor true nor false, and text needs "
                    f"quotes, as in '{key}=\"{value}\"'"
                )
    if wrong:
        raise ConfigError("--run-config", wrong)
    return values


_PAIR = re.compile(r"""\S+?=('[^']*'|"[^"]*"|\S+)""")  # as Flower's parser finds them


def _toml(value: Value) -> str:
    """Write a value as JSON does, which is TOML but for surrogate pairs and the one control character that it keeps."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def flatten(nested: Mapping[str, Any]) -> dict[str, Value]:
    """Turn ``{"codasca": {"lr": 1}}`` into ``{"codasca.lr": 1}``."""
    flat: dict[str, Value] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": deeper for inner, deeper in flatten(value).items()}
        else:
            flat[key] = value
    return flat


def _valid_device(device: str) -> bool:
    kind, colon, index = device.partition(":")
    return device in ("auto", "cpu", "cuda") or (kind == "cuda" and bool(colon) and index.isdigit())
