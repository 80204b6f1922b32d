"""Bolts as users of pystorm write them; argv[1] chooses one."""

import sys

from pystorm import BatchingBolt, Bolt


class Split(Bolt):
    def process(self, tup):
        for word in tup.values[0].split():
            self.emit([word])


class Ids(Bolt):
    """Asks for the task ids of each emit, and waits for them."""

    def process(self, tup):
        for word in tup.values[0].split():
            assert self.emit([word], need_task_ids=True) == [1]


class Prints(Bolt):
    def process(self, tup):
        print("printed by mistake")
        self.emit([tup.values.line])


class Raises(Bolt):
    def process(self, tup):
        raise ValueError("no such word")


class Counts(BatchingBolt):
    def group_key(self, tup):
        return tup.values[0]

    def process_batch(self, key, tups):
        self.emit([f"{key}={len(tups)}"])


globals()[sys.argv[1]]().run()
