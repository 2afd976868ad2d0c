"""What the coordinator's page says of hospitals, from the real messages of real sites."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from edelweiss.config import RunConfig
from edelweiss.federation import Exchange, RunError, Site
from edelweiss.federation.fingerprint import fingerprint, release
from edelweiss.lab.dashboard.hospitals import hospitals
from edelweiss.lab.dashboard.runs import Shown
from edelweiss.server_app.run_folder import RunFolder
from edelweiss.server_app.site_status import SiteStatus
from tests.server_app.sites import SiteGrid, saddle_job

COORDINATORS = "0123456789ab"  # the release of the coordinator in this test


def test_a_hospital_of_another_release_is_shown_as_such_with_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("server_app.site_status", "lab.dashboard.hospitals"):
        monkeypatch.setattr(f"edelweiss.{module}.release", lambda: COORDINATORS)
    config = RunConfig.parse(saddle_job(tmp_path, sites=2))
    folder = RunFolder.new(config)  # a run that goes on
    sites = [Site(place, f"node {place + 1}", place + 1) for place in range(2)]
    with SiteGrid(
        config, [{"site": name, "partition-id": place} for place, name in enumerate(("east", "north"))]
    ) as grid:
        exchange = Exchange(grid, 30.0, sites, min_replies=2, noted=SiteStatus(folder.path).noted)
        apps = {1: fingerprint(), 2: COORDINATORS}  # the first hospital was installed with this coordinator
        asked = [
            Message(RecordDict({"config": ConfigRecord({"app": app})}), node, "query") for node, app in apps.items()
        ]
        with pytest.raises(RunError):
            list(exchange(asked, read=lambda reply, *_: reply))
    run = Shown.read(folder.path)
    rows = {row["name"]: row for row in hospitals([run], [], every=True)}
    assert [rows["north"][key] for key in ("release", "note")] == [release(), "not ours"]
    [other] = [row for name, row in rows.items() if name != "north"]
    assert [other[key] for key in ("release", "note")] == [COORDINATORS, ""]
    [shown] = [site for site in run.sites() if site["name"] == "north"]
    assert shown["state"] == "refused"
    for version in (fingerprint(), COORDINATORS):
        assert version in shown["reason"]
    folder.close()
