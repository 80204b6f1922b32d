"""A tiny multilang bolt that splits lines, written from the protocol's text alone. argv[1] chooses what else it does
when a line has the word "now"."""

import json
import os
import select
import signal
import sys
import time


def send(message):
    sys.stdout.write(json.dumps(message) + "\nend\n")
    sys.stdout.flush()


def read():
    lines = []
    for line in sys.stdin:
        if line == "end\n":
            return json.loads("".join(lines))
        lines.append(line)
    return None


def emit(values, anchor=None, **more):
    send({"command": "emit", "tuple": values, "anchors": [anchor] if anchor else [], "need_task_ids": False, **more})


def ack(name):
    send({"command": "ack", "id": name})


class Bolt:
    def setup(self):
        return read()

    def begin(self, setup):
        send({"pid": os.getpid()})

    def tick(self, message):
        ack(message["id"])

    def row(self, name, values):
        self.line(name, values[0])

    def line(self, name, line):
        for word in line.split():
            emit([word], name)
        if "now" in line.split():
            self.now(name)
        ack(name)

    def now(self, name):
        """Called at the word "now": the fault of this bolt."""

    def end(self):
        """Called when its input has ended."""


class Exit7(Bolt):
    def now(self, name):
        os._exit(7)


class Exit0(Bolt):
    def now(self, name):
        sys.exit(0)


class Killed(Bolt):
    def now(self, name):
        os.kill(os.getpid(), signal.SIGKILL)


class Raises(Bolt):
    def now(self, name):
        raise ValueError("no such word")


class Hangs(Bolt):
    def now(self, name):
        while True:
            signal.pause()


class HangsOnce(Bolt):
    """Only the first process of all hangs; the file argv[2] has its process id."""

    def now(self, name):
        try:
            with open(f"{sys.argv[2]}.new", "x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return
        os.link(file.name, sys.argv[2])
        while True:
            signal.pause()


class KilledAt(Bolt):
    """The first process of all that comes to the step argv[2] is killed there; then the file argv[3] exists."""

    def at(self, step):
        if step == sys.argv[2] and not os.path.exists(sys.argv[3]):
            open(sys.argv[3], "x").close()
            os.kill(os.getpid(), signal.SIGKILL)

    def begin(self, setup):
        self.at("init")
        super().begin(setup)

    def line(self, name, line):
        self.at("row")
        for word in line.split():
            emit([word], name)
            self.at("emit")
        ack(name)
        self.at("ack")
        if "last" in line.split():
            self.at("last ack")

    def end(self):
        self.at("end")


class Garbage(Bolt):
    def now(self, name):
        sys.stdout.write("this is no message\nend\n")


class Stray(Bolt):
    def now(self, name):
        sys.stdout.write("printed by mistake\n")


class Floods(Bolt):
    def now(self, name):
        for _ in range(100):
            sys.stderr.write("y" * 100_000)
        sys.stderr.write("\n")


class Twice(Bolt):
    def now(self, name):
        ack(name)


class Unknown(Bolt):
    def now(self, name):
        ack("4711")


class Nonsense(Bolt):
    def now(self, name):
        send({"command": "bogus"})


class Metric(Bolt):
    def now(self, name):
        send({"command": "metrics", "name": "words", "params": {"n": 3}})


class NamelessMetric(Bolt):
    def now(self, name):
        send({"command": "metrics", "name": "", "params": 3})


class Hears(Bolt):
    """Prints what it reads, except for the handshake, and asks for task ids."""

    def line(self, name, line):
        emit([line], name, need_task_ids=True)
        ack(name)


class Anchors(Bolt):
    def now(self, name):
        emit(["late"], "0")


class Large(Bolt):
    def now(self, name):
        emit(["x" * 5_000_000], name)


class Fails(Bolt):
    def line(self, name, line):
        if "now" in line.split():
            send({"command": "error", "msg": "Traceback: no such word"})
            send({"command": "fail", "id": name})
        else:
            super().line(name, line)


class Fields(Bolt):
    def now(self, name):
        emit(["two", "values"], name)


class Typed(Bolt):
    def now(self, name):
        emit([7], name)


class Streams(Bolt):
    def line(self, name, line):
        for word in line.split():
            emit([word, len(word)], name, stream="long" if len(word) > 3 else "default")
        ack(name)


class Loose(Bolt):
    def now(self, name):
        emit(["loose"])


class Ids(Bolt):
    """Waits for the task ids of each emit, as storm.py does."""

    def line(self, name, line):
        for word in line.split():
            emit([word], name, need_task_ids=True)
            self.ids()
        ack(name)

    def ids(self):
        while not isinstance(message := read(), list):
            if message is None:
                sys.exit(0)
            later.append(message)


class Batches(Bolt):
    """Keeps rows until the second tick, then emits the count of each word, anchored to all rows."""

    kept, ticks = (), 0

    def line(self, name, line):
        self.kept += ((name, line),)

    def tick(self, message):
        self.ticks += 1
        if self.ticks % 2 == 0:
            names = [name for name, _ in self.kept]
            words = [word for _, line in self.kept for word in line.split()]
            for word in sorted(set(words)):
                emit([f"{word}={words.count(word)}"], anchors=names)
            for name in names:
                ack(name)
            self.kept = ()
        ack(message["id"])


class NeverReady(Bolt):
    def begin(self, setup):
        while True:
            signal.pause()


class Late(Bolt):
    """Waits for some time whether anything comes before it has begun."""

    def setup(self):
        said = b""
        while not said.endswith(b"\nend\n"):
            said += os.read(0, 1)
        return json.loads(said[:-4])

    def begin(self, setup):
        if select.select([0], [], [], 0.3)[0]:
            raise SystemExit("heard something before it had begun")
        super().begin(setup)


class NoBeginning(Bolt):
    def begin(self, setup):
        raise KeyError("context")


class Stays(Bolt):
    def end(self):
        while True:
            signal.pause()


class KilledAtEnd(Bolt):
    """Is killed between its last emits."""

    def end(self):
        emit(["1"])
        os.kill(os.getpid(), signal.SIGKILL)
        emit(["2"])


class Code2(Bolt):
    def end(self):
        send({"command": "error", "msg": "Read EOF"})
        sys.exit(2)


class Tells(Bolt):
    def line(self, name, line):
        told = [os.environ[f"TRIDENT_{one}"] for one in ("TOPOLOGY", "NODE", "TXID", "ATTEMPT", "PARTITION")]
        emit([",".join(told)], name)
        ack(name)


class Echo(Bolt):
    def row(self, name, values):
        emit(values, name)
        ack(name)


class Pid(Bolt):
    def line(self, name, line):
        emit([str(os.getpid())], name)
        ack(name)


class AcksFirst(Ids):
    """Acknowledges a line, works for some time, and then emits its words, of no row, waiting for task ids."""

    def line(self, name, line):
        ack(name)
        time.sleep(0.1)
        for word in line.split():
            if word == "now":
                os._exit(3)
            emit([word], need_task_ids=True)
            self.ids()


class AcksBatches(Ids):
    """At a tick it acknowledges its rows, and then emits their words, of no row, waiting for task ids."""

    kept = ()

    def line(self, name, line):
        self.kept += ((name, line),)

    def tick(self, message):
        kept, self.kept = self.kept, ()
        for name, _ in kept:
            ack(name)
        ack(message["id"])
        time.sleep(0.1)
        for word in (word for _, line in kept for word in line.split()):
            emit([word], need_task_ids=True)
            self.ids()


class Deaf(Bolt):
    """Answers no heartbeat, and gives a total at the end."""

    deaf, lines = True, 0

    def line(self, name, line):
        self.lines += 1
        ack(name)

    def end(self):
        emit([str(self.lines)])


class IdsAhead(Ids):
    """Keeps task ids that come before it asks, and reads nothing while it has some."""

    def line(self, name, line):
        for word in line.split():
            emit([word], name, need_task_ids=True)
            if not early:
                raise SystemExit("none had come")
            early.pop()
        ack(name)


later, early = [], []


def main():
    kind = sys.argv[1] if len(sys.argv) > 1 else "Bolt"
    bolt = globals()[kind]()
    bolt.begin(bolt.setup())
    while (message := later.pop(0) if later else read()) is not None:
        if kind == "Hears":
            print(json.dumps(message, separators=(",", ":")), file=sys.stderr, flush=True)
        if isinstance(message, list):
            early.append(message)
        elif message["stream"] == "__heartbeat":
            if not getattr(bolt, "deaf", False):
                send({"command": "sync"})
        elif message["stream"] == "__tick":
            bolt.tick(message)
        else:
            bolt.row(message["id"], message["tuple"])
    bolt.end()


main()
