"""A batch in words: ``3 files, 12.0 MB: 07.json to 09.json``. Pure.

The API server does not have the topology's code, so this module knows the recorded metadata by its shape. The page
shows metadata of an unknown shape as it is recorded.
"""

from __future__ import annotations

from typing import Any

from airflow_trident.types import Json


def batch_words(metadata: dict[str, Json]) -> dict[str, str]:
    """Stream -> its part of the batch in words, for streams whose metadata has a known shape."""
    found = {stream: _words(value) for stream, value in metadata.items()}
    return {stream: text for stream, text in found.items() if text}


def _words(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    try:
        for known, tell in _KNOWN.items():
            if known <= value.keys():
                return tell(value)
    except (TypeError, ValueError, KeyError, IndexError):
        pass  # only the keys have a known shape: the page shows the record itself
    return ""


def _files(value: dict[str, Any]) -> str:
    files = value["files"]
    if not files:
        return "no file"
    names, size = sorted(str(file[0]) for file in files), sum(int(file[1]) for file in files)
    which = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return f"{_count(len(files), 'file')}, {size_words(size)}: {which}"


def _topics(value: dict[str, Any]) -> str:
    told = []
    for name, topic in value["topics"].items():
        parts = topic["partitions"].values()
        records = sum(end - begin for begin, end in parts)
        told.append(f"{name}: {_count(records, 'offset')} in {_count(len(parts), 'partition')}")
    return "; ".join(told)


def _delta(value: dict[str, Any]) -> str:
    return f"versions {value['from'][0]} to {value['to'][0]} of the table"


def _keys(value: dict[str, Any]) -> str:
    above = "" if value["from"] is None else f" above {value['from']}"
    return f"{_count(int(value['rows']), 'row')}, keys{above} up to {value['to']}"


def _parts(value: dict[str, Any]) -> str:
    names = sorted(value["parts"])
    return f"{_count(len(names), 'partition')}: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"


_KNOWN = {
    frozenset({"files"}): _files,
    frozenset({"topics"}): _topics,
    frozenset({"table", "from", "to"}): _delta,
    frozenset({"from", "to", "rows"}): _keys,
    frozenset({"parts", "kept", "behind"}): _parts,
}


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def size_words(count: float) -> str:
    """``1536`` -> ``1.5 KB``."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TB"
