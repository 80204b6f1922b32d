"""What a client of HDFS's REST interface says, without an HDFS."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from airflow_trident.errors import ConfigurationError
from airflow_trident.staging.storage import storage_at
from tests.fixtures.http_server import serving

TOKEN = "a-secret-token"


class Gateway(BaseHTTPRequestHandler):
    """Sends to an address with a blank, and repeats the query in it, as name nodes do; knows one folder."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path.startswith("/my%20gateway/"):
            content = json.dumps({"boolean": True}).encode()
            self.send_response(200)
        else:
            content = b""
            self.send_response(307)
            self.send_header("Location", f"http://{self.headers['Host']}/a b?{query}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def connection(server: HTTPServer, path: str = "") -> str:
    extra = {"delegation_token": TOKEN, "max_retries": 0}
    host = {"host": "127.0.0.1", "port": server.server_port, "schema": path}
    return json.dumps({"conn_type": "webhdfs", **host, "login": "me", "extra": extra})


def test_an_address_that_is_none_is_one_error_without_the_token_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(HTTPServer(("127.0.0.1", 0), Gateway)) as server:
        monkeypatch.setenv("AIRFLOW_CONN_FILES", connection(server))
        with pytest.raises(ConfigurationError, match="it sends to an address that is none") as caught:
            storage_at("hdfs://files@/staging").get("a")
        assert TOKEN not in str(caught.value) + repr(caught.value.__context__)


def test_the_path_of_a_gateway_may_have_a_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(HTTPServer(("127.0.0.1", 0), Gateway)) as server:
        for written in ("my gateway", "my%20gateway"):
            monkeypatch.setenv("AIRFLOW_CONN_FILES", connection(server, written))
            assert json.loads(storage_at("hdfs://files@/staging").get("a")) == {"boolean": True}
