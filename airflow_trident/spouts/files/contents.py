"""Is a file still the one that a transaction recorded? Yes if size and time are the same, or otherwise the content.

A file that is restored, checked out or copied has the same content and another time. So each transaction records the
digests of its files. They are compared only if the time differs: reading a batch costs nothing more.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from airflow_trident.contracts.spout import TAKE_AS_IT_IS, not_metadata_of
from airflow_trident.errors import CorruptRecordError, SourceChangedError, SourceUnavailableError
from airflow_trident.io.paths import stays_inside
from airflow_trident.spouts.files.listing import FoundFile
from airflow_trident.types import Json

DIGEST_BYTES = 1 << 30
"""Larger files are identified by size and time alone, unless `digest_bytes` says otherwise."""
MENDED = (
    f"Mend the file in its place and have the transaction take it as it is now ({TAKE_AS_IT_IS}), then replay it; or "
    "skip the transaction and put what its files hold in anew, under new names."
)
"""The cure of a damaged file."""
_THREADS = 4
_SMALL_BYTES = 1 << 20
"""Up to this total size, files are hashed faster than threads start."""
_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFile:
    """A file of a transaction. `path`: below the spout's folder; `digest`: of its content, or its ETag, or "".
    `version`: of an object, if its bucket keeps versions, or ""."""

    path: str
    size: int
    mtime_ns: int
    digest: str = ""
    version: str = ""

    @property
    def etag(self) -> str:
        return self.digest if is_etag(self.digest) else ""

    def to_json(self) -> Json:
        more = [self.digest, self.version] if self.version else [self.digest] if self.digest else []
        return [self.path, self.size, self.mtime_ns, *more]


def is_etag(digest: str) -> bool:
    """Is the digest an object's ETag? An ETag is a text in quotes."""
    return digest.endswith('"')


def recorded_files(metadata: Any, base: str) -> list[RecordedFile]:
    """The files in a FileSpout's metadata.

    :raises SourceChangedError: it is not the metadata of a FileSpout.
    :raises CorruptRecordError: it names a file outside of `base`.
    """
    try:
        recorded = [
            RecordedFile(
                path=str(path),
                size=int(size),
                mtime_ns=int(mtime_ns),
                digest=str(more[0]) if more else "",
                version=str(more[1]) if len(more) > 1 else "",
            )
            for path, size, mtime_ns, *more in metadata["files"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise not_metadata_of("a FileSpout") from error
    for file in recorded:
        if not stays_inside(file.path):
            raise CorruptRecordError(
                f"the recorded metadata names the file {file.path!r}, which is not below the spout's folder {base!r}",
                "Nothing else is read: restore the ledger from a back-up, and see who may write it.",
            )
    return recorded


def digests_of(base: str, files: Sequence[FoundFile], limit_bytes: int) -> dict[str, str]:
    """Digests by path; "" for files above `limit_bytes`, and for files that this user may not read.

    :raises SourceUnavailableError: a file changed since it was listed: it is still being written.
    """

    def one(file: FoundFile) -> str:
        return "" if file.size > limit_bytes else _as_found(os.path.join(base, file.path), file)

    if len(files) < 2 or sum(file.size for file in files) <= _SMALL_BYTES:
        return {file.path: one(file) for file in files}
    with ThreadPoolExecutor(max_workers=min(_THREADS, len(files))) as pool:  # hashing releases the GIL
        return dict(zip((file.path for file in files), pool.map(one, files), strict=True))


def _as_found(path: str, file: FoundFile) -> str:
    try:
        digest = digest_of(path)
        status = os.stat(path)
        same = (status.st_size, status.st_mtime_ns) == (file.size, file.mtime_ns)
    except FileNotFoundError:
        same = False
    except OSError:
        return ""  # the reader will raise the error
    if not same:
        raise still_written(path)
    return digest


def still_written(path: str) -> SourceUnavailableError:
    """The error for a file that changed since it was listed."""
    return SourceUnavailableError(
        f"the file {path!r} changed while its transaction was claimed: it is still being written",
        "Move files in whole, or set min_age_s, and never change them afterwards; nothing was claimed.",
    )


def changed(path: str, how: str, part: str) -> SourceChangedError:
    """The error for a file that is not as it was recorded.

    :param part: what of the file must be put back.
    """
    return SourceChangedError(
        f"the file {path!r} changed since the transaction recorded it: {how}",
        f"Put it back as it was ({part}) and replay, or have the transaction take it as it is now: "
        f"{TAKE_AS_IT_IS}. "
        "Move files in whole, or set min_age_s.",
    )


def gone(path: str) -> SourceChangedError:
    """The error for a recorded file that is gone."""
    return SourceChangedError(
        f"the file {path!r}, which the transaction recorded, is gone", "Put it back as it was and replay."
    )


def version_gone(path: str) -> SourceChangedError:
    """The error for a recorded version of an object that is gone, where no object with its content took its place."""
    return SourceChangedError(
        f"the version of the object {path!r} that the transaction recorded is gone, and the content is not there",
        "A version cannot be put back. Put the same content there in the same way, so that it has the same ETag, and "
        f"replay; or have the transaction take the object as it is now: {TAKE_AS_IT_IS}. Let lifecycle rules keep "
        "noncurrent versions for as long as a transaction may be replayed.",
    )


def nothing_to_take(path: str) -> SourceChangedError:
    """The error for an object that a transaction shall take as it is now, where there is none."""
    return SourceChangedError(
        f"the object {path!r}, which the transaction recorded, is gone, so there is nothing to take",
        f"Put an object there and run {TAKE_AS_IT_IS} again. If the bucket keeps its recorded version, replay instead.",
    )


def digest_of(path: str) -> str:
    """:raises OSError: the file cannot be read."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return base64.urlsafe_b64encode(digest[:_SIZE]).decode().rstrip("=")


def require_same(path: str, file: RecordedFile) -> RecordedFile:
    """The recorded file, with its present time.

    :param path: of the file.
    :raises SourceChangedError: the file is gone, or has other content.
    :raises SourceUnavailableError: the file cannot be looked at.
    """
    status = status_of(path)
    if (status.st_size, status.st_mtime_ns) == (file.size, file.mtime_ns):
        return file
    try:
        if file.digest and status.st_size == file.size and digest_of(path) == file.digest:
            return replace(file, mtime_ns=status.st_mtime_ns)
    except OSError as error:
        raise SourceUnavailableError(
            f"the file {path!r} cannot be read ({error.strerror})", "Let this user read it."
        ) from error
    if status.st_size != file.size:
        difference = f"{file.size} bytes then, {status.st_size} now"
    else:
        difference = (
            "its content is another" if file.digest else "its time is another, and its content was not recorded"
        )
    raise changed(path, difference, "its content" if file.digest else "content and time")


def status_of(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise gone(path) from error
    except OSError as error:
        raise SourceUnavailableError(
            f"the file {path!r} cannot be looked at ({error.strerror})", "Let this user read it."
        ) from error


def as_they_are(base: str, files: Sequence[RecordedFile], limit_bytes: int) -> list[RecordedFile]:
    """The same files with their present size, time and digest.

    :raises SourceChangedError: a file is gone.
    """
    current_files = []
    for file in files:
        status = status_of(os.path.join(base, file.path))
        current_files.append(FoundFile(file.path, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    digests: Mapping[str, str] = digests_of(base, current_files, limit_bytes)
    return [
        RecordedFile(path=file.path, size=file.size, mtime_ns=file.mtime_ns, digest=digests[file.path])
        for file in current_files
    ]
