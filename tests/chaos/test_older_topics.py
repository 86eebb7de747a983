"""Topics that are older than what was paid: the shuffler that released more refuses to go on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.high_water import HighWater

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def test_a_journal_behind_its_high_water_mark_is_refused_and_nothing_is_sent(
    bench: Any, deployed: Callable[..., Any], tmp_path: Path
) -> None:
    async with deployed(bench, "shuffler", "older", snapshot_interval_seconds=1000, paid_marks=str(tmp_path)) as run:
        await run.finish()
        before = await run.audit()
        high = HighWater(run.settings)
        paid = {home: len(values) - 1 for home, values in before.journals.items()}
        noted = {home: high.noted(home, before.journals[home][0]) for home in paid}
        assert all(noted.values()), "each release was noted"
        for home, sequence in paid.items():
            assert noted[home] <= sequence
            # As if one more release had been paid for, whose journal record these topics do not hold.
            high.raise_to(home, before.journals[home][0], sequence + 1)
        # Without its data directory the worker has the topics and the marks alone.
        again = await run.start(datadir=str(tmp_path / "empty"))
        code = await again.exit_code()
        assert code not in (0, -signal.SIGKILL), again.log.read_text()[-2000:]
        assert "the topics are an older copy" in again.log.read_text()
        assert await run.audit() == before
