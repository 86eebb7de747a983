"""Run the tutorials without changes: the steps of each page in order, in an empty folder, on a broker of their own.

    python deploy/docs/site/stories.py [PAGE ...]

Only the ports are replaced, so that other programs on the machine are not disturbed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

from blocks import ROOT, Block, all_blocks

_PORTS = ("9092", "8080", "8765", "8766")
"""The ports that the tutorials name: the broker's, the gateway's, and those of the demo's page and gateway."""

_BEGIN = """set -euo pipefail
end() { status=$?; trap - EXIT; kill $(jobs -p) 2>/dev/null || true; wait || true; exit $status; }
trap end EXIT
"""
_END_OF_FILE = "END-OF-THE-BLOCK"

_told: list[subprocess.Popen[bytes]] = []


def script_of(steps: Iterable[Block]) -> str:
    """One shell script of all steps of a page."""
    return _BEGIN + "\n".join(_step(block) for block in steps)


def _step(block: Block) -> str:
    if block.file is not None:
        return f"cat > {block.file} <<'{_END_OF_FILE}'\n{block.code}{_END_OF_FILE}"
    if block.language == "python":
        return f"python - <<'{_END_OF_FILE}'\n{block.code}{_END_OF_FILE}"
    return f"set -x\n{block.code}{{ set +x; }} 2>/dev/null"


def with_free_ports(script: str) -> str:
    """The same script with free ports in place of the named ones."""
    held = [socket.socket() for _ in _PORTS]
    for port, one in zip(_PORTS, held, strict=True):
        one.bind(("127.0.0.1", 0))
        script = script.replace(port, str(one.getsockname()[1]))
    for one in held:
        one.close()
    return script


def play(page: str, steps: Iterable[Block]) -> bool:
    """Run the story of a page; if a step fails, print its output."""
    began = time.monotonic()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment.pop("HUSHSTREAM_BOOTSTRAP", None)
    with (
        tempfile.TemporaryDirectory(prefix="hushstream-story-") as folder,
        tempfile.TemporaryFile("w+", encoding="utf-8") as output,
    ):
        script = with_free_ports(script_of(steps))
        told = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _told.append(told)
        held = told.wait() == 0
        output.seek(0)
        text = output.read()
    print(f"{page}: {'as it stands' if held else 'FAILED'}, {time.monotonic() - began:.0f} s")
    if not held or "--verbose" in sys.argv:
        print(text)
    return held


def _end(number: int, frame: object) -> None:
    """End the brokers and workers that the stories started, too."""
    for told in _told:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(told.pid, signal.SIGTERM)
    os._exit(128 + number)


def main() -> int:
    """See the module; returns the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    asked = [Path(name).resolve() for name in sys.argv[1:] if not name.startswith("--")]
    told = [block for block in all_blocks() if block.is_story]
    stories = {page: list(steps) for page, steps in groupby(told, lambda block: block.page)}
    wanted = {page: steps for page, steps in stories.items() if not asked or ROOT / page in asked}
    if not wanted:
        print(f"expected pages with a story ({', '.join(stories)}), got none of them", file=sys.stderr)
        return 1
    # Stories mostly wait, so all of them run at the same time.
    with ThreadPoolExecutor(len(wanted)) as pool:
        held = list(pool.map(play, wanted, wanted.values()))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
