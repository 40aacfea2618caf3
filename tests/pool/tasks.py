"""What the tests have done in forked processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

from pipeline.pool.crew import Done
from pipeline.pool.task import Waiting


def add_one(argument, tell):
    tell("half way")
    return argument + 1


def segfault(argument, tell):
    ctypes.string_at(0)


def hang(argument, tell):
    time.sleep(1000)


def falls_silent(argument, tell):
    for word in ("one", "two"):
        tell(word)
        time.sleep(argument)
    time.sleep(1000)


def grow(argument, tell):
    kept = []
    while True:
        kept.append(bytearray(b"x") * (8 << 20))
        time.sleep(0.01)


def child_grows(argument, tell):
    subprocess.run([sys.executable, "-c", "x = bytearray(b'x') * (400 << 20); import time; time.sleep(1000)"])


def raises(argument, tell):
    raise ValueError("no such thing")


def killed(argument, tell):
    os.kill(os.getpid(), signal.SIGKILL)


def waits(argument, tell):
    """Three times the time limit of the test, all of it waiting."""
    tell(Waiting(True))
    time.sleep(3)
    tell(Waiting(False))
    return "done"


def leaves_a_child(argument, tell):
    """Start a process in a session of its own, say which, and end."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    tell(child.pid)
    if argument == "hang":
        time.sleep(1000)


def says_bye(argument, tell):
    try:
        tell("ready")
        time.sleep(1000)
    except KeyboardInterrupt:
        return "bye"


def command_line(argument, tell):
    print("to the log")
    return sys.argv


def crew_work(share, tell):
    """Tell each batch; 3 kills the process, 5 hangs."""
    for batch in share.batches:
        tell((os.getpid(), share.common, batch))
        if batch == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if batch == 5:
            time.sleep(1000)
        tell(Done())
