"""Runs a Flower ServerApp with the connected nodes, in the caller's thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Context, RecordDict

import netq
from fl.flower._compat import SUPERLINK_NODE_ID
from fl.flower.apps import ServerApp, check_server_app
from fl.flower.grid import Grid
from fl.flower.signed_app import SignedApp


def run(
    server_app: ServerApp,
    options: netq.CommunicatorOptions | None = None,
    protocol: netq.Protocol = netq.Protocol.TCP,
    *,
    min_nodes: int = 1,
    run_config: Mapping[str, bool | int | float | str] | None = None,
    app_version: str = "",
    delivery: SignedApp | None = None,
    grace: float = 10.0,
    stay: bool = False,
) -> Context:
    """Run an unmodified ServerApp, with any strategy, when `min_nodes` are connected. Return its context.

    A strategy waits by itself for the nodes that it needs. When the app returns, the nodes' `run` returns too. If the
    app raises, the nodes wait for the next server.

    server_app: a ServerApp, or a function of (grid, context). Raises InvalidOption for anything else.
    run_config: `context.run_config` on both sides.
    app_version: AppFolder.version of the app's folder; a node whose app has another version is logged on both sides.
    delivery:   the app's files with their signature (SignedApp.load), for nodes that take them from the server.
    stay:       whether the nodes wait for the next server also when the app returns.

    For `options`, `grace` and other errors see Grid.
    """
    check_server_app("run.server_app", server_app)
    settings: dict[str, Any] = {"run_config": run_config, "app_version": app_version, "delivery": delivery}
    with Grid(options, protocol, grace=grace, **settings) as grid:
        grid.wait(min_nodes)
        context = run_on(grid, server_app)
        if stay:
            grid.close(0.0)
        return context


def run_on(grid: Grid, server_app: ServerApp) -> Context:
    """Run a ServerApp with the nodes of a grid. Return its context."""
    context = Context(grid.run.run_id, SUPERLINK_NODE_ID, {}, RecordDict(), dict(grid.run_config))
    server_app(grid, context)
    return context
