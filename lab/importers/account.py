"""What an import kept and left out, and why; and what to type next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edelweiss.common.overrides import toml_value
from edelweiss.lab.importers.listing import IMAGES, LABELS, VALUES, VIEWS, Listing

_SHOWN = 3  # images named for a reason


def reasons(listing: Listing) -> Iterator[str]:
    """Yield why images are left out, and how many, with the first few."""
    for why, paths in listing.left_out.items():
        more = f" and {len(paths) - _SHOWN:,} more" if len(paths) > _SHOWN else ""
        yield f"{len(paths):,} images: {why} ({', '.join(paths[:_SHOWN])}{more})"


def account(listing: Listing, read: list[str]) -> Iterator[str]:
    """Yield lines about a listing that was made of what was read."""
    frame = listing.frame
    views = frame["view"].value_counts()
    seen = ", ".join(f"{views[view]:,} {view or 'unknown'}" for view in VIEWS if view in views)
    yield f"read      {', '.join(read)}: {listing.rows:,} images"
    yield f"kept      {len(frame):,} images of {frame['patient'].nunique():,} patients; views: {seen}"
    for reason in reasons(listing):
        yield f"left out  {reason}"
    for note in listing.notes:
        yield f"note      {note}"
    heads = [f"{meaning} ({value or 'empty'})" for value, meaning in VALUES.items()]
    yield f"{'label':<18}" + "".join(f"{head:>22}" for head in heads)
    for label in frame.columns[3:]:
        counts = frame[label].value_counts()
        numbers = "".join(f"{counts.get(value, 0):>22,}" for value in VALUES)
        yield f"{label:<18}" + ("    the source lacks it: empty in all rows" if label in listing.lacking else numbers)


def next_steps(folder: Path, linked: Path | None) -> Iterator[str]:
    """Yield what a hospital's engineer or a researcher types next; ``linked`` is where the link to the images leads."""
    label = toml_value(",".join(LABELS))
    keys = f'label={label} label-preset="chexpert" image-size=320 model="densenet121" sites=5'
    yield ""
    yield f"{folder} is a site's folder (docs/chest-x-rays.md). A hospital puts this into site.toml:"
    yield f"  data-dir = {toml_value(str(folder))}"
    yield f"  label = {label}"
    if linked:
        yield f"  follow-links = true    # {folder.name}/{IMAGES} is a link to {linked}"
    yield "  [policy]"
    yield '  patient = "patient"'
    yield "and types:"
    yield "  edelweiss-site doctor --policy site.toml"
    yield "  edelweiss-site join --policy site.toml"
    yield "A researcher runs, with five such hospitals, or with their folders on one machine:"
    yield f"  flwr run . --stream --run-config 'dataset=\"site\" {keys}'"
    place = f'dataset="site-folders" partition="sites" data-root={toml_value(str(folder.parent))}'
    yield f"  edelweiss --run-config '{place} {keys}'"
