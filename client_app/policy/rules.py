"""The policy: the table ``[policy]`` of the operator's file."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr

from edelweiss.client_app.connection import TABLES, JoinConfig
from edelweiss.common import ConfigError, flatten, hint, shorter, shown, unknown, within
from edelweiss.common.files import read_toml, reason
from edelweiss.config import RunConfig
from edelweiss.config.keys import Keys
from edelweiss.config.node import LocalPath, site_name
from edelweiss.config.plug_ins import KINDS
from edelweiss.config.tables import SHARED, tables
from edelweiss.config.values import AlgorithmName, Delta, Epsilon, ModelName, ProblemName, Share
from edelweiss.datasets.config import SITE
from edelweiss.federation.fingerprint import release
from edelweiss.federation.ticket import Hash, signer, study_key
from edelweiss.problems import PROBLEMS

log = logging.getLogger("edelweiss")

Count = Annotated[int, Field(ge=0, le=10**9)]
Fewest = Annotated[int, Field(ge=1, le=10**9)]
StudyKey = Annotated[str, AfterValidator(study_key)]
SECRET = "secret"
Secret = Annotated[str, SECRET]  # a rule whose value is never logged


class PolicyError(ConfigError):
    """An invalid policy, with which a site refuses everything.

    Attributes
    ----------
    public : str
        The message that may leave the site, which reveals nothing of the file.
    """

    public = "this site's policy is invalid, so it refuses everything; its operator finds the reason in its log"


def _fingerprint(text: str) -> str:
    """Check the fingerprint of a release."""
    if not re.fullmatch(r"[0-9a-f]{12}", text):
        raise ValueError("must be the 12 hexadecimal digits that a site logs as its version")
    return text


def _plug_in(text: str) -> str:
    """Check a plug-in: its name, and the hash of the package that it is from."""
    if not re.fullmatch(r"\S+ sha256:[0-9a-f]{64}", text):
        raise ValueError("must be a name and a hash, as in 'mypackage:Proximal sha256:...': doctor shows the line")
    return text


def _two_or_more(count: int) -> int:
    if count == 1:
        raise ValueError("must be 0 (no cross-validation) or at least 2")
    return count


class Budget(Keys):
    """What patients may lose of their privacy over all runs: the table ``[privacy]`` of the operator's file."""

    epsilon: Epsilon = Field(
        0.0,
        description="ε of each patient for the life of the data: runs need `dp.epsilon`, and answers end when it is "
        "spent; 0: no budget",
    )
    delta: Delta = Field(1e-6, description="δ of the same, well below 1 / patients")
    witness: str = Field(
        "",
        description="a folder on another disk than the state-dir, and in no backup with it: files there notice that "
        "the ledger, or the keys of secure aggregation, were put back from a copy of the whole disk; empty: only "
        "copies of files are noticed",
    )

    def __bool__(self) -> bool:
        return self.epsilon > 0


class StudyData(Keys):
    """The data of one study, where a site has several: a table ``[studies.NAME]`` of the operator's file."""

    study_key: StudyKey = Field(
        "",
        description="the study's public key, its 64 hexadecimal digits or its file: runs that it signed get these data",
    )
    data_dir: LocalPath = Field("", description="folder with the study's data, instead of `data-dir` above")
    study: LocalPath = Field("", description="its study file, instead of `study` above")
    label: str = Field("", description="its label column, instead of `label` above")


class Policy(Keys):
    """What a hospital allows. Keys are field names with dashes; the defaults are protective."""

    algorithms: list[AlgorithmName] = Field([], description="the algorithms that a run may use; empty: all")
    problems: list[ProblemName] = Field([], description="the problems that it may solve; empty: all")
    models: list[ModelName] = Field([], description="the networks that it may train; empty: all")
    ranges: dict[str, list[float]] = Field(
        {},
        description="a table of run-config keys, each with its lowest and highest value, such as `rounds = [1, 200]`",
    )
    releases: list[Annotated[str, AfterValidator(_fingerprint)]] = Field(
        [], description="versions of the app that may run here; empty: the installed one"
    )
    plug_ins: list[Annotated[str, AfterValidator(_plug_in)]] = Field(
        [],
        description="what a run may use that is installed here and no part of this app, each by name and hash, such as "
        "`mypackage:Proximal sha256:...`; doctor and the site's log have the lines to copy; empty: nothing",
    )
    study_keys: list[StudyKey] = Field(
        [],
        description="public keys of the study, each its 64 hexadecimal digits or its file: a run needs a ticket that "
        "one of them has signed; empty: no ticket is asked for, and whoever has the coordinator's servers decides what "
        "runs here",
    )
    secure_aggregation: Literal["allowed", "required"] = Field(
        "allowed",
        description="required: this site takes part in runs with secure aggregation only, in which the coordinator "
        "learns sums over all sites and nothing of one",
    )
    peers: dict[str, Hash] = Field(
        {},
        description="the other sites of the study, as a table: the name of each and the SHA-256 of its public key, "
        "which `edelweiss-site peers` prints there, with or without this site; a run with secure aggregation has these "
        "sites and no other",
    )
    fewest_sites: Annotated[int, Field(ge=2, le=10**4)] = Field(
        3, description="least sites that a sum is over, with secure aggregation, this one among them"
    )
    most_rounds: Count = Field(200, description="most rounds of a run on the site's own data; 0: no limit")
    runs_per_day: Count = Field(10, description="most runs on its own data that may begin within 24 hours; 0: no limit")
    most_seconds: Count = Field(
        3600, description="most seconds for computing one reply, from the arrival of its message; 0: no limit"
    )
    approve: Literal["always", "ask"] = Field(
        "always", description="ask: a run waits until `edelweiss-site approve RUN`"
    )
    fewest_training: Fewest = Field(
        20,
        description="least training patients; with fewer the site does not take part, and it sends no sums of a "
        "feature with fewer values",
    )
    fewest_in_update: Fewest = Field(
        10,
        description="least patients in each batch of a gradient; with fewer the site sends no reply",
    )
    fewest_held_out: Fewest = Field(
        10,
        description="least held-out patients; with fewer the site sends no evaluation and reports this number instead "
        "of the true one; with secure aggregation both are in the sums, or these would be of fewer sites",
    )
    fewest_of_each_class: Fewest = Field(
        5,
        description="small-cell suppression: with fewer samples of a class the site reports this number, no counts per "
        "class, and, if held out, no evaluation; evaluations are coarsened to groups of this size; not in the sums of "
        "secure aggregation",
    )
    patient: str = Field(
        "",
        description="the column with the patient ids, which is then not a feature; empty: rows are identified by their "
        "values, images by their paths",
    )
    compare_patients: Secret = Field(
        "",
        description="a secret text shared by all sites of a study: each reports keyed hashes of its patients before a "
        "run, and the coordinator warns about shared patients; anyone with the text can test names. Empty: no hashes",
    )
    seed: Secret = Field(
        "",
        description="any text, which determines the held-out split; empty: a random secret, generated once in the "
        "site's state-dir",
    )
    holdout_share: Share = Field(0.2, description="share of patients held out, regardless of a run's holdout-share")
    folds: Annotated[Count, AfterValidator(_two_or_more)] = Field(
        0, description="allow cross-validation over all patients with this number of folds; 0: none"
    )
    strict: bool = Field(
        False,
        description="refuse instead of warning: another holdout-share of the run, a label that the run chooses, and "
        "likely mistakes in the table",
    )

    _budget: Budget = PrivateAttr(default_factory=lambda: Budget.model_validate({}))
    _studies: dict[str, StudyData] = PrivateAttr(default_factory=dict)

    @classmethod
    def read(cls, path: str) -> Policy:
        """Read the tables ``[policy]``, ``[privacy]`` and ``[studies]`` of a TOML file, else of keys of `JoinConfig`.

        A rule elsewhere in the file is an error, because it would be ignored silently.

        Parameters
        ----------
        path : str
            The file; empty: the defaults.

        Raises
        ------
        PolicyError
            With all problems.
        """
        if not path:
            return _protective()
        try:
            values = read_toml(path)
        except (OSError, ValueError) as error:
            raise PolicyError("policy", [f"{shorter(path)} cannot be read: {reason(error)}"]) from None
        tables = {name: values.pop(name, {}) for name in TABLES}
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise PolicyError("policy", [f"{path}: {name} = {shown(table)} must be a table, [{name}]"])
        return cls._parse(tables, values, path)

    @classmethod
    def _parse(cls, given: dict[str, dict[str, Any]], beside: dict[str, Any], path: str) -> Policy:
        table, privacy = given["policy"], given["privacy"]
        rules, known = cls.keys(), {*TABLES, "notify", *JoinConfig.keys()}
        wrong = [
            f"{key}: it is a rule outside the table [policy]: move it below that line"
            if key in rules
            else unknown("key", key, known)
            for key in beside
            if key not in known
        ]
        if isinstance(ranges := table.get("ranges"), dict):
            ranges = flatten(ranges)
            wrong += (refused := [*_wrong_ranges(ranges)])
            table = {**table, "ranges": {} if refused else ranges}
        policy, others = cls.checked(table)
        budget, spoilt = Budget.checked(privacy)
        others += within("privacy", spoilt)
        studies, spoilt = _studies_in(given["studies"])
        others += within("studies", spoilt)
        if policy is None or budget is None or wrong or others:
            raise PolicyError(f"policy of {path}", wrong + others)
        policy._budget, policy._studies = budget, studies
        if changes := _LAST.get(path, policy).changes(policy):
            log.warning("%s has changed: %s", path, "; ".join(changes))
        _LAST[path] = policy
        return policy

    def changes(self, other: Policy) -> list[str]:
        """Describe the rules that differ in another policy; a secret's value is not shown."""
        names = {field.alias or name: name for name, field in type(self).model_fields.items()}
        secret = {key for key, name in names.items() if SECRET in type(self).model_fields[name].metadata}
        pairs = ((key, getattr(self, name), getattr(other, name)) for key, name in names.items())
        return (
            [
                f"another {key}" if key in secret else f"{key} = {after!r}, was {before!r}"
                for key, before, after in pairs
                if before != after
            ]
            + [
                f"privacy.{key} = {after!r}, was {before!r}"
                for key, before in self.budget.model_dump(by_alias=True).items()
                if before != (after := getattr(other.budget, key))
            ]
            + [
                f"studies.{name} = {other.place(name)!r}, was {self.place(name)!r}"
                for name in {**self.studies, **other.studies}
                if self.studies.get(name) != other.studies.get(name)
            ]
        )

    def in_words(self) -> str:
        """Return the rules that are not the defaults."""
        own = _protective().changes(self)
        return "; ".join([*(text.partition(", was ")[0] for text in own), "all others are the defaults"])

    @property
    def budget(self) -> Budget:
        """The budget of the site's patients."""
        return self._budget

    @property
    def studies(self) -> dict[str, StudyData]:
        """The studies that have data of their own here, by the operator's names."""
        return self._studies

    @property
    def pinned(self) -> list[str]:
        """The study keys whose runs may come here; with any, a run needs a ticket."""
        return [*self.study_keys, *(study.study_key for study in self._studies.values())]

    def place(self, name: str) -> str:
        """Return the folder of a study's data; empty for an unknown study."""
        return self._studies[name].data_dir if name in self._studies else ""

    def study_of(self, ticket: str) -> tuple[str, StudyData] | None:
        """Return the study with data of its own whose key has signed this ticket, and its name."""
        if not ticket:
            return None
        named = {study.study_key: name for name, study in self._studies.items()}
        name = named.get(signer(ticket, [*named])) if named else None
        return (name, self._studies[name]) if name else None

    @property
    def asks(self) -> bool:
        """Whether a run waits for the operator."""
        return self.approve == "ask"

    def objections(self, run: RunConfig) -> Iterator[str]:
        """Yield the policy's objections to a run, each with what is allowed."""
        own = PROBLEMS[run.problem].needs_data
        for key, value, allowed in (
            ("algorithm", run.algorithm, self.algorithms),
            ("problem", run.problem, self.problems),
            ("model", run.model if own else "", self.models if own else []),
        ):
            outside = value in KINDS[key].given  # which the site allows by name and hash
            if allowed and value not in allowed and not outside:
                yield f"{key} = {value!r}: this site allows {', '.join(map(repr, sorted(allowed)))}"
        if self.secure_aggregation == "required" and not run.secure_aggregation:
            yield (
                "secure-aggregation = false: this site takes part in runs with secure aggregation only: set "
                "secure-aggregation = true"
            )
        if self.releases and release() not in self.releases:
            yield f"version {release()} of the app is not one of the releases that this site allows"
        for key, (low, high) in self.ranges.items():
            number = value_of(run, key)
            if number is not None and not low <= number <= high:
                yield f"{key} = {number:g}: this site allows {low:g} to {high:g}"
        if own and run.dataset == SITE and run.private and not self.budget:
            yield (
                f"dp.epsilon = {run.dp_epsilon:g}: this site has no privacy budget, so nobody would count what several "
                "runs cost its patients: its operator sets [privacy] epsilon, or the run leaves dp.epsilon out"
            )
        if own and run.dataset == SITE and self.budget and not run.private:
            yield (
                "dp.epsilon = 0: this site has a privacy budget, and takes part in runs with differential privacy "
                "only: set dp.epsilon"
            )
        if own and run.dataset == SITE and self.budget and run.folds:
            yield f"folds = {run.folds}: with a privacy budget the same patients are held out for ever: take folds = 0"
        if own and run.dataset == SITE:
            if self.most_rounds and run.rounds > self.most_rounds:
                yield f"rounds = {run.rounds}: this site allows at most {self.most_rounds} in a run (most-rounds)"
            if run.folds not in (0, self.folds):
                other = f"folds = {self.folds}" if self.folds else "no cross-validation (folds = 0)"
                yield f"folds = {run.folds}: the held-out split is this site's decision, and it allows {other}"
            if self.strict and not run.folds and run.holdout_share != self.holdout_share:
                yield f"holdout-share = {run.holdout_share:g}: this site allows {self.holdout_share:g}"


def _studies_in(tables: dict[str, Any]) -> tuple[dict[str, StudyData], list[str]]:
    """Return the studies that have data of their own, and everything that is wrong with their tables."""
    found, wrong = dict[str, StudyData](), list[str]()
    for name, table in tables.items():
        if not isinstance(table, dict):
            wrong.append(f"{shorter(name)} = {shown(table)}: must be a table, [studies.NAME]")
            continue
        study, others = StudyData.checked(table)
        others += [
            f"{key} is missing: {mend}"
            for key, mend in (
                ("study-key", "only runs that this study's key has signed get its data"),
                ("data-dir", "name the folder of its data"),
            )
            if not table.get(key)
        ]
        try:
            site_name(name)
        except ValueError as error:
            others.append(f"the study's name {error}")
        twin = next((other for other, its in found.items() if study and its.study_key == study.study_key != ""), "")
        if twin:
            others.append(f"study-key: {shorter(twin)!r} has the same: each study needs a key of its own")
        wrong += within(shorter(name), others)
        if study:
            found[name] = study
    return found, wrong


_LAST: dict[str, Policy] = {}  # what this process has read last, by file


@cache
def _protective() -> Policy:
    """Return the policy of a hospital without one: all defaults."""
    return Policy.model_validate({})


def value_of(run: RunConfig, key: str) -> float | None:
    """Return the number of a run-config key in a run, or its default; None if it does not apply."""
    table, _, name = key.rpartition(".")
    if key in {*RunConfig.keys()}:
        return float(getattr(run, key.replace(".", "_").replace("-", "_")))
    if table in ("", run.algorithm):
        return float(getattr(run.strategy, name.replace("-", "_")))
    if table == run.problem:
        return float(run.options.get(name, tables()[table][name].default))
    return None


def _wrong_ranges(ranges: dict[str, Any]) -> Iterator[str]:
    """Yield the problems of the table of ranges."""
    numbers = {key: f.default for key, f in RunConfig.keys().items()} | {key: f.default for key, f in SHARED.items()}
    numbers |= {f"{name}.{key}": f.default for name, options in tables().items() for key, f in options.items()}
    known = [key for key, default in numbers.items() if type(default) in (int, float)]
    for key, value in ranges.items():
        if key not in known:
            yield f"ranges.{key}: not a number of the run-config.{hint(key, known)} They are in pyproject.toml"
        elif not (
            isinstance(value, list)
            and len(value) == 2
            and all(type(end) in (int, float) for end in value)
            and value[0] <= value[1]
        ):
            yield f"ranges.{key} = {value!r}: must be [lowest, highest], two numbers"
