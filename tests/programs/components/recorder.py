"""A multilang bolt with an effect: ``python recorder.py FILE``. For each row it appends ``<txid> <first value>``, emits
a tuple that nobody reads, and fails the row ``bad`` unless ``FILE.mended`` exists."""

import json
import os
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


def main(path):
    hear()
    say({"pid": os.getpid()})
    while (message := hear()) is not None:
        if message["stream"] == "__heartbeat":
            say({"command": "sync"})
            continue
        value = message["tuple"][0]
        if value == "bad" and not Path(f"{path}.mended").exists():
            say({"command": "error", "msg": "this one is bad"})
            say({"command": "fail", "id": message["id"]})
            continue
        with path.open("a") as file:
            file.write(f"{os.environ['TRIDENT_TXID']} {value}\n")
        anchor = {"anchors": [message["id"]], "need_task_ids": False}
        say({"command": "emit", "stream": "nowhere", "tuple": [value], **anchor})
        say({"command": "ack", "id": message["id"]})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
