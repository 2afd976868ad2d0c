"""``submit --superlink HOST:PORT``: a run at a SuperLink. It imports neither torch nor Flower."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.common import ConfigError, to_toml
from edelweiss.common.numbers import number
from edelweiss.common.scratch import Scratch
from edelweiss.lab.commands import takes_run_config
from edelweiss.server_app.control import CERTIFICATE, KEY
from edelweiss.server_app.run_notes import login, note_act

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from edelweiss.common import Value

SUMMARY = "run it at a SuperLink instead"
DESCRIPTION = (
    "Run a job on a SuperLink: show its log, and return its exit code: 0 complete, 1 failed, 2 a run-config that "
    "cannot be used, 3 stopped, 4 lost (its process was killed) or out of reach."
)

RESULTS = re.compile(r"results (?:so far are )?in (/.*\S)")  # a line of `server_app.coordinator`


def takes(parser: argparse.ArgumentParser, *, needs_superlink: bool = True) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--superlink", required=needs_superlink, metavar="HOST:PORT", help="where jobs are taken, as a rule 8000"
    )
    security = parser.add_mutually_exclusive_group(required=needs_superlink)
    security.add_argument("--root-certificates", metavar="ca.crt", help="whose certificates to trust")
    security.add_argument("--insecure", action="store_true", help="no encryption: on one machine only")
    parser.add_argument("--certificate", metavar="operator.crt", help="what to show there, if asked")
    parser.add_argument("--key", metavar="operator.key", help="the private key of --certificate")
    signing = parser.add_argument_group("for sites that take part only in runs that their study's person has signed")
    signing.add_argument("--study-key", metavar="FILE", help="sign the run with this key, of `edelweiss study key`")
    signing.add_argument("--sites", metavar="FOLDER", help="the sites' public keys, NAME.pub each")
    signing.add_argument("--executor", metavar="FILE", help="the public key of the coordinator's ServerApp")
    signing.add_argument("--days", type=number, default=7.0, help="how long the run may take; default: 7")
    takes_run_config(parser)


def main(options: argparse.Namespace) -> int:
    """Run a job at a SuperLink; returns the exit code."""
    from edelweiss.lab.submission import read_run_config

    try:
        run_config = {"started-by": login()} | read_run_config([*options.run_config])
        if options.study_key or options.sites or options.executor:
            run_config |= {"ticket": _ticket(options, run_config)}
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    connection = Connection(
        options.superlink, options.root_certificates or "", options.certificate or "", options.key or ""
    )
    return run_at(connection, run_config)


def unsafe(options: argparse.Namespace) -> list[str]:
    """Say if nobody has chosen between certificates and no encryption."""
    if not options.superlink or options.root_certificates or options.insecure:
        return []
    return [f"--superlink {options.superlink}: add --root-certificates ca.crt, or --insecure on one machine"]


def _ticket(options: argparse.Namespace, run_config: Mapping[str, Value]) -> str:
    """Sign the run.

    Raises
    ------
    ConfigError
        With everything that is wrong.
    """
    from edelweiss.lab.signing import ticket_for

    given = {"study-key": options.study_key, "sites": options.sites, "executor": options.executor}
    if missing := [f"--{key} is missing: a signed run needs all three" for key, value in given.items() if not value]:
        raise ConfigError("ticket", missing)
    return ticket_for(run_config, options.study_key, options.sites, options.executor, options.days)


@dataclass(frozen=True)
class Connection:
    """How to reach a SuperLink."""

    address: str  # HOST:PORT
    root_certificates: str = ""  # whose certificates to trust; "": no encryption
    certificate: str = ""  # what to show, and its key; "": what the environment names, if anything
    key: str = ""

    def to_toml(self) -> str:
        """Return Flower's configuration of it."""
        own: dict[str, Value] = {"address": self.address, "insecure": not self.root_certificates}
        if self.root_certificates:
            own["root-certificates"] = _absolute(self.root_certificates)
        return to_toml({"superlink.default": "own"} | {f"superlink.own.{key}": value for key, value in own.items()})


def note_stop(log: str) -> None:
    """Note in the run's folder, if it is on this machine, that this person has stopped the run."""
    folder = Path((RESULTS.findall(log) or ["/dev/null"])[-1])
    with suppress(OSError):
        if (folder / "config.toml").is_file():
            note_act(folder, "stopped", login())


def _absolute(file: str) -> str:
    return str(Path(file).expanduser().absolute())


def run_at(connection: Connection, run_config: Mapping[str, Value]) -> int:
    """Submit a run, show its log as it comes, and say how it ended; returns the exit code."""
    from edelweiss.lab.submission import FLOWER, flower_environment, submit

    with Scratch() as home:
        shown = {CERTIFICATE: connection.certificate, KEY: connection.key}
        environment = flower_environment(home) | {name: _absolute(file) for name, file in shown.items() if file}
        (home / "config.toml").write_text(connection.to_toml(), encoding="utf-8")

        def stop(run: str) -> None:
            subprocess.run([FLOWER, "stop", run], env=environment, stdout=subprocess.DEVNULL)

        said: list[str] = []

        def show(line: str) -> None:
            said.append(line)
            print(line, end="", flush=True)

        try:
            outcome = submit(home, environment, run_config, show=show, stop=stop)
        except KeyboardInterrupt:
            note_stop("".join(said))
            raise
    if found := RESULTS.findall(outcome.log):
        here = "" if Path(found[-1]).is_dir() else ", on the machine of the ServerApp (docker compose cp serverapp:...)"
        print(f"results: {found[-1]}{here}")
    if not outcome.ok:
        print(f"error: {outcome.why}", file=sys.stderr)
        if "is unavailable" in outcome.log and connection.root_certificates and CERTIFICATE not in environment:
            print("if this SuperLink lets in its operator only: name --certificate and --key", file=sys.stderr)
    return outcome.code
