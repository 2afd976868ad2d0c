"""SiteConfig: what a site's own operator sets, in the SuperNode's ``--node-config``; no run can change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from config.errors import explain
from keys import ConfigError, Value, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping


class SiteConfig(BaseModel):
    """A site's own keys, in its file, as options of ``join``, or as ``--node-config``; all optional in a simulation."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=lambda name: name.replace("_", "-")
    )

    site: str = Field("", description="the site's name in reports and in the order of sums; no two may be the same; "
                      "default: from partition-id")  # fmt: skip
    data_dir: str = Field("", description='folder with the site\'s own data; needed for dataset = "site"')
    state_dir: str = Field("", description="folder for the site's memory and its own models, which survives a restart; "
                           "default: a private folder for temporary files, never what a run says")  # fmt: skip
    study: str = Field("", description="TOML file in which the coordinator says what the columns of a table mean; then "
                       "yours may be in your own spelling")  # fmt: skip
    label: str = Field("", description="the label column; default: the one that a run names")
    policy: str = Field("", description="TOML file whose table [policy] has the site's own rules; default: rules that "
                        "protect patients")  # fmt: skip
    image_cache: Annotated[float, Field(ge=0)] = Field(20.0, description="GB of decoded images that the state-dir may "
                                                       "hold, so that each is decoded once; 0: none")  # fmt: skip
    device: str = Field("", description="auto, cpu, cuda, cuda:1; default: the run's device")
    data_root: str = Field("", description="folder with public data sets; default: the run's data-root")
    partition_id: Annotated[int, Field(ge=-1)] = Field(-1, description="which part of a public data set this site "
                                                       "plays; not for its own data")  # fmt: skip
    num_partitions: Annotated[int, Field(ge=0)] = Field(0, description="of how many; the run's sites. Flower's "
                                                        "simulation sets both")  # fmt: skip

    @property
    def name(self) -> str:
        """The site's name; empty when the operator gave none and the data has to."""
        return self.site or (f"site-{self.partition_id}" if self.partition_id >= 0 else "")

    @property
    def names_label(self) -> bool:
        """Whether the operator says which column is the label; else each run chooses one."""
        return bool(self.label or self.study)

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
