"""A bolt and a spout as users of streamparse write them: ``python -m streamparse.run with_streamparse.WordCounter``."""

from collections import Counter
from itertools import islice

from streamparse import Bolt, ReliableSpout, Spout


class WordCounter(Bolt):
    outputs = ["word", "count"]  # noqa: RUF012 - as its users write it

    def initialize(self, conf, ctx):
        self.counter = Counter()

    def process(self, tup):
        for word in tup.values.line.split():
            self.counter[word] += 1
            self.emit([word, self.counter[word]])


class Numbers(Spout):
    """Emits each number once, and again when it fails."""

    outputs = ["number"]  # noqa: RUF012 - as its users write it

    def initialize(self, stormconf, context):
        self.left = iter(range(5))

    def next_tuple(self):
        for number in islice(self.left, 1):
            self.emit([number], tup_id=number)

    def ack(self, tup_id):
        self.logger.info("number %d is done", tup_id)


class Reliable(ReliableSpout):
    """Emits a failed number three times more, and then takes it for acknowledged."""

    outputs = ["number"]  # noqa: RUF012 - as its users write it

    def initialize(self, stormconf, context):
        self.left = iter(range(3))

    def next_tuple(self):
        for number in islice(self.left, 1):
            self.emit([number], tup_id=number)

    def ack(self, tup_id):
        super().ack(tup_id)
        self.logger.info("number %d is done", tup_id)

    def fail(self, tup_id):
        super().fail(tup_id)
        self.logger.info("number %d failed", tup_id)


class Splitter(Bolt):
    outputs = ["word"]  # noqa: RUF012 - as its users write it

    def process(self, tup):
        for word in tup.values.line.split():
            self.emit([word])
