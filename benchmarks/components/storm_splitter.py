"""A bolt on Storm's own storm.py, whose folder is in PYTHONPATH: it waits for task ids at each emit."""

import storm


class Splitter(storm.BasicBolt):
    def process(self, tuple):
        for word in tuple.values[0].split():
            storm.emit([word])


Splitter().run()
