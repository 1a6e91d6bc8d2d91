"""Calls that misbehave, each in its own way; run by the processes in test_process_pool.py."""

from __future__ import annotations

import os
import time
from pathlib import Path


def double(x: int) -> int:
    print("noise on standard output, which must not be taken for an answer")
    return 2 * x


def loop() -> None:
    while True:
        pass


def loop_and_say(folder: str) -> None:
    Path(folder, f"loops-{os.getpid()}").touch()
    loop()


def loop_in_c() -> int:
    """One long operation of the interpreter's own C code, which looks at no signal."""
    return (9 ** (9**9)).bit_length()


def sleep() -> None:
    time.sleep(3600)


def crash() -> None:
    os._exit(7)


def fail() -> None:
    raise ValueError("bad text")


def eat_memory() -> int:
    return len(bytearray(8 << 30))
