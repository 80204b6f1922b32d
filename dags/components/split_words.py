"""A bolt in Storm's multilang protocol, which can be written in any language: lines in, words out."""

import json
import os
import re
import sys


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


hear()  # the handshake
say({"pid": os.getpid()})
while (message := hear()) is not None:
    if message["stream"] == "__heartbeat":
        say({"command": "sync"})
        continue
    for word in re.findall("[a-z]+", message["tuple"][0].lower()):
        say({"command": "emit", "tuple": [word], "anchors": [message["id"]], "need_task_ids": False})
    say({"command": "ack", "id": message["id"]})
