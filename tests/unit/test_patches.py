"""A text as what it has of an earlier one, and what is new."""

from __future__ import annotations

import json
import random

import pytest

from airflow_trident.protocol.metadata import patch_of, patched


def names(count: int, seed: int = 0) -> list[str]:
    return [f"{random.Random(f'{seed} {number}').getrandbits(96):024x}" for number in range(count)]


def both_ways(earlier: str, text: str, most: int = 1 << 20) -> bytes:
    patch = patch_of(earlier.encode(), text.encode(), limit=most)
    assert patch is not None
    assert patched(earlier.encode(), json.loads(patch)) == text.encode()
    return patch


@pytest.mark.parametrize("seed", range(40))
def test_whatever_was_changed_comes_back(seed: int) -> None:
    draw = random.Random(seed)
    before = names(400, seed)
    after = list(before)
    for _ in range(draw.randint(0, 8)):
        at, many = draw.randrange(len(after)), draw.randint(0, 30)
        after[at : at + draw.choice([0, many])] = names(draw.choice([0, 1, many]), seed + 1000)
    both_ways("".join(before), "".join(after))


@pytest.mark.parametrize(
    ("earlier", "text"),
    [("", ""), ("", "new"), ("old", ""), ("a" * 500, "a" * 900), ("...." * 300, "...." * 299), ('"' * 99, '\\"' * 99)],
)
def test_texts_without_anything_to_find_a_place_by_come_back(earlier: str, text: str) -> None:
    both_ways(earlier, text)


def test_a_window_that_moves_on_costs_what_is_new() -> None:
    every = names(10_050)
    before, after = "".join(every[:10_000]), "".join(every[50:])
    assert len(both_ways(before, after)) < 50 * 24 + 40
    late = "".join([*every[:5_000], every[-1], *every[5_000:10_000]])
    assert len(both_ways(before, late)) < 24 + 60


def test_what_has_nothing_in_common_is_no_patch() -> None:
    assert patch_of("".join(names(400)).encode(), "".join(names(400, 1)).encode(), limit=4_000) is None
    assert patch_of(b"", b"x" * 4_000, limit=3_000) is None


@pytest.mark.parametrize("patch", [None, {}, [1], [[0]], [[0, 1, 2]], [[-1, 4]], [[0, "4"]], [[True, 4]], [None]])
def test_what_is_no_patch_is_refused(patch: object) -> None:
    with pytest.raises(ValueError, match="it "):
        patched(b"abcdef", patch)
