"""Whichever call of a driver raises, and whatever it raises: what comes out is an error of this package, which names
the store and a cure, and is retried unless that would be in vain. What runs after it has nothing doubled and nothing
lost.

For Kafka, Redis and databases the same is in `tests/integration/test_kafka_spout.py`, `test_states_redis.py` and
`test_silent_databases.py`.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import kazoo.exceptions as kz
import obstore
import pytest
from kazoo.handlers.threading import KazooTimeoutError

from airflow_trident import FileSink, FileSpout
from airflow_trident.errors import (
    Outcome,
    TridentError,
    is_of_driver,
)
from airflow_trident.io.hdfs_place import WebHdfsPlace
from airflow_trident.io.object_arrow import open_object
from airflow_trident.io.object_place import ObstorePlace
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.io.place import PlaceEntry
from airflow_trident.io.places import place_at
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.open import Ledgers
from airflow_trident.ledger.znodes import Create
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.diagnose import access_list
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.states.files.sink import OpenFileSink
from tests.contracts.test_sinks import ROWS, rows_of, spec_of
from tests.faults.drivers import FailingDriver
from tests.faults.http_proxy import Answer, Verdict, lasting, pass_all
from tests.fixtures import single
from tests.fixtures.ledger import DEFINITION, begun, claim, commit, nothing
from tests.fixtures.object_store import Bucket
from tests.fixtures.state import batch, ticket

FOREIGN = (
    OSError(5, "Input/output error"),
    ValueError("odd"),
    RuntimeError("cannot start new thread"),
    KeyError("odd"),
)
"""Errors that any driver may raise, although it has its own."""


def error_of(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - a driver may raise anything
        return error
    return None


def require_told(error: BaseException | None, names: str, *, never: bool) -> None:
    """The error names the thing and a cure.

    :param never: a retry would be in vain.
    """
    assert isinstance(error, TridentError), error
    assert names in str(error), error
    assert error.cure, error
    assert error.outcome is (Outcome.FAIL if never else Outcome.RETRY), error


# ---- ZooKeeper -----------------------------------------------------------------------------------------------------

OF_ZOOKEEPER = [
    error() for error in vars(kz).values() if isinstance(error, type) and issubclass(error, kz.KazooException)
]
NEVER = (
    kz.NoAuthError,
    kz.AuthFailedError,
    kz.InvalidACLError,
    kz.SessionClosedRequireSaslError,
    kz.QuotaExceededError,
    kz.BadArgumentsError,
    kz.ConfigurationError,
    kz.EphemeralOnLocalSessionError,
    kz.InvalidCallbackError,
    kz.MarshallingError,
    kz.NoChildrenForEphemeralsError,
    kz.ReconfigDisabledError,
    kz.UnimplementedError,
)
"""Some of which a retry makes no difference."""


@pytest.fixture
def kazoo(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingDriver]:
    """The clients end with the test, those whose `stop` raised, too: their threads would go on beside later tests."""
    driver, new_client = FailingDriver(("kazoo",)), ZooKeeperZNodes._new_client
    clients: list[Any] = []

    def failing_client(znodes: ZooKeeperZNodes) -> Any:
        clients.append(new_client(znodes))
        return driver.around(clients[-1])

    monkeypatch.setattr(ZooKeeperZNodes, "_new_client", failing_client)
    yield driver
    for client in clients:
        client.stop()
        client.close()


def all_verbs(ledgers: Ledgers, name: str) -> None:
    """The life of two transactions, as all who take part ask for it."""
    ledger, znodes = ledgers.ledger(name), ledgers.znodes
    ledger.register(DEFINITION)
    for number in (1, 2):
        view = ledger.view(number)
        if view.next_txid <= number:
            begun(ledger, number)
        if view.pointer.committed < number:
            commit(ledger, number)
    single.begin(ledger, claim(3), nothing)
    assert ledger.view(2).pointer.committed == 2
    znodes.post([Create(f"/posted-{uuid.uuid4().hex}")])
    znodes.wait_for_change({"/": None}, 0.0)
    assert name in ledgers.names()
    access_list(znodes, "/")
    znodes.close()


def test_whatever_kazoo_raises_and_wherever_the_ledger_goes_on(
    zookeeper: EmbeddedZooKeeper, ledger_root: str, kazoo: FailingDriver
) -> None:
    with Ledgers(ZooKeeperSettings(hosts=zookeeper.hosts, op_deadline_s=5.0), root=ledger_root) as ledgers:
        all_verbs(ledgers, "counted")
        places = list(kazoo.places)
        assert len(places) > 15
        errors = [*OF_ZOOKEEPER, KazooTimeoutError("late"), *FOREIGN]
        for number, (place, error) in enumerate(zip(itertools.cycle(places), errors, strict=False)):
            kazoo.set(place, error, after=number % 2 == 0)
            raised = error_of(partial(all_verbs, ledgers, f"t{number}"))
            if raised is not None:
                require_told(raised, "ZooKeeper", never=isinstance(error, NEVER))
            assert kazoo.failed, place
            kazoo.set(None, error)
            all_verbs(ledgers, f"t{number}")


# ---- object stores -------------------------------------------------------------------------------------------------

STORES = ("s3://bucket/p", "abfs://container@account.dfs.core.windows.net/p", "gs://bucket/p")
OF_OBSTORE = [error for error in vars(obstore.exceptions).values() if isinstance(error, type)]
NEVER_OF_OBSTORE = (
    obstore.exceptions.PermissionDeniedError,
    obstore.exceptions.UnauthenticatedError,
    obstore.exceptions.InvalidPathError,
    obstore.exceptions.NotSupportedError,
    obstore.exceptions.UnknownConfigurationKeyError,
)


class PanicException(BaseException):
    """As of a library in Rust, which is no Exception."""


PanicException.__module__ = "pyo3_runtime"


def translated(place: ObjectAddress, error: BaseException) -> TridentError:
    with pytest.raises(TridentError) as caught, place.errors("read 'a'"):
        raise error
    return caught.value


@pytest.mark.parametrize("uri", STORES)
def test_each_error_of_obstore_is_told_and_retried_unless_that_is_in_vain(uri: str) -> None:
    place = ObjectAddress.parse("staging", uri)
    for error in [kind("Generic error: something odd") for kind in OF_OBSTORE] + [*FOREIGN[:3], PanicException("odd")]:
        require_told(translated(place, error), uri, never=isinstance(error, NEVER_OF_OBSTORE))


def answered(status: int, body: str = "") -> Exception:
    text = f"Generic S3 error: Error performing list request: Server returned non-2xx status code: {status} X: {body}"
    return obstore.exceptions.GenericError(text)  # type: ignore[no-any-return]


@pytest.mark.parametrize("uri", STORES)
def test_an_answer_whose_code_nobody_knows_counts_as_its_status(uri: str) -> None:
    place = ObjectAddress.parse("staging", uri)
    for status in range(300, 600):
        passes = status < 400 or status in (404, 408, 409, 412, 425, 429) or status >= 500
        never = not passes or status in (501, 505)
        for body in ("", "<html>Not here</html>", "<Error><Code>NobodyKnows</Code><Message>no</Message></Error>"):
            require_told(translated(place, answered(status, body)), uri, never=never)


def test_a_missing_object_is_an_answer_and_a_missing_bucket_is_none() -> None:
    place = ObjectAddress.parse("staging", "s3://bucket/p")
    with pytest.raises(FileNotFoundError), place.errors("read 'a'"):
        raise FileNotFoundError("Object at location a not found: <Code>NoSuchKey</Code>")
    error = FileNotFoundError("Object at location a not found: <Code>NoSuchBucket</Code>")
    require_told(translated(place, error), "s3://bucket/p", never=True)


def test_a_mistake_in_this_package_is_not_taken_for_an_error_of_a_store() -> None:
    place = ObjectAddress.parse("staging", "s3://bucket/p")
    for mistake in (KeyboardInterrupt(), GeneratorExit()):
        with pytest.raises(type(mistake)), place.errors("read 'a'"):
            raise mistake
    assert not is_of_driver(AttributeError("no such attribute"))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FailingDriver:
    """Functions of obstore take its own objects only: what fails are the functions, and what they return."""
    driver = FailingDriver(("obstore", "_obstore", "builtins"))
    monkeypatch.setattr(ObjectAddress, "obstore", lambda self: driver.around(obstore))
    return driver


def all_steps(objects: Any, name: str, folder: Path) -> list[Any]:
    """A batch of a FileSpout, a storage of staged files, and the files of a FileSink, as tasks take these steps.

    :return: the rows that the sink shows.
    """
    where, spout = f"{objects.uri}/{name}", FileSpout(f"{objects.uri}/in")
    emitter, coordinator = spout.emitter(), spout.coordinator()
    metadata = coordinator.initialize_transaction(1, None)
    splits = emitter.splits(metadata)
    assert [row["line"] for split in splits for rows in emitter.read(split) for row in rows.to_pylist()] == ["x", "y"]
    storage = place_at(f"{where}/staging")
    assert isinstance(storage, ObstorePlace | WebHdfsPlace)
    storage.check()
    storage.put("a/1", lambda file: file.write(b"xyz"))
    assert storage.put_once("a/2", b"2")
    assert (storage.read("a/1"), storage.read("a/1", 1), sorted(storage.list("a"), key=lambda entry: entry.name)) == (
        b"xyz",
        b"yz",
        [PlaceEntry("a/1", 3), PlaceEntry("a/2", 1)],
    )
    if isinstance(storage, ObstorePlace):
        assert open_object(storage.address, "a/1").read() == b"xyz"
    storage.delete(["a/1", "a/2"])
    spec = replace(spec_of("files", folder), factory=FileSink(f"{where}/out"))
    with spec.factory.make_state(spec) as state:
        assert isinstance(state, OpenFileSink)
        state.apply(ticket(1), batch(spec, *ROWS))
        shown: list[Any] = rows_of(state)
    return shown


def test_whatever_obstore_raises_and_wherever_nothing_is_doubled_or_lost(
    bucket: Bucket, tmp_path: Path, store: FailingDriver
) -> None:
    for number, line in enumerate("xy"):
        bucket.put(f"in/{number}", f"{line}\n")
    written = all_steps(bucket, "counted", tmp_path)
    places = list(store.places)
    assert len(places) > 12
    errors = [kind("odd") for kind in OF_OBSTORE if kind is not obstore.exceptions.BaseError]
    errors += [*FOREIGN[:3], PanicException("odd"), FileNotFoundError(2, "No such file")]
    for number, (place, error) in enumerate(zip(places, itertools.cycle(errors), strict=False)):
        store.set(place, error, after=number % 2 == 0)
        raised = error_of(partial(all_steps, bucket, f"t{number}", tmp_path))
        assert store.failed, place
        if isinstance(raised, TridentError):
            assert "s3://" in str(raised)
            assert raised.cure
            assert not (raised.outcome is Outcome.RETRY and isinstance(error, NEVER_OF_OBSTORE)), raised
        else:
            assert raised is None or (isinstance(raised, FileNotFoundError) and raised is error), raised
        store.set(None, error)
        assert all_steps(bucket, f"t{number}", tmp_path) == written, (place, error)


# ---- answers of a server -------------------------------------------------------------------------------------------


def of_s3(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())


def of_hdfs(status: int, exception: str) -> Answer:
    return Answer(status, json.dumps({"RemoteException": {"exception": exception, "message": "no"}}).encode())


OF_ANY = {
    "cut": (Verdict.LOSE, False),
    "gateway": (Answer(502, b"<html>Bad gateway</html>"), False),
    "login": (Answer(401, b"<html>Who are you</html>"), True),
}
ANSWERS = {
    "bucket": {**OF_ANY, "no bucket": (of_s3(404, "NoSuchBucket"), True), "unknown": (of_s3(400, "NobodyKnows"), True)},
    "container": {**OF_ANY, "no container": (of_s3(404, "ContainerNotFound"), True)},
    "gcs": {**OF_ANY, "no bucket": (of_s3(404, "NoSuchBucket"), True)},
    "folder": {
        **OF_ANY,
        "denied": (of_hdfs(403, "AccessControlException"), True),
        "safe mode": (of_hdfs(403, "SafeModeException"), False),
        "unknown": (of_hdfs(500, "NobodyKnowsException"), False),
    },
}
"""Fixture -> what a server says -> and is a retry in vain?"""
STRIDE = 11
NO_RETRIES: dict[str, dict[str, Any]] = {
    "bucket": {"config_kwargs": {"read_timeout": 2, "retries": {"max_attempts": 0}}},
    "container": {"retry_total": 0},
    "gcs": {"num_retries": 0},
    "folder": {"max_retries": 0},
}


@pytest.mark.parametrize(
    "service",
    [
        "bucket",
        pytest.param("container", marks=pytest.mark.rare),
        pytest.param("gcs", marks=pytest.mark.rare),
        pytest.param("folder", marks=pytest.mark.rare),
    ],
)
def test_whatever_a_server_says_from_any_request_on_nothing_is_doubled_or_lost(
    service: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = request.getfixturevalue(service)
    for number, line in enumerate("xy"):
        objects.put(f"in/{number}", f"{line}\n")
    monkeypatch.setenv(objects.variable, objects.connection(**NO_RETRIES[service]))
    written = all_steps(objects, "counted", tmp_path)
    total = sum(objects.proxy.asked.values())
    assert total > 20
    for place, (name, (answer, never)) in enumerate(ANSWERS[service].items()):
        for number in range(1 + place, total + 1, STRIDE):
            objects.proxy.rule = lasting(number, answer)
            raised = error_of(partial(all_steps, objects, f"{name}{number}", tmp_path))
            # A HEAD has no code, and a clean-up is no reason to fail.
            if raised is not None:
                assert isinstance(raised, TridentError), (name, number, raised)
                assert objects.uri.partition("@")[2] in str(raised), raised
                assert raised.cure
                assert never or raised.outcome is Outcome.RETRY, (name, number, raised)
                assert not never or raised.outcome is Outcome.FAIL, (name, number, raised)
            objects.proxy.rule = pass_all
            assert all_steps(objects, f"{name}{number}", tmp_path) == written, (name, number)


PAGES = {
    "of a program": Answer(200, b"<html>Sign in</html>"),
    "of a file": Answer(
        200, b"<html>Back soon</html>", {"ETag": '"1"', "Last-Modified": "Sun, 29 Nov 2026 10:00:00 GMT"}
    ),
}


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("service", ["bucket", pytest.param("gcs", marks=pytest.mark.rare)])
def test_a_page_of_a_proxy_is_no_listing_without_objects(
    service: str, page: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its status is 200, and a client reads it as one."""
    objects = request.getfixturevalue(service)
    monkeypatch.setenv(objects.variable, objects.connection(**NO_RETRIES[service]))
    spec = replace(spec_of("files", tmp_path), factory=FileSink(f"{objects.uri}/out"))
    with spec.factory.make_state(spec) as state:
        objects.proxy.rule = lambda _request: PAGES[page]
        for path in ("/in", "/in/*.txt", "/*", ""):
            coordinator = FileSpout(f"{objects.uri}{path}").coordinator()
            raised = error_of(partial(coordinator.initialize_transaction, 1, None))
            require_told(raised, objects.uri.partition("@")[2], never=False)
        require_told(error_of(partial(state.apply, ticket(1), batch(spec, *ROWS))), "/out", never=False)
        objects.proxy.rule = pass_all
        assert FileSpout(f"{objects.uri}/in").coordinator().initialize_transaction(1, None) is None
        state.apply(ticket(1), batch(spec, *ROWS))
