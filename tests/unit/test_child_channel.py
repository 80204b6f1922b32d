"""A real child on a real pipe: both ways at once, what it prints, how it ends, and that it never outlives us."""

from __future__ import annotations

import fcntl
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from airflow_trident.errors import ChildError, ChildProtocolError, ConfigurationError
from airflow_trident.storm.components.framing import Message
from airflow_trident.storm.components.process import TAIL_BYTES, Carrier, Channel, Program

LIMIT_S = 60.0
BEGIN = {
    Carrier.MULTILANG: """
        import json, os, signal, sys
        END = b"\\nend\\n"
        out, inp = sys.stdout.buffer, sys.stdin.buffer
    """,
    Carrier.NODE: """
        import json, os, signal, socket, sys
        END = b"\\n"
        channel = socket.socket(fileno=int(os.environ["NODE_CHANNEL_FD"]))
        out, inp = channel.makefile("wb"), channel.makefile("rb")
    """,
}
TALK = """
    def say(message):
        out.write(json.dumps(message).encode() + END); out.flush()
    def hear():
        lines = []
        for line in inp:
            if END != b"\\n" and line == b"end\\n": return json.loads(b"".join(lines))
            if END == b"\\n": return json.loads(line)
            lines.append(line)
        return None
"""
CARRIERS = pytest.mark.parametrize("carrier", list(Carrier))


def child(carrier: Carrier, body: str, **options: object) -> Channel:
    text = "\n".join(map(textwrap.dedent, (BEGIN[carrier], TALK, body)))
    return Channel(
        Program(argv=(sys.executable, "-I", "-S", "-c", text), carrier=carrier, **options), "the tested child"
    )  # type: ignore[arg-type]


def heard(channel: Channel, count: float = math.inf) -> list[Message]:
    """So many messages, or all until the child ends."""
    messages: list[Message] = []
    end_s = time.monotonic() + LIMIT_S
    while len(messages) < count and not channel.eof:
        assert time.monotonic() < end_s, f"after {LIMIT_S} s it has said only {messages!s:.200}"
        messages += channel.pump(LIMIT_S)
    return messages


@CARRIERS
def test_both_sides_may_have_more_to_say_than_the_pipes_hold(carrier: Carrier) -> None:
    """Each side writes all before it reads a word: whoever only wrote would wait for ever."""
    text = "äöü" * 1_000_000
    body = """
        say({"size": 0, "text": "x" * 3_000_000})
        while (message := hear()) is not None:
            say({"size": len(message["text"]), "text": message["text"]})
    """
    with child(carrier, body) as channel:
        for _ in range(3):
            channel.send({"text": text})
        messages = heard(channel, 4)
        assert [message["size"] for message in messages] == [0, 3_000_000, 3_000_000, 3_000_000]
        assert all(message["text"] == text for message in messages[1:])
        channel.close_input()
        assert channel.ended(LIMIT_S, messages.append) == 0


@CARRIERS
def test_what_it_prints_without_end_is_drained_and_its_last_words_are_kept(carrier: Carrier) -> None:
    body = """
        sys.stderr.write("y" * 5_000_000 + "the last words"); sys.stderr.flush()
        say({"done": True})
        hear()
    """
    with child(carrier, body) as channel:
        assert heard(channel, 1) == [{"done": True}]
        channel.close_input()
        channel.ended(LIMIT_S, lambda _: None)
        assert channel.tail.endswith("yyy" + "the last words")
        assert len(channel._tail) <= TAIL_BYTES
        assert str(channel.error("failed")).endswith("the last words")


def test_what_a_node_program_prints_on_stdout_is_no_message() -> None:
    body = """
        print('{"cmd":"ack"}', flush=True)
        say({"cmd": "init_completed"})
    """
    with child(Carrier.NODE, body) as channel:
        messages: list[Message] = []
        assert channel.ended(LIMIT_S, messages.append) == 0
        assert messages == [{"cmd": "init_completed"}]
        assert '{"cmd":"ack"}' in channel.tail


@CARRIERS
@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os._exit(7)", "ended with code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", r"was ended by signal 9 \(SIGKILL\)"),
        ("raise ValueError('no such word')", "ended with code 1.*it said last: .*ValueError: no such word"),
    ],
)
def test_how_it_ended_is_told(carrier: Carrier, end: str, said: str) -> None:
    with child(carrier, f"hear()\n{end}") as channel:
        channel.send({"go": True})
        heard(channel)
        error = channel.lost("before it acknowledged 3 rows")
        with pytest.raises(ChildError, match=rf"(?s)the tested child {said}"):
            raise error
        assert "before it acknowledged 3 rows" in str(error)


@CARRIERS
def test_what_it_says_after_its_input_ended_is_heard_before_its_end(carrier: Carrier) -> None:
    body = """
        while hear() is not None: pass
        for n in range(20_000): say({"n": n})
    """
    with child(carrier, body) as channel:
        messages: list[Message] = []
        channel.close_input()
        assert channel.ended(LIMIT_S, messages.append) == 0
        assert [message["n"] for message in messages] == list(range(20_000))


def test_an_answer_after_its_input_was_closed_goes_to_no_file_that_has_the_number_of_its_pipe(tmp_path: Path) -> None:
    body = """
        while hear() is not None: pass
        for n in range(3): say({"n": n})
    """
    other = tmp_path / "other"
    with child(Carrier.MULTILANG, body) as channel, other.open("wb") as file:

        def answer(_: Message) -> None:
            channel.send([1])

        number = channel._out
        channel.close_input()
        # not dup2, which would take it from whatever another thread has opened in between
        got = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, number)
        try:
            assert got == number
            assert channel.ended(LIMIT_S, answer) == 0
            channel.pump()
        finally:
            os.close(got)
        assert channel.backlog_bytes == 0
    assert other.read_bytes() == b""


@CARRIERS
@pytest.mark.parametrize("stubborn", [False, True])
def test_who_does_not_stop_is_killed(carrier: Carrier, stubborn: bool) -> None:
    body = f"""
        if {stubborn}: signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say({{"pid": os.getpid()}})
        while True: signal.pause()
    """
    with child(carrier, body) as channel:
        (message,) = heard(channel, 1)
        channel.close_input()
        with pytest.raises(ChildError, match=r"did not stop within 0\.1 s"):
            channel.ended(0.1, lambda _: None)
    assert not psutil.pid_exists(message["pid"])


@CARRIERS
def test_leaving_the_block_kills_it_and_its_children(carrier: Carrier) -> None:
    body = """
        import subprocess
        inner = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"])
        say({"pids": [os.getpid(), inner.pid]})
        signal.pause()
    """
    with child(carrier, body) as channel:
        (message,) = heard(channel, 1)
        both = [psutil.Process(pid) for pid in message["pids"]]
    _, left = psutil.wait_procs(both, LIMIT_S)
    assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []


@CARRIERS
def test_looking_may_end_the_wait(carrier: Carrier) -> None:
    def cancelled() -> None:
        raise KeyboardInterrupt

    with child(carrier, "signal.pause()") as channel, pytest.raises(KeyboardInterrupt):
        channel.ended(LIMIT_S, lambda _: None, cancelled)
    assert not psutil.pid_exists(channel.pid)


@CARRIERS
def test_a_message_that_is_too_long_is_refused(carrier: Carrier) -> None:
    with child(carrier, 'say({"text": "x" * 5_000_000}); hear()', max_message_bytes=100_000) as channel:
        with pytest.raises(ChildProtocolError, match=r"the tested child said .* longer than 100000 bytes"):
            heard(channel, 1)
        assert not channel._decoder._buffer


def test_a_program_that_is_not_there_is_named_with_the_host() -> None:
    with pytest.raises(ConfigurationError, match=r"'/no/such/program' cannot be started on .*No such file") as error:
        Channel(Program(argv=("/no/such/program", "-x"), carrier=Carrier.NODE))
    assert "(the command is /no/such/program -x)" in str(error.value)


def test_a_program_that_may_not_be_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("text")
    with pytest.raises(ConfigurationError, match=r"plain\.txt' cannot be started on .*Permission denied"):
        Channel(Program(argv=(str(tmp_path / "plain.txt"),), carrier=Carrier.MULTILANG))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no folder '.*/none' on "):
        Channel(Program(argv=(sys.executable,), carrier=Carrier.MULTILANG, cwd=str(tmp_path / "none")))


@CARRIERS
def test_folder_and_environment_are_what_was_said(
    carrier: Carrier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])
    body = 'say({"cwd": os.getcwd(), "one": os.environ["TRIDENT_ONE"], "path": os.environ["PATH"]})'
    with child(carrier, body, cwd=str(tmp_path), env={"TRIDENT_ONE": "1", "PATH": "/more"}) as channel:
        (message,) = heard(channel, 1)
    assert message == {"cwd": str(tmp_path), "one": "1", "path": f"{os.environ['PATH']}:/more"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent is dead")
@CARRIERS
def test_it_dies_with_a_parent_that_is_killed(carrier: Carrier) -> None:
    """It does not look at its pipe, so that end of file would not end it."""
    program = f"""
        from airflow_trident.storm.components.process import Carrier
        from tests.unit.test_child_channel import child, heard
        with child(Carrier({carrier.value!r}), 'say({{"pid": os.getpid()}})\\nwhile True: signal.pause()') as channel:
            print(heard(channel, 1)[0]["pid"], flush=True)
            input()
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        its = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        _, left = psutil.wait_procs([its], LIMIT_S)
    assert left == []
