"""pyspark and pyspark-client share the folder `pyspark/`: unless both are of one version, whichever is installed last
overwrites files of the other."""

from __future__ import annotations

import base64
import hashlib
from importlib.metadata import PackagePath, distribution


def files_of(name: str) -> dict[str, PackagePath]:
    return {str(path): path for path in distribution(name).files or () if path.hash is not None}


def test_pyspark_and_its_client_are_of_the_same_version() -> None:
    assert distribution("pyspark").version == distribution("pyspark-client").version


def test_every_file_that_both_distributions_hold_is_the_same() -> None:
    full, client = files_of("pyspark"), files_of("pyspark-client")
    common = {path for path in full.keys() & client.keys() if path.startswith("pyspark/")}
    assert len(common) > 100
    assert {path for path in common if repr(full[path].hash) != repr(client[path].hash)} == set()


def test_what_is_installed_is_what_both_distributions_brought() -> None:
    full = files_of("pyspark")
    shared = sorted(full.keys() & files_of("pyspark-client").keys())
    for path in shared:
        recorded = full[path].hash
        assert recorded is not None
        content = hashlib.new(recorded.mode, full[path].locate().read_bytes()).digest()
        assert base64.urlsafe_b64encode(content).rstrip(b"=").decode() == recorded.value, path
