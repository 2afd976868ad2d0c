"""RunConfig: the whole run, parsed from Flower's flat run-config and checked before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from config.classes import parse_classes
from config.contradictions import contradictions
from config.errors import explain
from config.node import SiteConfig
from config.study import read_study
from config.tables import MOVED, SHARED, own_options, tables
from config.values import (
    Above0,
    AlgorithmName,
    Classes,
    Crop,
    DatasetName,
    Degrees,
    Folds,
    Fraction,
    ModelName,
    Natural,
    PartitionName,
    Positive,
    ProblemName,
    SamplerName,
    Seconds,
    Seed,
    Share,
    Side,
    Sites,
    Threads,
    Width,
    Words,
    Workers,
)
from config.words import parse_words
from datasets import Augmentation, Cohort, DataConfig, stamp
from datasets.config import FOLDERS, OWN, TABLE
from datasets.labels import Labels, split_names
from federation import FederatedStrategy, StrategyError
from keys import ConfigError, Value, arguments, field_errors, hint, shown, text_errors, to_toml
from keys.files import marked
from models import Architecture
from problems import PROBLEMS, Problem, Setting
from strategies import ALGORITHMS


class RunConfig(BaseModel):
    """Everything that defines a run. Keys are field names with dashes, and what `config.tables` adds.

    The options that the user gave are in ``hyper``, of the algorithm, shared or its own, and in ``options``, of the
    problem.
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
    algorithm: AlgorithmName = Field("codasca", description="how it is trained")
    problem: ProblemName = Field("auc", description="what is optimised")
    model: ModelName = Field("mlp", description="the network")
    hidden: Width = Field(32, description="width of mlp's two hidden layers, channels of conv4")
    head: str = Field("", description='layer that the head of personalised algorithms begins with, such as "head"; '
                      "empty: the last one")  # fmt: skip
    init_from: str = Field("", description="the model.safetensors of a finished run, or that run's folder, to start "
                           "from; empty: from the seed")  # fmt: skip
    init_head: Literal["keep", "fresh"] = Field("keep", description="of init-from: its head, with the problem's "
                                                "scalars; fresh: drawn by the seed, they at their start")  # fmt: skip
    pretrained: str = Field("", description="torchvision's file of weights for the model, such as "
                            "resnet18-f37072fd.pth, to start from; empty: none")  # fmt: skip
    rounds: Positive = Field(40, description="R: communication rounds")
    batch_size: Positive = Field(16, description="samples per step; conditional problems: b, outer ones (maml: tasks), "
                                 "but of auprc and partial-auc m, inner ones")  # fmt: skip

    # The data, and how it is split.
    dataset: DatasetName = Field("breast-cancer", description="where samples come from")
    data_root: str = Field("", description="folder with mnist/, cifar10/, heart_disease/, ..., of image-folder with "
                           "train/; empty: that of the environment variable EDELWEISS_DATA, then "
                           "~/.cache/edelweiss")  # fmt: skip
    data_file: str = Field("", description='the table of dataset "table": CSV or Parquet, with a label column')
    study: str = Field("", description="study file that says what the columns of that table, or of the hospitals', "
                       "mean; hospitals read their own copy")  # fmt: skip
    group_column: str = Field("", description="column of data-file whose values partition sites makes sites of, and "
                              "by-group keeps together; no feature")  # fmt: skip
    image_size: Side = Field(0, description="side of the squares that images of image-folder and site become; 0: all "
                                "have one size, and keep it")  # fmt: skip
    image_fit: Literal["crop", "pad"] = Field("crop", description="how: the shorter side is scaled to that, the middle "
                                              "kept; or the longer one, with black borders")  # fmt: skip
    image_colour: Literal["auto", "grey", "rgb"] = Field("auto", description="channels of these images; auto: grey if "
                                                         "all of a site are, else rgb")  # fmt: skip
    views: Words = Field("", description='values of the column view of a site\'s labels.csv, as in "AP,PA"; other rows '
                         'are left out; "blank" is the empty one; empty: all')  # fmt: skip
    bad_images: Share = Field(0.0, description="share of a site's images that may be unreadable, and are left out; a "
                              "site with more takes no part")  # fmt: skip
    partition: PartitionName = Field("dirichlet", description="how it is dealt to the sites; by-group: whole "
                                     "characters, hospitals, users; sites: the data's own; split-sites: parts of "
                                     "these")  # fmt: skip
    concentration: Above0 = Field(1.0, description="of dirichlet: the smaller, the more the sites' case mixes differ")
    positive_classes: Classes = Field("", description='of multi-class data, such as "5-9"; empty: the second half')
    negative_classes: Classes = Field("", description="empty: the first half")
    thin_class: Literal["positive", "negative"] = Field("positive", description="the class that thin-share makes rare")
    thin_share: Share = Field(0.1, description="its share among the training samples afterwards; 0: leave; never "
                              'applied to "site" or where all classes are kept')  # fmt: skip
    test_share: Share = Field(0.25, description="common test set of data that come without one")
    holdout_share: Share = Field(0.2, description="what each site keeps back to evaluate on; of its own data a "
                                "hospital says it")  # fmt: skip
    personal_test: bool = Field(False, description="instead of that, a site is given the part of the common test set "
                                "that has its own class mix")  # fmt: skip
    folds: Folds = Field(0, description="k-fold cross-validation within each site: holdout-share and test-share play "
                           "no part; 0: off")  # fmt: skip
    fold: Natural = Field(0, description="which of the folds each site keeps back, from 0")
    data_seed: Seed = Field(-1, description="of how data are dealt, thinned and held out; -1: seed, which is of all "
                            "other random choices")  # fmt: skip
    label: str = Field("label", description="label column of data-file, of a site's own table or labels.csv; several "
                       "labels, each 1, 0, -1 or blank: their columns, separated by commas")  # fmt: skip
    label_preset: Literal["", "chexpert", "torchxrayvision"] = Field(
        "", description="how LibAUC (for CheXpert) or TorchXRayVision read such labels, instead of the next two"
    )
    uncertain: str = Field("", description="what -1 in them stands for: ones, zeros, ignore (not known), or label by "
                           'label, as in "Edema=ones,zeros"; empty: it may not occur')  # fmt: skip
    blank: Literal["", "zeros", "ignore"] = Field("", description="what a blank in them stands for; empty: it may not "
                                                  "occur. A column that is blank in all rows is a label that the "
                                                  "site lacks")  # fmt: skip
    standardise: bool = Field(True, description="by mean and deviation over all sites, which send sums and counts")
    sampler: SamplerName = Field("auto", description="auto: what the problem needs; uniform: each sample once per "
                                 "epoch, and a round starts a new one; fixed-positives: so many in each")  # fmt: skip
    positives_per_batch: Positive = Field(
        4, description="for fixed-positives; auprc and partial-auc: b, their outer samples"
    )
    augment_flip: bool = Field(False, description="of training images every other, by chance, is mirrored left-right")
    augment_crop: Crop = Field(0.0, description="up to this share of a side, up to 0.5, is cut off anywhere, and the "
                               "rest enlarged to the image's size")  # fmt: skip
    augment_rotate: Degrees = Field(0.0, description="degrees, up to 180, that an image is turned by at most; from "
                                    "outside comes the training mean, or 0 without standardise")  # fmt: skip
    augment_brightness: Fraction = Field(0.0, description="share, up to 1, by which an image is brighter or darker at "
                                         "most; values stay within 0 to 255")  # fmt: skip

    # Who takes part, and what happens when somebody does not.
    sites: Sites = Field(8, description="K: how many sites the run is for")
    min_replies: Natural = Field(0, description="usable answers that a round, and the beginning, needs; 0: every site "
                                 "has to answer. It waits for all but those that are away (cdma: for no "
                                 "more)")  # fmt: skip
    wait_timeout: Seconds = Field(60.0, description="seconds to wait for the sites to connect")
    round_timeout: Seconds = Field(
        3600.0, description="seconds that a round waits for a site that stays silent or away"
    )
    on_bad_update: Literal["skip", "stop"] = Field("skip", description="on NaN or infinity in a site's answer; from "
                                                   "most sites it always stops")  # fmt: skip
    loss_bound: Above0 = Field(1e6, description="a loss beyond it (saddle: a distance) is divergence: at the "
                               "coordinator or most sites it stops the run, a single site is left out")  # fmt: skip

    # How it is computed.
    engine: Literal["flower", "local"] = Field("flower", description="flower: simulation or deployment, as flwr run "
                                               "was told; local: on this machine")  # fmt: skip
    workers: Workers = Field(0, description="processes of the local engine; 0: one per core, at most one per site, but "
                             "one alone for a GPU or a run too short or too light to gain by more")  # fmt: skip
    threads: Threads = Field(1, description="threads of each process; of convolutions the last bits depend on it")
    device: str = Field("auto", description="auto | cpu | cuda | cuda:1")
    amp: Literal["", "bf16"] = Field("", description="bf16: the forward pass in bfloat16 where that is safe")
    bn: Literal["average", "local"] = Field("average", description="batch-norm statistics")

    # What is measured and kept.
    evaluate_every: Natural = Field(1, description="rounds between two evaluations; 0: only at the end")
    central_test: bool = Field(True, description="also evaluate on a common test set at the coordinator (not with "
                               'dataset "site")')  # fmt: skip
    evidence: bool = Field(True, description="evidence.json at the end: intervals, calibration, curves; two classes "
                           "only")  # fmt: skip
    compare_with: str = Field("", description="the model.safetensors or the folder of a run of the same network: "
                              "AUROCs on the same patients are compared (DeLong, paired); empty: none")  # fmt: skip
    checkpoint_every: Natural = Field(1, description="rounds between two writings of the model, and of what "
                                      "resume needs; more where writing would take over 2 % of the time; 0: only the "
                                      "model, at the end")  # fmt: skip
    tracker: Literal["", "tensorboard", "mlflow", "wandb"] = Field(
        "", description="who is also told of each round's numbers; its package has to be installed"
    )
    report: bool = Field(True, description="write report.html, curves, a model card and a TRIPOD+AI table at the end; "
                         "false saves about a second")  # fmt: skip
    runs_dir: str = Field("runs", description="where run folders go")
    state_dir: str = Field("", description="where simulated sites keep their memory, and their own models for good "
                           "(where a hospital writes is for its operator to say); empty: a private folder for "
                           "temporary files, of the local engine one that ends with the run")  # fmt: skip
    share_model: bool = Field(False, description="each site keeps the final common model, with a card, in its "
                              "state-dir; of a personalised algorithm it keeps its own")  # fmt: skip
    run_name: str = Field("", description="empty: time, algorithm and data")
    resume: str = Field("", description="the folder of a run that was stopped or killed: it goes on there, with the "
                        "keys of its config.toml")  # fmt: skip

    hyper: dict[str, Value] = {}
    options: dict[str, Value] = {}

    # ------------------------------------------------------------------ from and to flat keys

    @classmethod
    def keys(cls) -> dict[str, Any]:
        """Return the fields that are keys, by key."""
        return {f.alias or name: f for name, f in cls.model_fields.items() if name not in ("hyper", "options")}

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
            Listing everything that is wrong, each with the key, the value and what is allowed.
        """
        fields = cls.keys()
        chosen = [str(flat.get(key, fields[key].default)) for key in ("algorithm", "problem")]
        declared_in = tables()
        declared = {f"{name}.{key}": f for name, options in declared_in.items() for key, f in options.items()}
        problems = [text for key in flat if key not in fields and key not in SHARED and key not in declared
                    for text in [_unknown(key, chosen, [*fields, *SHARED], declared)]]  # fmt: skip
        problems += [text for key, value in flat.items() for text in text_errors(key, value)]
        config: RunConfig | None = None
        try:
            config = cls.model_validate({key: value for key, value in flat.items() if key in fields})
        except ValidationError as error:
            problems += explain(error)
        for key, f in {**SHARED, **declared}.items():
            if key in flat:
                problems += field_errors(key, flat[key], f)
        hyper = {key: flat[key] for key in SHARED if key in flat}
        given = [{key: flat[full] for key in declared_in.get(name, ()) if (full := f"{name}.{key}") in flat}
                 for name in chosen]  # fmt: skip
        if config is not None:
            sampler = PROBLEMS[config.problem].sampler if config.sampler == "auto" else config.sampler
            config = config.model_copy(update={"sampler": sampler, "hyper": hyper | given[0], "options": given[1]})
            problems += contradictions(config)
        if config is None or problems:
            raise ConfigError("run-config", problems)
        try:
            _ = config.strategy  # which checks its own
        except StrategyError as error:
            raise ConfigError("run-config", str(error).splitlines()) from None
        return config

    def flat(self) -> dict[str, Value]:
        """Return all keys that are fields or were given, from which `parse` makes an equal RunConfig."""
        own = own_options(ALGORITHMS[self.algorithm])
        hyper = {f"{self.algorithm}.{key}" if key in own else key: value for key, value in self.hyper.items()}
        options = {f"{self.problem}.{key}": value for key, value in self.options.items()}
        return self._fields() | hyper | options

    def to_toml(self) -> str:
        """Return a file that ``flwr run . --run-config FILE`` and ``python -m server_app --run-config FILE`` take.

        It names every key that matters, with defaults: those of the chosen algorithm and problem, of no other.
        """
        return marked(to_toml(self.written()))

    def written(self) -> dict[str, Value]:
        """Return the keys that `to_toml` writes."""
        strategy, own = self.strategy, own_options(ALGORITHMS[self.algorithm])
        shared = {key: getattr(strategy, f.name) for key, f in SHARED.items()}
        hyper = {f"{self.algorithm}.{key}": getattr(strategy, f.name) for key, f in own.items()}
        options = {f"{self.problem}.{key}": self.options.get(key, f.default)
                   for key, f in own_options(PROBLEMS[self.problem]).items()}  # fmt: skip
        return self._fields() | shared | hyper | options

    def _fields(self) -> dict[str, Value]:
        return self.model_dump(by_alias=True, exclude={"hyper", "options"})

    # ------------------------------------------------------------------ what the parts of the app need of it

    @property
    def seed(self) -> int:
        """The seed of every random choice of the run."""
        return self.strategy.seed

    @cached_property
    def strategy(self) -> FederatedStrategy:
        """The algorithm with its hyper-parameters."""
        return ALGORITHMS[self.algorithm](**arguments(self.hyper))

    @cached_property
    def labels(self) -> Labels:
        """The labels of the run."""
        return Labels.of(self.label, self.uncertain, self.blank, self.label_preset)

    @property
    def several(self) -> tuple[str, ...]:
        """The names of the labels, where there are several; else none."""
        return self.labels.names if self.labels.several and self.dataset in OWN else ()

    def data(self, data_dir: str = "", label: str = "", data_root: str = "") -> DataConfig:
        """Describe the data; a site may say where its own lies and what its label columns are called."""
        multiclass = PROBLEMS[self.problem].multiclass
        rules = self.labels if self.labels.clinical and self.dataset in OWN else None
        if rules and label and len(names := split_names(label)) == len(rules.names):
            rules = replace(rules, names=names)
        return DataConfig(
            dataset=self.dataset,
            data_root=data_root or self.data_root,
            data_dir=data_dir,
            data_file=self.data_file,
            group_column=self.group_column,
            study=read_study(self.study) if self.study and self.dataset == TABLE else None,
            stamp=stamp("", file=self.data_file) if self.dataset == TABLE else (0, 0),
            image_size=self.image_size,
            image_fit=self.image_fit,
            image_colour=self.image_colour,
            views=parse_words(self.views),
            follow_links=self.dataset == FOLDERS,  # on a researcher's own machine
            bad_images=self.bad_images,
            partition=self.partition,
            concentration=self.concentration,
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
        """What may happen to training images."""
        return Augmentation(
            flip=self.augment_flip,
            crop=self.augment_crop,
            rotate=self.augment_rotate,
            brightness=self.augment_brightness,
        )

    def setting(self, cohort: Cohort, device: str, site: int = -1) -> Setting:
        """Describe what the problem is built from; ``site`` is -1 at the coordinator."""
        return Setting(
            cohort=cohort,
            architecture=Architecture(model=self.model, hidden=self.hidden, head=self.head, amp=self.amp),
            # Only a closed-form problem differs from site to site; a network is shared by the sites of a process.
            site=-1 if PROBLEMS[self.problem].needs_data else site,
            sites=self.sites,
            seed=self.seed,
            device=device,
        )

    def build_problem(self, setting: Setting) -> Problem:
        """Build the problem with its options.

        Raises
        ------
        ProblemError
            For a file that cannot be used.
        models.ModelError
            For a model that cannot take inputs of this shape.
        """
        return PROBLEMS[self.problem](setting, **arguments(self.options))


def _unknown(key: str, chosen: Collection[str], top: Collection[str], declared: Collection[str]) -> str:
    """Say what is wrong with a key that does not exist, and which was meant."""
    if key in MOVED:
        return f"unknown key {key!r}: it is now {' or '.join(map(repr, MOVED[key]))}"
    if key in {f.alias for f in SiteConfig.model_fields.values()}:
        return f"unknown key {key!r}: it is for a site's operator to set, in --node-config"
    first = [name for name in declared if name.partition(".")[0] in chosen]  # these are meant more often
    where = "All keys are in pyproject.toml, under [tool.flwr.app.config]"
    return f"unknown key {shown(key)}.{hint(key, [*top, *first, *declared])} {where}"


@lru_cache(maxsize=8)
def _parsed(items: tuple[tuple[str, Value], ...]) -> RunConfig:
    return RunConfig.parse(dict(items))


def parse_run_config(flat: Mapping[str, Value]) -> RunConfig:
    """Like `RunConfig.parse`, once per process for equal input: a client parses at every message."""
    return _parsed(tuple(flat.items()))
