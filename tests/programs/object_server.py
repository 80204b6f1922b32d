"""A real S3 server (moto) behind a proxy, in a process of its own: deltalake holds Python's lock while it sends files,
so a server in the same process could never answer. Its argument is the public key of a service account: then it is a
server of Google Cloud Storage (`tests.fixtures.gcs_server`).

Each line of stdin is an order: ``[method, verdict, times, containing]`` for the proxy; ``[number, verdict]`` for each
request from that one on, a verdict being the text of one, or ``[status, body]``; or ``null`` to get the requests since
the last order. Each order is answered by a line.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, cast

from moto.server import ThreadedMotoServer

from tests.faults.http_proxy import Answer, HttpProxy, Request, Rule, Verdict, first, lasting, pass_all
from tests.fixtures.gcs_server import GcsServer


def rule_of(order: list[Any]) -> Rule:
    if len(order) == 2:
        number, verdict = order
        return lasting(
            number, Verdict(verdict) if isinstance(verdict, str) else Answer(verdict[0], verdict[1].encode())
        )
    method, verdict, times, containing = order
    return first(method, Verdict(verdict), times=times, containing=containing)


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    target = f"{host}:{port}"
    if sys.argv[1:]:
        target = GcsServer(target, sys.argv[1].encode()).address
    with HttpProxy(target) as proxy:
        asked, rule = list[tuple[str, str]](), cast("Rule", pass_all)

        def watched(request: Request) -> Verdict | Answer:
            asked.append((request.method, request.path))
            return rule(request)

        proxy.rule = watched
        print(json.dumps([proxy.url, f"{host}:{port}"]), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            if order is not None:
                rule = rule_of(order)
            print(json.dumps(asked if order is None else None), flush=True)
            asked.clear()


if __name__ == "__main__":
    main()
