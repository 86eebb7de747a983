"""What may happen to the machine that a worker runs on; called inside the worker's process by the zygote."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000


def small_disk(folder: str, kibibytes: int, full: bool = False) -> None:
    """Put a file system of this size in the place of a folder, for this process alone; it vanishes with it."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if user:
        _check(libc.unshare(_CLONE_NEWUSER), "unshare")
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(text, encoding="utf-8")
    _check(libc.unshare(_CLONE_NEWNS), "unshare")
    _check(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount")
    _check(libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={kibibytes}k".encode()), "mount")
    if full:
        fill(folder)


def fill(folder: str) -> None:
    """Write until there is no room for one more byte."""
    with (Path(folder) / "filler").open("ab", buffering=0) as file:
        _fill(file)


def keep_full(folder: str) -> None:
    """As `fill`, and again whatever is given back, until the filler is deleted."""
    file = (Path(folder) / "filler").open("ab", buffering=0)
    _fill(file)

    def go() -> None:
        while os.fstat(file.fileno()).st_nlink:
            _fill(file)
            time.sleep(0.005)
        file.close()

    threading.Thread(target=go, daemon=True).start()


def _fill(file: FileIO) -> None:
    for size in (65536, 1):
        try:
            while True:
                file.write(bytes(size))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def move_clock(seconds: float) -> None:
    """Put this process's wall clock forward or back; the monotonic clock goes on, as after a step of NTP.

    It is the clock as Python code reads it, in whichever module; C code that asks the kernel itself is not reached.
    """
    for name, unit in (("time", 1), ("time_ns", 1_000_000_000)):
        _replace(getattr(time, name), _shifted(getattr(time, name), round(seconds * unit)))


def cut_power(pids: Sequence[int]) -> None:
    """SIGKILL other processes and this one, as a machine does that loses its power."""
    for pid in (*pids, os.getpid()):
        os.kill(pid, signal.SIGKILL)


def put_foreign(bootstrap: str, value: str, places: Sequence[tuple[str, str, int]]) -> None:
    """Append a record (in hexadecimal) to partitions, while the worker of this process can do nothing else.

    The log says where it lies. It has a key that no record of a deployment has.

    Args:
        bootstrap: the brokers.
        value: the record.
        places: of each partition the broker's name of its topic, the deployment's name, and the number.
    """

    async def put() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            for physical, topic, partition in places:
                met = await producer.send_and_wait(physical, bytes.fromhex(value), b"of nobody", partition)
                print(f"put_foreign: {topic}/{partition} offset {met.offset}", flush=True)

    thread = threading.Thread(target=lambda: asyncio.run(put()))  # the worker's own loop runs in this one
    thread.start()
    thread.join()


def _shifted(clock: Any, amount: int) -> Any:
    return lambda: clock() + amount


def _replace(old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, name, new)


def _check(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
