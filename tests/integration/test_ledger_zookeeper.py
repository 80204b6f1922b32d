"""A ledger in a real ZooKeeper: access, addresses, sizes, round trips, watches; one clear error for each trouble."""

from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.errors import ConfigurationError, LedgerAuthError, LedgerUnavailableError, Outcome
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.open import list_topologies, open_ledger
from airflow_trident.ledger.znodes import Check, Create, Delete, Refusal, Set, WriteRefusedError
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import DigestAuth, Tls, ZooKeeperSettings
from airflow_trident.protocol.records import CommitTicket, Status
from airflow_trident.protocol.topologies import Definition, SpoutDefinition
from tests.documented import documented
from tests.faults.proxy import FaultProxy
from tests.fixtures import single
from tests.fixtures.ledger import DEFINITION, STAGED, begun, claim, commit, committed_up_to, lines, statuses

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def settings(zookeeper: EmbeddedZooKeeper) -> ZooKeeperSettings:
    return ZooKeeperSettings(hosts=zookeeper.hosts)


@pytest.fixture
def znodes(settings: ZooKeeperSettings) -> Iterator[ZooKeeperZNodes]:
    znodes = ZooKeeperZNodes(settings)
    yield znodes
    znodes.close()


def quick(hosts: str, **more: Any) -> ZooKeeperSettings:
    return ZooKeeperSettings(hosts=hosts, connect_deadline_s=1.0, op_deadline_s=2.0, **more)


# ---- settings --------------------------------------------------------------------------------------------------


def test_secrets_are_not_shown() -> None:
    settings = ZooKeeperSettings(
        hosts="zk:2181", auth=DigestAuth(user="airflow", password="hush"), tls=Tls(key_password="hush")
    )
    assert "hush" not in repr(settings)
    assert "hush" not in str(ZooKeeperZNodes(settings).describe())


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("zk1:2181, zk2:2182", ("zk1:2181,zk2:2182", "")),
        ("zk1:2181/airflow/trident/", ("zk1:2181", "/airflow/trident")),
        ("[::1]:2181", ("[::1]:2181", "")),
        ("zk1", ("zk1", "")),
    ],
)
def test_addresses_are_read_as_zookeeper_writes_them(hosts: str, expected: tuple[str, str]) -> None:
    settings = ZooKeeperSettings(hosts=hosts)
    assert (settings.hosts, settings.chroot) == expected


@pytest.mark.parametrize("hosts", ["", "zk:port", "zk:2181:1", "zk:99999", "zk:2181,,zk2", "http://zk:2181", "a b:1"])
def test_an_address_that_is_none_is_refused(hosts: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Write it like"):
        ZooKeeperSettings(hosts=hosts)


def test_settings_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    for wrong in (
        lambda: ZooKeeperSettings(hosts="zk:1/a", chroot="/b"),
        lambda: ZooKeeperSettings(hosts="zk:1", chroot="b"),
        lambda: ZooKeeperSettings(hosts="zk:1", op_deadline_s=0),
        lambda: Tls(certificate="a"),
        lambda: Tls(ca=str(tmp_path / "missing.pem")),
    ):
        with pytest.raises(ConfigurationError):
            wrong()


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "a b", "-x", "x" * 201])
def test_a_name_that_no_node_can_have_is_refused(settings: ZooKeeperSettings, name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a topology"):
        open_ledger(settings, name)
    if name:  # else it is not known
        with pytest.raises(ConfigurationError, match="cannot be the incarnation of a topology"):
            open_ledger(settings, "words", incarnation=name)


@pytest.mark.parametrize(
    "path", ["/a/../b", "/a/.", "/a//b", "b", "/\0", "/\x1f", "/\x85", "/\ud800", "/\ue000", "/\ufff0"]
)
def test_a_path_that_zookeeper_does_not_answer_to_is_refused_as_root_and_as_chroot(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"the ZooKeeper chroot .* is no path of ZooKeeper"):
        ZooKeeperSettings(hosts="zk:1", chroot=path)
    with pytest.raises(ConfigurationError, match=r"the ledger root .* is no path of ZooKeeper"):
        open_ledger(ZooKeeperSettings(hosts="zk:1"), "words", root=path)


@pytest.mark.parametrize("path", ["/a b/...", "/ü/.a", "/\u2028", "/a%2Fb\\"])
def test_an_odd_path_that_zookeeper_takes_is_a_root_like_others(settings: ZooKeeperSettings, path: str) -> None:
    with open_ledger(settings, "words", root=path) as ledger:
        made = ledger.register(Definition(spouts={"lines": SpoutDefinition(text="Fixed")}, states={}))
    assert list_topologies(settings, root=path) == ["words"]
    with open_ledger(settings, "words", root=path) as ledger:
        assert ledger.topology() == made


# ---- one clear error for each trouble --------------------------------------------------------------------------


def error_of(settings: ZooKeeperSettings) -> LedgerUnavailableError:
    with pytest.raises(LedgerUnavailableError) as caught, open_ledger(settings, "words") as ledger:
        ledger.topology()
    return caught.value


def test_an_unreachable_server_is_one_clear_error_with_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    error = error_of(quick(f"127.0.0.1:{port}"))
    assert f"ZooKeeper at 127.0.0.1:{port} does not answer" in str(error)
    assert "Connection refused" in str(error)
    assert error.outcome is Outcome.RETRY
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_host_that_does_not_exist_is_one_clear_error_with_the_reason() -> None:
    assert "Cannot resolve nobody.invalid" in str(error_of(quick("nobody.invalid:2181")))


def test_a_server_that_accepts_and_says_nothing_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]}"
        error = error_of(quick(hosts, session_timeout_s=1.0))
    assert f"ZooKeeper at {hosts} does not answer" in str(error)


def test_only_the_same_credentials_get_in(zookeeper: EmbeddedZooKeeper, ledger_root: str) -> None:
    def opened(auth: DigestAuth | None) -> ZNodeLedger:
        return open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts, auth=auth), "words", root=ledger_root)

    right = DigestAuth(user="airflow", password="right")
    with opened(right) as ledger:
        ledger.register(DEFINITION)
        committed_up_to(ledger, 2)
        incarnation = ledger.topology().incarnation
    for wrong in (None, DigestAuth(user="airflow", password="wrong"), DigestAuth(user="other", password="right")):
        with opened(wrong) as ledger:
            with pytest.raises(LedgerAuthError, match=r"denies access: NoAuthError.*every worker needs the same") as e:
                ledger.topology()
            assert "right" not in str(e.value).replace("every worker", "")
            for op in (
                Delete(f"{ledger_root}/v1/words/{incarnation}/tx/{1:019d}"),
                Create(f"{ledger_root}/v1/words/{incarnation}/tx/{9:019d}"),
                Create(f"{ledger_root}/v1/other"),
            ):
                with pytest.raises(LedgerAuthError):
                    ledger.znodes.multi([op])
    with opened(right) as ledger:
        assert list(statuses(ledger)) == [1, 2]


def test_the_password_is_in_no_log_however_talkative(
    zookeeper: EmbeddedZooKeeper, ledger_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)
    auth = DigestAuth(user="airflow", password="hush-hush")
    with open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts, auth=auth), "words", root=ledger_root) as ledger:
        ledger.register(DEFINITION)
    assert "Sending request" in caplog.text
    assert "hush" not in caplog.text


def test_metadata_that_is_too_large_is_refused_before_it_is_sent(settings: ZooKeeperSettings, ledger_root: str) -> None:
    import random

    noise = random.Random(1).randbytes(950_000).hex()  # 950 kB however it is compressed
    with open_ledger(settings, "words", root=ledger_root) as ledger:
        ledger.register(DEFINITION)
        with pytest.raises(ConfigurationError, match=r"at most \d+ are sent.*Make the batches smaller"):
            single.begin(ledger, claim(1), lambda txid, position: {"lines": noise})
        assert begun(ledger, 1) == 1


def test_a_record_that_is_too_large_is_refused_before_it_is_sent(znodes: ZooKeeperZNodes, ledger_root: str) -> None:
    before = znodes.round_trips
    with pytest.raises(ConfigurationError, match=rf"{ledger_root} has 600000 bytes.*at most 524288 are sent"):
        znodes.multi([Create(ledger_root, b"x" * 600_000)])
    assert znodes.round_trips == before


# ---- the wrapped client ----------------------------------------------------------------------------------------


def test_a_refused_multi_names_the_operation_that_did_not_hold(znodes: ZooKeeperZNodes, ledger_root: str) -> None:
    znodes.ensure(f"{ledger_root}/there/child")
    there, missing = f"{ledger_root}/there", f"{ledger_root}/missing"
    cases = [
        ([Check(ledger_root, 0), Set(there, b"", 7), Create(missing)], there, Refusal.BAD_VERSION),
        ([Create(missing), Create(there)], there, Refusal.NODE_EXISTS),
        ([Create(f"{missing}/child")], f"{missing}/child", Refusal.NO_NODE),
        ([Check(missing, 0), Delete(there)], missing, Refusal.NO_NODE),
        ([Delete(there)], there, Refusal.NOT_EMPTY),
    ]
    for ops, path, refusal in cases:
        with pytest.raises(WriteRefusedError, match=path) as caught:
            znodes.multi(ops)
        assert (caught.value.path, caught.value.refusal) == (path, refusal)
    assert znodes.read([missing, there]).nodes[missing] is None


def test_missing_nodes_and_folders_are_read_as_none(znodes: ZooKeeperZNodes, ledger_root: str) -> None:
    reading = znodes.read([f"{ledger_root}/no"], [f"{ledger_root}/none"])
    assert (dict(reading.nodes), dict(reading.folders)) == ({f"{ledger_root}/no": None}, {f"{ledger_root}/none": None})


def test_an_ephemeral_node_goes_with_its_client(
    znodes: ZooKeeperZNodes, settings: ZooKeeperSettings, ledger_root: str
) -> None:
    znodes.ensure(ledger_root)
    worker = ZooKeeperZNodes(settings)
    worker.multi([Create(f"{ledger_root}/worker", b"1", ephemeral=True)])
    assert znodes.read([], [ledger_root]).folders[ledger_root] == {"worker"}
    worker.close()
    assert znodes.read([], [ledger_root]).folders[ledger_root] == frozenset()


def test_a_closed_client_may_be_used_again(znodes: ZooKeeperZNodes, ledger_root: str) -> None:
    znodes.ensure(ledger_root)
    znodes.close()
    znodes.close()
    assert znodes.read([ledger_root]).nodes[ledger_root] is not None


def test_a_chroot_is_created_and_everything_lives_below_it(
    znodes: ZooKeeperZNodes, zookeeper: EmbeddedZooKeeper, ledger_root: str
) -> None:
    settings = ZooKeeperSettings(hosts=f"{zookeeper.hosts}{ledger_root}/deep/er")
    with open_ledger(settings, "words") as ledger:
        ledger.register(DEFINITION)
        committed_up_to(ledger, 2)
    assert list_topologies(settings) == ["words"]
    folder = f"{ledger_root}/deep/er/airflow-trident/v1"
    assert znodes.read([], [folder]).folders[folder] == {"words"}


def test_topologies_are_listed(settings: ZooKeeperSettings, ledger_root: str) -> None:
    assert list_topologies(settings, root=ledger_root) == []
    for name in ("b", "a"):
        with open_ledger(settings, name, root=ledger_root) as ledger:
            ledger.register(DEFINITION)
    assert list_topologies(settings, root=ledger_root) == ["a", "b"]


def test_a_waiter_whose_connection_is_cut_still_learns_of_the_change(
    zookeeper: EmbeddedZooKeeper, settings: ZooKeeperSettings, ledger_root: str
) -> None:
    with (
        FaultProxy(zookeeper.hosts) as proxy,
        open_ledger(settings, "words", root=ledger_root) as worker,
        open_ledger(ZooKeeperSettings(hosts=proxy.hosts), "words", root=ledger_root) as waiter,
        ThreadPoolExecutor(1) as pool,
    ):
        worker.register(DEFINITION)
        begun(worker, 1)
        waiting = pool.submit(waiter.wait_for_change, 1, waiter.view(1), 60.0)
        proxy.cut_all()
        single.attempt(worker, 1, owner="e")
        assert waiting.result(60) is True


# ---- round trips -----------------------------------------------------------------------------------------------


def test_a_whole_transaction_takes_four_round_trips_in_one_process_and_five_with_a_separate_attempt(
    settings: ZooKeeperSettings, ledger_root: str
) -> None:
    with open_ledger(settings, "words", root=ledger_root) as ledger:
        ledger.register(DEFINITION)
        committed_up_to(ledger, 2)
        before = ledger.znodes.round_trips
        commit(ledger, begun(ledger, 3))
        apart = documented("reference/limits.md", r"round trips \|.* or (\d+) in one process")
        assert ledger.znodes.round_trips - before == apart
        single.begin(ledger, claim(4), lines, attempt_by="drain")
        single.processed(ledger, 4, 0, STAGED)
        single.committed(ledger, single.gate(ledger, 4, owner="drain"))
        assert ledger.znodes.round_trips - before == apart + documented(
            "reference/limits.md", r"round trips \|.* (\d+) or \d+ in one process"
        )


def test_a_transaction_whose_every_phase_is_a_process_of_its_own_takes_nine_round_trips(
    settings: ZooKeeperSettings, ledger_root: str
) -> None:
    with open_ledger(settings, "words", root=ledger_root) as ledger:
        incarnation = ledger.register(DEFINITION).incarnation
        committed_up_to(ledger, 2)
    spent = 0

    def emit(ledger: ZNodeLedger) -> None:
        single.processed(ledger, 3, single.attempt(ledger, 3, owner="e").attempt, STAGED)

    def commit_it(ledger: ZNodeLedger) -> None:
        ticket: CommitTicket = single.gate(ledger, 3, owner="c")
        single.committed(ledger, ticket)

    for phase in (lambda ledger: single.begin(ledger, claim(3), lines), emit, commit_it):
        with open_ledger(settings, "words", root=ledger_root, incarnation=incarnation) as ledger:
            phase(ledger)
            spent += ledger.znodes.round_trips
    assert spent == 9  # the steps alone; what the documents say is what the operators take (test_provider_round_trips)
    with open_ledger(settings, "words", root=ledger_root) as ledger:
        assert statuses(ledger)[3] is Status.COMMITTED


def test_the_records_are_plain_json_that_a_person_can_read(
    settings: ZooKeeperSettings, znodes: ZooKeeperZNodes, ledger_root: str
) -> None:
    with open_ledger(settings, "words", root=ledger_root) as ledger:
        incarnation = ledger.register(DEFINITION).incarnation
        committed_up_to(ledger, 1)
    base = f"{ledger_root}/v1/words/{incarnation}"
    paths = [f"{base}/head", f"{base}/commit", f"{base}/exceptions", f"{base}/tx/{1:019d}"]
    bodies = [json.loads(node.data) for node in znodes.read(paths).nodes.values() if node]
    assert bodies[:3] == [
        {"v": 1, "next": 2},
        {"v": 1, "committed": 1, "fence": 1},
        {"v": 1, "failed": [], "skipped": [], "late": []},
    ]
    assert (bodies[3]["status"], bodies[3]["staged"]["rows"]) == ("COMMITTED", STAGED.rows)
