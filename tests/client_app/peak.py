"""What memory a run at a site takes, and what ``doctor`` says of it: ``python -m tests.client_app.peak FOLDER``.

A process of its own, as the highest use of memory is of all that a process did.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.doctor import examine
from edelweiss.common import Value
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from tests.server_app.sites import SiteGrid, site_job


def peak() -> int:
    """Return the most bytes that this process had in memory."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.findall(r"VmHWM:\s*([0-9]+) kB", status)[0])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    site: dict[str, Value] = {
        "data-dir": str(folder),
        "study": str(study) if (study := folder / "study.toml").exists() else "",
    }
    run = site_job(folder / "run", sites=1, model="mlp", evidence=False)
    with SiteGrid(run, [{**site, "site": "a"}]) as grid:
        coordinate(run, grid, Progress(True), lambda *_: None)  # no report, which a coordinator writes
    taken = peak()
    options: dict[str, Value] = {
        **site,
        "superlink": "127.0.0.1:1",
        "insecure": True,
        "label": "" if site["study"] else "label",
    }
    [said] = [one.text for one in examine(JoinConfig.read("", options)) if one.about == "needed"]
    print(json.dumps({"taken": taken, "said": said}))
