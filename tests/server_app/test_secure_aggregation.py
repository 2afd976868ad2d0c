"""Secure aggregation: the coordinator learns sums over all sites and nothing of one, whatever it sends."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from edelweiss.client_app import masking, sums
from edelweiss.client_app.cli import main
from edelweiss.common import Value
from edelweiss.config import ConfigError, RunConfig
from edelweiss.federation import RunError, pack
from edelweiss.federation.masks import Chains
from edelweiss.federation.seals import SEAL, Seals
from edelweiss.federation.sums import INTEGERS, SUM, Layout, Part, SumError
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import Result, coordinate
from edelweiss.server_app.simulation import simulate
from edelweiss.server_app.tickets import EXECUTOR_KEY, seals_of
from edelweiss.strategies import ALGORITHMS
from tests.client_app.policies import site_toml
from tests.forks import Ended, started
from tests.said import has
from tests.server_app.sites import SiteGrid
from tests.server_app.studies import Study, changed, new_key

THREE = ("east", "north", "south")
SECURE: dict[str, Value] = {"secure_aggregation": True}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Three hospitals that pin each other, on the machine of their executor."""
    monkeypatch.setenv(EXECUTOR_KEY, str(tmp_path / "executor.key"))
    return Study(tmp_path, THREE, peers=True)


class Noted(SiteGrid):
    """The engine, with what it noted."""

    @property
    def sums(self) -> list[tuple[Message, Message, np.ndarray]]:
        """Each question with a masked answer."""
        return [
            (self.questions[answer.metadata.reply_to_message_id], answer, integers_of(answer))
            for answer in self.answers
            if SUM in answer.content
        ]


def integers_of(answer: Message) -> np.ndarray:
    """Return the integers of an answer."""
    arrays = answer.content[SUM]
    assert isinstance(arrays, ArrayRecord)
    return arrays[INTEGERS].numpy()


def run(grid: SiteGrid) -> Result:
    """Run a job with known secrets of the sites."""
    with grid:
        grid.fix_secrets()
        return coordinate(grid.config, grid, Progress(True))


def bits(result: Result) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in result.arrays.items()}


# ---------------------------------------------------------------------- the same bits, and exact sums


def parts(study: Study, **keys: Value) -> tuple[RunConfig, list[dict[str, Value]]]:
    """Return a signed run of three sites that have parts of public data, and their node-configs."""
    own: dict[str, Value] = {
        "dataset": "breast-cancer",
        "local_steps": 2,
        "hidden": 8,
        "model": "mlp",
        **SECURE,
        **keys,
    }
    job = study.signed(**own)
    drop = ("data-dir", "label")
    return job, [
        {key: value for key, value in node.items() if key not in drop} | {"partition-id": place}
        for place, node in enumerate(study.nodes)
    ]


def first_problem(algorithm: str) -> str:
    """Return a problem that an algorithm solves."""
    for problem in ("auc", "bce", "invariant-logistic", "cross-entropy", "maml"):
        with contextlib.suppress(ConfigError):
            RunConfig.parse({"algorithm": algorithm, "problem": problem, **OWN.get(algorithm, {})})
            return problem
    raise AssertionError(algorithm)


OWN: dict[str, dict[str, Value]] = {"fedbn": {"model": "mlp-bn", "bn": "local"}, "npa": {"local-steps": 1}}
OWN |= {key: {"maml.ways": 2, "maml.queries": 2} for key in ("local-scgd", "local-scgdm")}


@pytest.mark.parametrize(("problem", "algorithm"), [("auprc", "fcsg"), ("partial-auc", "fcsg")])
def test_a_problem_that_leaves_sites_out_is_refused(problem: str, algorithm: str) -> None:
    """The sum would be the reply of the one site that has positives, and its weight says so."""
    keys: dict[str, Value] = {"algorithm": algorithm, "problem": problem, "sites": 3}
    RunConfig.parse(keys)
    with pytest.raises(ConfigError, check=has(repr(problem), '"bce"', keys=["secure-aggregation"])):
        RunConfig.parse(keys | {"secure-aggregation": True})


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [name for name, one in sorted(ALGORITHMS.items()) if one.messages.sums])
def test_masked_and_simulated_runs_are_the_same_to_the_bit(study: Study, algorithm: str) -> None:
    own = {key.replace("-", "_"): value for key, value in OWN.get(algorithm, {}).items()}
    job, nodes = parts(study, algorithm=algorithm, problem=first_problem(algorithm), **own)
    masked = run(Noted(job, nodes))
    simulated = simulate({**job.written(), "ticket": "", "runs-dir": str(study.folder / "simulated")})
    assert bits(masked) == bits(simulated)
    assert masked.metrics[-1]["sites"] == simulated.metrics[-1]["sites"]


def test_sums_are_those_of_pythons_integers(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modulo 2^64, from what each site would send without masks."""
    own: dict[tuple[str, bytes], list[np.ndarray]] = {}
    plain = Chains.mask

    def noted(self: Chains, integers: np.ndarray, exchange: bytes) -> np.ndarray:
        own.setdefault((exchange.hex(), b""), []).append(integers.copy())
        return plain(self, integers, exchange)

    monkeypatch.setattr(Chains, "mask", noted)
    grid = Noted(study.signed(**SECURE), study.nodes)
    run(grid)
    by_place: dict[str, list[np.ndarray]] = {}
    for asked, _, sent in grid.sums:
        config = asked.content["config"]
        place = f"{asked.metadata.message_type} {config.get('round')} {config.get('phase')}"  # type: ignore[union-attr]
        by_place.setdefault(place, []).append(sent)
    assert len(by_place) == len(own) == 1 + 2 + 1
    for clear, masked in zip(own.values(), by_place.values(), strict=True):
        assert len(clear) == len(masked) == 3
        exact = [sum(map(int, column)) % 2**64 for column in zip(*clear, strict=True)]
        assert [sum(map(int, column)) % 2**64 for column in zip(*masked, strict=True)] == exact
        assert exact[-1] == 3


def test_what_a_site_sends_is_uniform_and_tells_nothing_by_itself(study: Study) -> None:
    """Bytes of all sent integers by a chi-squared test: of 255 degrees of freedom beyond 400 once in 10^8."""
    grid = Noted(study.signed(**SECURE, model="mlp", hidden=500), study.nodes)
    run(grid)
    for _, _, sent in grid.sums:
        if len(sent) > 2000:
            counts = np.bincount(sent.view(np.uint8), minlength=256)
            expected = counts.sum() / 256
            assert ((counts - expected) ** 2 / expected).sum() < 400
    assert sum(len(sent) > 2000 for _, _, sent in grid.sums) >= 6


def test_nothing_else_leaves_that_differs_from_site_to_site(study: Study) -> None:
    grid = Noted(study.signed(**SECURE), study.nodes)
    run(grid)
    for answer in grid.answers:
        names = set(answer.content) - {SEAL}
        assert names in ({SUM}, {"facts", "share"}), names
    told = [answer.content["facts"] for answer in grid.answers if "facts" in answer.content]
    for key in ("shape", "columns", "classes", "examples", "positives", "held-out", "count", "notes", "warnings"):
        assert len({str(facts.get(key)) for facts in told}) == 1, key  # type: ignore[union-attr]


# ---------------------------------------------------------------------- what a site refuses


def asked_twice(study: Study, change: Callable[[RecordDict], RecordDict]) -> tuple[Message, Message, Message]:
    """Play a run, then ask the first site its last training question again, as it was and changed."""
    grid = Noted(job := study.signed(**SECURE), study.nodes)
    seals = seals_of(job)
    assert seals is not None
    with grid:
        grid.fix_secrets()
        with pytest.raises(StoppedError):
            coordinate(job, Stopping(grid), Progress(True))
        question, first = next(
            (question, answer)
            for question, answer, _ in reversed(grid.sums)
            if question.metadata.message_type == "train" and question.metadata.dst_node_id == 1
        )
        return (
            first,
            again(grid, seals, question, question.content),
            again(grid, seals, question, change(question.content)),
        )


class StoppedError(Exception):
    """The coordinator is gone before the last evaluation."""


class Stopping:
    """A grid whose coordinator stops before the last evaluation."""

    def __init__(self, grid: SiteGrid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Sequence[Message]) -> Iterable[str]:
        """Pass on what is no evaluation."""
        if messages[0].metadata.message_type == "evaluate":
            raise StoppedError
        return self._grid.push_messages(messages)


def again(grid: SiteGrid, seals: Seals, question: Message, content: RecordDict) -> Message:
    copied = RecordDict({name: record for name, record in content.items() if name != SEAL})
    message = Message(copied, question.metadata.dst_node_id, question.metadata.message_type)
    seals.seal(message)
    [answer] = grid.send_and_receive([message])
    return answer


def another_model(content: RecordDict) -> RecordDict:
    arrays = content["arrays"]
    assert isinstance(arrays, ArrayRecord)
    changed = {name: array.numpy().copy() for name, array in arrays.items()}
    changed["x"][0] += 1
    return RecordDict({**content, "arrays": pack({name: torch.from_numpy(each) for name, each in changed.items()})})


def test_a_question_is_answered_once_and_again_with_the_same_bytes(study: Study) -> None:
    first, same, other = asked_twice(study, another_model)
    assert (integers_of(first) == integers_of(same)).all()
    assert "error" in other.content, "two models in one round would tell a difference of one site"


def refused(study: Study, job: RunConfig | None = None, nodes: list[dict[str, Value]] | None = None) -> str:
    """Return why a run cannot begin, by the sites."""
    job = job or study.signed(**SECURE)
    with pytest.raises(RunError) as error, SiteGrid(job, nodes or study.nodes) as grid:
        coordinate(job, grid, Progress(True))
    return str(error.value)


def test_a_run_without_masks_is_refused_where_they_are_required(study: Study) -> None:
    assert "secure aggregation only" in refused(study, study.signed())


def test_a_sum_is_over_as_many_sites_as_the_rules_want(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXECUTOR_KEY, str(tmp_path / "executor.key"))
    assert "fewest-sites = 3" in refused(Study(tmp_path, ("east", "north"), peers=True))


def test_the_sites_are_those_that_the_rules_pin(study: Study) -> None:
    """A ticket with another key for a site, or with a site less, whoever signed it."""
    (study.folder / "public" / "south.pub").write_text(new_key(study.folder / "another"))
    job = study.job(**SECURE)
    assert "south differ" in refused(study, changed(job, ticket=study.ticket(job)))
    os.remove(study.folder / "public" / "south.pub")
    job = study.job(**SECURE, sites=2)
    assert "fewest-sites = 3" in refused(study, changed(job, ticket=study.ticket(job)), study.nodes[:2])


def test_another_roster_waits_for_the_operator(study: Study) -> None:
    run(SiteGrid(study.signed(**SECURE), study.nodes))
    for name, node in zip(THREE, study.nodes, strict=True):
        others = {other: study.hash_of(other) for other in ("east", "north") if other != name}
        node["policy"] = site_toml(
            study.folder / f"{name}-now",
            study_keys=[str(study.folder / "study.key.pub")],
            seed="tests",
            fewest_sites=2,
            peers=others,
        )
    os.remove(study.folder / "public" / "south.pub")
    job = study.job(**SECURE, sites=2)
    signed = changed(job, ticket=study.ticket(job))
    assert "edelweiss-site peers --accept" in refused(study, signed, study.nodes[:2])
    for node in study.nodes[:2]:
        assert main(["peers", "--state-dir", str(node["state-dir"]), "--accept"]) == 0
    run(SiteGrid(changed(job, ticket=study.ticket(job)), study.nodes[:2]))


Forge = Callable[[list[bytes], Study], list[bytes]]


def other_point(shares: list[bytes], study: Study) -> list[bytes]:
    return [shares[0].replace(b'"point":"', b'"point":"00'), *shares[1:]]


FORGED: dict[str, Forge] = {
    "one is missing": lambda shares, study: shares[:-1],
    "one is there twice": lambda shares, study: [*shares[:-1], shares[0]],
    "one is nobody's": lambda shares, study: [b"{}", *shares[1:]],
    "none": lambda shares, study: [],
    "another point": other_point,
}


@pytest.mark.parametrize("how", FORGED)
def test_keys_of_others_than_all_sites_make_no_masks(study: Study, how: str) -> None:
    class Forging(SiteGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            for message in messages:
                config = message.content["config"]
                assert isinstance(config, ConfigRecord)
                if "shares" in config:
                    shares: Any = FORGED[how](list(config["shares"]), study)  # type: ignore[arg-type]
                    message.content["config"] = ConfigRecord({**config, "shares": shares})
                    seals.seal(message)
            return super().push_messages(messages)

    seals = seals_of(job := study.signed(**SECURE))
    assert seals is not None
    with pytest.raises(RunError) as error:
        run(Forging(job, study.nodes))
    assert "key" in str(error.value)


def test_different_models_to_different_sites_give_noise(study: Study) -> None:
    class Split(SiteGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            if messages[0].metadata.message_type == "train":
                messages[0].content["arrays"] = another_model(messages[0].content)["arrays"]
                seals.seal(messages[0])
            return super().push_messages(messages)

    seals = seals_of(job := study.signed(**SECURE))
    assert seals is not None
    with pytest.raises(SumError):
        run(Split(job, study.nodes))


@pytest.mark.parametrize("broken", ["sign", "reused", "short"])
def test_broken_masks_are_noticed(study: Study, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """A missing minus, a key of one pair for all, and a stream that repeats: each is caught by a test of this file."""
    plain = Chains.mask

    def sign(self: Chains, integers: np.ndarray, exchange: bytes) -> np.ndarray:
        return plain(Chains("", self.keys), integers, exchange)

    def reused(self: Chains, integers: np.ndarray, exchange: bytes) -> np.ndarray:
        return plain(self, integers, b"" if self.own == "east" else exchange)

    def short(self: Chains, integers: np.ndarray, exchange: bytes) -> np.ndarray:
        integers += np.arange(len(integers), dtype=np.uint64) * np.uint64(self.own == "east")
        return plain(self, integers, exchange)

    monkeypatch.setattr(Chains, "mask", {"sign": sign, "reused": reused, "short": short}[broken])
    with pytest.raises(SumError):
        run(SiteGrid(study.signed(**SECURE), study.nodes))


def test_no_sum_is_one_hospitals_because_the_others_hold_out_few(study: Study) -> None:
    """Zeros in place of what small-cell suppression keeps back would be drop-outs."""
    whole = run(Noted(study.signed(**SECURE, run_name="all"), study.nodes))
    for name in THREE[1:]:
        study.rules(name, fewest_held_out=1000, fewest_of_each_class=1000)
    few = run(Noted(study.signed(**SECURE, run_name="few"), study.nodes))
    assert few.metrics[-1]["pooled"]["n"] == whole.metrics[-1]["pooled"]["n"] > 3
    told = [json.loads((each.folder / "about.json").read_text())["sites"] for each in (few, whole)]
    assert told[0] == told[1]


def test_who_holds_nobody_out_is_in_no_sum(study: Study) -> None:
    study.rules("north", holdout_share=0.0)
    assert "set holdout-share" in (said := refused(study))
    assert "min-replies" not in said, "which such a run cannot have"


def test_a_site_that_cannot_answer_sends_the_same_form_and_nobody_can_tell_which(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Noted(job := study.signed(**SECURE), study.nodes)
    plain = sums.of_update

    def failing(request: Any, here: Any, *rest: Any) -> Any:
        if here.name == "north":
            raise RuntimeError("patient 4711")
        return plain(request, here, *rest)

    monkeypatch.setattr(sums, "of_update", failing)
    with pytest.raises(SumError) as error:
        run(grid)
    assert "north" not in str(error.value)
    lengths = {len(sent) for asked, _, sent in grid.sums if asked.metadata.message_type == "train"}
    assert len(lengths) == 1
    assert job.rounds == 2


# ---------------------------------------------------------------------- lost and killed


def test_a_site_that_lost_its_keys_is_out_of_this_run(study: Study) -> None:
    class Losing(Noted):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            if messages[0].metadata.message_type == "train":
                for file in study.folder.glob("north/state/policy/**/masks/*-*"):
                    file.unlink()
            return super().push_messages(messages)

    with pytest.raises(RunError) as error:
        run(Losing(study.signed(**SECURE), study.nodes))
    assert "its state was lost" in str(error.value)


@pytest.mark.parametrize("whole", [False, True], ids=["folder", "disk"])
def test_a_state_that_is_put_back_from_a_copy_answers_nothing(
    study: Study, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of a site's keys or whole state, put back in a run whose coordinator withholds receipts."""
    plain = Seals.seal

    def withholding(self: Seals, message: Message) -> None:
        self.receipts.clear()
        plain(self, message)

    monkeypatch.setattr(Seals, "seal", withholding)

    class Restoring(Noted):
        rounds = 0

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            if messages[0].metadata.message_type == "train":
                self.rounds += 1
                (masks,) = study.folder.glob("north/state/policy/**/masks")
                copied = study.folder / "north" / "state" if whole else masks
                if self.rounds == 1:
                    shutil.copytree(copied, study.folder / "copy")
                elif self.rounds == 2:
                    shutil.rmtree(copied)
                    shutil.copytree(study.folder / "copy", copied)
            return super().push_messages(messages)

    with pytest.raises(RunError) as error:
        run(grid := Restoring(study.signed(**SECURE), study.nodes))
    assert grid.rounds == 2
    assert "put back from a copy" in str(error.value)


class Bare(masking.Masking):
    """What a site remembers of one phase, without a run around it."""

    def __init__(self, folder: Path) -> None:
        self._own, self._folder, self._file, self._seal = "a", folder, folder / "1-x", folder.parent / "seal"
        self._phases = ("train",)

    def answer(self, seed: int) -> None:
        """Answer a question as a site does, or as it did before."""
        state, sent = self._read()
        question = bytes([seed])
        if sent is None or state.question != question.hex():
            self._require_next(state, 3)
            layout = Layout(2, (Part("v", (4,), 8.0),))
            numbers = layout.encode({"v": (np.arange(4) * float(seed), 1.0)})
            sent = self.commit(masking.MaskedExchange(self, 3, question, layout), numbers)
        print(sent.tolist())


def kill_at(step: str, call: int) -> None:
    """Kill this process when it calls a function of os for that time."""
    plain, calls = getattr(os, step), itertools.count(1)

    def killed(*arguments: Any, **keywords: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*arguments, **keywords)

    setattr(os, step, killed)


STEPS = [*((step, call) for call in (1, 2) for step in ("fsync", "replace")), ("fsync", 3), ("fsync", 4), ("none", 1)]


@pytest.mark.parametrize(("step", "call"), STEPS)
def test_whenever_a_site_is_killed_one_answer_is_seen(tmp_path: Path, step: str, call: int) -> None:
    """A process that is killed at each step of the commit, and one that is then asked the same, or something else."""
    bare = Bare(tmp_path / "masks")
    bare._write(masking._State("", "", {"b": "11" * 32}, -1, ""))

    def process(seed: int, step: str = "none", call: int = 1) -> Ended:
        def work() -> None:
            if step != "none":
                kill_at(step, call)
            bare.answer(seed)

        with started(work, tmp_path) as site:
            return site.ended()

    first = process(1, step, call)
    assert first.returncode == (0 if step == "none" else -signal.SIGKILL)
    same, other = process(1), process(2)
    assert same.returncode == 0
    assert first.stdout in ("", same.stdout)
    assert other.returncode != 0, "another question at the same place"
    assert "RefusedError" in other.stderr


# ---------------------------------------------------------------------- what cannot be summed


def test_what_is_no_sum_is_refused_by_name() -> None:
    for name, algorithm in ALGORITHMS.items():
        if not algorithm.messages.sums:
            with pytest.raises(ConfigError) as error:
                RunConfig.parse({"algorithm": name, "problem": "auc", "secure-aggregation": True})
            assert any(name in text and "secure-aggregation" in text for text in error.value.problems)
    assert [name for name, each in ALGORITHMS.items() if not each.messages.sums] == [
        "coda",
        "d-psgd",
        "deprl",
        "dispfl",
    ]


@pytest.mark.parametrize(
    "keys",
    [
        {"fraction": 0.5},
        {"min-replies": 2},
        {"wire": "bf16"},
        {"aggregation": "median"},
        {"sites": 1},
        {"pooled": True},
    ],
    ids=str,
)
def test_a_part_of_the_sites_or_of_a_number_is_no_sum(keys: dict[str, Value]) -> None:
    with pytest.raises(ConfigError) as error:
        RunConfig.parse({"secure-aggregation": True, **keys})
    [key] = keys
    assert any(key in text for text in error.value.problems)


def test_a_private_run_under_masks_is_the_same_as_simulated_and_has_noised_evidence(
    study: Study, evidence: None
) -> None:
    """Differential privacy hides patients within the sum, and masks hide the site."""
    job, nodes = parts(study, **{"dp.epsilon": 8.0, "algorithm": "fedavg", "problem": "bce", "batch_size": 16})
    masked = run(Noted(job, nodes))
    simulated = simulate({**job.written(), "ticket": "", "runs-dir": str(study.folder / "simulated")})
    assert bits(masked) == bits(simulated)
    assert masked.metrics[-1]["noised"] == simulated.metrics[-1]["noised"]
    said = json.loads((simulated.folder / "evidence.json").read_text())["noised"]
    assert said["auroc"]["pairs"] == "over all sites"
    assert 0 <= masked.metrics[-1]["noised"]["auroc-low"] <= masked.metrics[-1]["noised"]["auroc"]


def test_a_summed_evaluation_is_that_of_single_scores_within_its_stated_error(tmp_path: Path, evidence: None) -> None:
    job = {"dataset": "breast-cancer", "sites": 3, "rounds": 2, "local-steps": 2, "standardise": False, "workers": 1}
    job |= {"runs-dir": str(tmp_path), "report": False, "device": "cpu"}
    clear, summed = simulate(job), simulate({**job, "secure-aggregation": True})
    np.testing.assert_allclose(summed.arrays["x"], clear.arrays["x"], rtol=1e-5, atol=1e-6)
    ours, theirs = (result.metrics[-1]["pooled"] for result in (summed, clear))
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    assert (ours["n"], ours["positives"]) == (theirs["n"], theirs["positives"])
    for kind in ("auroc", "auprc"):
        assert abs(ours[kind] - theirs[kind]) <= ours[f"{kind}-ties"] + 1e-6
    sharp = simulate({**job, "secure-aggregation": True, "standardise": True})
    assert sharp.metrics[-1]["pooled"]["auroc-ties"] < 0.05
    said = json.loads((sharp.folder / "evidence.json").read_text())
    assert said["within-sites"]["sites"] == 0
    assert said["pooled"]["n"] == ours["n"]


def test_two_processes_that_are_asked_at_once_do_not_put_the_state_back(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is asked for the facts again while the other has gone on to a round: what is on disk only goes forward."""

    places: dict[str, list[int]] = {}
    plain = masking.Masking._write

    def noted(self: masking.Masking, state: Any, answer: Any = None) -> None:
        places.setdefault(self._own, []).append(state.place)
        held = fcntl.flock
        with (self._folder / "lock").open("a") as other, pytest.raises(BlockingIOError):
            held(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        plain(self, state, answer)

    monkeypatch.setattr(masking.Masking, "_write", noted)
    run(SiteGrid(study.signed(**SECURE), study.nodes))
    assert all(own == sorted(own) for own in places.values())
