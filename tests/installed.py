"""An environment that wheels are installed into, as a user has one; dependencies are those of the tests' own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]


def quiet(path: Path | str) -> dict[str, str]:
    """Return an environment for a new interpreter in which nothing but ``path`` and site-packages is importable."""
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"}


@dataclass(frozen=True)
class Installed:
    """An environment and the folder that its commands run in."""

    home: Path
    folder: Path

    @classmethod
    def of(cls, place: Path, *projects: Path) -> Installed:
        """Build the wheels of this repository and of other projects, and install them into a new environment."""
        found = cls(place / "venv", place / "folder")
        found.folder.mkdir()
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        build = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(place / "dist")]
        subprocess.run([*pip, *build, str(REPO), *map(str, projects)], check=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(found.home)], check=True)
        # Behind the new environment on the path.
        others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        (found.packages / "dependencies.pth").write_text("\n".join(others), encoding="utf-8")
        install = ["install", "--no-deps", "--ignore-installed", "--no-warn-script-location"]
        wheels = [str(wheel) for wheel in (place / "dist").glob("*.whl")]
        subprocess.run([*pip, "--python", str(found.home / "bin" / "python"), *install, *wheels], check=True)
        return found

    @property
    def packages(self) -> Path:
        """Its site-packages."""
        [packages] = self.home.glob("lib/python*/site-packages")
        return packages

    def run(self, *command: str, fails: bool = False) -> str:
        """Run one of its commands in the folder; returns what it said."""
        tool, *arguments = command
        return self._done([str(self.home / "bin" / tool), *arguments], fails)

    def shell(self, script: str) -> str:
        """Run a shell script that finds its commands by name."""
        return self._done(["bash", "-ec", f'PATH="{self.home}/bin:$PATH"\n{script}'], False)

    def _done(self, command: list[str], fails: bool) -> str:
        done = subprocess.run(command, cwd=self.folder, env=quiet(""), capture_output=True, text=True, timeout=900)
        assert (done.returncode != 0) == fails, f"{command}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr
