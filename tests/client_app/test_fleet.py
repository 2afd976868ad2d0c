"""What the site needs of the inside of Flower, which no release promises: another flwr has to be tried first."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

import flwr
import pytest

from bin.run import REPO

PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy")
INSIDE = {
    "client_app/fleet.py": {
        "flwr.common.constant": {"ErrorCode"},
        "flwr.common.serde": {"message_to_proto", "user_config_from_proto"},
        "flwr.proto.fab_pb2": {"GetFabRequest"},
        "flwr.proto.fleet_pb2": {
            "ActivateNodeRequest",
            "DeactivateNodeRequest",
            "PullMessagesRequest",
            "PushMessagesRequest",
            "RegisterNodeFleetRequest",
            "UnregisterNodeFleetRequest",
        },
        "flwr.proto.fleet_pb2_grpc": {"FleetStub"},
        "flwr.proto.heartbeat_pb2": {"SendNodeHeartbeatRequest"},
        "flwr.proto.message_pb2": {"ConfirmMessageReceivedRequest", "PullObjectRequest", "PushObjectRequest"},
        "flwr.proto.node_pb2": {"Node"},
        "flwr.proto.run_pb2": {"GetRunRequest"},
        "flwr.supercore.error": {"FlowerError"},
        "flwr.supercore.grpc_health": {"run_health_server_grpc_no_tls"},
        "flwr.supercore.inflatable.inflatable_object": {
            "get_all_nested_objects",
            "get_object_tree",
            "iterate_object_tree",
            "no_object_id_recompute",
        },
        "flwr.supercore.inflatable.inflatable_utils": {
            "ObjectPullError",
            "ObjectPushError",
            "ObjectUnavailableError",
        },
        "flwr.supercore.run": {"RunNotRunningException"},
        "flwr.supercore.task_identity": {"TaskIdentity"},
    },
    "client_app/app.py": {"flwr.common.constant": {"ErrorCode"}},
    "federation/batching.py": {
        "flwr.common.serde": {"recorddict_from_proto", "recorddict_to_proto"},
        "flwr.proto.recorddict_pb2": {"RecordDict"},
    },
    "federation/chunking.py": {
        "flwr.app.message.arraychunk": {"ArrayChunk"},
        "flwr.common.constant": {"FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE"},
        "flwr.supercore.constant": {"HEAD_BODY_DIVIDER", "HEAD_VALUE_DIVIDER"},
        "flwr.supercore.inflatable.inflatable_object": {
            "InflatableObject",
            "get_object_head_values_from_object_content",
        },
        "flwr.supercore.inflatable.inflatable_utils": {"inflatable_class_registry", "pull_objects"},
    },
    "federation/wire.py": {"flwr.supercore.task_identity": {"TaskIdentity"}},
}
"""Every name from outside Flower's public packages that a site uses, by file."""

CALLED = {
    ("flwr.supercore.inflatable.inflatable_utils", "pull_objects"): (
        "initial_backoff",
        "backoff_cap",
        "max_tries_per_object",
    ),
}


def imported(file: Path) -> dict[str, set[str]]:
    """Return the names that a file imports from inside Flower, by module."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("flwr") and node.module not in PUBLIC:
            found.setdefault(str(node.module), set()).update(name.name for name in node.names)
        assert not (isinstance(node, ast.Import) and any(name.name.startswith("flwr.") for name in node.names))
    return found


def test_flower_is_the_release_that_this_was_written_for() -> None:
    assert flwr.__version__.startswith("1.39.")


def test_nothing_else_of_a_site_touches_flowers_inside() -> None:
    sources = [path for folder in ("client_app", "federation") for path in (REPO / folder).rglob("*.py")]
    files = {path.relative_to(REPO).as_posix(): imported(path) for path in sources}
    assert {name: found for name, found in files.items() if found} == INSIDE


@pytest.mark.parametrize(("module", "name"), CALLED)
def test_what_it_calls_takes_what_it_gives(module: str, name: str) -> None:
    parameters = inspect.signature(getattr(import_module(module), name)).parameters
    assert set(CALLED[module, name]) <= set(parameters)
