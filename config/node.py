"""SiteConfig: what a site's own operator sets, in the SuperNode's ``--node-config``; no run can change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from config.errors import explain
from keys import ConfigError, Value, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping


class SiteConfig(BaseModel):
    """Keys of ``--node-config``; all optional in a simulation.

    Attributes
    ----------
    site : str
        The site's name in reports and in the order of sums; default: from ``partition-id``.
    data_dir : str
        Folder with the site's own data (``dataset = "site"``).
    data_root : str
        Folder with public data sets, in place of the run's ``data-root``.
    state_dir : str
        Folder for what the site remembers between rounds; survives a restart of the container.
    label : str
        Label column, in place of the run's ``label``.
    device : str
        In place of the run's ``device``.
    partition_id, num_partitions : int
        Which part of a shared data set this site plays; Flower's simulation sets both.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=lambda name: name.replace("_", "-")
    )

    site: str = ""
    data_dir: str = ""
    data_root: str = ""
    state_dir: str = ""
    label: str = ""
    device: str = ""
    partition_id: Annotated[int, Field(ge=-1)] = -1
    num_partitions: Annotated[int, Field(ge=0)] = 0

    @property
    def name(self) -> str:
        """The site's name; empty when the operator gave none and the data has to."""
        return self.site or (f"site-{self.partition_id}" if self.partition_id >= 0 else "")

    @classmethod
    def parse(cls, values: Mapping[str, Value]) -> SiteConfig:
        """Check a node-config.

        Raises
        ------
        ConfigError
            Listing everything that is wrong with it.
        """
        keys = {f.alias or name for name, f in cls.model_fields.items()}
        problems = [unknown("key", key, keys) for key in values if key not in keys]
        try:
            config = cls.model_validate({key: value for key, value in values.items() if key in keys})
        except ValidationError as error:
            problems += explain(error)
        if problems:
            raise ConfigError("node-config", problems)
        return config
