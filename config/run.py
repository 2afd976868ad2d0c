"""RunConfig: the configuration of a run, parsed from Flower's flat run-config and checked before the run starts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cached_property, lru_cache
from typing import Any

from pydantic import Field, ValidationError

from edelweiss.common import (
    LISTED,
    ConfigError,
    Registry,
    Value,
    arguments,
    closest,
    hint,
    key_of,
    option_errors,
    shown,
    text_errors,
    to_toml,
)
from edelweiss.common.files import marked
from edelweiss.config.contradictions import contradictions
from edelweiss.config.keys import explain
from edelweiss.config.node import SiteConfig
from edelweiss.config.plug_ins import as_known
from edelweiss.config.run_keys import RunKeys
from edelweiss.config.study import read_study
from edelweiss.config.tables import MOVED, SHARED, open_steps, own_options, tables
from edelweiss.config.values import parse_classes, parse_words
from edelweiss.datasets import Augmentation, DataConfig, DataSummary, stamp
from edelweiss.datasets.config import FOLDERS, OWN, TABLE
from edelweiss.datasets.labels import Labels, split_names
from edelweiss.federation import Encoding, FederatedStrategy, StrategyError
from edelweiss.federation.robust import Robustness
from edelweiss.federation.sums import MOST_WEIGHT
from edelweiss.models import Architecture
from edelweiss.problems import PROBLEMS, Problem, Setting
from edelweiss.strategies import ALGORITHMS

OTHERS = 3  # tables that a message suggests, at most, for a key in the wrong table


class RunConfig(RunKeys):
    """The configuration of a run: the keys of `RunKeys` and those of `config.tables`.

    ``hyper`` has the given options of the algorithm, shared and its own; ``options`` those of the problem.
    """

    hyper: dict[str, Value] = Field({})
    options: dict[str, Value] = Field({})

    # ------------------------------------------------------------------ from and to flat keys

    @classmethod
    def keys(cls) -> dict[str, Any]:
        """Return the fields that are keys, by key."""
        return {key: field for key, field in super().keys().items() if key not in ("hyper", "options")}

    @classmethod
    def parse(cls, flat: Mapping[str, Value]) -> RunConfig:
        """Check a run-config and make it a RunConfig.

        Parameters
        ----------
        flat : mapping
            Keys as in pyproject.toml, those of a table as ``"codasca.lr"``. Missing keys take their defaults.

        Raises
        ------
        ConfigError
            Listing everything that is wrong: key, value and what is allowed.
        """
        flat = as_known(flat)
        fields = cls.keys()
        chosen = [str(flat.get(key, fields[key].default)) for key in ("algorithm", "problem")]
        declared_in = tables()
        declared = {f"{name}.{key}": f for name, options in declared_in.items() for key, f in options.items()}
        unknowns = [key for key in flat if key not in fields and key not in SHARED and key not in declared]
        problems = [_unknown(key, chosen, [*fields, *SHARED], declared) for key in unknowns[:LISTED]]
        problems += [f"unknown key {shown(key)}" for key in unknowns[LISTED:]]  # suggestions take time
        if texts := [text for key, value in flat.items() for text in text_errors(key, value)]:
            raise ConfigError("run-config", problems + texts)  # searching long texts takes time
        config: RunConfig | None = None
        try:
            config = cls.model_validate({key: value for key, value in flat.items() if key in fields})
        except ValidationError as error:
            problems += explain(error, cls)
        for key, f in {**SHARED, **declared}.items():
            if key in flat:
                problems += option_errors(key, flat[key], f)
        hyper = {key: flat[key] for key in SHARED if key in flat}
        given = [
            {key: flat[full] for key in declared_in.get(name, ()) if (full := f"{name}.{key}") in flat}
            for name in chosen
        ]
        if config is not None:
            usual = "uniform" if config.private else PROBLEMS[config.problem].sampler
            sampler = usual if config.sampler == "auto" else config.sampler
            step = PROBLEMS[config.problem].usual_step(given[1])
            steps = {key: given[0].get(key) or step for key in open_steps(ALGORITHMS[config.algorithm])}
            hyper |= given[0] | steps
            config = config.model_copy(update={"sampler": sampler, "hyper": hyper, "options": given[1]})
            problems += contradictions(config)
        if config is None or problems:
            raise ConfigError("run-config", problems)
        try:
            _ = config.strategy  # which checks its own
        except StrategyError as error:
            raise ConfigError("run-config", str(error).splitlines()) from None
        return config

    def flat(self) -> dict[str, Value]:
        """Return all fields and given options by key; `parse` returns an equal RunConfig."""
        own = own_options(ALGORITHMS[self.algorithm])
        hyper = {f"{self.algorithm}.{key}" if key in own else key: value for key, value in self.hyper.items()}
        options = {f"{self.problem}.{key}": value for key, value in self.options.items()}
        return self._fields() | hyper | options

    def to_toml(self) -> str:
        """Return a file that ``flwr run . --run-config FILE`` and ``edelweiss --run-config FILE`` take.

        It has every key of the run with defaults: those of the chosen algorithm and problem only.
        """
        return marked(to_toml(self.written()))

    def written(self) -> dict[str, Value]:
        """Return the keys that `to_toml` writes."""
        strategy, own = self.strategy, own_options(ALGORITHMS[self.algorithm])
        value = {key_of(name): value for name, value in vars(strategy).items()}
        hyper = {key: value[key] for key in SHARED} | {f"{self.algorithm}.{key}": value[key] for key in own}
        options = {
            f"{self.problem}.{key}": self.options.get(key, f.default)
            for key, f in own_options(PROBLEMS[self.problem]).items()
        }
        return self._fields() | hyper | options

    def _fields(self) -> dict[str, Value]:
        return self.model_dump(by_alias=True, exclude={"hyper", "options"})

    # ------------------------------------------------------------------ parts

    @property
    def seed(self) -> int:
        """The seed of every random choice of the run."""
        return self.strategy.seed

    @property
    def private(self) -> bool:
        """Whether each site's answers are differentially private."""
        return self.dp_epsilon > 0

    @cached_property
    def strategy(self) -> FederatedStrategy:
        """The algorithm with its hyper-parameters."""
        return ALGORITHMS[self.algorithm](**arguments(self.hyper))

    @cached_property
    def encoding(self) -> Encoding:
        """The encoding of messages in a round."""
        return Encoding(self.wire, frozenset(self.strategy.messages.estimates if self.wire_estimators else ()))

    @property
    def robust(self) -> bool:
        """Whether one site's influence on what is known of all data is bounded."""
        return self.aggregation != "mean" and not self.secure_aggregation

    @property
    def robustness(self) -> Robustness:
        """How replies are averaged.

        By default clipped, unless honest sites differ by any factor: by their weights, or in a conditional problem,
        where those with positives in no batch hardly move. Then nobody is an outlier.
        """
        aggregation: Any = self.aggregation
        if self.secure_aggregation:
            return Robustness("mean", math.inf)  # nobody sees a single reply
        if aggregation == "auto":
            differ = PROBLEMS[self.problem].kind == "conditional" or self.strategy.weighting != "uniform"
            if differ or not self.strategy.messages.averages:
                return Robustness("mean", math.inf)
            aggregation = "clipped"
        return Robustness(aggregation, self.outlier_multiple, self.trimmed_share)

    @property
    def most_weight(self) -> int:
        """The largest weight of a site in a sum, with secure aggregation."""
        return 1 if self.strategy.weighting == "uniform" else MOST_WEIGHT

    @property
    def personalised(self) -> bool:
        """Whether each site ends with a model of its own: by the algorithm, or by fine-tuning."""
        return bool(ALGORITHMS[self.algorithm].personalised or self.fine_tune)

    @property
    def remembers(self) -> bool:
        """Whether a site keeps state between rounds."""
        return bool(self.strategy.messages.remembers or self.wire_estimators)

    @cached_property
    def labels(self) -> Labels:
        """The labels of the run."""
        return Labels.of(self.label, self.uncertain, self.blank, self.label_preset)

    @cached_property
    def several(self) -> tuple[str, ...]:
        """The names of several labels; empty for one."""
        return self.labels.names if self.labels.several and self.dataset in OWN else ()

    def data(self, data_dir: str = "", label: str = "", data_root: str = "") -> DataConfig:
        """Describe the data; a site may name its own folder and label columns.

        A run cannot direct a site with its own data to another folder, where its rules might not apply.
        """
        multiclass = PROBLEMS[self.problem].multiclass
        rules = self.labels if self.labels.clinical and self.dataset in OWN else None
        if rules and label:
            rules = rules.called(split_names(label))
        return DataConfig(
            dataset=self.dataset,
            data_root=data_root or ("" if data_dir else self.data_root),
            data_dir=data_dir,
            data_file=self.data_file,
            group_column=self.group_column,
            study=read_study(self.study) if self.study and self.dataset == TABLE else None,
            stamp=stamp("", file=self.data_file) if self.data_file else (0, 0),
            image_size=self.image_size,
            image_fit=self.image_fit,
            image_colour=self.image_colour,
            views=parse_words(self.views),
            follow_links=self.dataset == FOLDERS,  # on a researcher's own machine
            bad_images=self.bad_images,
            partition=self.partition,
            concentration=self.concentration,
            pooled=self.pooled,
            positive_classes=parse_classes(self.positive_classes),
            negative_classes=parse_classes(self.negative_classes),
            thin_class=self.thin_class,
            binary=not multiclass,
            # Thinning makes one of two classes of public data rare. A hospital's own patients are never left out.
            thin_share=0.0 if self.dataset == "site" or multiclass or self.several else self.thin_share,
            test_share=self.test_share,
            holdout_share=self.holdout_share,
            personal_test=self.personal_test,
            folds=self.folds,
            fold=self.fold,
            label=label or self.label,
            labels=rules,
            seed=self.seed if self.data_seed < 0 else self.data_seed,
        )

    @cached_property
    def augmentation(self) -> Augmentation:
        """The augmentation of training images."""
        return Augmentation(
            flip=self.augment_flip,
            crop=self.augment_crop,
            rotate=self.augment_rotate,
            brightness=self.augment_brightness,
        )

    def setting(self, data_summary: DataSummary, device: str, site: int = -1) -> Setting:
        """Describe what the problem is built from; ``site`` is -1 at the coordinator."""
        problem = PROBLEMS[self.problem]
        return Setting(
            data_summary=data_summary,
            architecture=Architecture(model=self.model, hidden=self.hidden, head=self.head, amp=self.amp),
            # Sites of a process share equal problems.
            site=-1 if problem.needs_data or problem.same_everywhere else site,
            sites=self.sites,
            seed=self.seed,
            device=device,
            metrics=parse_words(self.metrics),
        )

    def build_problem(self, setting: Setting) -> Problem:
        """Build the problem with its options.

        Raises
        ------
        ProblemError
            If a file cannot be used.
        edelweiss.models.ModelError
            If the model cannot take inputs of this shape.
        """
        return PROBLEMS[self.problem](setting, **arguments(self.options))


def _unknown(key: str, chosen: Collection[str], top: Collection[str], declared: Collection[str]) -> str:
    """Return the message for an unknown key, with the key that was probably meant."""
    if key in MOVED:
        return f"unknown key {key!r}: it is now {' or '.join(map(repr, MOVED[key]))}"
    if key in {f.alias for f in SiteConfig.model_fields.values()}:
        return f"unknown key {key!r}: it is for a site's operator to set, in --node-config"
    first = [name for name in declared if name.partition(".")[0] in chosen]  # these are more likely
    table, _, last = key.rpartition(".")
    if table in tables():
        return f"unknown key {shown(key)}: {_has(table, last, [*top, *first], declared)}"
    where = "All keys are in pyproject.toml, under [tool.flwr.app.config]"
    return f"unknown key {shown(key)}.{hint(key, [*top, *first, *declared])} {where}"


def _has(table: str, last: str, near: Collection[str], declared: Collection[str]) -> str:
    """Return the keys of a table and the one that was probably meant, of this table, the run or another table.

    ``near`` are the run's own keys and those of its algorithm and problem.
    """
    own = list(tables()[table])
    has = f"{table} has {', '.join(own) if own else 'no keys of its own'}"
    meant = closest(last, own)
    meant = f"{table}.{meant}" if meant else next((name for name in near if name.rpartition(".")[2] == last), "")
    if meant:
        return f"{has}. Did you mean {meant!r}?"
    others = [name for name in declared if name.rpartition(".")[2] == last][:OTHERS]
    return f"{has}; there are {', '.join(map(repr, others))}" if others else has


@lru_cache(maxsize=8, typed=True)  # typed, or 1 would pass where true has been
def _parsed(changes: int, keys: tuple[str, ...], *values: Value) -> RunConfig:
    return RunConfig.parse(dict(zip(keys, values, strict=True)))


def parse_run_config(flat: Mapping[str, Value]) -> RunConfig:
    """Like `RunConfig.parse`, once per process for equal input: a client parses at every message."""
    return _parsed(Registry.changes, tuple(flat), *flat.values())
