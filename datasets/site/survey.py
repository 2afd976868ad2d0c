"""Survey of the images that a site's labels.csv lists, from the files' headers, for `edelweiss-site doctor`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edelweiss.common.files import as_path, is_file
from edelweiss.datasets.image_faults import Faults
from edelweiss.datasets.images import headers
from edelweiss.datasets.site.images import BLANK, located
from edelweiss.datasets.site.table import as_text, read_table

if TYPE_CHECKING:
    from edelweiss.datasets.image_file import Header


@dataclass(frozen=True)
class Survey:
    """Counts of images by size, format and view."""

    headers: list[Header]  # those of the readable files
    rows: int  # rows of the list
    views: Counter[str]  # images of each view; empty without the column

    @classmethod
    def of(cls, folder: str, follow_links: bool) -> Survey | None:
        """Survey a folder; None without a readable list of images."""
        file = as_path(folder) / "labels.csv"
        if not is_file(file) or "path" not in (frame := read_table(file)).columns:
            return None
        faults = Faults(file, file.name)
        frame, rows = frame[~as_text(frame["path"]).duplicated()], len(frame)  # an image may have a row for each box
        paths = {f"row {row}": text for row, text in enumerate(as_text(frame["path"]), start=1)}
        views = as_text(frame["view"]).replace("", BLANK) if "view" in frame.columns else ()
        found = headers(located(file.parent, paths, faults, follow_links), faults)
        return cls(list(found.values()), rows, Counter(views))

    @property
    def one_size(self) -> bool:
        """Whether all images have the same size."""
        return len({(head.width, head.height) for head in self.headers}) < 2

    def in_words(self) -> str:
        """Describe the images in one line."""
        kinds = Counter(f"{h.format} of {h.bits} bits, {'grey' if h.grey else 'colour'}" for h in self.headers)
        said = [f"{self.rows:,} rows", *(f"{count:,} {kind}" for kind, count in kinds.most_common())]
        if self.headers and self.one_size:
            said.append(f"all {self.headers[0].width}x{self.headers[0].height}")
        elif self.headers:
            by_size = sorted(self.headers, key=lambda head: head.width * head.height)
            ends = " to ".join(f"{head.width}x{head.height}" for head in (by_size[0], by_size[-1]))
            said.append(f"from {ends}, so a run needs image-size")
        if self.views:
            said.append("views " + ", ".join(f"{view} {count:,}" for view, count in self.views.most_common()))
        return "; ".join(said)
