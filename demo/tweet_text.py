"""Generated tweets, which nobody wrote, always the same ones, for the demonstration and for tests.

This module does not know the topology: `plain_counts` is the independent answer to compare the result with.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator

USERS = [f"@user{number}" for number in range(60)]
HASHTAGS = [f"#{topic}" for topic in ("storm", "spark", "airflow", "redis", "data", "zookeeper", "trident")]
WORDS = ["this", "generated", "tweet", "says", "nothing", "about", "anybody", "and", "is", "to", "be", "counted"]
TABLES = ("users", "hashtags", "users_hashtags")


def generated_tweets(count: int, seed: int = 42) -> Iterator[str]:
    """Texts with some users and some hashtags, some of them twice."""
    chance = random.Random(seed)
    for _ in range(count):
        parts = [
            *chance.choices(WORDS, k=chance.randint(3, 8)),
            *chance.choices(USERS, k=chance.choice((0, 1, 1, 2, 3))),
            *chance.choices(HASHTAGS, k=chance.choice((0, 1, 1, 2, 3))),
        ]
        chance.shuffle(parts)
        yield "[generated] " + " ".join(parts)


def plain_counts(tweets: Iterable[str]) -> dict[str, Counter[str]]:
    """The number of tweets with each user, with each hashtag, and with each pair of both, by plain loops."""
    users, hashtags, both = Counter[str](), Counter[str](), Counter[str]()
    for tweet in tweets:
        named = {word for word in tweet.split() if word[0] == "@"}
        tagged = {word for word in tweet.split() if word[0] == "#"}
        users.update(named)
        hashtags.update(tagged)
        both.update(f"{user}:{hashtag}" for user in named for hashtag in tagged)
    return dict(zip(TABLES, (users, hashtags, both), strict=True))
