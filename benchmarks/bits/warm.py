"""Flower's commands without their imports: a process that has imported torch and Flower, and forks for each command.

`flwr run` and `flwr-serverapp` take ten seconds of CPU time to import what a run of a second needs. hashes.py starts
this process, asks it for `flwr run`, and puts a stub called flwr-serverapp (this file with --stub) first on the
SuperExec's path. What runs in the forks is Flower's own code, and the app from its bundle; nothing of the app is
imported here.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
import traceback

ENV = "BASELINE_WARM"


def ask(words: list[str], log: str = "") -> None:
    """Have a command run, with this process's environment and folder."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(os.environ[ENV])
        request = {"words": words, "env": dict(os.environ), "cwd": os.getcwd(), "log": log}
        line.sendall(json.dumps(request).encode() + b"\n")
        line.recv(16)


def command(request: dict) -> int:
    """Be the command; in a fork."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    out = os.open(request["log"] or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.argv = request["words"]
    sys.path[:] = [place for place in sys.path if place != os.path.dirname(os.path.abspath(__file__))]
    try:
        if request["words"][0] == "flwr":
            from flwr.cli.app import app

            app(prog_name="flwr")
        else:
            from flwr.superlink.cli import flwr_serverapp

            flwr_serverapp()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def serve(path: str, ended: str) -> None:
    """Fork for each request; note each end in a file: the command, its process, its exit code."""
    import flwr.cli.app  # noqa: F401
    import flwr.clientapp  # noqa: F401
    import flwr.serverapp  # noqa: F401
    import flwr.superlink.cli  # noqa: F401
    import numpy  # noqa: F401
    import pandas  # noqa: F401
    import pydantic  # noqa: F401
    import rich.console  # noqa: F401
    import rich.table  # noqa: F401
    import safetensors.torch  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch  # noqa: F401

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    running: dict[int, str] = {}
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen(8)
        while True:
            if select.select([door], [], [], 0.05)[0]:
                line, _ = door.accept()
                data = b""
                while not data.endswith(b"\n"):
                    data += line.recv(65536)
                request = json.loads(data)
                request["words"][0] = os.path.basename(request["words"][0])
                if (pid := os.fork()) == 0:
                    door.close()
                    line.close()
                    code = 1
                    try:
                        for number in (signal.SIGTERM, signal.SIGINT):
                            signal.signal(
                                number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler
                            )
                        code = command(request)
                        sys.stdout.flush()
                        sys.stderr.flush()
                    finally:
                        os._exit(code)
                running[pid] = request["words"][0]
                line.sendall(b"ok")
                line.close()
            for pid in list(running):
                gone, status = os.waitpid(pid, os.WNOHANG)
                if gone:
                    with open(ended, "a") as file:
                        file.write(f"{running.pop(pid)} {pid} {os.waitstatus_to_exitcode(status)}\n")


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:4])
    else:  # the stub, under the command's name
        ask(sys.argv, os.environ.get("BASELINE_LOG", ""))
        time.sleep(0)


if __name__ == "__main__":
    main()
