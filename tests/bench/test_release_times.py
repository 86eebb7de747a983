"""The rows on releases measure windows of nulls and of reports that are all there; no time is asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from hushstream.replay.bench.rows import BenchRow
from hushstream.replay.bench.stream import release_times
from hushstream.systems.p2b.contribution.slots import unpack
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.shuffler.windows import ClosedWindow

RELEASED: list[tuple[P2BSystem, Sequence[bytes]]] = []


@pytest.fixture(scope="module")
def rows() -> list[BenchRow]:
    release = release_times.release_window

    def noted(
        system: P2BSystem, key: object, nonce: object, partition: int, closed: ClosedWindow, running: object
    ) -> object:
        RELEASED.append((system, closed.contents))
        return release(system, key, nonce, partition, closed, running)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release_times, "SLOTS", (50, 200))
        patch.setattr(release_times, "release_window", noted)
        return release_times.release_time_rows(lambda text: None, rounds=1)


def test_each_mode_has_its_times_and_one_target_for_the_largest_window(rows: list[BenchRow]) -> None:
    assert [row.unit for row in rows] == ["CPU ms", "CPU ms", "x"] * 2 * len(release_times.MODES)
    assert [row.target for row in rows if row.target] == ["at most 1.1"] * len(release_times.MODES)
    assert all(math.isfinite(row.value) and row.value > 0 for row in rows)


def test_a_window_holds_nulls_alone_or_reports_alone(rows: list[BenchRow]) -> None:
    assert rows
    seen = set()
    for system, contents in RELEASED:
        held = {unpack(content, system.codes, system.config.arms, 1) is not None for content in contents}
        assert len({id(content) for content in contents}) == len(contents), "as from a log: no content is shared"
        seen.add((system.config.release.mode, len(contents), *held))
    assert seen == {(mode, slots, held) for mode in ("slot-sums", "tuples") for slots in (50, 200)
                    for held in (True, False)}  # fmt: skip
