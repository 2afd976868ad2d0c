"""``extract``: a table from the hospital's database, by a query that its operator has seen and approved."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edelweiss.common.numbers import number

if TYPE_CHECKING:
    from edelweiss.config.extract import ExtractTable, Kind
    from edelweiss.config.study import StudyFile

DESCRIPTION = (
    "Run one query on your database or FHIR bulk export, which it cannot change; show the query and what it returned, "
    "column by column; after your yes write data.parquet into data-dir, a record beside it, and a line in the audit "
    "log. Nothing leaves this machine."
)
KEYS = ("study", "data-dir", "state-dir")


def seconds(text: str) -> float:
    """Parse a timeout."""
    if not 0 < (value := number(text)) <= 10**6:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of seconds above 0, up to 1,000,000")
    return value


def declare(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    add = parser.add_argument
    where = (
        "the database, as in postgresql://reader@db.example.org/omop, or a FHIR bulk export, as in fhir:/data/export"
    )
    add("--source", required=True, metavar="URL", help=where)
    add("--policy", default="", metavar="SITE.toml", help="your settings, with study, data-dir and state-dir")
    what = "the study file, whose table [extract] has the query; or NAME, of a table [studies.NAME] in your settings"
    add("--study", default="", metavar="FILE", help=what)
    add("--query", default="", metavar="FILE", help="a query of your own instead; it returns the same columns")
    add("--data-dir", default="", help="your data folder, into which the table is written")
    add("--state-dir", default="", help="your state folder, with the audit log")
    add("--patient", default="", help="column with the patient ids (default: the study's)")
    add("--password-file", default="", metavar="FILE", help="holds the database's password (default: none)")
    add("--timeout", type=seconds, default=3600.0, help="seconds that the query may take (default: 3600)")
    add(
        "--yes",
        action="store_true",
        help="write without asking, as long as the query is the one that was approved last: for cron",
    )


def run(options: argparse.Namespace) -> int:
    """Extract; return 1 if the operator says no."""
    from edelweiss.client_app.extract import ExtractError, extract, pending
    from edelweiss.client_app.extract.run import approved, hash_of, place_of
    from edelweiss.client_app.extract.source import one_statement, read_password, source_at
    from edelweiss.common.files import as_path
    from edelweiss.config.study import read_study_file

    source = source_at(options.source)
    site = settings(options)
    study_file = read_study_file(site["study"]) if site["study"] else None
    study = study_file.study() if study_file else None
    asked = None if options.query else asked_of(study_file, site["study"], source.kind)
    query = one_statement(query_of(options.query, study_file, site["study"], source.kind))
    if asked:
        source = source.asking(asked)
    password = read_password(options.password_file)
    folder, state_dir = as_path(site["data-dir"]), as_path(site["state-dir"])
    file = place_of(study, folder)
    if options.yes and (last := approved(file)) not in ("", hash_of(query)):
        raise ExtractError(
            f"query: it is not the one that was approved last (SHA-256 {hash_of(query)[:16]}..., not {last[:16]}...): "
            "run once without --yes, and read it"
        )
    print(f"{query}\n\nSHA-256 of the query: {hash_of(query)}", flush=True)
    with pending(folder) as drafts:
        found = extract(
            source,
            query,
            file,
            drafts,
            state_dir,
            study,
            options.patient or site["patient"],
            name=site["name"],
            timeout=options.timeout,
            password=password,
        )
        print("\n".join(found.lines()), flush=True)
        if not options.yes and not agreed(f"Write this to {file}?"):
            print("nothing is written", file=sys.stderr)
            return 1
        found.keep(state_dir)
    print(f"written: {file}, and what it is in {file.with_name('extract.json')}")
    return 0


def settings(options: argparse.Namespace) -> dict[str, str]:
    """Return study, data-dir and state-dir: the options', else those of the settings file.

    With them come the name of a study that has data of its own there, and the patient column of the rules; empty: none.

    Raises
    ------
    ConfigError
        If one is invalid, or a folder is not named.
    """
    from edelweiss.common import ConfigError, shorter
    from edelweiss.common.files import is_file, read_toml, reason
    from edelweiss.config import SiteConfig

    values: dict[str, Any] = {}
    if options.policy:
        try:
            values = read_toml(options.policy)
        except (OSError, ValueError) as error:
            raise ConfigError("policy", [f"{shorter(options.policy)} cannot be read: {reason(error)}"]) from None
    studies, rules = (table if isinstance(table := values.get(key), dict) else {} for key in ("studies", "policy"))
    mend = {key: f"name the folder with --{key}, or your settings with --policy SITE.toml" for key in KEYS}
    name = ""
    if isinstance(own := studies.get(options.study), dict):  # else it is a file
        name = options.study
        values = {"state-dir": values.get("state-dir", ""), **own}  # what a run of this study gets
    elif studies:
        mend["data-dir"] = f"name one of your studies, as in --study {shorter(next(iter(studies)))}"
    given = {key: getattr(options, key.replace("-", "_")) for key in KEYS} | ({"study": ""} if name else {})
    found = {key: given[key] or values.get(key, "") for key in KEYS}
    config, wrong = SiteConfig.checked(found)
    wrong += [f"{key} is missing: {mend[key]}" for key in ("data-dir", "state-dir") if not found[key]]
    if config and studies and options.study and not name and not is_file(config.study):
        known = ", ".join(map(shorter, studies))
        wrong.append(f"study: there is no file {shorter(config.study)}; your settings have the studies {known}")
    if wrong:
        raise ConfigError("settings", wrong)
    patient = rules.get("patient", "")
    return found | {"name": name, "patient": patient if isinstance(patient, str) else ""}


def asked_of(study: StudyFile | None, place: str, kind: Kind) -> ExtractTable | None:
    """Return what a study asks of this kind of source, if it names concepts.

    Raises
    ------
    ConfigError
        If it names none for this kind.
    """
    if study is None or study.extract is None or study.extract.target is None:
        return None
    return study.extract.for_source(kind, Path(place).parent)


def query_of(file: str, study: StudyFile | None, place: str, kind: Kind = "OMOP") -> str:
    """Return the query: the hospital's own file, or the study's.

    Raises
    ------
    ExtractError
        If there is none.
    """
    from edelweiss.client_app.extract import ExtractError
    from edelweiss.client_app.extract.fhir_tables import fhir_query
    from edelweiss.client_app.extract.omop import study_query
    from edelweiss.config.extract import read_query

    if file:
        return read_query(Path(file))
    if study is None or study.extract is None:
        what = "the study file has no table [extract]" if study else "no study file is named"
        raise ExtractError(f"query: {what}: name a file with your query, as in --query cohort.sql")
    if study.extract.query_file:
        return read_query(Path(place).parent / study.extract.query_file)
    if asked := asked_of(study, place, kind):
        write = fhir_query if kind == "FHIR" else study_query
        return write(asked, study.label.column, study.patient or "patient", list(study.columns))
    return study.extract.query


def agreed(question: str) -> bool:
    """Ask; an end of input is a no."""
    try:
        return input(f"{question} [yes/no] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
