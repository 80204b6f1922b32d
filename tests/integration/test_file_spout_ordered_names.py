"""FileSpout on objects that are listed in the order of their names, or promise to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_trident import FileSpout
from airflow_trident.errors import ConfigurationError
from airflow_trident.spouts.files.object_files import ObjectFiles
from tests.faults.http_proxy import Answer, Request, Verdict
from tests.fixtures.azurite import Container
from tests.fixtures.object_store import Bucket
from tests.integration.test_file_spout import begin, lines, names


def test_with_ordered_names_a_listing_begins_behind_what_was_read(bucket: Bucket) -> None:
    for number in range(6):
        bucket.put(f"in/{number}", f"{number}\n")
    spout = FileSpout(f"{bucket.uri}/in", max_files=2, ordered_names=True, lookback_s=0)
    first = begin(spout)
    second = begin(spout, first)
    asked: list[str] = []

    def rule(request: Request) -> Verdict:
        asked.append(request.query)
        return Verdict.PASS

    bucket.proxy.rule = rule
    third = begin(spout, second)
    assert [name for one in (first, second, third) for name in names(one)] == list("012345")
    assert sum("start-after=in%2F3" in query for query in asked) == 1
    assert spout.coordinator().lag(second) == {"files": 2, "bytes": 4}
    assert spout.coordinator().lag(None) is None
    assert not spout.coordinator().is_ready(third)
    bucket.put("in/4", "other\n")
    accepted = spout.coordinator().accept_source(third)
    assert lines(spout, accepted) == ["other", "5"]
    followed: Any = spout.coordinator().follow_source(third, accepted)
    assert followed["after"] == "5"
    assert not spout.coordinator().is_ready(followed)


def test_ordered_names_may_be_set_later_and_nothing_is_read_again(bucket: Bucket) -> None:
    for number in range(4):
        bucket.put(f"in/{number}", f"{number}\n")
    first = begin(FileSpout(f"{bucket.uri}/in", max_files=3))
    assert names(first) == ["0", "1", "2"]
    spout = FileSpout(f"{bucket.uri}/in", ordered_names=True)
    second = begin(spout, first)
    assert names(second) == ["3"]
    assert begin(FileSpout(f"{bucket.uri}/in"), second) is None, "and it may be taken back"
    bucket.put("in/2a", "late\n")
    assert names(begin(spout, second)) == ["2a"], "it may sort before younger ones"


def test_ordered_names_are_of_objects(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="folders, which are listed whole"):
        FileSpout(str(tmp_path), ordered_names=True)


def test_a_bucket_that_lists_in_another_order_is_refused(bucket: Bucket) -> None:
    names_in = ["a", "c", "b"]
    found = "".join(
        f"<Contents><Key>in/{name}</Key><Size>1</Size><ETag>&quot;e&quot;</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for name in names_in
    )
    bucket.proxy.rule = lambda request: Answer(200, f"<ListBucketResult>{found}</ListBucketResult>".encode())
    with pytest.raises(ConfigurationError, match="not listed in the order of names: 'b' comes behind 'c'"):
        begin(FileSpout(f"{bucket.uri}/in"))


def test_an_account_with_folders_lists_them_in_their_order_and_nothing_is_passed_over(container: Container) -> None:
    found = "".join(
        f"<Blob><Name>in/{name}</Name><Properties><Last-Modified>Mon, 23 Nov 2026 16:00:00 GMT</Last-Modified>"
        f"<Content-Length>{size}</Content-Length><Content-Type>x</Content-Type><Etag>e</Etag><ResourceType>{kind}</ResourceType></Properties></Blob>"
        for name, size, kind in [("a", 0, "directory"), ("a/x", 1, "file"), ("a-b", 1, "file"), ("ab", 1, "file")]
    )
    page = f"<EnumerationResults><Blobs>{found}</Blobs><NextMarker/></EnumerationResults>".encode()
    whole = Answer(200, page)
    container.proxy.rule = lambda request: whole if "comp=list" in request.query else Answer(404)
    for path, expected in [("", ["a-b", "ab"]), ("/a-*", ["a-b"]), ("/**", ["a-b", "a/x", "ab"])]:
        source = ObjectFiles.parse("it", f"{container.uri}/in{path}", recursive=False)
        assert sorted(one.path for one in source.list().files) == expected
        assert [one.path for one in source.behind("")] == expected
        assert [one.path for one in source.behind("a-b")] == expected[1:]
