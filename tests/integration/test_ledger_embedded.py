"""The ZooKeeper server that is started from pyspark's jars: start, ask, stop, and everything that can be in the way."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from airflow.sdk import Connection

from airflow_trident.errors import ConfigurationError, LedgerAuthError, LedgerUnavailableError
from airflow_trident.hooks.zookeeper import settings_of
from airflow_trident.ledger.embedded import server as server_module
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper, make_login, read_login
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.diagnose import four_letters
from airflow_trident.ledger.zookeeper.settings import DigestAuth, ZooKeeperSettings
from tests.fixtures.ledger import DEFINITION, begun

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    server = EmbeddedZooKeeper(tmp_path / "zk")
    yield server
    server.stop()


def test_it_starts_serves_and_stops_and_says_so(server: EmbeddedZooKeeper) -> None:
    assert (server.status().running, server.stop()) == (False, False)
    started = server.start()
    assert (started.running, started.started_here) == (True, True)
    host, _, port = started.hosts.partition(":")
    assert "Mode: standalone" in four_letters(host, int(port), "srvr")
    assert four_letters(host, int(port), "ruok") == "imok"
    assert server.status().pid == started.pid
    assert Path(started.log).read_text(encoding="utf-8")
    assert server.stop() is True
    assert (server.status().running, server.stop()) == (False, False)
    with pytest.raises(LedgerUnavailableError, match=r"no ZooKeeper server runs on .*zk"):
        _ = server.hosts


def test_a_second_start_finds_the_running_one_and_leaves_it_alone(server: EmbeddedZooKeeper) -> None:
    first = server.start()
    again = EmbeddedZooKeeper(server.data_dir).start()
    assert (again.started_here, again.running, again.pid, again.hosts) == (False, True, first.pid, first.hosts)


def test_two_starts_at_once_make_one_server(server: EmbeddedZooKeeper) -> None:
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: EmbeddedZooKeeper(server.data_dir).start(), range(3)))
    assert sorted(answer.started_here for answer in answers) == [False, False, True]
    assert len({(answer.pid, answer.hosts) for answer in answers}) == 1


def test_another_process_may_stop_it(server: EmbeddedZooKeeper) -> None:
    server.start()
    program = (
        "import sys; from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper;"
        " print(EmbeddedZooKeeper(sys.argv[1]).stop())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(server.data_dir)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
    assert server.status().running is False


def test_it_outlives_the_process_that_started_it_and_a_restart_keeps_address_and_data(
    server: EmbeddedZooKeeper,
) -> None:
    program = (
        "import sys; from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper;"
        "print(EmbeddedZooKeeper(sys.argv[1]).start().hosts)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(server.data_dir)], capture_output=True, text=True, check=True
    )
    assert server.hosts == done.stdout.strip()
    with open_ledger(ZooKeeperSettings(hosts=server.hosts), "words") as ledger:
        ledger.register(DEFINITION)
        begun(ledger, 1)
    assert server.stop() is True
    assert server.start().hosts == done.stdout.strip()
    with open_ledger(ZooKeeperSettings(hosts=server.hosts), "words") as ledger:
        assert ledger.view(1).next_txid == 2


def test_the_file_of_a_killed_server_is_seen_through(server: EmbeddedZooKeeper) -> None:
    killed = server.start()
    os.kill(killed.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while server.status().running and time.monotonic() < deadline:
        pass
    assert server.status().running is False
    assert server.start().started_here is True


def test_a_server_that_does_not_answer_is_not_taken_for_a_running_one(
    server: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = server.start()
    os.kill(hung.pid, signal.SIGSTOP)
    with monkeypatch.context() as impatient:
        impatient.setattr("airflow_trident.io.servers.START_DEADLINE_S", 0.0)
        with pytest.raises(LedgerUnavailableError, match=f"server {hung.pid} on .* runs and does not answer"):
            server.start()
    os.kill(hung.pid, signal.SIGKILL)
    again = server.start()
    assert (again.started_here, again.hosts) == (True, hung.hosts)


def test_a_process_that_got_the_number_of_a_former_server_is_not_taken_for_it(server: EmbeddedZooKeeper) -> None:
    server.start()
    server.stop()
    info = server.data_dir / "server.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"pid": os.getpid()}))
    assert (server.status().running, server.stop()) == (False, False)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}'])
def test_a_damaged_file_about_the_server_counts_as_none(server: EmbeddedZooKeeper, text: str) -> None:
    server.data_dir.mkdir(parents=True)
    (server.data_dir / "server.json").write_text(text)
    assert server.status().running is False
    assert server.start().started_here is True


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"port {port} on 127.0.0.1 is in use.*another port"):
            EmbeddedZooKeeper(tmp_path, port=port).start()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match=r"data folder .*file/zk of the ZooKeeper server cannot be written"):
        EmbeddedZooKeeper(tmp_path / "file" / "zk").start()


# ---- Java ------------------------------------------------------------------------------------------------------


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("home", "text"), [("nowhere", "there is no .*nowhere/bin/java"), ("", "there is no java on the PATH")]
)
def test_without_java_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str, text: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / home) if home else "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=rf"Java was not found.*{text}.*Install a Java 17"):
        EmbeddedZooKeeper(tmp_path / "zk").start()


@pytest.mark.parametrize(("says", "version"), [('java version "1.8.0_402"', 8), ('openjdk version "11.0.2"', 11)])
def test_a_java_that_is_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, version: int
) -> None:
    executable = script(tmp_path / "old" / "bin" / "java", f"echo '{says}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(ConfigurationError, match=rf"{executable} is Java {version}, and at least 17 is needed"):
        EmbeddedZooKeeper(tmp_path / "zk").start()


def test_a_java_that_does_not_work_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "odd" / "bin" / "java", "echo nonsense >&2; exit 3")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "odd"))
    with pytest.raises(ConfigurationError, match=r"does not tell its version.*nonsense"):
        server_module.java_executable()


def test_a_server_that_ends_at_once_is_reported_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = 'case "$*" in *-version*) echo \'openjdk version "17.0.1"\' >&2;; *) echo "no memory left"; exit 7;; esac'
    script(tmp_path / "bad" / "bin" / "java", says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "bad"))
    server = EmbeddedZooKeeper(tmp_path / "zk")
    with pytest.raises(LedgerUnavailableError, match=r"did not start: it ended with code 7; it said: no memory left"):
        server.start()
    assert server.status().running is False


def test_without_pyspark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pyspark is not installed.*pip install"):
        server_module.zookeeper_jars()


def test_eight_jars_are_enough_and_pyspark_is_not_imported() -> None:
    program = (
        "import sys; from airflow_trident.ledger.embedded.server import zookeeper_jars; print(len(zookeeper_jars()));"
        "sys.exit(any(name.split('.')[0] in ('pyspark', 'kazoo') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "8\n"


# ---- its login -------------------------------------------------------------------------------------------------


def test_the_ledger_is_made_for_the_user_of_the_login_file_alone(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path / "zk")
    try:
        server.start()
        assert stat.S_IMODE(server.data_dir.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.login_file.stat().st_mode) == 0o600
        mine = settings_of(Connection.from_json(json.dumps(server.connection()), conn_id="zk"))
        with open_ledger(mine, "words") as ledger:
            ledger.register(DEFINITION)
        for other in (
            ZooKeeperSettings(hosts=server.hosts),
            ZooKeeperSettings(hosts=server.hosts, auth=DigestAuth(user="trident", password="guessed")),
        ):
            with open_ledger(other, "words") as ledger:
                for use in (ledger.topology, lambda: ledger.register(DEFINITION), ledger.transactions):
                    with pytest.raises(LedgerAuthError):
                        use()
        before = server.login_file.read_text()
        server.stop()
        server.start()
        assert server.login_file.read_text() == before
        with open_ledger(mine, "words") as ledger:
            assert ledger.topology().name == "words"
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (None, 0o600, "cannot be read (No such file or directory)"),
        ("no json", 0o600, "is no JSON"),
        ("{}", 0o600, "has no user and password"),
        ("[]", 0o600, "has no user and password"),
        ('{"user": "u", "password": "p"}', 0o640, "others may read"),
    ],
)
def test_a_login_file_that_is_none_or_that_others_read_is_refused(
    tmp_path: Path, content: str | None, mode: int, said: str
) -> None:
    path = tmp_path / "login.json"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        read_login(str(path), "connection 'zk'")


def test_of_two_who_make_a_login_at_once_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "login.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make_login, [path] * 8))
    assert read_login(str(path), "it").user == "trident"
    assert [one.name for one in tmp_path.iterdir()] == ["login.json"]
