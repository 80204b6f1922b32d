"""What a client of HDFS's REST interface says, without an HDFS."""

from __future__ import annotations

import datetime
import json
import ssl
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.places import place_at
from airflow_trident.io.webhdfs import Access, WebHdfs
from airflow_trident.io.webhdfs_errors import RemoteException, translated
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
            place_at("hdfs://files@/staging").read("a")
        assert TOKEN not in str(caught.value) + repr(caught.value.__context__)


def test_the_path_of_a_gateway_may_have_a_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(HTTPServer(("127.0.0.1", 0), Gateway)) as server:
        for written in ("my gateway", "my%20gateway"):
            monkeypatch.setenv("AIRFLOW_CONN_FILES", connection(server, written))
            assert json.loads(place_at("hdfs://files@/staging").read("a")) == {"boolean": True}


class Foreign(BaseHTTPRequestHandler):
    """Answers everything with JSON that is not of HDFS, or sends to an address without TLS."""

    location = ""

    def do_GET(self) -> None:
        content = b'{"status": "ok"}'
        self.send_response(307 if self.location else 200)
        self.send_header("Location", self.location)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    log_message = Gateway.log_message


def test_json_that_is_not_of_hdfs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(HTTPServer(("127.0.0.1", 0), Foreign)) as server:
        monkeypatch.setenv("AIRFLOW_CONN_FILES", connection(server))
        with pytest.raises(ConfigurationError, match=r'it answers .*"ok".* no WebHDFS answers there'):
            list(place_at("hdfs://files@/staging").list("a"))
        files = WebHdfs(Access(servers=(f"127.0.0.1:{server.server_port}",)))
        with pytest.raises(RemoteException, match="it answers"):
            files.status("/a")


def test_no_token_follows_from_a_server_with_tls_to_one_without(tmp_path: Path) -> None:
    asked: list[str] = []

    class Open(Gateway):
        def do_GET(self) -> None:
            asked.append(self.path)

    class Sending(Foreign):
        pass

    with serving(HTTPServer(("127.0.0.1", 0), Open)) as other, serving(HTTPServer(("127.0.0.1", 0), Sending)) as server:
        Sending.location = f"http://127.0.0.1:{other.server_port}/webhdfs/v1/a?delegation={TOKEN}"
        server.socket = server_context(tmp_path).wrap_socket(server.socket, server_side=True)
        access = Access(servers=(f"127.0.0.1:{server.server_port}",), tls=True, verify="false", token=TOKEN)
        with pytest.raises(RemoteException, match="without TLS") as caught:
            WebHdfs(access).read("/a")
    assert "HttpFS with TLS" in translated(caught.value, "read", "files").cure
    assert asked == []


def server_context(folder: Path) -> ssl.SSLContext:
    """Of a server whose certificate nobody vouches for."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    day, now = datetime.timedelta(days=1), datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day).sign(key, hashes.SHA256())
    plain = serialization.NoEncryption()
    (folder / "key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
    )
    (folder / "certificate").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate", folder / "key")
    return context
