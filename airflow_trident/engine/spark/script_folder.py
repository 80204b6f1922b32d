"""What a run of a script and its task share: a folder of the attempt, or names of the attempt in a bucket."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from abc import ABC, abstractmethod
from dataclasses import replace

from airflow_trident.closeable import Closing
from airflow_trident.contracts.spout import ScriptBatch
from airflow_trident.engine.spark import airflow_trident_script
from airflow_trident.io.object_stores import ObjectPlace
from airflow_trident.io.private_files import others_may_write
from airflow_trident.io.s3a import SCHEME, require_s3a_place, settings_without_keys
from airflow_trident.staging.area import make_slot_folder
from airflow_trident.staging.files import make_folder
from airflow_trident.staging.manifest import Slot
from airflow_trident.staging.storage import storage_at
from airflow_trident.staging.verbs import Storage

HELPER = os.path.abspath(airflow_trident_script.__file__)
"""The module that travels with the script."""
_FILE = "file://"


class ScriptFolder(Closing, ABC):
    """Names of one attempt that Spark and the task both reach.

    `storage`: of the staging root. `path`: of the attempt in it. `scratch`: a folder on this machine for the files of
    inputs. `conf`: settings that Spark needs to get there.
    """

    conf: dict[str, str]

    def __init__(self, storage: Storage, path: str, scratch: str) -> None:
        self.storage = storage
        self.path = path
        self.scratch = scratch
        self.conf = {}

    def name(self, own: str) -> str:
        """What is called `own` here, in the storage."""
        return f"{self.path}/{own}"

    @abstractmethod
    def url(self, own: str) -> str:
        """What is called `own` here, as Spark calls it."""

    @abstractmethod
    def make(self, own: str) -> None:
        """Makes a folder for Spark to write to, where folders need to be made."""

    @abstractmethod
    def put_job(self, own: str, content: bytes) -> str:
        """Writes what the run is told. Returns what the script's module reads it by."""

    @abstractmethod
    def helper(self) -> str:
        """The script's module, as the driver of the application may import it."""

    def offered(self, batch: ScriptBatch) -> ScriptBatch:
        """The batch, with its files where Spark reads them."""
        return batch


def script_folder(root: str, slot: Slot) -> ScriptFolder:
    """
    :raises ConfigurationError: a script cannot write there.
    :raises OSError: the folder cannot be made.
    """
    root = require_s3a_place("the staging folder of a script", root)
    storage = storage_at(root)
    if storage.is_local:
        return _LocalFolder(storage, slot.path, make_slot_folder(root, slot))
    return _BucketFolder(storage, slot.path, ObjectPlace.parse("the staging folder of a script", root))


class _LocalFolder(ScriptFolder):
    def url(self, own: str) -> str:
        return f"{_FILE}{self.storage.at(self.name(own))}"

    def make(self, own: str) -> None:
        make_folder(self.storage.at(self.name(own)))

    def put_job(self, own: str, content: bytes) -> str:
        path = self.storage.at(self.name(own))
        with open(path, "xb") as file:
            file.write(content)
        return path

    def helper(self) -> str:
        """A copy beside the job: the driver sees it where it sees the staging folder. Where others may write into that,
        they could put their code in its place: so the driver gets it as with a bucket."""
        if others_may_write(self.storage.at(""), self.scratch):
            return HELPER
        folder = os.path.join(self.scratch, uuid.uuid4().hex)
        os.mkdir(folder, 0o755)
        return shutil.copyfile(HELPER, os.path.join(folder, os.path.basename(HELPER)))


class _BucketFolder(ScriptFolder):
    """Spark reaches the bucket by S3A, with keys of its own: none of ours are in settings, which others see."""

    def __init__(self, storage: Storage, path: str, place: ObjectPlace) -> None:
        storage.require_usable()
        super().__init__(storage, path, tempfile.mkdtemp(prefix="airflow-trident-script-"))
        self._place = place
        self._offered: list[str] = []
        self.conf = settings_without_keys(place)

    def url(self, own: str) -> str:
        return f"{SCHEME}://{self._place.key(self.name(own))}"

    def make(self, own: str) -> None:
        """A bucket has no folders."""

    def put_job(self, own: str, content: bytes) -> str:
        self.storage.put(self.name(own), lambda file: file.write(content))
        return self.url(own)

    def helper(self) -> str:
        """spark-submit brings it to the driver, as it brings the application."""
        return HELPER

    def offered(self, batch: ScriptBatch) -> ScriptBatch:
        """Files that were written for this run, and the source's own where they are."""
        return replace(batch, given=[self._url_of(one) for one in batch.given])

    def _url_of(self, given: str) -> str:
        path = given.removeprefix(_FILE)
        if not path.startswith(f"{self.scratch}/"):
            return given
        own = os.path.relpath(path, self.scratch)
        with open(path, "rb") as file:
            self.storage.put(self.name(own), lambda target: shutil.copyfileobj(file, target))
        self._offered.append(self.name(own))
        os.unlink(path)
        return self.url(own)

    def close(self) -> None:
        self.storage.remove(self._offered)
        shutil.rmtree(self.scratch, ignore_errors=True)
