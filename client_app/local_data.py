"""How a site's own data are read, as its operator decided: by a study file, with decoded images kept on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.config import ConfigError
from edelweiss.config.study import read_study
from edelweiss.datasets import DataError, ImageCache

if TYPE_CHECKING:
    from edelweiss.config import SiteConfig
    from edelweiss.datasets.site.study import Study


def study_of(file: str) -> Study | None:
    """Read the study that a site's operator was given; None without one.

    Raises
    ------
    DataError
        When it cannot be used.
    """
    try:
        return read_study(file) if file else None
    except ConfigError as error:
        public = "this site's study file cannot be used; the site's own log says why"
        raise DataError(str(error), public) from None


def image_cache(node: SiteConfig) -> ImageCache | None:
    """Return where a site keeps decoded images; None for nowhere."""
    if not (node.state_dir and node.image_cache):
        return None
    return ImageCache(Path(node.state_dir).expanduser() / "images", int(node.image_cache * 1e9))
