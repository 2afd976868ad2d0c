"""SiteConfig: keys that a site's operator sets in the SuperNode's ``--node-config``; no run can change them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from edelweiss.common import ConfigError, Value
from edelweiss.common.files import as_path, is_address, reason
from edelweiss.config.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Mapping


def site_name(text: str) -> str:
    """Return a valid site name; others print it and name files by it."""
    if text and not (text == text.strip() and text.isprintable() and "/" not in text and len(text) <= 100):
        raise ValueError(
            "must be a name of up to 100 printable characters, without / and without leading or trailing spaces"
        )
    return text


@lru_cache(maxsize=8)  # simulated sites share their folders
def local_path(text: str) -> str:
    """Return a valid path of this machine."""
    if is_address(text):
        raise ValueError(
            "must be a path of this machine, not an address: export the data into a folder first "
            "(docs/data.md#images for DICOMweb)"
        )
    try:
        as_path(text)
    except OSError as error:
        raise ValueError(f"must be a path: {reason(error)}") from None
    return text


SiteName = Annotated[str, AfterValidator(site_name)]
LocalPath = Annotated[str, AfterValidator(local_path)]
Volume = Annotated[float, Field(ge=0, le=1e6)]
Part = Annotated[int, Field(ge=-1, le=10**9)]
Parts = Annotated[int, Field(ge=0, le=10**9)]


class SiteConfig(Keys):
    """Keys of a site: in its file, as options of ``join``, or in ``--node-config``; all optional in a simulation."""

    site: SiteName = Field(
        "",
        description="name of the site in reports and in the order of sums; two may not look the same; default: from "
        "partition-id",
    )
    data_dir: LocalPath = Field("", description='folder with the site\'s own data; needed for dataset = "site"')
    state_dir: LocalPath = Field(
        "",
        description="folder for the site's state and personal models, which survives a restart; default: a private "
        "temporary folder, never one that a run names",
    )
    study: LocalPath = Field(
        "",
        description="the coordinator's TOML file that describes a table's columns; yours may have your own spelling",
    )
    label: str = Field("", description="label column; default: the one that a run names")
    policy: LocalPath = Field(
        "", description="TOML file with the site's rules in its table [policy]; default: rules that protect patients"
    )
    key: LocalPath = Field(
        "",
        description="file of this site's private key (ECDSA, OpenSSH's format, no passphrase), which the coordinator "
        "registers and which seals its answers to runs with a ticket",
    )
    follow_links: bool = Field(False, description="whether links in data-dir may lead to images outside it")
    image_cache: Volume = Field(20.0, description="GB of decoded images cached in state-dir; 0: no cache")
    device: str = Field("", description="auto, cpu, cuda, cuda:1; default: the run's device")
    data_root: LocalPath = Field(
        "",
        description="folder with public data sets; default: the run's data-root, none for a site with data-dir",
    )
    partition_id: Part = Field(-1, description="part of a public data set that this site has; not for its own data")
    num_partitions: Parts = Field(0, description="number of parts: the run's sites. Flower's simulation sets both")

    @property
    def name(self) -> str:
        """The site's name; empty if the operator gave none, so that it follows from the data."""
        return self.site or (f"site-{self.partition_id}" if self.partition_id >= 0 else "")

    @property
    def simulated(self) -> bool:
        """Whether the site is simulated, so that files named by a run are on its machine."""
        return bool(self.num_partitions) and not self.data_dir

    @property
    def names_label(self) -> bool:
        """Whether the operator chooses the label column; else each run does."""
        return bool(self.label or self.study)

    @classmethod
    def parse(cls, values: Mapping[str, Value]) -> SiteConfig:
        """Check a node-config.

        Raises
        ------
        ConfigError
            Listing everything that is wrong with it.
        """
        config, wrong = cls.checked(values)
        if config is None or wrong:
            raise ConfigError("node-config", wrong)
        return config


@lru_cache(maxsize=1024, typed=True)  # typed, or 1 would pass where true has been
def _parsed(keys: tuple[str, ...], *values: Value) -> SiteConfig:
    return SiteConfig.parse(dict(zip(keys, values, strict=True)))


def parse_node_config(values: Mapping[str, Value]) -> SiteConfig:
    """Like `SiteConfig.parse`, once per process for equal input, as `parse_run_config`."""
    return _parsed(tuple(values), *values.values())
