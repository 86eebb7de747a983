"""Starts workers by forking from one process that has everything imported: a start costs no import.

Reads one JSON object a line: {"id", "factory", "arguments", "settings", "log", "crash"} starts a worker.
Answers with {"id", "pid"} and, when it has ended, {"id", "exit"} (negative: by that signal).

``crash`` = [{"stage", "partition", "sequence", "signal"}, ...]: the worker sends itself that signal when the stage
is first reached with at least that sequence number, one after the other; with {"call", "arguments"} in the place
of a signal it calls that function. ``before`` = {"call", "arguments"} is called before the worker begins. ``pace`` is
how many seconds each fold takes at least, until there is a file ``hurry``. ``ahead`` is how many seconds a fold waits
for each record that its partition is beyond the one of an armed crash. {"warm": factory, "arguments"} makes a machine
here, so that what is computed once in a process (the tables of the noise) is there for all workers to come.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faust

from hushstream.agents.partition.driver import PartitionDriver
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.worker import run_worker

LONGEST_SECONDS = 5.0
"""The most that a fold waits: a worker has to end within its patience."""


def load(factory: str) -> Callable[..., Any]:
    """``module:function`` or ``/path/to/file.py:function``."""
    place, _, name = factory.rpartition(":")
    if not place.endswith(".py"):
        found: Callable[..., Any] = getattr(importlib.import_module(place), name)
        return found
    spec = importlib.util.spec_from_file_location("hushstream_test_machines", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Callable[..., Any] = getattr(module, name)
    return made


def call(order: dict[str, Any]) -> None:
    load(order["call"])(**order["arguments"])


def observer(armed: list[dict[str, Any]], pace_seconds: float, hurry: Path) -> Callable[[str, int, int], None]:
    """Sends this process the signal of each crash once, in turn; holds each fold to its pace until told to hurry."""

    def observe(stage: str, partition: int, sequence: int) -> None:
        if stage == "folded" and pace_seconds and not hurry.exists():
            time.sleep(pace_seconds)
        if (
            armed
            and stage == armed[0]["stage"]
            and partition == armed[0]["partition"]
            and sequence >= armed[0]["sequence"]
        ):
            crash = armed.pop(0)
            if "call" in crash:
                print(f"observer: call {crash['call']} at {stage} {partition}/{sequence}", flush=True)
                call(crash)
                return
            print(f"observer: signal {crash['signal']} at {stage} {partition}/{sequence}", flush=True)
            os.kill(os.getpid(), crash["signal"])

    return observe


def hold_back(armed: list[dict[str, Any]], ahead_seconds: float) -> None:
    """Let folds that run ahead of an armed crash wait, while all else goes on.

    A slow machine may be long about a step that a thread or the broker takes part in. All would be folded meanwhile,
    and nothing be left to be killed in later.
    """
    fold_once = PartitionDriver._fold_once

    async def slowed(driver: PartitionDriver) -> bool:
        if armed and (ahead := driver._sequence - armed[0]["sequence"]) > 0:
            await asyncio.sleep(min(LONGEST_SECONDS, ahead * ahead_seconds))
        return await fold_once(driver)

    setattr(PartitionDriver, "_fold_once", slowed)  # noqa: B010 - a type checker refuses the assignment


def child(order: dict[str, Any]) -> int:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    if "before" in order:
        call(order["before"])
    make_machine, topics = load(order["factory"])(**order["arguments"])
    settings = WorkerSettings(**order["settings"])
    armed = list(order["crash"])
    if order["ahead"]:
        hold_back(armed, order["ahead"])
    observe = observer(armed, order["pace"], Path(order["hurry"]))
    return run_worker(settings, make_machine, topics, observe=observe)


def warm(order: dict[str, Any]) -> None:
    make_machine, _ = load(order["warm"])(**order["arguments"])
    make_machine(0)
    settle()


def settle() -> None:
    """Whatever is here now is shared by all workers: their garbage collector need not look at it."""
    gc.collect()
    gc.freeze()


def start(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.close(0)
        code = child(order)
    except BaseException:
        logging.exception("worker")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    running: dict[int, Any] = {}
    buffered = b""
    for factory in sys.argv[1:]:
        load(factory)
    _ = faust.App, faust.Worker  # imported when they are asked for
    settle()
    while True:
        if select.select([0], [], [], 0.02)[0]:
            received = os.read(0, 65536)
            if not received:
                break
            buffered += received
            *lines, buffered = buffered.split(b"\n")
            for line in lines:
                order = json.loads(line)
                if "warm" in order:
                    warm(order)
                    continue
                pid = start(order)
                running[pid] = order["id"]
                print(json.dumps({"id": order["id"], "pid": pid}), flush=True)
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                print(json.dumps({"id": running.pop(pid), "exit": code}), flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
