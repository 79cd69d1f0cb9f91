"""The server: sends the model out, takes the updates in, and tests what has become of it after each round.

This is the script to copy. It says what happens as one JSON object a line, and ends with the last round.
By hand, without TLS: `python -m examples.digits.aggregator --port 51966`, and for each client, with a file like
examples/digits/client.toml: `edge run CLIENT.toml`. A client that is killed may be started again at any
time; a round that it missed is a failure in that round's report, and no more.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

import numpy as np

import fl
import netq
from examples.digits import data


def main() -> None:
    args = arguments()
    model = importlib.import_module(args.model)
    test = data.held_out()
    options = netq.CommunicatorOptions(
        netloc=netq.NetworkLocation(args.host, args.port),
        mqtt=netq.MqttOptions(user=args.user, password=password(args.password_file), prefix=args.prefix),
        security=netq.SecurityOptions(args.key, args.certificate, args.authority) if args.certificate else None,
        seal=seal(args.seal) if args.seal else None,
    )
    fewest = max(1, args.clients // 2)  # a round that loses more does not count
    with fl.Server(
        model.initial(args.seed),
        options,
        strategy=fl.FedAvg(max_examples=1000),
        secure=fl.SecureAggregation() if args.secure else None,
        min_clients=fewest,
        patience=fl.Patience(grace=2.0),
        config={"seed": args.seed},
        protocol=netq.Protocol(args.protocol),
    ) as server:
        say(port=server.netloc.port)
        server.wait(args.clients)
        say(links=[protection(client) for client in server.statistics().values()])
        for report in server.rounds(args.rounds):
            accuracy, loss = model.measure(server.model, test)
            say(
                round=report.number,
                clients=len(report.clients),
                failures=[str(refusal) for refusal in report.failures.values()],
                accuracy=accuracy,
                loss=loss,
                seconds=report.seconds,
                bytes=report.bytes_in + report.bytes_out,
            )
        if args.save:
            np.savez(args.save, allow_pickle=False, **server.model)


def seal(folder: Path) -> netq.SealOptions:
    """Return the server's files in a folder of `netq certs`."""
    return netq.SealOptions(folder / "server-key.pem", folder / "server.pem", folder / "authority.pem")


def protection(client: netq.Statistics) -> str:
    """Return how the link to a client is protected, as the communicator reports it."""
    if client.seal is not None:
        hop = "without TLS" if client.security is None else client.security.version
        return f"sealed from end to end, {client.seal.cipher}, {client.seal.group}; to the broker {hop}"
    if (security := client.security) is None:
        return "without TLS"
    version = security.version if security.identity is None else f"mutual {security.version}"
    return ", ".join(fact for fact in (version, security.cipher, security.group) if fact)


def password(file: Path | None) -> str | None:
    return None if file is None else file.read_text(encoding="utf-8").rstrip("\n")


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m examples.digits.aggregator", description="The demo's server.")
    parser.add_argument("--model", default="examples.digits.model", help="the module with the functions of a model")
    parser.add_argument("--protocol", choices=[protocol.value for protocol in netq.Protocol], default="tcp")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen; with mqtt, the broker")
    parser.add_argument(
        "--port", type=int, default=0, help="0, the default, lets the system choose; with mqtt, the broker's"
    )
    parser.add_argument("--key", type=Path, help="PEM file of the server's key; with mqtt, none")
    parser.add_argument(
        "--certificate", type=Path, help="PEM file of the server's chain, with mqtt of whom it trusts; turns TLS on"
    )
    parser.add_argument(
        "--authority", type=Path, help="PEM file of the authority of the clients' certificates, which they then need"
    )
    parser.add_argument(
        "--seal", type=Path, help="folder of `netq certs`: seal from end to end, with the server's certificate in it"
    )
    parser.add_argument("--user", help="with mqtt, the broker's name for the server")
    parser.add_argument("--password-file", type=Path, help="with mqtt, a file that holds the user's password")
    parser.add_argument("--prefix", default=netq.MqttOptions().prefix, help="with mqtt, what all topics begin with")
    parser.add_argument("--secure", action="store_true", help="learn the sum of the updates only; needs 3 clients")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clients", type=int, default=4, help="how many to wait for before the first round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="where to write the last model, as .npz")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except (netq.NetqError, OSError) as error:  # a port in use, a file that is no certificate, or not there
        sys.exit(f"error: {error}")
