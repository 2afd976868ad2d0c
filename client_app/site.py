"""A site, opened for one message: its data, its problem, its memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from client_app.memory import Memory, Owner
from config import ConfigError, RunConfig, SiteConfig, parse_run_config
from datasets import DataConfig, SiteData, load_site
from problems import PROBLEMS, Problem, Task, build_problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flwr.app import Context, Message

    from datasets import Samples

cached_problem = lru_cache(maxsize=32)(build_problem)


@lru_cache(maxsize=1024)
def dimension(task: Task) -> int:
    """Return d, the length of x; once per process."""
    return len(cached_problem(task).initial()["x"])


def resolve_device(wanted: str) -> str:
    """Turn ``"auto"`` into CUDA where there is one, else the CPU.

    Raises
    ------
    ConfigError
        For a CUDA device that is not there.
    """
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    index = int(wanted.partition(":")[2] or 0)
    if wanted.startswith("cuda") and index >= (torch.cuda.device_count() if torch.cuda.is_available() else 0):
        raise ConfigError(
            "site",
            [f'device = {wanted!r}: this machine has {torch.cuda.device_count()} CUDA devices; use "auto"'],
        )
    return wanted


@lru_cache(maxsize=1024)
def prepared(
    config: DataConfig, site: int, sites: int, device: str, shift: tuple[float, ...], scale: tuple[float, ...]
) -> tuple[Samples, Samples]:
    """Return the training and held-out samples of a site, standardised, on the device; once per process."""
    data = load_site(config, site, sites)
    train, held_out = data.train, data.held_out
    if shift:
        vectors = torch.tensor(shift), torch.tensor(scale)
        train, held_out = train.standardised(*vectors), held_out.standardised(*vectors)
    return train.to(device), held_out.to(device)


def owner(run: RunConfig, d: int) -> Owner:
    """Say whose a site's files are: what vectors mean depends on algorithm, problem, model and d, the length of x."""
    model: Owner = {"model": run.model} if PROBLEMS[run.problem].needs_data else {}
    return {"algorithm": run.algorithm, "problem": run.problem, **model, "d": d}


def columns_hash(features: Sequence[str]) -> str:
    """Return what leaves a site of its column names: whether they agree is all that others must know."""
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:8]


FACTS = ("shape", "classes", "prior", "shares", "shift", "scale")
"""What a network and its inputs depend on besides the run-config, see `Order`."""


@dataclass(frozen=True)
class Order:
    """What a message asks of a site, and what all sites agreed on; the rest follows from the run-config.

    Attributes
    ----------
    round, phase, evaluate
        Where the run stands, and whether to evaluate what was received.
    site, name : int, str
        This site's place and name.
    shape, classes, prior, shift, scale, shares
        Of one input; how many labels there are; the share of positives; the standardisation, per feature or channel
        (empty for none); the share of each class (empty for two).
    """

    round: int
    phase: str
    evaluate: bool
    site: int
    name: str
    shape: tuple[int, ...]
    classes: int
    prior: float
    shift: tuple[float, ...]
    scale: tuple[float, ...]
    shares: tuple[float, ...] = ()

    @classmethod
    def of(cls, message: Message) -> Order:
        """Read the message's ``config`` record."""
        record: Mapping[str, Any] = message.content.config_records["config"]
        values = {f.name: record[f.name] for f in fields(cls) if f.name in record}
        vectors = {name: tuple(record.get(name, ())) for name in ("shape", "shift", "scale", "shares")}
        return cls(**({"evaluate": True} | values | vectors))

    def facts(self, run: RunConfig) -> dict[str, object]:
        """Return what it takes to use a model of this run; nothing for a problem in closed form."""
        if not PROBLEMS[run.problem].needs_data:
            return {}
        return {"hidden": run.hidden, **{name: getattr(self, name) for name in FACTS if getattr(self, name)}}


@dataclass(frozen=True)
class OpenSite:
    """One site of one run, as one message finds it.

    Attributes
    ----------
    run : RunConfig
        What everybody does.
    node : SiteConfig
        What this site's operator decided.
    run_id : int
        Flower's number of the run.
    """

    run: RunConfig
    node: SiteConfig
    run_id: int

    @classmethod
    def from_context(cls, context: Context) -> OpenSite:
        """Read both configurations.

        Raises
        ------
        ConfigError
            When one of them cannot be used.
        """
        run, node = parse_run_config(context.run_config), SiteConfig.parse(context.node_config)
        needs_data = PROBLEMS[run.problem].needs_data
        missing = []
        if needs_data and run.dataset == "site" and not node.data_dir:
            missing.append("data-dir is missing: name the folder of this site's data, as in 'data-dir=\"/data\"'")
        if (not needs_data or run.dataset != "site") and not 0 <= node.partition_id < run.sites:
            missing.append(
                f"partition-id = {node.partition_id}: the run has sites = {run.sites}, so give each SuperNode "
                f"another one from 0 to {run.sites - 1} (a simulation: num-supernodes={run.sites})"
            )
        if node.num_partitions not in (0, run.sites):
            missing.append(f"num-partitions = {node.num_partitions}: the run has sites = {run.sites}; leave it out")
        if missing:
            raise ConfigError("node-config", missing)
        torch.set_num_threads(run.threads)
        return cls(run, node, context.run_id)

    @property
    def device(self) -> str:
        """Where this site computes."""
        return resolve_device(self.node.device or self.run.device)

    @property
    def data_config(self) -> DataConfig:
        """Where this site's samples come from."""
        return self.run.data(self.node.data_dir, self.node.label, self.node.data_root)

    def data(self) -> SiteData | None:
        """Return the site's data as it was read; None for a problem without data."""
        if not PROBLEMS[self.run.problem].needs_data:
            return None
        return load_site(self.data_config, max(0, self.node.partition_id), self.run.sites)

    def samples(self, order: Order) -> tuple[Samples | None, Samples | None]:
        """Return training and held-out samples, standardised with the moments of all sites."""
        if not PROBLEMS[self.run.problem].needs_data:
            return None, None
        part = max(0, self.node.partition_id)
        return prepared(self.data_config, part, self.run.sites, self.device, order.shift, order.scale)

    def task(self, order: Order) -> Task:
        """Describe the problem."""
        facts = (order.shape, order.classes, order.prior, order.site, self.run.sites, order.shares)
        return self.run.task(self.device, *facts)

    def problem(self, order: Order) -> Problem:
        """Return the problem; sites that share a process share a network."""
        return cached_problem(self.task(order))

    def memory(self, order: Order) -> Memory:
        """Return the site's memory; another algorithm's or model's is none of its own."""
        mine = owner(self.run, dimension(self.task(order)))
        # A run says where simulated sites write. Where a hospital does is for its operator to say.
        simulated = self.run.state_dir if self.node.partition_id >= 0 else ""
        return Memory(self.node.state_dir or simulated, self.run_id, order.name, mine)
