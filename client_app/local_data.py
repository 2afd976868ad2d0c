"""The operator's settings for reading a site's own data: study file and image cache."""

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
    """Read the site's study file; None without one.

    Raises
    ------
    DataError
        If it is invalid.
    """
    try:
        return read_study(file) if file else None
    except ConfigError as error:
        public = "this site's study file cannot be used; the site's own log says why"
        raise DataError(str(error), public) from None


def image_cache(node: SiteConfig) -> ImageCache | None:
    """Return the site's cache of decoded images; None without one."""
    if not (node.state_dir and node.image_cache):
        return None
    return ImageCache(Path(node.state_dir).expanduser() / "images", int(node.image_cache * 1e9))
