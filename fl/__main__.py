"""python -m fl serve CONFIG.toml: run an aggregator, as a service does; plot ROUNDS.jsonl: draw its rounds.

Owns the process: its arguments, its environment, log lines on stderr, signals and exit status. Everything else is
fl.config.server's, fl.server's and fl.callbacks.plots's. Needs typer.

status  when
0       all rounds are done; or SIGTERM came, which is how a service is told to stop: its clients wait for the next
1       it cannot go on: one line on stderr says why
2       the file or the command line is wrong: one line on stderr says where
130     Ctrl-C

--verbose adds the traceback to either line.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, TextIO

try:
    import typer
except ImportError as error:
    sys.exit(f"fl: the command line needs typer ({error}): pip install typer")

import fl
from fl.callbacks import plots
from fl.callbacks.jsonl import JsonLines, Measured
from fl.callbacks.mlflow import MLflow
from fl.callbacks.progress import Progress
from fl.callbacks.prometheus import Prometheus
from fl.callbacks.tensorboard import TensorBoard
from fl.config.server import Config
from fl.tensors import npz
from fl.tensors.spec import Model
from netq.errors import AddressError, InvalidOption

log = logging.getLogger("fl")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True)

_MLFLOW = {  # its client reads these of the environment; it would try for four minutes
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
}

_Verbose = Annotated[bool, typer.Option("--verbose", help="log more, and tracebacks")]


@app.callback()
def _describe() -> None:
    """Federated learning: run an aggregator, draw what came of its rounds."""


@app.command()
def serve(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="see docs/how-to/aggregator.md")],
    verbose: _Verbose = False,
) -> None:
    """Run an aggregator, until its rounds are done."""
    _log_to_stderr(logging.DEBUG if verbose else logging.INFO)
    _on_signals(_stop)
    with _statuses():
        _serve(Config.load(config))


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="ROUNDS.jsonl...", help="what [callbacks] json has written")],
    out: Annotated[Path, typer.Option(help="PNG, SVG or PDF")] = Path("rounds.png"),
    metric: Annotated[str | None, typer.Option(help="which; the first that there is")] = None,
    verbose: _Verbose = False,
) -> None:
    """Draw a metric and the bytes, by round."""
    _log_to_stderr(logging.DEBUG if verbose else logging.WARNING)
    with _statuses():
        if not out.parent.is_dir():
            raise InvalidOption(f"--out: {str(out)!r}; there is no folder {str(out.parent)!r}: make it")
        try:
            plots.rounds({str(run): run for run in runs}, metric=metric, out=out)
        except FileNotFoundError as error:
            raise InvalidOption(
                f"{error.filename}: no such file; give one that [callbacks] json has written"
            ) from error
        except ValueError as error:
            raise InvalidOption(str(error)) from error


def _serve(config: Config) -> None:
    with ExitStack() as stack:
        callbacks = list(_callbacks(config, stack))
        measured = [] if config.measure is None else [Measured(config.measure, callbacks)]
        server = stack.enter_context(config.server(measured or callbacks))
        if config.save is not None:
            _check(config, server.model)
        log.info("listening at %s:%d; %d of %d rounds are done", *server.netloc, server.number, config.rounds)
        for _ in server.rounds(config.rounds - server.number):
            pass  # the callbacks have seen it
        if config.save is not None:
            npz.save(config.save, server.model)
        log.info("all rounds are done")


def _callbacks(config: Config, stack: ExitStack) -> Iterator[fl.Callback]:
    options = config.callbacks
    if options.json is not None:
        yield JsonLines(options.json)  # first: what is said of a round is then in the file
    yield stack.enter_context(Progress()) if options.progress else _Logged()
    if options.tensorboard is not None:
        yield stack.enter_context(TensorBoard(options.tensorboard))
    if options.prometheus is not None:
        host, port = options.prometheus
        yield stack.enter_context(Prometheus(port, host))
    if options.mlflow is not None:
        yield stack.enter_context(_mlflow(config, options.mlflow))


def _mlflow(config: Config, uri: str) -> MLflow:
    for name, value in _MLFLOW.items():
        os.environ.setdefault(name, value)
    try:
        return MLflow(uri)
    except AddressError as error:
        raise AddressError(f"{config.path}: callbacks.mlflow: {error}") from error


class _Logged(fl.Callback):
    """Logs a line a round."""

    def round_ends(self, report: fl.RoundReport, model: Model) -> None:
        log.info("%s", report)


def _check(config: Config, model: Model) -> None:
    try:
        npz.check(model)
    except ValueError as error:
        raise InvalidOption(f"{config.path}: model.save: {error}, or leave it out") from None


@contextmanager
def _statuses() -> Iterator[None]:
    """End with the status and the line that an error has."""
    try:
        yield
    except InvalidOption as error:
        _fail(error, 2)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception as error:  # the process ends here, and a service's log wants a line, not a page
        _fail(error, 1)


def _fail(error: Exception, status: int) -> None:
    log.debug("where it happened", exc_info=error)
    with suppress(BrokenPipeError):  # nobody reads: there is the status
        print(f"fl: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
    raise typer.Exit(status)


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what sys.stderr is at the time: rich puts itself there, to keep lines and drawing apart."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _log_to_stderr(level: int) -> None:
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(handlers=[_Stderr()], level=level, format=form)
    if level > logging.DEBUG:
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # of each call to an MLflow that is away; fl says it once


def _on_signals(do: Callable[[int, FrameType | None], None]) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # as a shell starts what is to run behind it
            signal.signal(signum, do)


def _stop(signum: int, frame: FrameType | None) -> None:
    """Unwind the stack: the clients wait for the next server, which has the checkpoint."""
    _on_signals(_end)
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(0)


def _end(signum: int, frame: FrameType | None) -> None:
    """End at once: it was said twice."""
    os._exit(0 if signum == signal.SIGTERM else 130)


if __name__ == "__main__":
    app(prog_name="python -m fl")
