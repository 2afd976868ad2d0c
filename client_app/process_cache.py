"""What a process reads and builds once, for all messages and sites that it serves."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from edelweiss.client_app.policy.coarsening import dealt
from edelweiss.client_app.request import forget_request
from edelweiss.client_app.request_checks import forget_messages
from edelweiss.client_app.vectorised import forget_stacks
from edelweiss.common import Value, arguments, latest
from edelweiss.common.memory import return_freed_memory
from edelweiss.datasets import DataConfig, DataSummary, clear_data, load_site
from edelweiss.datasets.labels import UNKNOWN
from edelweiss.datasets.memory_mapped import in_blocks
from edelweiss.federation.run_messages import RunMessages
from edelweiss.problems import PROBLEMS, Problem, Setting

if TYPE_CHECKING:
    from edelweiss.client_app.site import OpenSite
    from edelweiss.config import RunConfig
    from edelweiss.datasets import Samples, SiteData
    from edelweiss.federation import Encoding, FederatedStrategy

Options = tuple[tuple[str, Value], ...]


@lru_cache(maxsize=32)
def cached_problem(name: str, setting: Setting, options: Options) -> Problem:
    """Build a problem; once per process, for all sites that it serves."""
    return PROBLEMS[name](setting, **arguments(dict(options)))


@lru_cache(maxsize=1024)
def dimension(name: str, setting: Setting, options: Options) -> int:
    """Return d, the length of x; once per process."""
    return len(cached_problem(name, setting, options).initial()["x"])


@lru_cache(maxsize=64)
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


@lru_cache(maxsize=1024)
def prepared_once(
    config: DataConfig, site: int, sites: int, device: str, data_summary: DataSummary, hidden: tuple[int, ...] = ()
) -> tuple[Samples, Samples]:
    """Return what `prepared` does for a site that each message opens anew; once per process."""
    return prepared(load_site(config, site, sites), device, data_summary, hidden)


@latest
def public_data(run: RunConfig, data_dir: str, label: str, data_root: str) -> DataConfig:
    """Describe data that do not change while the process runs; see `RunConfig.data`."""
    return run.data(data_dir, label, data_root)


@lru_cache(maxsize=32)
def data_hash(config: DataConfig) -> str:
    """Return a hash of all that a hospital's own data say, and of who is held out; once per process."""
    data = load_site(config, 0, 1)
    digest, inputs = hashlib.sha256(), data.train.inputs
    for block in in_blocks(inputs, torch.arange(len(inputs))):
        digest.update(block.numpy().data)
    for part in (data.train.labels, data.train.rows, data.held_out.rows):
        digest.update(part.numpy().data)
    return digest.hexdigest()


@lru_cache(maxsize=32)
def dealt_once(config: DataConfig) -> list[torch.Tensor]:
    """Deal a hospital's held-out patients into parts; once per process."""
    return dealt(load_site(config, 0, 1), config.key)


@latest
def open_sites(run_id: int) -> dict[tuple[int, int], OpenSite]:
    """Return the sites that stay open from message to message, of the run that the process is at."""
    return {}


def forget_all() -> None:
    """Forget data and problems, of a run that is over; the next one reads its data anew."""
    once = (cached_problem, dimension, run_messages, prepared_once, public_data, data_hash, dealt_once, open_sites)
    for cached in once:
        cached.cache_clear()
    forget_messages()
    forget_request()
    forget_stacks()
    clear_data()
    return_freed_memory()
