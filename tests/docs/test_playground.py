"""Whoever follows a page leaves nothing in the repository's folder that git would want to add."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]

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


@pytest.mark.parametrize("page", ["docs/quickstart.md", "docs/run-at-a-hospital.md"])
def test_git_ignores_what_a_page_has_one_write(page: str) -> None:
    files = written((REPO / page).read_text(encoding="utf-8"))
    assert len(files) > 5
    done = subprocess.run(["git", "check-ignore", "--no-index", *files], cwd=REPO, capture_output=True, text=True)
    assert files - set(done.stdout.split()) == set()
