#!/usr/bin/env python3
"""Write every table that the code decides: the keys in pyproject.toml, and the tables of the documents.

    python bin/docs.py            # write them (make docs)
    python bin/docs.py --check    # change nothing; exit with 1 and the names of what is out of date

In a document a table stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``; the rest of the page is written
by hand. NAME is a row of TABLES below.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

# The app is no installed package: its folder has to be on the path before anything of it is imported (E402).
from edelweiss.client_app.policy.rules import Budget, Policy, StudyData  # noqa: E402
from edelweiss.common import Value, allowed, choices  # noqa: E402
from edelweiss.common.overrides import toml_value  # noqa: E402
from edelweiss.config import RunConfig, SiteConfig  # noqa: E402
from edelweiss.config.keys import Keys  # noqa: E402
from edelweiss.config.notify import Notify  # noqa: E402
from edelweiss.config.tables import SHARED, tables  # noqa: E402
from edelweiss.config.values import OneOf  # noqa: E402
from edelweiss.federation import COUNT, FederatedStrategy  # noqa: E402
from edelweiss.federation.algorithm import phases_of  # noqa: E402
from edelweiss.federation.table import Way, remembers, sends  # noqa: E402
from edelweiss.problems import PROBLEMS, Problem, papers  # noqa: E402
from edelweiss.problems.metrics import METRICS  # noqa: E402
from edelweiss.strategies import ALGORITHMS, can_solve  # noqa: E402

MARK = "# Written by `make docs` from the classes that own the keys: do not edit below this line.\n"
COMMENT = 31  # column of the comments in pyproject.toml
SECTIONS = {  # by the field that each begins with
    "algorithm": "What is trained, by what.",
    "dataset": "The data, and how it is split.",
    "dp.epsilon": "Differential privacy.",
    "sites": "Who takes part, and what happens when somebody does not.",
    "engine": "How it is computed.",
    "evaluate-every": "What is measured and kept.",
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write every table that the code decides.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if something is out of date")
    check = parser.parse_args().check
    stale = [path for path, text in written() if path.read_text(encoding="utf-8") != text]
    if check and stale:
        names = ", ".join(str(path.relative_to(REPO)) for path in stale)
        print(f"out of date: {names}; run `make docs`", file=sys.stderr)
        return 1
    for path, text in written() if stale and not check else ():
        path.write_text(text, encoding="utf-8")
    return 0


def written() -> Iterator[tuple[Path, str]]:
    """Yield every file that has something written by the code, with its text as it should be."""
    project = REPO / "pyproject.toml"
    yield project, project.read_text(encoding="utf-8").partition(MARK)[0] + MARK + config_tables()
    for page in (REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        if filled := re.sub(r"(<!-- begin ([\w-]+) -->\n).*?(<!-- end \2 -->)", _filled, text, flags=re.DOTALL):
            yield page, filled


def _filled(found: re.Match[str]) -> str:
    if found[2] not in TABLES:
        raise SystemExit(f"<!-- begin {found[2]} -->: no such table; there are {', '.join(sorted(TABLES))}")
    return f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}"


# ---------------------------------------------------------------------- pyproject.toml


def config_tables() -> str:
    """Return [tool.flwr.app.config] and its tables: every key with its default and its meaning."""
    if unknown := SECTIONS.keys() - RunConfig.keys():
        raise SystemExit(f"SECTIONS begins with {', '.join(sorted(unknown))}: no such key")
    lines = ["", "[tool.flwr.app.config]"]
    for key, f in RunConfig.keys().items():
        if key in SECTIONS:
            lines += [""] * (key != "algorithm") + [f"# {SECTIONS[key]}"]
        lines.append(_line(key, f.default, _meaning(f)))
    lines += ["", "# All algorithms: steps, who takes part in a round, stages, what is returned."]
    lines += [_line(key, f.default, _meaning(f)) for key, f in SHARED.items()]
    for name, options in tables().items():
        if options:
            lines += ["", f"[tool.flwr.app.config.{name}]"]
            lines += [_line(key, f.default, _meaning(f)) for key, f in options.items()]
    return "\n".join(lines) + "\n"


def _line(key: str, default: Value, meaning: str) -> str:
    return f"{key} = {toml_value(default)}".ljust(COMMENT - 1) + f" # {meaning}"


def _meaning(f: Any) -> str:
    names = [
        name
        for part in f.metadata
        if isinstance(check := getattr(part, "func", None), OneOf)
        for name in (*check.names, *check.more)
    ]
    names = names or [name or '""' for name in choices(f)]
    return f"{' | '.join(names)}: {f.description}" if names else str(f.description)


# ---------------------------------------------------------------------- tables of documents


def _table(*rows: tuple[str, ...]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def family(algorithm: type[FederatedStrategy]) -> str:
    """Return the heading that an algorithm stands under."""
    if not algorithm.exchanges or (algorithm.solves == {"minimisation"} and not algorithm.personalised):
        return "Baselines"
    if algorithm.personalised:
        return "Personalised and decentralised"
    return "Conditional" if "conditional" in algorithm.solves else "Minimax"


def _by_family(row: Callable[[type[FederatedStrategy]], tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each algorithm, under a bold row for each family."""
    for heading in ("Baselines", "Minimax", "Conditional", "Personalised and decentralised"):
        rows = [row(algorithm) for algorithm in ALGORITHMS.values() if family(algorithm) == heading]
        yield (f"**{heading}**", *[""] * (len(rows[0]) - 1))
        yield from rows


def _cited(algorithm: type[FederatedStrategy]) -> str:
    info = algorithm.info
    if not info.papers:
        return "none"
    first, *others = info.papers
    return "; ".join([first.short + (f", {info.where}" if info.where else ""), *(paper.short for paper in others)])


def numbers(algorithm: type[FederatedStrategy], way: Way) -> str:
    """Return how many numbers a site is sent or sends in a round in the middle of a stage: "2d + p".

    A number has four bytes; a whole one, of a round, counts as two.
    """
    chosen, counts = algorithm(), Counter[str]()
    for phase in phases_of(chosen, 3, 5, 2):
        for row in chosen.messages.of(way):
            lengths = row.vectors.values() if row.holds(chosen, chosen.context(3, 5, phase, 2)) else ()
            counts.update(length.split()[-1] for length in lengths if length != "p" or "minimax" in algorithm.solves)
    whole = 2 * counts.pop(COUNT.split()[-1], 0)
    terms = [f"{n if n > 1 else ''}{symbol}" for symbol, n in sorted(counts.items())]
    return " + ".join([*terms, *([str(whole)] if whole else [])]) or "0"


def algorithms() -> str:
    """What each algorithm is from, what it moves, computes and remembers."""
    heads = ("`algorithm`", "paper", "down", "up", "gradients", "a site remembers", "`fraction`")
    return _table(
        heads,
        *_by_family(
            lambda a: (
                f"`{a.name}`",
                _cited(a),
                numbers(a, "down"),
                numbers(a, "up"),
                a.info.gradients,
                remembers(a) or "nothing",
                "yes" if a.partial else "no",
            )
        ),
    )


def problems() -> str:
    """What each problem is, on which data, and who solves it."""
    heads = ("`problem`", "kind", "what is optimised", "paper", "data", "reported besides the loss", "algorithms")
    return _table(
        heads,
        *(
            (
                f"`{p.name}`",
                p.kind,
                p.optimises,
                "; ".join(paper.short for paper in p.papers) or "none",
                _data(p),
                ", ".join(METRICS[name].label for name in p.reports),
                _names([name for name, algorithm in ALGORITHMS.items() if can_solve(algorithm, p)]),
            )
            for p in PROBLEMS.values()
        ),
    )


def _data(problem: type[Problem]) -> str:
    if not problem.needs_data:
        return "none"
    if problem.multiclass:
        return "all classes are kept"
    return "two classes; also several labels" if problem.several else "two classes"


def options() -> str:
    """Every key of the algorithms and problems, with default and range."""
    owners = {"": SHARED} | tables()
    return _table(
        ("key", "default", "allowed", "meaning"),
        *(
            (
                f"`{name}.{key}`" if name else f"`{key}`",
                f"`{toml_value(f.default)}`",
                allowed(f) or "any number",
                str(f.description),
            )
            for name, found in owners.items()
            for key, f in found.items()
        ),
    )


def papers_list() -> str:
    """All papers."""
    every = [paper for paper in vars(papers).values() if isinstance(paper, papers.Paper)]
    return "\n".join(f"- {p.authors.removesuffix('.')}. {p.title}. {p.venue}.{_linked(p.link)}" for p in every)


def _linked(link: str) -> str:
    """Return the number of a paper as the end of its line, and as a link where it is one."""
    kind, _, number = link.partition(":")
    roots = {"arXiv": "https://arxiv.org/abs/", "doi": "https://doi.org/"}
    return (f" [{link}]({roots[kind]}{number})." if kind in roots else f" {link}.") if link else ""


def leaves() -> str:
    """What a site sends in a round, what of it is needed for itself, and what stays in its state folder."""
    heads = ("`algorithm`", "vectors that a site sends in a round", "needed one by one", "what it keeps between rounds")
    return _table(
        heads, *((f"`{a.name}`", sends(a), _single(a), remembers(a) or "nothing") for a in ALGORITHMS.values())
    )


def _single(algorithm: type[FederatedStrategy]) -> str:
    rows = [row for row in algorithm.messages.of("up") if row.use != "summed"]
    return ", ".join(_names(list(row.vectors)) + " (relayed)" * (row.use == "relayed") for row in rows) or "none"


def node_keys() -> str:
    """The keys of a site's operator."""
    return _table(("key", "meaning"), *((f"`{f.alias}`", str(f.description)) for f in SiteConfig.model_fields.values()))


def policy_keys(keys: type[Keys] = Policy) -> str:
    """The keys of a site's policy."""
    rows = ((f"`{f.alias}`", f"`{_toml(f.default)}`", str(f.description)) for f in keys.model_fields.values())
    return _table(("key", "default", "meaning"), *rows)


def privacy_keys() -> str:
    """The keys of a site's privacy budget."""
    return policy_keys(Budget)


def notify_keys() -> str:
    """The keys of a site's notifications."""
    return policy_keys(Notify)


def studies_keys() -> str:
    """List what a site's table of a study may contain."""
    return policy_keys(StudyData)


def shapes() -> str:
    """Say what a site's doctor says of data as hospitals hold them; tests/client_app/test_shapes.py tries each."""
    does = {"ok": "reads it", "warning": "doubts it", "error": "refuses it"}
    shapes: dict[tuple[str, ...], list[str]] = {}  # with the same words they share a row
    for row in tomllib.loads((REPO / "docs" / "shapes.toml").read_text(encoding="utf-8")).values():
        said = does[row["level"]], f"`{row['says']}`", "; ".join(_mends(row)) or "nothing"
        shapes.setdefault(said, []).append(row["shape"])
    return _table(("data", "doctor", "says", "what to do"), *(("; ".join(of), *said) for said, of in shapes.items()))


def _mends(row: dict[str, Any]) -> Iterator[str]:
    yield from (f"`{line}`" for line in row.get("study", ()))
    if "settings" in row:
        yield f"`{row['settings']}` in `site.toml`"
    if "do" in row:
        yield row["do"]


def _toml(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list | dict) else toml_value(value)


TABLES: dict[str, Callable[[], str]] = {
    "algorithms": algorithms,
    "problems": problems,
    "options": options,
    "papers": papers_list,
    "leaves": leaves,
    "node-keys": node_keys,
    "policy-keys": policy_keys,
    "privacy-keys": privacy_keys,
    "notify-keys": notify_keys,
    "studies-keys": studies_keys,
    "shapes": shapes,
}

if __name__ == "__main__":
    sys.exit(main())
