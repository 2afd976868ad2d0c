"""Plug-ins at a hospital: nothing that a run names is imported unless the policy allows it, by name and hash."""

from __future__ import annotations

import compileall
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edelweiss.client_app.cli import main
from edelweiss.client_app.doctor.data import _plug_ins
from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.policy.plug_ins import line_of, load_allowed
from edelweiss.client_app.policy.rules import Policy, PolicyError
from edelweiss.common import PlugInError, Registry
from edelweiss.common.registry import offered
from edelweiss.datasets import Facts
from edelweiss.federation.fingerprint import covering, fingerprint, installed_hash, release
from edelweiss.models import MODELS
from tests.client_app.policies import Hospital, site_toml
from tests.server_app.sites import run_at, site_job, table

NAME = "outsider.nets:Net"
CODE = """
from torch import nn
class Net(nn.Sequential):
    def __init__(self, shape, outputs):
        super().__init__(nn.Flatten(), nn.Linear(shape[0], outputs))
class Deep(nn.Sequential):
    def __init__(self, shape, outputs):
        super().__init__(nn.Flatten(), nn.Linear(shape[0], 3), nn.Tanh(), nn.Linear(3, outputs))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that is installed and not yet imported."""
    place = tmp_path / "site-packages" / "outsider"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("", encoding="utf-8")
    (place / "nets.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(place.parent))
    yield place
    for name in [name for name in sys.modules if name.partition(".")[0] == "outsider"]:
        del sys.modules[name]
    for name in list(MODELS.given):
        del MODELS[name]


def policy(tmp_path: Path, *lines: str) -> Policy:
    return Policy.read(site_toml(tmp_path, plug_ins=list(lines)))


def test_a_module_that_is_not_loaded_is_no_misspelt_name() -> None:
    refusal = MODELS.missing(NAME)
    assert f"{NAME!r}" in refusal
    assert not [name for name in MODELS if name in refusal], "it needs no list of names"


@pytest.mark.parametrize("name", [NAME, "json:loads", "nowhere:Net"])
def test_by_default_nothing_that_a_run_names_is_imported(package: Path, name: str) -> None:
    before = set(sys.modules)
    with pytest.raises(RefusedError):
        load_allowed({"model": name}, Policy.read(""))
    assert not {each for each in set(sys.modules) - before if each.partition(".")[0] in ("outsider", "nowhere")}
    assert name not in MODELS


def test_what_the_policy_allows_by_name_and_hash_is_loaded(package: Path, tmp_path: Path) -> None:
    load_allowed({"model": NAME, "algorithm": "fedavg"}, policy(tmp_path, line_of(NAME, NAME)))
    assert NAME in MODELS


def test_code_that_has_changed_since_it_was_allowed_is_refused(package: Path, tmp_path: Path) -> None:
    allowed = policy(tmp_path, line_of(NAME, NAME))
    (package / "helper.py").write_text("", encoding="utf-8")
    with pytest.raises(RefusedError):
        load_allowed({"model": NAME}, allowed)
    assert "outsider.nets" not in sys.modules
    assert [finding.level for finding in _plug_ins(allowed)] == ["error"]


def test_a_process_that_has_imported_a_package_refuses_another_that_was_installed_since(
    package: Path, tmp_path: Path
) -> None:
    before = policy(tmp_path / "before", line_of(NAME, NAME))
    load_allowed({"model": NAME}, before)
    (package / "nets.py").write_text(CODE.replace("3", "4"), encoding="utf-8")
    load_allowed({"model": NAME}, before)  # that is what it still runs
    with pytest.raises(RefusedError) as refused:
        load_allowed({"model": NAME}, policy(tmp_path, f"{NAME} sha256:{installed_hash('outsider')}"))
    assert "restart" in str(refused.value)
    assert "restart" not in refused.value.public


def test_the_doctor_shows_what_installed_packages_offer_of_every_kind(package: Path, tmp_path: Path) -> None:
    about = package.parent / "outsider-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outsider\nVersion: 1.0\n", encoding="utf-8")
    groups = [f"[edelweiss.{kind}s]\nown-{kind} = outsider.nets:Net\n" for kind in Registry.all]
    gone = "[edelweiss.models]\ngone = nowhere:Net\n"
    (about / "entry_points.txt").write_text("\n".join([*groups, gone]), encoding="utf-8")
    offered.cache_clear()
    try:
        lines = [line_of(f"own-{kind}", NAME) for kind in Registry.all]
        found = list(_plug_ins(policy(tmp_path)))
        assert sorted(each for finding in found for each in re.findall(r'"(.*)"', finding.text)) == sorted(lines)
        assert sorted(finding.level for finding in found) == ["ok"] * len(lines) + ["warning"]
        found = list(_plug_ins(policy(tmp_path, *lines, lines[0].replace("own", "another"))))
        assert sorted(finding.level for finding in found) == ["error", *["ok"] * len(lines), "warning"]
    finally:
        offered.cache_clear()


def test_a_line_allows_its_name_alone(package: Path, tmp_path: Path) -> None:
    with pytest.raises(RefusedError):
        load_allowed({"model": "outsider.nets:Other"}, policy(tmp_path, line_of(NAME, NAME)))


@pytest.mark.parametrize("line", [NAME, f"{NAME} sha256:12", f"{NAME} md5:{'0' * 64}"])
def test_a_line_without_a_hash_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(PolicyError):
        policy(tmp_path, line)


def test_a_hospital_trains_what_it_allows_and_nothing_else(package: Path, tmp_path: Path) -> None:
    MODELS.load(NAME)  # at the coordinator, who wrote the run-config
    features, labels = table(80, 0)
    keys = {"model": NAME, "algorithm": "fedavg", "problem": "bce", "rounds": 1, "sites": 1}
    refusing = Hospital(tmp_path / "refusing", features, labels)
    allowing = Hospital(tmp_path / "allowing", features, labels, plug_ins=[line_of(NAME, NAME)])
    with covering(("outsider",)):
        assert isinstance(refusing.described(**keys), str)
        assert isinstance(allowing.described(**keys), Facts)
    assert isinstance(allowing.described(**keys), str), "the coordinator's fingerprint covers no plug-in"
    result = run_at(site_job(tmp_path, **keys, holdout_share=0.2), [allowing.node])
    assert result.arrays["x"].shape == (features.shape[1] + 1,)


def test_the_fingerprint_covers_plug_ins(package: Path) -> None:
    before = fingerprint(("outsider",))
    assert before != fingerprint(()) == release()
    with covering(("outsider",)):
        assert fingerprint() == before
    assert fingerprint() == release()
    (package / "nets.py").write_text(CODE + "\n", encoding="utf-8")
    assert fingerprint(("outsider",)) != before


def _copied(package: Path, to: Path, files: list[Path]) -> str:
    """Install the package elsewhere, its files in this order; return the hash there."""
    for file in files:
        (to / file).parent.mkdir(parents=True, exist_ok=True)
        (to / file).write_bytes((package / file).read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(to.parent))
        return installed_hash("outsider")


def test_a_package_has_one_hash_wherever_it_is_installed(package: Path, tmp_path: Path) -> None:
    (package / "data").mkdir()
    for name in ("data/prices.json", "data/weights", "fast.so", ".hidden", "Upper.py"):
        (package / name).write_bytes(name.encode())
    files = [path.relative_to(package) for path in package.rglob("*") if path.is_file()]
    expected = installed_hash("outsider")
    for number, order in enumerate((files, files[::-1])):
        assert _copied(package, tmp_path / f"elsewhere-{number}" / "outsider", order) == expected
    compileall.compile_dir(package, quiet=1)
    assert list(package.rglob("__pycache__/*.pyc"))
    assert installed_hash("outsider") == expected


@pytest.mark.parametrize("name", ["nets.py", "data/prices.json", "fast.so", "without a suffix", ".hidden", "old.pyc"])
def test_every_file_of_a_package_is_part_of_its_hash(package: Path, name: str) -> None:
    hashes = [installed_hash("outsider")]
    (package / name).parent.mkdir(exist_ok=True)
    for content in (b"x = 1", b"x = 2", b""):
        (package / name).write_bytes(content)
        hashes.append(installed_hash("outsider"))
    (package / name).rename(package / "renamed")
    assert len({*hashes, installed_hash("outsider")}) == 5


def test_a_hash_tells_two_files_from_one_with_the_same_bytes(package: Path) -> None:
    (package / "a").write_bytes(b"1\0b\x002")
    one = installed_hash("outsider")
    (package / "a").write_bytes(b"1")
    (package / "b").write_bytes(b"2")
    assert installed_hash("outsider") != one


def test_a_hash_follows_links_and_ends_where_they_lead_back(package: Path, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "code.py").write_bytes(b"1")
    (package / "near").symlink_to(tmp_path / "far")
    for place, target in (("near/back", package), ("near/far", tmp_path / "far"), ("gone", tmp_path / "gone")):
        (package / place).symlink_to(target)
    before = installed_hash("outsider")
    (tmp_path / "far" / "code.py").write_bytes(b"2")
    assert installed_hash("outsider") != before


def test_a_module_of_one_file_is_hashed_without_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "single.py").write_bytes(b"1")
    before = installed_hash("single")
    (tmp_path / "neighbour.py").write_bytes(b"1")
    assert installed_hash("single") == before
    (tmp_path / "single.py").write_bytes(b"2")
    assert installed_hash("single") != before


@pytest.mark.parametrize("name", ["nowhere", "", "sys", "..", "a" * 5000])
def test_what_is_no_installed_package_has_no_hash(name: str) -> None:
    with pytest.raises(PlugInError):
        installed_hash(name)


@pytest.mark.parametrize(
    "name",
    [
        "outsider.nets:N\u0435t",  # a Cyrillic letter
        "outsider.nets:\uff2eet",  # which Python's own source takes for N
        ".nets:Net",
        "outsider..nets:Net",
        "outsider.nets:Net ",
        "outsider.nets.Net:Net",
        "outsider.nets:Net.__init__.__globals__",
        "os:system",
        ":Net",
        "outsider.nets:",
    ],
)
def test_no_other_spelling_passes_for_what_is_allowed(package: Path, tmp_path: Path, name: str) -> None:
    allowed = policy(tmp_path, line_of(NAME, NAME))
    with pytest.raises(RefusedError):
        load_allowed({"model": name}, allowed)
    assert "outsider.nets" not in sys.modules


def test_what_is_allowed_as_one_kind_is_refused_as_another(package: Path, tmp_path: Path) -> None:
    with pytest.raises(PlugInError):
        load_allowed({"algorithm": NAME}, policy(tmp_path, line_of(NAME, NAME)))


def test_a_site_uses_a_model_from_outside_if_its_policy_allows_it(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = NAME.replace("Net", "Deep")
    MODELS.load(deep)
    features, labels = table(80, 0)
    hospital = Hospital(tmp_path / "here", features, labels, plug_ins=[line_of(deep, deep)])
    keys = {"model": deep, "algorithm": "fedrep", "problem": "bce", "rounds": 1, "sites": 1, "holdout_share": 0.2}
    with covering(("outsider",)):
        folder = run_at(site_job(tmp_path, **keys), [hospital.node]).folder
    rules = site_toml(tmp_path, plug_ins=[line_of(deep, deep)])
    del MODELS[deep], sys.modules["outsider.nets"]
    data = str(hospital.node["data-dir"])
    trained = ["personalise", "--model", str(folder), "--data-dir", data, "--steps", "2", "--state-dir", str(tmp_path)]
    assert main(trained) == 1
    assert deep in capsys.readouterr().err
    assert "outsider.nets" not in sys.modules
    assert main([*trained, "--policy", rules]) == 0
    del MODELS[deep], sys.modules["outsider.nets"]
    scored = ["predict", f"{data}/data.csv", "--state-dir", str(tmp_path), "--to", str(tmp_path / "scores.csv")]
    assert main(scored) == 1
    assert "outsider.nets" not in sys.modules
    assert main([*scored, "--policy", rules]) == 0
    assert (tmp_path / "scores.csv").is_file()
