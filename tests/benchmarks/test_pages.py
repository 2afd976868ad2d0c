"""The pages of the studies: what is generated, what people wrote around it, and the index of all."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.pages import insert, markdown, preamble, write
from benchmarks.pictures import CAPTIONS
from benchmarks.studies import REPO, STUDIES, method
from benchmarks.sweep import Sweep
from benchmarks.tables import gather
from edelweiss.lab.compare.runs import OUTCOME
from tests.benchmarks.pretended import every_run, pretend

PAGES = {path.stem: path for path in sorted((REPO / "docs" / "results").glob("*.md"))}
INDEX = (REPO / "docs" / "results.md").read_text(encoding="utf-8")
NOT_RUN = {name for name in STUDIES if not (REPO / "docs" / "results" / f"{name}.csv").exists()}


def generated(text: str) -> dict[str, str]:
    """Return the generated parts of a page by name."""
    return dict(re.findall(r"^<!-- begin ([\w-]+) -->\n(.*?)^<!-- end \1 -->$", text, re.DOTALL | re.MULTILINE))


# ---------------------------------------------------------------------- writing


def test_what_people_wrote_stays_and_what_is_generated_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "results" / "small.md"
    insert(page, "small", "Small", "first\n")
    assert page.read_text() == "# Small\n\n<!-- begin small -->\n\nfirst\n\n<!-- end small -->\n"
    page.write_text(f"{page.read_text()}\nA finding.\n")
    insert(page, "small", "Another title", "second\n")
    insert(page, "small-too", "Another title", "third\n")
    text = page.read_text()
    assert text.startswith("# Small\n\n<!-- begin small -->\n\nsecond\n")
    assert "\nA finding.\n" in text
    assert generated(text) == {"small": "\nsecond\n\n", "small-too": "\nthird\n\n"}


@pytest.mark.slow
def test_a_study_fills_its_page_and_shows_its_picture(sweep: Sweep, tmp_path: Path) -> None:
    for job in every_run(sweep):
        pretend(sweep, job, held_out=0.6)
    page = tmp_path / "small.md"
    page.write_text("# Small\n\nA finding.\n")
    text = write(sweep, tmp_path)
    assert page.read_text() == f"# Small\n\nA finding.\n\n<!-- begin small -->\n\n{text}\n<!-- end small -->\n"
    assert f"![Small, q = 2 and 4](small.png)\n\n{CAPTIONS['curves']}\n" in text
    write(replace(sweep, full=True), tmp_path)
    assert (tmp_path / "small-full.md").exists()
    assert page.read_text().count("begin") == 1


def test_a_page_says_how_long_all_runs_took(sweep: Sweep) -> None:
    assert "0 runs took under a minute of one core." in markdown(sweep, gather(sweep))
    jobs = every_run(sweep)
    for job in jobs:
        pretend(sweep, job, held_out=0.6)
    for outcome in sweep.folder.glob(f"*/{OUTCOME}"):
        outcome.write_text(outcome.read_text().replace('"seconds": 1.0', '"seconds": 90.0'))
    assert f"{len(jobs)} runs took {1.5 * len(jobs):.0f} minutes of one core." in markdown(sweep, gather(sweep))


@pytest.mark.parametrize(
    ("minutes", "said"), [(120, "within the hour"), (125, "about 62 minutes, longer than the hour")]
)
def test_a_page_says_whether_two_cores_do_it_within_the_hour(sweep: Sweep, minutes: int, said: str) -> None:
    jobs = every_run(sweep)
    for job in jobs:
        pretend(sweep, job, held_out=0.6)
        outcome = sweep.folder / job.name / OUTCOME
        outcome.write_text(outcome.read_text().replace('"seconds": 1.0', f'"seconds": {60 * minutes / len(jobs)}'))
    assert f"{minutes} minutes of one core. On two cores that is {said} that" in markdown(sweep, gather(sweep))
    assert markdown(replace(sweep, full=True), gather(sweep)).endswith("of one core.\n")


def test_only_a_default_run_says_what_is_reduced(sweep: Sweep) -> None:
    default, full = ("\n".join(preamble(replace(sweep, full=full))) for full in (False, True))
    assert "Nothing is reduced. There are 2 sites." in default
    assert "reduced" not in full
    assert "There are 2 sites." in full


@pytest.mark.slow
def test_a_trial_says_what_was_changed_and_nothing_that_it_makes_false(sweep: Sweep, tmp_path: Path) -> None:
    trial = replace(sweep, changes={"hidden": 5, "model": "mlp"})
    for job in every_run(trial):
        pretend(trial, job, held_out=0.6)
    text = write(trial, tmp_path)
    page = (tmp_path / "small.md").read_text()
    assert page.startswith("# small, with hidden=5, model=mlp\n")
    assert """`python -m benchmarks.reproduce small --set 'hidden=5' --set 'model="mlp"'`""" in text
    default = "\n".join(preamble(sweep))
    for claim in (sweep.study.title, sweep.study.size, sweep.study.note):
        assert claim in default
        assert claim not in page


@pytest.mark.parametrize("name", STUDIES)
def test_no_trial_of_a_published_study_repeats_its_setting(name: str) -> None:
    study = STUDIES[name]
    text = "\n".join(preamble(Sweep(study, Path(), {"rounds": 2})))
    for claim in (study.title, study.size, study.note):
        assert not claim or claim not in text


def test_methods_that_end_with_an_average_are_named(sweep: Sweep) -> None:
    assert "average of its iterates" not in markdown(sweep, gather(sweep))
    methods = (*sweep.study.methods, method("coda-plus", 0.1, 0.01), method("coda", 0.1, 0.01))
    averaging = replace(sweep, study=replace(sweep.study, methods=methods))
    assert "A stage of coda-plus and coda ends with the average of its iterates" in markdown(averaging, gather(sweep))


# ---------------------------------------------------------------------- the published pages


def test_the_index_has_a_line_for_every_page() -> None:
    linked = re.findall(r"\]\(results/([\w-]+)\.md\)", INDEX)
    assert sorted(linked) == sorted(PAGES)
    assert set(STUDIES) <= set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_links_of_a_page_lead_somewhere(name: str) -> None:
    for link in re.findall(r"\]\(([^)\s#]+)(?:#[\w-]*)?\)", PAGES[name].read_text(encoding="utf-8")):
        assert "://" in link or (PAGES[name].parent / link).exists(), link


def test_every_picture_and_every_table_is_on_one_page() -> None:
    texts = [path.read_text(encoding="utf-8") for path in PAGES.values()]
    shown = [picture for text in texts for picture in re.findall(r"!\[[^]]*\]\(([\w-]+\.png)\)", text)]
    assert sorted(shown) == sorted(path.name for path in (REPO / "docs" / "results").glob("*.png"))
    parts = [name for text in texts for name in generated(text)]
    assert len(parts) == len(set(parts))
    assert set(STUDIES) <= set(parts)
    assert {path.stem for path in (REPO / "docs" / "results").glob("*.csv")} <= set(parts)


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_says_of_its_study_what_the_study_says(name: str) -> None:
    page = PAGES[name].read_text(encoding="utf-8")
    part = generated(page)[name]
    assert part.strip() not in page.replace(part, "", 1)
    if name not in NOT_RUN:
        assert "\n\n".join(preamble(Sweep(STUDIES[name], Path()))) in part
        assert re.search(r"^(Lines|Points): .* (Bands|Bars): .*\.$", part, re.MULTILINE), "what the picture's spread is"
