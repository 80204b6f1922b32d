"""A multilang spout over a folder: ``python queue_spout.py FOLDER [FAULT]``. Each file in ``FOLDER/items`` is an item;
its name is the id, and `ack` removes it. Each start adds a line to ``FOLDER/started``.
The next process gives items again that were not acknowledged.

FAULT is ``<what>:<n>``: after its tuple number n it does that instead of answering: ``exit`` (code 7), ``kill``,
``hang``, ``garbage``, ``twice`` (answers twice), ``no-id`` (that tuple has none), ``stray`` (prints beside its
messages). ``slow-start`` never answers the handshake. ``FOLDER/mended`` ends all faults. Needs only Python.
"""

import json
import os
import signal
import sys
from pathlib import Path


def hear():
    lines = []
    for line in sys.stdin:
        if line == "end\n":
            return json.loads("".join(lines))
        lines.append(line)
    return None


def say(message):
    sys.stdout.write(f"{json.dumps(message)}\nend\n")
    sys.stdout.flush()


def fail(what):
    if what == "exit":
        print("the feed broke", file=sys.stderr, flush=True)
        os._exit(7)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        signal.pause()
    if what == "garbage":
        sys.stdout.write("no message\nend\n")
        sys.stdout.flush()
    if what == "twice":
        sys.stdout.write('{"command": "sync"}\nend\n' * 2)
        sys.stdout.flush()
    if what == "stray":
        print("printed beside", flush=True)


def main(folder, what, at):
    if what == "slow-start":
        signal.pause()
    hear()
    with (folder / "started").open("a") as file:
        file.write("started\n")
    say({"pid": os.getpid()})
    given, active = set(), False
    while (message := hear()) is not None:
        command = message["command"]
        if command in ("activate", "deactivate"):
            active = command == "activate"
        elif command == "ack":
            (folder / "items" / message["id"]).unlink(missing_ok=True)
        elif command == "next" and active:
            left = sorted(path.name for path in (folder / "items").iterdir() if path.name not in given)
            if left:
                item = left[0]
                given.add(item)
                name = {} if what == "no-id" and len(given) == at else {"id": item}
                say({"command": "emit", "tuple": [len(item), item], "need_task_ids": False, **name})
                if len(given) == at:
                    fail(what)
        say({"command": "sync"})


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    fault = "" if (folder / "mended").exists() else sys.argv[2] if len(sys.argv) > 2 else ""
    what, _, number = fault.partition(":")
    main(folder, what, int(number or 0))
