"""The words of documents, docstrings, errors and help: breaches of the rules become fewer, never more."""

from __future__ import annotations

import pytest

from tools.words import Text, breaches, ceiling, every_breach, risen, room_of, sentences, words, words_of_documents


def test_no_page_and_no_room_has_more_breaches_than_it_had() -> None:
    found = every_breach()
    above = risen(found)
    shown = [str(breach) for breach in found if (room_of(breach.file), breach.rule) in above]
    assert not above, "\n".join([f"{room}: {rule} +{number}" for (room, rule), number in above.items()] + shown)


def test_the_documents_do_not_grow() -> None:
    most, _ = ceiling()
    assert words_of_documents() <= most, "cut a page, or say the fact where it is said already"


@pytest.mark.parametrize(
    ("body", "rules"),
    [
        ("The committer writes the batch.", []),
        ("Whoever waits asks Airflow.", ["no subject", "banned"]),
        ("Mend the file. It is `told` to wait.", ["banned"]),
        ("What is a txid?", []),
        (f"{'word ' * 26}end.", ["long"]),
        (f"{'word ' * 12}end. {'Word ' * 12}end.", []),
        ("Of these, `a b c d` is one word.", ["no subject"]),
    ],
)
def test_a_breach_is_named_by_its_rule(body: str, rules: list[str]) -> None:
    assert [breach.rule for breach in breaches(Text("docs/x.md", 1, body))] == rules


def test_a_sentence_ends_before_a_capital_and_code_is_one_word() -> None:
    assert len(list(sentences("It costs 1.5 s, e.g. here. `Sum` adds. (Others do not.) Done."))) == 4
    assert words("`a b c` and [a link](x.md)".replace("`a b c`", "`c`")) == 5
