"""Both boundaries of messages: what is in order passes; anything else gets one line, and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import HealthCheck, given, settings

from edelweiss.common import record_errors
from edelweiss.federation import TooFewRepliesError, unpack
from edelweiss.problems.metrics_record import record_schema
from tests.federation.changes import arrays, packed, records, values
from tests.federation.meddler import JOBS, VICTIM, at_the_coordinator, at_the_site, chosen, configs, meddler
from tests.said import has

CHANGES: dict[str, Callable[..., Any]] = {
    "arrays": arrays,
    "records": records,
    "config": configs,
    "facts": lambda content: values(content, "facts"),
    "metrics": lambda content: values(content, "metrics", "cost"),
}
Case = tuple[str, int, Callable[[RecordDict], None]]
few = settings(deadline=None, max_examples=5, suppress_health_check=list(HealthCheck))


@cache
def exchanged(name: str) -> tuple[list[RecordDict], list[RecordDict]]:
    """Play a run in which nobody meddles; return what a site was sent, and what it answered."""
    with meddler(name) as grid:
        grid.play()
        assert not [text for text in grid.said if "bad" in text], "what is in order passes"
        return grid.sent, grid.answered


@cache
def changes(name: str, way: int, kind: str) -> list[tuple[int, str]]:
    """Return what can be changed in each message of a run, in words: they take megabytes to make."""
    contents = enumerate(exchanged(name)[way])
    return [(place, text) for place, content in contents for text, _ in CHANGES[kind](content)]


@st.composite
def changed(draw: st.DrawFn, way: int, *kinds: str) -> Case:
    """A run, one of its messages, and one thing to change in it."""
    name = draw(st.sampled_from(sorted(JOBS)))
    kind = draw(st.sampled_from(kinds))
    found = changes(name, way, kind)
    place = draw(st.sampled_from(sorted({place for place, _ in found})))
    text = draw(st.sampled_from([text for at, text in found if at == place]))
    return name, place, chosen(CHANGES[kind], text)


TO_A_SITE = changed(0, "arrays", "records", "config")
FROM_A_SITE = changed(1, "arrays", "records", "metrics", "facts")


ROUNDED = [  # of a run, what a site is sent in its second round, or answers
    pytest.param("codasca, bf16", "x", "uint16", marks=pytest.mark.slow),
    ("fmgda, float16 and int8", "u", "int8"),
]


def is_one_line(said: str | None) -> None:
    assert said, "it was taken without a word, or something was written"
    assert len(said) < 1000
    assert all(line.isprintable() for line in said.split("\n"))
    assert "own log" not in said, "an exception that nobody foresaw"


@pytest.mark.slow
@few
@given(case=TO_A_SITE)
def test_a_site_refuses_a_message_with_one_thing_wrong_and_writes_nothing(case: Case) -> None:
    is_one_line(at_the_site(*case))


@few
@given(case=FROM_A_SITE)
def test_a_run_goes_on_without_an_answer_with_one_thing_wrong(case: Case) -> None:
    is_one_line(at_the_coordinator(*case))


@pytest.mark.parametrize(("name", "vector", "dtype"), ROUNDED)
def test_a_rounded_vector_is_checked_as_strictly(name: str, vector: str, dtype: str) -> None:
    sent, answered = exchanged(name)
    for contents, attempt in ((sent, at_the_site), (answered, at_the_coordinator)):
        assert contents[2]["arrays"][vector].dtype == dtype
        found = [text for text, _ in arrays(contents[2])]
        for text in [text for text in found if text.startswith((f"{vector} ends", f"{vector} is float"))]:
            is_one_line(attempt(name, 2, chosen(arrays, text)))


# ---------------------------------------------------------------------- what was seen


def put(record: str, key: str, value: object) -> Callable[[RecordDict], None]:
    return lambda content: content[record]._data.__setitem__(key, value)  # type: ignore[union-attr]


def last(record: str, key: str, value: float) -> Callable[[RecordDict], None]:
    """Let a vector end with a number."""

    def change(content: RecordDict) -> None:
        vector = unpack(content.array_records[record])[key].numpy().copy()
        vector[-1] = value
        content.array_records[record][key] = packed(vector)

    return change


Y = np.zeros(1, np.float32)
ANSWERS: list[tuple[str, Callable[[RecordDict], None], str]] = [
    ("no x", lambda content: content["arrays"].__delitem__("x"), "array 'x' is missing"),
    ("x of one number", put("arrays", "x", packed(np.zeros(1, np.float32))), "array 'x' is 'float32' of shape (1,)"),
    ("no dtype of NumPy's", put("arrays", "x", packed(Y, dtype="bfloat16")), "array 'x' is 'bfloat16' of shape (1,)"),
    ("10 MB more", put("arrays", "z", packed(np.zeros(2_500_000, np.float32))), "array 'z'"),
    ("a huge shape", put("arrays", "x", packed(np.zeros(3), shape=(10**12,))), "of shape (1000000000000,)"),
    ("another serialisation", put("arrays", "y", packed(Y, stype="pickle")), "must be 132, NumPy's"),
    ("fewer bytes", put("arrays", "y", packed(Y, data=b"\x93NUMPY")), "array 'y' has 6 bytes"),
    ("an update of 1e30", last("arrays", "x", 1e30), "sent entries beyond 1e+06 in 'x'"),
    ("NaN", last("arrays", "y", math.nan), "sent NaN or infinity in 'y'"),
    ("NaN, of a length", put("arrays", "x", packed(np.full(5, np.nan, np.float32))), "sent NaN or infinity in 'x'"),
    ("a negative cost", put("cost", "gradients", -3), "gradients = -3: "),
]
EVALUATIONS: list[tuple[str, Callable[[RecordDict], None], str]] = [
    ("loss -inf", put("metrics", "loss", -math.inf), "says that the loss of the model is -inf"),
    ("loss NaN", put("metrics", "loss", math.nan), "says that the loss of the model is nan"),
    ("AUROC of 2", put("metrics", "auroc", 2.0), "auroc = 2.0: "),
    ("no AUROC of both classes", put("metrics", "auroc", math.nan), "says that the auroc of the model is nan"),
    ("half a sample", put("metrics", "n", 7.5), "n = 7.5: "),
    ("more samples than there are", put("metrics", "n", 10**9), "negative-scores: its counts add up to"),
    ("an unknown metric", put("metrics", "\x1b[31m", 1.0), r"'\x1b[31m' is an unknown key"),
]


@pytest.mark.parametrize(
    ("place", "change", "said"),
    [(1, change, said) for _, change, said in ANSWERS] + [(2, change, said) for _, change, said in EVALUATIONS],
    ids=[name for name, *_ in [*ANSWERS, *EVALUATIONS]],
)
def test_a_bad_answer_costs_that_site_its_part_and_nothing_else(
    place: int, change: Callable[[RecordDict], None], said: str
) -> None:
    """The model is the one of a run in which the site had refused."""
    with meddler("codasca") as grid:
        grid.on_its_way_back[place] = change
        result = grid.play()
    [warning] = [text for text in grid.said if "site-0" in text]
    assert warning.startswith("site 'site-0' ")
    assert said in warning

    assert all(np.array_equal(result.arrays[name], vector) for name, vector in refused(place).items())


@cache
def refused(place: int) -> dict[str, np.ndarray]:
    """Return the model of a run in which the site refuses a message."""

    def refusing(content: RecordDict) -> None:
        content["error"] = ConfigRecord({"site": "site-0", "message": "not today"})

    with meddler("codasca") as grid:
        grid.on_its_way_back[place] = refusing
        return grid.play().arrays


FACTS: list[tuple[str, object, str]] = [
    ("name", "\x1b[31mred", r"name = '\x1b[31mred': "),
    ("name", "../../evil", "name = '../../evil': "),
    ("total", [1e308] * 30, "as no values add up to"),
    ("total", [math.nan] * 30, "total = [nan, "),
    ("examples", -5, "examples = -5: "),
    ("examples", 10**18, "examples = 1000000000000000000: must be"),
    ("positives", 10**6, "positives = 1000000: adds up to 1000000, of"),
    ("shape", [10**6, 10**6, 10**6], "count has 30 entries"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "value", "said"), FACTS)
def test_facts_that_cannot_be_name_the_site_before_the_run_begins(key: str, value: object, said: str) -> None:
    told = at_the_coordinator("codasca", 0, put("facts", key, value))
    assert told is not None
    assert "site 'node 1' gave a bad reply: " in told
    assert said in told


QUESTIONS: list[tuple[str, object, str]] = [
    ("round", 4, "round = 4: "),
    ("phase", "dual", "phase = 'dual': must be one of 'train'"),
    ("site", 3, "site = 3: "),
    ("sites", 4, "sites = 4: "),
    ("name", "../../evil", "name = '../../evil': must be"),
    ("run", "../x", "run = '../x': "),
    ("committed", 2, "committed = 2: "),
    ("prior", 0.0, "prior = 0.0: "),
    ("prior", 1.0, "prior = 1.0: "),
    ("scale", [0.0] * 30, "scale = [0.0, 0.0, 0.0"),
    ("shift", [0.0] * 29, "shift = [0.0, "),
    ("shape", [31], "shape = [31]: must be that of this site's inputs"),
    ("evaluate", 1, "evaluate = 1: "),
    ("further", 1, "'further' is an unknown key"),
]


@pytest.mark.parametrize(("key", "value", "said"), QUESTIONS)
def test_a_site_names_the_key_the_value_and_what_is_allowed(key: str, value: object, said: str) -> None:
    told = at_the_site("codasca", 1, put("config", key, value))
    assert told is not None
    assert told.startswith("a bad message: ")
    assert said in told


SENT: list[tuple[str, Callable[[RecordDict], None], str]] = [
    ("no x", lambda content: content["arrays"].__delitem__("x"), "array 'x' is missing: it must be float32 of"),
    ("NaN", last("arrays", "x", math.nan), "array 'x' holds NaN, infinity or what overflows"),
    ("1e30", last("arrays", "y", 1e30), "array 'y' holds NaN, infinity or what overflows"),
    ("float64", put("arrays", "y", packed(np.zeros(1))), "array 'y' is 'float64' of shape (1,): must be float32"),
    ("no record", lambda content: content.__delitem__("arrays"), "record 'arrays' is missing"),
]


@pytest.mark.parametrize(("name", "change", "said"), SENT, ids=[name for name, *_ in SENT])
def test_a_site_names_the_vector_and_what_it_must_be(
    name: str, change: Callable[[RecordDict], None], said: str
) -> None:
    told = at_the_site("codasca", 2, change)
    assert told is not None
    assert said in told


@pytest.mark.parametrize("pretended", [2, 77])
def test_a_site_that_answers_for_another_is_left_out(pretended: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with meddler("codasca") as grid:
        pull, turned = grid.pull_messages, []

        def pulling(identifiers: Any) -> list[Message]:
            answers = list(pull(identifiers))
            for answer in answers:
                if answer.metadata.src_node_id == VICTIM and len(grid.answered) == 2 and not turned:
                    answer.metadata.__dict__["_src_node_id"] = pretended
                    turned.append(answer)
            return answers

        monkeypatch.setattr(grid, "pull_messages", pulling)
        grid.play()
    assert [text for text in grid.said if f"node {pretended}, but node 1 was asked" in text]


def test_min_replies_decides_whether_a_run_goes_on() -> None:
    change = put("arrays", "x", packed(np.zeros(1, np.float32)))
    with meddler("codasca", **{"min-replies": 3}) as grid:
        grid.on_its_way_back[1] = change
        with pytest.raises(TooFewRepliesError, check=has(key="min-replies", value=2, allowed=3)):
            grid.play()


def test_a_share_that_rounding_made_larger_than_1_is_one() -> None:
    schema = record_schema({"auprc": 0.5})
    assert not record_errors({"auprc": 1 + 2**-52}, schema)
    assert record_errors({"auprc": 1.001}, schema)
