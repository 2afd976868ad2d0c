"""The coordinator as Flower's ServerApp."""

from __future__ import annotations

import ctypes
import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flwr.app import Message
from flwr.serverapp import Grid, ServerApp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flwr.app import Context
    from flwr.supercore.retry import RetryState

app = ServerApp()

PATIENCE = 20.0  # seconds for a stopping run to write its state


class PlainMistakes(logging.Filter):
    """A filter of Flower's logger that reduces a user's mistake to its message."""

    seen = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Remove the traceback of a mistake, and Flower's line about an unhandled exception after it."""
        from edelweiss.config import MISTAKES

        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, MISTAKES):
            self.seen = True
            record.msg, record.args, record.exc_info = str(error), (), None
        return not (self.seen and str(record.msg).startswith("Exit Code: "))


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block when Flower's process is told to stop, with time to write results.

    Flower's own signal handler kills the process after five seconds.

    Raises
    ------
    RunError
        If the run was stopped.
    """
    from flwr.supercore.exit import add_exit_handler

    from edelweiss.federation import RunError

    mine, finished = threading.get_ident(), threading.Event()

    def stop() -> None:
        if finished.is_set():
            return
        if (
            threading.get_ident() == mine
        ):  # in a deployment the ServerApp runs in the main thread, which handles signals
            raise KeyboardInterrupt
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(mine), ctypes.py_object(KeyboardInterrupt))
        finished.wait(PATIENCE)

    add_exit_handler(stop, run_before_force_exit=True)
    try:
        yield
    except KeyboardInterrupt:
        raise RunError("stopped: before its end") from None
    finally:
        finished.set()


def carry_quickly(grid: Grid) -> None:
    """Replace the transfer of messages in Flower's grid by `federation.chunking` and `federation.batching`.

    Flower waits a second whenever a reply is announced before its content has arrived, about every third round.
    ``grid.interrupted`` reports an outage of the SuperLink. For flwr 1.39.
    """
    from flwr.superlink.grid import http_grid

    from edelweiss.federation import batching, chunking

    if not isinstance(grid, http_grid.HttpGrid):  # a simulation's grid transfers nothing
        return
    for name, ours in (
        ("push_objects", chunking.push),
        ("pull_objects", chunking.pull),
        ("inflate_object_from_contents", chunking.whole),
    ):
        setattr(http_grid, name, ours)
    send, fetch, line, anew = grid.push_messages, grid.pull_messages, grid._retry_invoker, threading.Event()
    flowers = line.on_success

    def push_messages(messages: Iterable[Message]) -> Iterable[str]:
        sent = []
        for message in messages:
            about, content = message.metadata, batching.batch(message.content)
            chunking.cut(content)
            sent.append(Message(content, about.dst_node_id, about.message_type, ttl=about.ttl, group_id=about.group_id))
        return send(sent)

    def pull_messages(message_ids: Iterable[str]) -> Iterable[Message]:
        for answer in fetch(message_ids):
            if answer.has_content():
                answer.content = batching.unbatch(answer.content)
            yield answer

    def on_success(state: RetryState) -> None:
        if flowers:
            flowers(state)
        if state.tries > 1:
            anew.set()

    def interrupted() -> bool:
        was = anew.is_set()
        anew.clear()
        return was

    line.on_success = on_success
    for method in (push_messages, pull_messages, interrupted):
        setattr(grid, method.__name__, method)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Check the run-config, then run the job on Flower's grid or on the local engine."""
    from edelweiss.common.memory import collecting_rarely, keep_freed_memory

    with collecting_rarely():  # of what is imported, nothing is garbage
        import torch

        from edelweiss.config import RunConfig
        from edelweiss.config.plug_ins import load_named
        from edelweiss.lab.report import write_report
        from edelweiss.server_app.console import Progress
        from edelweiss.server_app.coordinator import coordinate
        from edelweiss.server_app.local import LocalGrid

    keep_freed_memory()
    logging.getLogger("flwr").addFilter(PlainMistakes())
    config = RunConfig.parse(load_named(context.run_config))
    torch.set_num_threads(config.threads)
    with stoppable():
        if config.engine == "local":
            # Not forked: Flower's process has threads.
            with collecting_rarely(), LocalGrid(config, context.run_id, fork=False) as local:
                coordinate(config, local, Progress(), write_report)
        else:
            carry_quickly(grid)
            coordinate(config, grid, Progress(), write_report)
