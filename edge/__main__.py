"""python -m edge [--flower MODULE:APP] CLIENT.toml: run a device, as a service does.

Owns the process: its arguments, its log lines on stderr, its signals and its exit status. Everything else is
edge.config's and edge.runtime's; with --flower, edge.flower's.

status  when
0       the server has ended the federation; or SIGTERM came, which is how a service is told to stop
1       it cannot go on: one line on stderr says why
2       the file or the command line is wrong: one line on stderr says where
130     Ctrl-C

--verbose adds the traceback to either line.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType

from edge.config import Config
from edge.runtime import run
from fl.config.toml import in_file_terms
from netq.errors import InvalidOption, SecurityError

log = logging.getLogger("edge")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the device that the command line names; return the exit status."""
    options = _parser().parse_args(arguments)
    _log_to_stderr(logging.DEBUG if options.verbose else logging.INFO)
    signal.signal(signal.SIGTERM, _stop)
    try:
        config, take_part = _load(options.config) if options.flower is None else _load_flower(options)
    except InvalidOption as error:
        return _fail(error, 2)
    except ImportError as error:  # of Flower: another module's is an InvalidOption
        return _fail(error, 1)
    try:
        return _serve(config, take_part)
    except (InvalidOption, SecurityError) as error:  # what only a transport can tell: a certificate that is none, …
        wrong = InvalidOption(f"{options.config}: {in_file_terms(error)}")
        wrong.__cause__ = error
        return _fail(wrong, 2)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the process ends here, and a service's log wants a line, not a page
        return _fail(error, 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m edge", description="Take part in a federation, until it ends.")
    parser.add_argument("config", metavar="CLIENT.toml", help="what this device is told; see docs/reference/edge.md")
    parser.add_argument("--flower", metavar="MODULE:APP", help="run a Flower ClientApp; see docs/how-to/flower.md")
    parser.add_argument("--verbose", action="store_true", help="log more, and tracebacks")
    return parser


def _log_to_stderr(level: int) -> None:
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _stop(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(0)  # unwinds the stack, so that the communicator says goodbye


def _load(path: str) -> tuple[Config, Callable[[], None]]:
    config = Config.load(path)
    train = config.train
    if train is None:
        raise InvalidOption(f'{path}: client.train: missing; expected "module:function", as in "farm.training:train"')
    return config, lambda: run(train, config, config.evaluate)


def _load_flower(options: argparse.Namespace) -> tuple[Config, Callable[[], None]]:
    from edge.flower import Device  # only who asks for Flower needs it

    device = Device.load(options.config, options.flower)
    return device.config, device.run


def _serve(config: Config, take_part: Callable[[], None]) -> int:
    log.info("device %s, server %s:%d", config.id, *config.netloc)
    take_part()
    log.info("the federation is over")
    return 0


def _fail(error: Exception, status: int) -> int:
    log.debug("where it happened", exc_info=error)
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"edge: {text}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
