"""A site that cannot begin ends nobody else's run: it is left out, with one line, as long as enough others can."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edelweiss.common import Value
from edelweiss.federation import RunError, TooFewRepliesError
from tests.said import has, lines, warnings
from tests.server_app.sites import hospitals, images, run_at, site_job

pytestmark = pytest.mark.usefixtures("public_batches")

ALGORITHMS: dict[str, dict[str, Value]] = {
    "codasca": {},
    "fmgda": {"fmgda.schedule": "cube-root"},  # whose step sizes depend on how many take part
    "d-psgd": {},  # so do neighbours
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_others_go_on_as_if_they_were_alone(
    tmp_path: Path, algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"algorithm": algorithm, **ALGORITHMS[algorithm]}
    nodes = hospitals(tmp_path)
    (tmp_path / "private-south" / "data.csv").write_text("label,marker_0\n1,patient-4711\n")
    two = [nodes[0], nodes[2]]
    alone = run_at(site_job(tmp_path / "two", sites=2, **keys), two)
    found = run_at(site_job(tmp_path / "three", min_replies=2, **keys), nodes, quiet=False)
    assert alone.arrays.keys() == found.arrays.keys()
    assert all(np.array_equal(alone.arrays[name], found.arrays[name]) for name in alone.arrays)
    assert [line["loss"] for line in alone.metrics] == [line["loss"] for line in found.metrics]
    said = capsys.readouterr().out
    assert warnings(said, "'south'", "data.csv", "[left out]")
    assert lines(said, "2 of 3 sites")
    assert "4711" not in said
    with pytest.raises(TooFewRepliesError, check=has("min-replies=2", value=2, allowed=3, sites=("south",))):
        run_at(site_job(tmp_path / "all", **keys), nodes)


@pytest.mark.slow
@pytest.mark.parametrize(("share", "sites"), [(0.1, 2), (0.2, 3)])
def test_bad_images_cost_their_rows_or_their_site_and_never_the_run(
    tmp_path: Path, share: float, sites: int, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [images(tmp_path, site, 90) for site in range(3)]
    for number in (3, 4):
        (Path(str(nodes[1]["data-dir"])) / f"{number}.png").write_bytes(b"<html>")
    result = run_at(site_job(tmp_path, min_replies=2, bad_images=share, standardise=False), nodes)
    assert len(result.metrics[-1]["sites"]) == sites
    assert "row 4 ('3.png'): HTML or XML" in caplog.text
    assert "row 5 ('4.png')" in caplog.text


@pytest.mark.slow
def test_sites_of_other_contents_are_told_which_key_brings_them_together(tmp_path: Path) -> None:
    nodes = [images(tmp_path, site, 90) for site in range(3)]
    Image.new("RGB", (16, 16)).save(Path(str(nodes[2]["data-dir"])) / "0.png")
    shapes = {"s0": (1, 16, 16), "s1": (1, 16, 16), "s2": (3, 16, 16)}
    with pytest.raises(RunError, check=has('image-colour = "grey" or "rgb"', key="shape", value=shapes)):
        run_at(site_job(tmp_path), nodes)
    for colour in ("grey", "rgb"):
        run_at(site_job(tmp_path / colour, image_colour=colour, rounds=1), nodes)
    Image.new("L", (9, 9)).save(Path(str(nodes[2]["data-dir"])) / "0.png")
    for number in range(1, 10):
        Image.new("L", (9, 9), 9 * number).save(Path(str(nodes[2]["data-dir"])) / f"{number}.png")
    with pytest.raises(RunError, check=has("image-size", key="shape", value=shapes | {"s2": (1, 9, 9)})):
        run_at(site_job(tmp_path), nodes)
    run_at(site_job(tmp_path / "sized", image_size=8, image_fit="pad", rounds=1), nodes)
