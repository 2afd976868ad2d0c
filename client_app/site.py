"""A site, opened for one message: data, problem, memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch

from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.local_data import image_cache, study_of
from edelweiss.client_app.memory import Memory
from edelweiss.client_app.model_metadata import provenance
from edelweiss.client_app.policy.coarsening import coarse
from edelweiss.client_app.policy.plug_ins import load_allowed
from edelweiss.client_app.policy.records import Records
from edelweiss.client_app.policy.rules import Policy
from edelweiss.client_app.policy.suppression import hidden_labels, no_evaluation, policy_overrides, protected
from edelweiss.client_app.process_cache import (
    Options,
    cached_problem,
    data_hash,
    described_data,
    ledger_of,
    loaded_once,
    open_sites,
    own_data,
    prepared,
    prepared_once,
    run_messages,
)
from edelweiss.client_app.sums import weight_of
from edelweiss.common import PROCESS_CACHE, Value, files_named, latest
from edelweiss.common.memory import return_freed_memory
from edelweiss.config import ConfigError, RunConfig, SiteConfig, parse_node_config, parse_run_config
from edelweiss.config.plug_ins import load_named, named_outside, packages_of
from edelweiss.datasets import DataConfig, DataError, DataSummary, Facts, SiteData, patient_hashes, stamp
from edelweiss.datasets.config import LOCAL, OWN, SITE
from edelweiss.datasets.facts import LONGEST_NOTE, MOST_NOTES
from edelweiss.federation.fingerprint import fingerprint, release
from edelweiss.federation.run_messages import RunMessages
from edelweiss.models import prepare_device, resolve_device
from edelweiss.problems import PROBLEMS, Problem, Setting, ranks

if TYPE_CHECKING:
    from flwr.app import Context

    from edelweiss.client_app.privacy.ledger import Ledger
    from edelweiss.client_app.privacy.site import SitePrivacy
    from edelweiss.client_app.request import Request
    from edelweiss.datasets import Samples
    from edelweiss.federation import FederatedStrategy
    from edelweiss.problems import Arrays, Metrics

MOST_OPEN = 1024  # most sites of a run that a process keeps open


@PROCESS_CACHE.latest
def _own_privacy(
    run: RunConfig, data: SiteData, secret: bytes, identity: str, ledger: Ledger, name: str
) -> SitePrivacy:
    """Return the private side of a hospital in a run, whose price is found once."""
    from edelweiss.client_app.privacy.site import SitePrivacy  # torch.func takes a second

    return SitePrivacy(run, data, secret, identity, ledger, name)


@PROCESS_CACHE.latest
def _names_outside(run_config: dict[str, Value]) -> bool:
    """Whether a run names anything from outside; its sites share the run-config."""
    return bool(named_outside(run_config))


def version(context: Context) -> str:
    """Return this site's version of the app, with the plug-ins that a run names.

    These are imported first: on a machine that simulates, and at a site whose policy allows it.

    Raises
    ------
    ConfigError, RefusedError
        When one cannot be imported, or is not allowed.
    """
    if not _names_outside(context.run_config):
        return release()
    node = parse_node_config(context.node_config)
    if node.simulated:
        load_named(context.run_config)
    else:
        load_allowed(context.run_config, Policy.read(node.policy))
    return fingerprint(packages_of(context.run_config))


@dataclass(frozen=True)
class OpenSite:
    """One site of one run, opened for a message."""

    run: RunConfig  # the run-config, common to all sites
    node: SiteConfig  # the node-config from this site's operator
    policy: Policy = field(default_factory=lambda: Policy.read(""))  # this site's policy
    run_id: int = 0  # Flower's id of the run
    study: str = ""  # the operator's name of the study whose data these are; empty: those of all others

    @classmethod
    def from_context(cls, context: Context) -> OpenSite:
        """Read both configurations. A site of public data, which are constant, stays open for the run.

        Raises
        ------
        ConfigError
            If one of them is invalid.
        """
        known, configs = open_sites(context.run_id), (context.run_config, context.node_config)
        if (found := known.get(place := (id(configs[0]), id(configs[1])))) is None:  # other objects, as after a fork
            parsed = parse_run_config(configs[0]), parse_node_config(configs[1])
            if (found := known.get(key := (*map(id, parsed), ""))) is None:
                found = (*parsed, cls._of(*parsed, context.run_id))
            if found[2].stays_open:
                if len(known) >= MOST_OPEN:
                    known.clear()
                    return_freed_memory()  # each holds a little, and a round's large vectors lay in between
                known[key], known[place] = found, (*configs, found[2])
        run, site = found[2].run, found[2]
        torch.set_num_threads(run.threads)
        prepare_device(site.device, run.matmul_precision)
        return site

    @classmethod
    def _of(cls, run: RunConfig, node: SiteConfig, run_id: int) -> OpenSite:
        policy = Policy.read(node.policy)
        study = policy.study_of(run.ticket)
        if study:
            given = study[1].model_dump(exclude={"study_key"})
            node = node.model_copy(update=given)
        needs_data = PROBLEMS[run.problem].needs_data
        missing = []
        if needs_data and run.dataset == "site" and not node.data_dir:
            missing.append(
                "no study that has data here ([studies]) has signed the run, and there is no data-dir for others"
                if policy.studies
                else "data-dir is missing: name the folder of this site's data, as in 'data-dir=\"/data\"'"
            )
        if (not needs_data or run.dataset != "site") and not 0 <= node.partition_id < run.sites:
            missing.append(
                f"partition-id = {node.partition_id}: the run has sites = {run.sites}, so give each SuperNode "
                f"another one from 0 to {run.sites - 1} (a simulation: num-supernodes={run.sites})"
            )
        if node.num_partitions not in (0, run.sites):
            missing.append(f"num-partitions = {node.num_partitions}: the run has sites = {run.sites}; leave it out")
        if run.dataset in LOCAL and not node.simulated:
            missing.append(
                f"dataset = {run.dataset!r} names files of the machine that simulates: a site with data of "
                "its own, or without num-partitions, reads none"
            )
        named = [f"{run.problem}.{key}" for key in files_named(PROBLEMS[run.problem], run.options)]
        if named and not node.simulated:
            missing.append(
                f"{', '.join(named)} names a file of the machine that simulates: a site with data of its "
                "own, or without num-partitions, reads none"
            )
        if policy.asks and not node.state_dir:
            missing.append('state-dir is missing: with approve = "ask" runs wait there for you')
        if policy.budget and not node.state_dir:
            missing.append("state-dir is missing: with a privacy budget, what was spent is written there")
        if policy.budget and needs_data and run.dataset == SITE and not node.names_label:
            missing.append(
                "label is missing: with a privacy budget no run chooses the label column, or the number of patients "
                "would tell, without noise, how many have a value in any: its operator names it, or a study file"
            )
        if policy.pinned and not (node.key and node.state_dir):
            missing.append("key and state-dir are needed with study-keys: the key seals this site's answers")
        if missing:
            raise ConfigError("node-config", missing)
        return cls(run, node, policy, run_id, study[0] if study else "")

    @cached_property
    def strategy(self) -> FederatedStrategy:
        """The algorithm; only a simulated site opens files that a run names."""
        return self.run.strategy if self.node.simulated else self.run.strategy.without_files()

    def require_allowed(self) -> None:
        """Check that this site's policy allows the run.

        Raises
        ------
        RefusedError
            When it does not.
        """
        if self._objections:
            raise RefusedError(self._objections)

    @cached_property
    def _objections(self) -> str:
        return "; ".join(self.policy.objections(self.run))

    @cached_property
    def pinned(self) -> list[str]:
        """The study keys whose runs may come here, see `Policy.pinned`."""
        return self.policy.pinned

    @property
    def stays_open(self) -> bool:
        """Whether the process keeps it open for the run's next message, because public data are constant."""
        return self.run.dataset not in OWN and not self.node.policy

    @property
    def guarded(self) -> bool:
        """Whether the data are a hospital's own patients, and not a part of public data."""
        return self.run.dataset == SITE and PROBLEMS[self.run.problem].needs_data

    @property
    def exact(self) -> bool:
        """Whether individual scores of held-out patients may be reported."""
        return not self.guarded or self.policy.fewest_of_each_class == 1

    @property
    def suppresses(self) -> bool:
        """Whether small cells are kept back: not from noised answers, nor from sums over all sites.

        In a sum a zero would be a drop-out: a model at which all others abstain would expose the last.
        """
        return self.guarded and not self.run.private and not self.run.secure_aggregation

    @property
    def gives_evidence(self) -> bool:
        """Whether the final evaluation contributes to the run's evidence."""
        return self.run.evidence and not self.run.private and ranks(PROBLEMS[self.run.problem])

    @property
    def gives_noised(self) -> bool:
        """Whether the final evaluation is of noised histograms."""
        return self.run.evidence and self.run.private and ranks(PROBLEMS[self.run.problem])

    @cached_property
    def records(self) -> Records:
        """The records of this site's policy."""
        shared = not self.node.state_dir or self.node.partition_id >= 0
        return Records(self.node.state_dir, self.node.name if shared else "")

    @cached_property
    def key(self) -> str:
        """The secret that determines this site's held-out split."""
        return self.records.key(self.policy.seed)

    @cached_property
    def device(self) -> str:
        """This site's device."""
        return resolve_device(self.node.device or self.run.device)

    @cached_property
    def data_config(self) -> DataConfig:
        """Where this site's samples come from."""
        named = self.node.data_dir, self.node.label, self.node.data_root
        fixed = self.stays_open or self.guarded  # else the stamp of a table is part of it
        config = described_data(self.run, *named) if fixed else self.run.data(*named)
        if not config.data_dir:
            return config
        own: dict[str, object] = {"follow_links": self.node.follow_links, "image_cache": image_cache(self.node)}
        if self.guarded:
            study = study_of(self.node.study)
            own |= {"study": study, "stamp": stamp(config.data_dir, study), "key": self.key}
            own |= {"patient": self.policy.patient, "holdout_share": self.policy.holdout_share}
        return own_data(config, own)

    def data_hash(self) -> str:
        """Return a hash of the site's own data and held-out split."""
        data = self.data()
        assert data is not None, "a problem without data asks for no hash of them"
        return data_hash(data)

    def facts(self) -> Facts:
        """Return the facts that this site reports before a run."""
        if (privacy := self.privacy) is not None:
            return privacy.facts(self.node.site or privacy.data.name, self.node.partition_id)
        data, facts = self.data(), Facts(name=self.node.name, partition_id=self.node.partition_id)
        if data is None:
            return facts
        facts = Facts.of(
            data,
            name=self.node.site or data.name,
            partition_id=self.node.partition_id,
            multiclass=PROBLEMS[self.run.problem].multiclass,
            standardise=self.run.standardise and not self.run.secure_aggregation,
        )
        if not self.guarded:
            return replace(facts, notes=tuple(line[:LONGEST_NOTE] for line in data.change_log))
        notes = policy_overrides(self.run, self.policy)
        if self.policy.compare_patients and data.by_patient:
            facts = replace(facts, patients=patient_hashes(data, self.policy.compare_patients))
        elif self.policy.compare_patients:
            notes += ("compare-patients: this site has no patient column, so there is nothing to compare",)
        warnings = tuple(doubt.public[:LONGEST_NOTE] for doubt in data.warnings[:MOST_NOTES])
        facts = replace(facts, notes=notes, warnings=warnings)
        return protected(facts, data, self.policy) if self.suppresses else facts

    @cached_property
    def privacy(self) -> SitePrivacy | None:
        """The site's part in a run with differential privacy; None without."""
        if not self.run.private or (data := self.data()) is None:
            return None
        if self.guarded:
            return _own_privacy(self.run, data, self.records.secret, self.data_hash(), self.ledger, str(self.run_id))
        from edelweiss.client_app.privacy.site import SitePrivacy  # torch.func takes a second

        return SitePrivacy.simulated(self.run, data, max(0, self.node.partition_id))

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of what this site's patients have spent."""
        return ledger_of(self.records.folder, self.records.secret, self.policy.budget, self.data_hash())

    def in_run(self, request: Request) -> SiteInRun:
        """Return the cached objects of this site in the run of a request."""
        return self._in_run(*request.lasting)

    @cached_property
    def _in_run(self) -> latest[SiteInRun]:
        return latest(partial(SiteInRun, self))

    @cached_property
    def form(self) -> tuple[tuple[int, ...], int] | None:
        """The shape of the site's inputs and its number of classes; None for a problem without data."""
        data = self.data()
        return None if data is None else (data.train.shape, data.classes)

    def data(self) -> SiteData | None:
        """Return the site's data; None for a problem without data."""
        return self._data

    @cached_property
    def _data(self) -> SiteData | None:
        if not PROBLEMS[self.run.problem].needs_data:
            return None
        try:
            return loaded_once(self.data_config, max(0, self.node.partition_id), self.run.sites)
        except DataError as error:
            if self.guarded and (self.policy.budget or self.policy.asks) and error.public != str(error):
                # How many rows are wrong is a count without noise, of any column that a run calls the label.
                raise DataError(str(error)) from None
            raise


@dataclass(frozen=True, eq=False)
class SiteInRun:
    """Cached objects of one site in one run."""

    site: OpenSite
    # key, index, name, sites, data_summary: constant during the run, see `Request.lasting`
    key: str
    index: int
    name: str
    sites: int
    data_summary: DataSummary

    def _problem_key(self, index: int) -> tuple[str, Setting, Options]:
        run = self.site.run
        if PROBLEMS[run.problem].needs_data and not self.data_summary.shape:
            raise ConfigError("message", ["it has no data summary: start() needs its fields as train_config"])
        return run.problem, run.setting(self.data_summary, self.site.device, index), tuple(run.options.items())

    @cached_property
    def problem(self) -> Problem:
        """The problem; sites that share a process share a network."""
        return cached_problem(*self._problem_key(self.index))

    @cached_property
    def own_problem(self) -> Problem:
        """The problem for local training: with the site's own class shares, if it uses them."""
        if (privacy := self.site.privacy) is not None:
            own = self.problem.differs_by_site(self.site.strategy.own_dual)
            return self.problem.of_site(privacy.counted_labels) if own else self.problem
        train, _ = self.samples
        own = self.problem.differs_by_site(self.site.strategy.own_dual) and train is not None
        return self.problem.of_site(train.targets()) if own else self.problem  # type: ignore[union-attr]

    @cached_property
    def weight(self) -> float:
        """The site's weight in averages, which it knows alone with secure aggregation."""
        return weight_of(self.site, self.site.facts())

    @cached_property
    def example(self) -> Metrics:
        """An evaluation by the problem, for its metrics."""
        return self.problem.example()

    @property
    def averages_statistics(self) -> bool:
        """Whether batch-norm statistics are averaged over the sites."""
        return bool(self.problem.buffers().numel()) and self.site.run.bn == "average" and self.site.strategy.exchanges

    @cached_property
    def messages(self) -> RunMessages:
        """The messages of this run; their lengths are the same at all sites, so site 0's will do."""
        site, problem = self.site, cached_problem(*self._problem_key(0))
        return run_messages(site.strategy, site.run.rounds, self.sites, problem, site.run.encoding)

    @cached_property
    def samples(self) -> tuple[Samples | None, Samples | None]:
        """Training and held-out samples, standardised with the moments of all sites; None for a problem without."""
        site = self.site
        if (data := site.data()) is None:
            return None, None
        # With differential privacy the noise hides few of a class; what depends on their exact number would tell it.
        hidden = hidden_labels(data, site.policy) if site.suppresses else ()
        if site.stays_open:
            return prepared(data, site.device, self.data_summary, hidden)
        place = max(0, site.node.partition_id), site.run.sites
        return prepared_once(site.data_config, *place, site.device, self.data_summary, hidden)

    def fresh(self) -> Arrays:
        """Return this site's initial head (drawn for it alone if the algorithm says so) and y."""
        return self.problem.fresh(self.index if self.site.strategy.own_heads else None)

    @cached_property
    def remembers(self) -> bool:
        """Whether the site keeps anything between messages: vectors of the algorithm, or batch-norm statistics."""
        return self.site.run.remembers or bool(self.problem.buffers().numel())

    def memory(self) -> Memory:
        """Return the site's memory, as a message finds it; another algorithm's or model's is rejected."""
        return self._memory.reread()

    @cached_property
    def _memory(self) -> Memory:
        # A run sets the folder of simulated sites; a hospital's operator sets its own.
        run, node = self.site.run, self.site.node
        default = run.state_dir if node.partition_id >= 0 and not node.data_dir else ""
        return Memory(node.state_dir or default, self.key, self.name, provenance(run, self.messages.d))

    def evaluation(self, model: Arrays) -> Metrics:
        """Evaluate a model on the held-out samples; empty without any, or if the policy suppresses them.

        A hospital's evaluation is coarsened unless its policy allows individual scores.
        """
        site, (_, held_out) = self.site, self.samples
        if site.run.private:
            return {}  # an evaluation reveals patients as well
        problem, data = self.own_problem if site.strategy.own_dual else self.problem, site.data()
        if data is None or held_out is None:
            return problem.metrics(model["x"], model.get("y"), None)
        if not len(held_out) or (site.suppresses and no_evaluation(data, site.policy)):
            return {}
        found = problem.metrics(model["x"], model.get("y"), held_out)
        if site.exact or not found or not site.suppresses:  # secure aggregation adds up bins of all sites
            return found
        return coarse(found, len(held_out), site.policy.fewest_of_each_class)
