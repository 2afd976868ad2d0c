"""A hospital's answers: what they hold, what they keep back, and what they say when something is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from flwr.app import Message

from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.request import SUMMARY_KEYS, Incoming, TrainRequest
from edelweiss.client_app.request_checks import require_sound
from edelweiss.client_app.site import OpenSite
from edelweiss.common import Value, to_record
from edelweiss.config import RunConfig
from edelweiss.federation import unpack
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.strategies import ALGORITHMS
from tests.server_app.sites import FEATURES, Sabotage, SiteGrid, question, site_job, table, write_table

if TYPE_CHECKING:
    from edelweiss.problems import Arrays

Opened = Callable[..., AbstractContextManager[SiteGrid]]
SECRET = "ward-of-doctor-house"


@pytest.fixture
def hospital(tmp_path: Path) -> Opened:
    """Open one site with a node-config; by default over a folder that a test has written."""

    @contextmanager
    def opened(node: dict[str, Value] | None = None, **keys: Value) -> Iterator[SiteGrid]:
        node = {"site": "north", "data-dir": str(tmp_path / SECRET)} if node is None else node
        with SiteGrid(site_job(tmp_path, **{"sites": 1, **keys}), [node]) as grid:
            yield grid

    return opened


def error_of(answer: Message) -> str:
    """What the coordinator is told."""
    assert not answer.has_error(), answer.error.reason
    assert list(answer.content) == ["error"]
    return str(answer.content.config_records["error"]["message"])


def linear_model() -> Arrays:
    return {"x": torch.linspace(-1, 1, FEATURES + 3), "y": torch.zeros(1)}


# ---------------------------------------------------------------------- describe


def test_facts_are_counts_and_sums(tmp_path: Path, hospital: Opened) -> None:
    features, labels = table(30, seed=0)
    features[3, 1] = np.nan
    write_table(tmp_path / SECRET, features, labels)
    with hospital(holdout_share=0.0) as grid:
        facts = grid.ask("query", 0).content.config_records["facts"]
    assert (facts["name"], facts["examples"], facts["positives"]) == ("north", 30, labels.sum())
    assert (facts["held-out"], facts["missing"], facts["shape"]) == (0, 1, [FEATURES])
    np.testing.assert_array_equal(facts["count"], (~np.isnan(features)).sum(0))
    np.testing.assert_allclose(facts["total"], np.nansum(features, 0), rtol=1e-5)
    np.testing.assert_allclose(facts["squares"], np.nansum(features**2, 0), rtol=1e-5)


def test_facts_grow_with_nothing_but_the_number_of_features(tmp_path: Path, hospital: Opened) -> None:
    lengths = []
    for rows in (20, 200):
        folder = write_table(tmp_path / f"{rows}", *table(rows, seed=0))
        with hospital({"site": "north", "data-dir": str(folder)}) as grid:
            facts = grid.ask("query", 0).content.config_records["facts"]
        lengths.append({key: len(value) for key, value in facts.items() if isinstance(value, list)})
    moments = {"count": FEATURES, "total": FEATURES, "squares": FEATURES}
    none = dict.fromkeys(["class-counts", "held-out-counts", "label-counts", "label-positives"], 0)
    none |= dict.fromkeys(["patients", "notes", "warnings"], 0)
    assert lengths[0] == lengths[1] == {"shape": 1, **none, **moments}


def test_column_names_leave_as_a_hash_only(tmp_path: Path, hospital: Opened) -> None:
    write_table(tmp_path / SECRET, *table(20, seed=0), names=["hiv", "syphilis", "age", "sex"])
    with hospital() as grid:
        answer = str(dict(grid.ask("query", 0).content.config_records["facts"]))
    assert not [name for name in ("hiv", "syphilis", SECRET) if name in answer]


def test_no_moments_are_told_to_a_run_that_does_not_standardise(tmp_path: Path, hospital: Opened) -> None:
    write_table(tmp_path / SECRET, *table(20, seed=0))
    with hospital(standardise=False) as grid:
        facts = grid.ask("query", 0).content.config_records["facts"]
    assert facts["count"] == facts["total"] == facts["squares"] == []


# ---------------------------------------------------------------------- bad tables

GOOD = "a,b,label\n1,2.5,0\n3,4.5,1\n5,6.5,0\n"

BAD = {  # the table, what the coordinator is told, what only the site's own log says
    "no label column": ("a,b,outcome\n1,2,0\n3,4,1\n", "the label column is not among its 3 columns", "outcome"),
    "a feature that is no number": ("a,b,label\n1,severe-4711,0\n3,4,1\n", "a column has 1 values", "severe-4711"),
    "three label values": ("a,b,label\n1,2,0\n3,4,1\n5,6,4711\n", "3 distinct values", "4711"),
    "two labels of no known pair": ("a,b,label\n1,2,sick4711\n3,4,well\n", "0/1", "sick4711"),
    "a missing label": ("a,b,label\n4711,2,\n3,4,1\n", "the label is missing in 1 rows", "row 1"),
    "zero rows": ("a,b,label\n", "data.csv has no rows", ""),
    "an empty file": ("", "data.csv is empty", ""),
    "an infinite value": ("a,b,label\n4711e99999,2,0\n3,4,1\n", "1 values that are infinite", "4711e99999"),
    "lines of another length": ("a,b,label\n4711,2\n3,4,1\n", "1 lines do not have as many values", "line 2"),
    "no feature": ("label\n0\n1\n", "no feature column", ""),
}


@pytest.mark.parametrize("mistake", BAD)
def test_a_bad_table_is_explained_and_its_values_stay(
    mistake: str, tmp_path: Path, hospital: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    text, said, logged = BAD[mistake]
    folder = tmp_path / SECRET
    folder.mkdir()
    (folder / "data.csv").write_text(text, encoding="utf-8")
    with hospital() as grid:
        public = error_of(grid.ask("query", 0))
    assert said in public
    assert not [part for part in (SECRET, str(tmp_path), "4711", "outcome", "line 2", "row 1") if part in public]
    # The site's own log has the place and, where there is one, the value.
    [record] = [record for record in caplog.records if record.name == "edelweiss"]
    assert record.levelno == logging.ERROR
    assert SECRET in record.getMessage()
    assert logged in record.getMessage()


@pytest.mark.parametrize("state", ["missing", "empty", "a file"])
def test_a_folder_that_cannot_be_used(
    state: str, tmp_path: Path, hospital: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    if state == "empty":
        (tmp_path / SECRET).mkdir()
    elif state == "a file":
        (tmp_path / SECRET).write_text("", encoding="utf-8")
    with hospital() as grid:
        public = error_of(grid.ask("query", 0))
    assert "the data folder" in public
    assert SECRET not in public
    assert SECRET in caplog.text


def test_the_operator_may_name_the_label_column(tmp_path: Path, hospital: Opened) -> None:
    (tmp_path / SECRET).mkdir()
    (tmp_path / SECRET / "data.csv").write_text(GOOD.replace("label", "died"), encoding="utf-8")
    node: dict[str, Value] = {"site": "north", "data-dir": str(tmp_path / SECRET), "label": "died"}
    with hospital(node, holdout_share=0.0) as grid:
        assert grid.ask("query", 0).content.config_records["facts"]["examples"] == 3
    with hospital(holdout_share=0.0) as grid:
        assert "the label column is not among its 3 columns" in error_of(grid.ask("query", 0))


# ---------------------------------------------------------------------- bad node-configs and versions


@pytest.mark.parametrize(
    ("node", "keys", "said"),
    [
        ({"site": "north"}, {}, "data-dir is missing"),
        ({"data_dir": "/x"}, {}, "Did you mean 'data-dir'?"),
        ({"partition-id": 7}, {"dataset": "breast-cancer"}, "partition-id = 7: the run has sites = 1"),
        ({"partition-id": -1}, {"dataset": "breast-cancer"}, "partition-id = -1"),
        ({"partition-id": -1}, {"problem": "saddle"}, "partition-id = -1"),
        ({"data-dir": "/x", "num-partitions": 4}, {}, "num-partitions = 4: the run has sites = 1"),
        ({"data-dir": "/x", "device": "cuda:99"}, {}, "device = 'cuda:99'"),
    ],
)
def test_a_bad_node_config_is_explained(
    node: dict[str, Value], keys: dict[str, Value], said: str, tmp_path: Path, hospital: Opened
) -> None:
    if "data-dir" in node:
        node = {**node, "data-dir": str(write_table(tmp_path / SECRET, *table(20, seed=0)))}
    with hospital(node, **keys) as grid:
        asked = ("train", 0, question(grid.config)) if "device" in node else ("query", 0)
        answer = grid.ask(*asked)  # type: ignore[arg-type]
    assert said in error_of(answer)


@pytest.mark.parametrize("kind", ["query", "train", "evaluate"])
def test_another_version_of_the_app_is_refused_before_anything_is_done(kind: str, hospital: Opened) -> None:
    with hospital() as grid:  # there is no data folder, and it is not looked for
        content = question(grid.config, kind, app="0123456789ab")
        said = error_of(grid.ask(kind, 0, content))
    assert fingerprint() in said
    assert "0123456789ab" in said
    assert "install the same release on both" in said


# ---------------------------------------------------------------------- train and evaluate


def test_a_site_reads_what_the_coordinator_writes(tmp_path: Path, hospital: Opened) -> None:
    """Twice, and then a message that differs in nothing but a type, which no equal one that came before excuses."""
    write_table(tmp_path / SECRET, *table(60, seed=0))
    model = linear_model()
    with hospital() as grid:
        site = OpenSite.from_context(grid.contexts[0])
        for evaluate in (False, True, False):
            content = question(grid.config, "train", model, evaluate=evaluate)
            incoming = Incoming(Message(content, 1, "train"))
            request = require_sound(incoming, site)
            assert isinstance(request, TrainRequest)
            config = dict(content.config_records["config"])
            assert request.evaluate is evaluate
            for key in ("site", "name", "run", "committed"):
                assert getattr(request, key) == config[key]
            for key in ("round", "phase", "sites"):
                assert getattr(request.context, key) == config[key]
            summary = {key: value for key, value in config.items() if key in SUMMARY_KEYS}
            assert to_record(request.data_summary) == summary
            assert {name: vector.tolist() for name, vector in request.sent.decoded.items()} == {
                name: vector.tolist() for name, vector in unpack(content.array_records["arrays"]).items()
            }
        content.config_records["config"]["evaluate"] = 0
        with pytest.raises(RefusedError):
            require_sound(Incoming(Message(content, 1, "train")), site)


def test_a_site_evaluates_what_it_received_before_it_trains(tmp_path: Path, hospital: Opened) -> None:
    write_table(tmp_path / SECRET, *table(60, seed=0))
    model = linear_model()
    with hospital(local_steps=50) as grid:
        trained = grid.ask("train", 0, question(grid.config, "train", model, evaluate=True))
        evaluated = grid.ask("evaluate", 0, question(grid.config, "evaluate", model))
        held_out = grid.ask("query", 0).content.config_records["facts"]["held-out"]
    with hospital(local_steps=50) as grid:
        without = grid.ask("train", 0, question(grid.config, "train", model))
    metrics = dict(trained.content.config_records["metrics"])
    assert metrics == dict(evaluated.content.config_records["metrics"])
    assert metrics["n"] == held_out
    assert held_out
    assert dict(without.content.config_records["metrics"]) == {}
    assert not torch.equal(unpack(trained.content.array_records["arrays"])["x"], model["x"])


@pytest.mark.parametrize("algorithm", ["sagda", "fednest"])
def test_a_site_evaluates_no_second_model_in_a_round(algorithm: str, tmp_path: Path, hospital: Opened) -> None:
    """Each phase brings a model, and answers about more than one in a round would say more of the patients."""
    write_table(tmp_path / SECRET, *table(60, seed=0))
    first, *others = ALGORITHMS[algorithm]().phases
    with hospital(algorithm=algorithm) as grid:
        asked = question(grid.config, "train", evaluate=True, phase=first)
        assert dict(grid.ask("train", 0, asked).content.config_records["metrics"])
        for phase in others:
            said = error_of(grid.ask("train", 0, question(grid.config, "train", evaluate=True, phase=phase)))
            assert f"evaluate = True: a round is evaluated in its first phase, {first!r}" in said


def test_the_same_message_gives_the_same_bits_and_another_round_others(tmp_path: Path, hospital: Opened) -> None:
    write_table(tmp_path / SECRET, *table(60, seed=0))

    def trained(grid: SiteGrid, **facts: Value) -> torch.Tensor:
        answer = grid.ask("train", 0, question(grid.config, "train", linear_model(), **facts))
        return unpack(answer.content.array_records["arrays"])["x"]

    with hospital(algorithm="local-sgda", rounds=9, sites=2) as grid:
        first, again = trained(grid), trained(grid)
        assert torch.equal(first, again)
        assert not torch.equal(first, trained(grid, round=2))
    with hospital(algorithm="local-sgda", rounds=9, sites=2) as grid:
        assert not torch.equal(first, trained(grid, site=1))


def test_whom_a_batch_holds_follows_from_the_sites_secret_and_not_from_the_seed(
    tmp_path: Path, hospital: Opened
) -> None:
    folder = write_table(tmp_path / SECRET, *table(60, seed=0))
    ends = []
    for secret in ("one", "other", "one"):
        node: dict[str, Value] = {"site": "north", "data-dir": str(folder), "state-dir": str(tmp_path / secret)}
        with hospital(node, algorithm="local-sgda", rounds=9, sites=1) as grid:
            answer = grid.ask("train", 0, question(grid.config, "train", linear_model()))
            ends.append(unpack(answer.content.array_records["arrays"])["x"])
    assert torch.equal(ends[0], ends[2])
    assert not torch.equal(ends[0], ends[1])


def test_memory_is_kept_between_messages_and_forgotten_after_the_last(tmp_path: Path, hospital: Opened) -> None:
    folder = write_table(tmp_path / SECRET, *table(60, seed=0))
    state = tmp_path / "state"
    node: dict[str, Value] = {"site": "north", "data-dir": str(folder), "state-dir": str(state)}
    with hospital(node, algorithm="codasca", rounds=9) as grid:
        grid.ask("train", 0, question(grid.config, "train", linear_model()))
        assert [path.parent.name for path in state.rglob("*.safetensors")] == ["north.memory"]
        grid.ask("evaluate", 0, question(grid.config, "evaluate", linear_model()))
    assert {path.name for path in state.iterdir()} == {"audit.jsonl", "audit.seal", "policy"}


def test_an_update_that_fails_leaves_the_memory_as_it_was(
    tmp_path: Path, hospital: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(ALGORITHMS["codasca"]):  # type: ignore[misc]
        name = "forgetful"

        def local_update(self, sent: Arrays, memory: Arrays, *rest: object) -> tuple[Arrays, Arrays]:
            reply, new = super().local_update(sent, memory, *rest)
            if memory:
                raise OSError(f"no space left on {tmp_path}")
            return reply, new

    monkeypatch.setitem(ALGORITHMS, "forgetful", Forgetful)
    folder = write_table(tmp_path / SECRET, *table(60, seed=0))
    node: dict[str, Value] = {"site": "north", "data-dir": str(folder), "state-dir": str(tmp_path / "state")}
    with hospital(node, algorithm="forgetful", rounds=9) as grid:
        grid.ask("train", 0, question(grid.config, "train", linear_model()))
        [file] = (tmp_path / "state").rglob("*.safetensors")
        before = file.read_bytes()
        answer = grid.ask("train", 0, question(grid.config, "train", linear_model(), round=2))
        assert file.read_bytes() == before
    # Flower sends the text of an exception to the coordinator; the kind is enough.
    assert answer.has_error()
    assert "OSError" in answer.error.reason
    assert str(tmp_path) not in answer.error.reason
    assert str(tmp_path) in caplog.text


def test_an_update_with_nan_is_not_remembered(tmp_path: Path, hospital: Opened) -> None:
    """The coordinator leaves it out; remembered, it would make every later update of the site NaN as well."""
    folder = write_table(tmp_path / SECRET, *table(60, seed=0))
    node: dict[str, Value] = {"site": "north", "data-dir": str(folder), "state-dir": str(tmp_path / "state")}
    with hospital(node, algorithm="codasca", rounds=9) as grid:
        grid.ask("train", 0, question(grid.config, "train", linear_model()))
        [file] = (tmp_path / "state").rglob("*.safetensors")
        before = file.read_bytes()
        spoilt = linear_model()
        spoilt["x"][0] = float("nan")
        grid.ask("train", 0, question(grid.config, "train", spoilt, round=2))
        assert file.read_bytes() == before
        third = grid.ask("train", 0, question(grid.config, "train", linear_model(), round=3))
        healthy = unpack(third.content.array_records["arrays"])
    assert all(vector.isfinite().all() for vector in healthy.values())


def test_a_site_with_no_held_out_samples_reports_no_metrics(tmp_path: Path, hospital: Opened) -> None:
    write_table(tmp_path / SECRET, *table(20, seed=0))
    with hospital(holdout_share=0.0) as grid:
        answer = grid.ask("evaluate", 0, question(grid.config, "evaluate", linear_model()))
    assert dict(answer.content.config_records["metrics"]) == {}


def test_a_model_that_cannot_take_the_data_is_explained(tmp_path: Path, hospital: Opened) -> None:
    write_table(tmp_path / SECRET, *table(20, seed=0))
    with hospital(model="lenet5") as grid:
        said = error_of(grid.ask("train", 0, question(site_job(tmp_path), sites=1)))
    assert "model 'lenet5' cannot take inputs of shape (4,)" in said


def test_a_test_algorithm_is_no_part_of_the_app() -> None:
    assert Sabotage.name not in ALGORITHMS
    assert RunConfig.parse({}).algorithm in ALGORITHMS


@pytest.mark.parametrize("sites", [1, 2])
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_site_has_a_place_among_those_that_take_part(kind: str, sites: int, tmp_path: Path, hospital: Opened) -> None:
    """Fewer may take part than the run is for: places are from 0, and the last one is below their number."""
    write_table(tmp_path / SECRET, *table(60, seed=0))
    with hospital(sites=3) as grid:
        for place in (sites, 2):
            said = error_of(grid.ask(kind, 0, question(grid.config, kind, site=place, sites=sites)))
            assert f"site = {place}: must be below sites = {sites}" in said
        last = grid.ask(kind, 0, question(grid.config, kind, site=sites - 1, sites=sites))
        assert "error" not in last.content
