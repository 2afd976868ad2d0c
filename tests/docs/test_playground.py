"""Whoever follows a page leaves nothing in the repository's folder that git would want to add."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
DOCS = {path.stem: path.read_text(encoding="utf-8") for path in (REPO / "docs").glob("*.md")}

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or not (REPO / ".git").exists(), reason="there is no git, or no clone"
)


def written(text: str) -> set[str]:
    """Files that a page has its reader write: code under a file's name, redirected output, folders of sites."""
    shell = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    files = re.findall(r"^```(?:python|toml)\n# (\S+\.(?:py|toml))$", text, re.MULTILINE)
    files += re.findall(r"> (\S+)", shell)
    files += [f"{folder}/" for folder in re.findall(r"""state-dir(?: |=\\")(?:\$PWD/)?([\w./$-]+)""", shell)]
    return set(files)


def test_git_ignores_what_the_pages_have_one_write() -> None:
    pages = [written(DOCS[name]) for name in ("quickstart", "personalised", "run-at-a-hospital", "use-a-model")]
    assert all(pages)
    files = set().union(*pages)
    done = subprocess.run(["git", "check-ignore", "--no-index", *files], cwd=REPO, capture_output=True, text=True)
    assert files - set(done.stdout.split()) == set()
