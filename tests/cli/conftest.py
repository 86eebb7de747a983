"""The command line in this process: what a user types, and the exit code, output and errors that they get."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hushstream.broker import EmbeddedBroker
from hushstream.cli.main import main

SHOP = """\
deployment: shop
items: {capacity: 4}
features: {dimension: 3, digits: 1}
expected_slots: 10000
encoder: {codes: 4}
"""


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON document that it must be."""
        return json.loads(self.out)


Command = Callable[..., Answer]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run ``hushstream ARGUMENTS``; an exception other than its exit is a traceback, and fails the test."""

    def run(*arguments: str | Path) -> Answer:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Answer(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def refused(cli: Command) -> Callable[..., str]:
    """Run a command that must be refused with exit code 1 and one line on standard error; gives that line."""

    def run(*arguments: str | Path) -> str:
        answer = cli(*arguments)
        assert answer.code == 1, answer
        assert answer.err.startswith("hushstream: "), answer
        assert answer.err.count("\n") == 1, answer
        return answer.err

    return run


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Write a configuration: that of a small shop, with replacements and additions."""

    def write(*replace: tuple[str, str], add: str = "", encoding: str = "utf-8", name: str = "shop.yaml") -> Path:
        text = SHOP
        for old, new in replace:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / name
        path.write_bytes((text + add).encode(encoding))
        return path

    return write


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """An embedded broker on a thread of its own."""
    started: list[str] = []
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with EmbeddedBroker() as broker:
            started.append(broker.bootstrap)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield started[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()
