"""The caches of a process: data and problems shared by all messages and sites that it serves."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from edelweiss.client_app.privacy.ledger import Ledger
from edelweiss.common import PROCESS_CACHE, Value, arguments
from edelweiss.common.memory import return_freed_memory
from edelweiss.datasets import DataConfig, DataSummary, load_site
from edelweiss.datasets.labels import UNKNOWN
from edelweiss.datasets.memory_mapped import in_blocks
from edelweiss.federation.run_messages import RunMessages
from edelweiss.problems import PROBLEMS, Problem, Setting

if TYPE_CHECKING:
    from pathlib import Path

    from edelweiss.client_app.policy.rules import Budget
    from edelweiss.client_app.site import OpenSite
    from edelweiss.config import RunConfig
    from edelweiss.datasets import Samples, SiteData
    from edelweiss.federation import Encoding, FederatedStrategy

Options = tuple[tuple[str, Value], ...]


@PROCESS_CACHE.keeps(32)
def cached_problem(name: str, setting: Setting, options: Options) -> Problem:
    """Build a problem; once per process, for all sites that it serves."""
    return PROBLEMS[name](setting, **arguments(dict(options)))


@PROCESS_CACHE.keeps(64)
def run_messages(
    algorithm: FederatedStrategy, rounds: int, sites: int, problem: Problem, encoding: Encoding
) -> RunMessages:
    """Return the messages of a run; resolved once per process."""
    start = problem.initial()
    if (buffers := problem.buffers()).numel():
        start["buffers"] = buffers
    return RunMessages(algorithm, start, rounds, sites, problem, encoding=encoding)


def prepared(
    data: SiteData, device: str, data_summary: DataSummary, hidden: tuple[int, ...] = ()
) -> tuple[Samples, Samples]:
    """Return the training and held-out samples of a site, standardised, on the device.

    The ``hidden`` of several labels are unknown among the held-out.
    """
    held_out = data.held_out
    if hidden:
        labels = held_out.labels.clone()
        labels[:, hidden] = UNKNOWN
        held_out = replace(held_out, labels=labels)
    return data_summary.standardised(data.train).to(device), data_summary.standardised(held_out).to(device)


@PROCESS_CACHE.keeps(64)
def loaded_once(config: DataConfig, site: int, sites: int) -> SiteData:
    """Call `load_site`; once per process."""
    return load_site(config, site, sites)


@PROCESS_CACHE.keeps(1024)
def prepared_once(
    config: DataConfig, site: int, sites: int, device: str, data_summary: DataSummary, hidden: tuple[int, ...] = ()
) -> tuple[Samples, Samples]:
    """Call `prepared` for a site that is reopened for every message; once per process."""
    return prepared(loaded_once(config, site, sites), device, data_summary, hidden)


@PROCESS_CACHE.latest
def described_data(run: RunConfig, data_dir: str, label: str, data_root: str) -> DataConfig:
    """Return the data config of data that stay constant, apart from a stamp; see `RunConfig.data`."""
    return run.data(data_dir, label, data_root)


@PROCESS_CACHE.latest
def own_data(config: DataConfig, own: dict[str, Any]) -> DataConfig:
    """Return a hospital's data config, given its values of some fields."""
    return replace(config, **own)


@PROCESS_CACHE.keeps(32)
def data_hash(data: SiteData) -> str:
    """Return a hash of a hospital's data, whose they are, and the held-out split; once per process."""
    digest, inputs = hashlib.sha256(), data.train.inputs
    parts = data.train.labels, data.train.rows, data.held_out.rows
    digest.update(repr([(part.dtype, part.shape) for part in (inputs, *parts)]).encode())  # where each begins
    for block in in_blocks(inputs, torch.arange(len(inputs))):
        digest.update(block.numpy().data)
    for part in parts:
        digest.update(part.numpy().data)
    if data.patient_ids is not None:
        digest.update(data.patient_ids.tobytes())
    return digest.hexdigest()


@PROCESS_CACHE.keeps(32)
def ledger_of(folder: Path, secret: bytes, budget: Budget, data: str) -> Ledger:
    """Open a site's ledger; once per process, which reads it again only where another process wrote."""
    return Ledger(folder, secret, budget, data)


@PROCESS_CACHE.latest
def open_sites(run_id: int) -> dict[object, tuple[object, object, OpenSite]]:
    """Return the sites of the current run that stay open between messages.

    Keyed by ``id`` of the run-config and node-config; the entry keeps these objects alive, so the ids stay unique.
    """
    return {}


def forget_all() -> None:
    """Clear all caches after a run."""
    PROCESS_CACHE.forget()
    return_freed_memory()
