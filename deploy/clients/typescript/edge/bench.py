"""Measure a decision: ``python deploy/clients/typescript/edge/bench.py FOLDER`` of the built package.

The deployment has 83 cells and 25 items. In Chromium the user has learned from 20 interactions: `agent` measures the
decision alone, `device` a decision of a device that writes its state to IndexedDB in the background. In Python it
measures a driver with its state in a file, and the driver's import. All figures are milliseconds; those named CPU
exclude time in which the machine did something else.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

sys.path.insert(0, str(Path(__file__).parents[4] / "tests" / "shared"))

import golden  # beside this file

from browser import browser  # the tests' own
from hushstream.edge import DeviceDriver

_DECLARED: dict[str, dict[str, Any]] = {
    "country": {"kind": "category", "vocabulary": [f"c{number}" for number in range(20)]},
    "device": {"kind": "category", "vocabulary": [f"d{number}" for number in range(5)]},
    "channel": {"kind": "category", "vocabulary": [f"s{number}" for number in range(8)]},
    "age": {"kind": "number", "range": [16, 96]},
    "spend": {"kind": "number", "range": [1, 10000], "scale": "log"},
    "tenure": {"kind": "number", "range": [0, 3650]},
    "tags": {"kind": "tags", "vocabulary": [f"t{number}" for number in range(12)], "most": 8},
    "hour": {"kind": "time_of_day"},
}
_ITEMS = 25
_MEASURE = """(async () => {
  const edge = await import("/dist/edge.min.js");
  const file = await (await fetch("/agreement.json")).json();
  const agreement = new edge.Agreement(file);
  const size = agreement.layout.arms * agreement.layout.cells;
  const model = edge.SparseModel.of(agreement.layout.arms, agreement.layout.cells,
    Float64Array.from({ length: size }, Math.random), new Float64Array(size).fill(0.01), 0.08);
  const agent = new edge.EdgeAgent(agreement, await edge.Key.drawn(), edge.UNSPENT, { version: 1, model });
  const values = (number) => ({ country: `c${number % 20}`, device: "d1", channel: "s2", age: 16 + number % 80,
    spend: 1 + number, tenure: number % 3650, tags: ["t1", "t5"], hour: number % 24 });
  const percentile = (times, share) => times.sort((a, b) => a - b)[Math.floor(times.length * share)];
  const measured = async (count, one) => {
    const times = [];
    for (let number = 0; number < count; number += 1) {
      const begun = performance.now();
      await one(number);
      times.push(performance.now() - begun);
    }
    return { p50: percentile(times, 0.5), p99: percentile(times, 0.99) };
  };
  const { schema } = agreement.layout;
  for (let number = 0; number < 20; number += 1) {
    agent.decide(`w${number}`, schema.encode(values(number)).row, number);
    agent.rewarded(`w${number}`, 1);
  }
  const decided = await measured(5000, (number) => {
    agent.decide(`e${number}`, schema.encode(values(number)).row, 100 + number);
    if (number % 50 === 0) agent.advance(1e13);
  });
  let visits = 0;
  const device = await edge.EdgeDevice.open({ agreement: file, url: location.href, store: edge.browserStore("bench"),
    mark: edge.browserMark("bench"), now: () => 1e12 + 60_000 * visits });
  // A visit a minute by the device's clock: what was shown and not rewarded is learned from within a later decision.
  const whole = await measured(3000, async (number) => {
    visits = number;
    await device.decide(`e${number}`, values(number));
    if (number % 2) void device.shown(`e${number}`);
  });
  await device.flush();
  return { cells: agreement.layout.cells, items: agreement.layout.arms, agent: decided, device: whole };
})()"""


async def measure(package: Path) -> dict[str, Any]:
    """Milliseconds of a decision in Chromium, by the name of the measurement."""
    agreed = _agreed()

    async def page(_: web.Request) -> web.Response:
        # An isolated page has a clock of 5 microseconds, other pages of 100 or more.
        isolated = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
        return web.Response(text="<!doctype html><title>bench</title>", content_type="text/html", headers=isolated)

    async def agreement(_: web.Request) -> web.Response:
        return web.Response(text=agreed, content_type="application/json")

    app = web.Application()
    app.add_routes([web.get("/", page), web.get("/agreement.json", agreement), web.static("/dist", package / "dist")])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        with tempfile.TemporaryDirectory() as profile:
            async with browser(Path(profile)) as tab:
                await tab.visit(f"http://localhost:{runner.addresses[0][1]}/")
                return dict(await tab.evaluate(_MEASURE))
    finally:
        await runner.cleanup()


_VISITS = 3000
_IMPORTS = 5


def _agreed() -> str:
    return json.dumps(golden.agreement(golden.config_of(_DECLARED, _ITEMS, slots=50_000)))


def measure_python() -> dict[str, float]:
    """Milliseconds of a decision of `DeviceDriver`, with a visit a minute by its clock, and of the fastest import."""
    with tempfile.TemporaryDirectory() as folder:
        agreement, now = Path(folder) / "agreement.json", [1e9]
        agreement.write_text(_agreed(), encoding="utf-8")
        driver = DeviceDriver(agreement, Path(folder) / "state", "http://localhost", clock=lambda: now[0])

        def visit(number: int) -> None:
            driver.decide(f"e{number}", _values(number))

        found = {}
        for turn, (name, clock) in enumerate((("decide", time.perf_counter), ("decide_cpu", time.thread_time))):
            times = []
            # Every visit has other values, so that nothing computed for an earlier row is used again.
            for number in range(turn * _VISITS, (turn + 1) * _VISITS):
                now[0] += 60
                times.append(_taken(clock, visit, number))
                if number % 2:
                    driver.shown(f"e{number}", 0)
            times.sort()
            found |= {f"{name}_p50": times[_VISITS // 2], f"{name}_p99": times[_VISITS * 99 // 100]}
            now[0] += 86_400
        found["import_cpu"] = min(_import_cpu() for _ in range(_IMPORTS))
        return {name: round(value, 3) for name, value in found.items()}


def _values(number: int) -> dict[str, Any]:
    return {
        "country": f"c{number % 20}",
        "device": "d1",
        "channel": "s2",
        "age": 16 + number % 80,
        "spend": 1 + number,
        "tenure": number % 3650,
        "tags": ["t1", "t5"],
        "hour": number % 24,
    }


def _taken(clock: Callable[[], float], work: Callable[[int], None], number: int) -> float:
    begun = clock()
    work(number)
    return 1000 * (clock() - begun)


def _import_cpu() -> float:
    """CPU milliseconds of a process that only imports the device."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    subprocess.run([sys.executable, "-c", "import hushstream.edge"], check=True)
    return 1000 * (spent() - before)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    print(json.dumps({"chromium": asyncio.run(measure(folder)), "python": measure_python()}, indent=2))
