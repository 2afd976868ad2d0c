"""Words of a command line that have no effect where they stand, or are no options: said with what was meant."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

from edelweiss.common import unknown

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

OPTION = "--run-config"
NUMBER = re.compile(r"[+-]?(\d[\d_]*(\.\d+)?|\.\d+)([eE][+-]?\d+)?")
TAKES_KEYS = ("submit", "recommend", "privacy")  # commands with run-config keys of their own


def misplaced(arguments: Sequence[str], commands: Collection[str]) -> list[str]:
    """Return what is wrong with the words before a command, or with all words without one."""
    words, strays, given = list(arguments), list[str](), False
    while words and words[0] not in commands:
        word = words.pop(0)
        if word in ("-h", "--help"):
            return []
        if word == OPTION or word.startswith(f"{OPTION}="):
            given = True
            del words[: word == OPTION]
        elif word.startswith("-") or "=" in word or word.endswith(".toml"):
            strays.append(word)
            if word.startswith("-") and "=" not in word and words and words[0] not in commands:
                strays.append(words.pop(0))  # its value, or the next
        else:
            return [unknown("command", word, commands)]
    wrong = [as_keys(strays)] if strays else []
    if given and words:
        where = "put it behind that" if words[0] in TAKES_KEYS else f"{words[0]} takes none, so leave it out"
        wrong.append(f"{OPTION} before {words[0]} has no effect: {where}")
    if words[:1] == ["import"] and words[1:] and words[1][:1] != "-":
        from edelweiss.lab.importers import IMPORTERS

        wrong += [] if words[1] in IMPORTERS else [unknown("source", words[1], IMPORTERS)]
    return wrong


def as_keys(strays: Sequence[str]) -> str:
    """Say how words such as ``--rounds 5``, ``rounds=5`` or ``run.toml`` are given as keys of a run."""
    words, pairs, files = list(strays), list[str](), list[str]()
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            (files if word.endswith(".toml") and "=" not in word else pairs).append(word)
            continue
        key, equals, value = word.lstrip("-").partition("=")
        if not equals:
            value = words.pop(0) if words and (words[0][:1] != "-" or NUMBER.fullmatch(words[0])) else "true"
        plain = value in ("true", "false") or NUMBER.fullmatch(value) or re.fullmatch('".*"', value)
        pairs.append(f"{key}={value if plain else json.dumps(value, ensure_ascii=False)}")
    options = [*files, *([" ".join(pairs)] if pairs else [])]
    return "give keys of a run like this: " + " ".join(f"{OPTION} {shlex.quote(text)}" for text in options)
