"""The soak counts what it promises to count, and fails beyond its cap."""

from __future__ import annotations

import pytest

from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.stream.soak import SoakSizes, run_soak, soak_table


def quiet(text: str) -> None:
    pass


@pytest.mark.sweep(keep=["300"])
@pytest.mark.parametrize("resident", [None, 300])
def test_every_user_has_their_interactions_and_a_fresh_machine_takes_over(resident: int | None) -> None:
    sizes = SoakSizes(users=3000, visits=2, interactions=2, resident=resident, points=4)
    soak = run_soak(sizes, quiet)
    assert (soak.points[-1].users, soak.points[-1].decisions) == (3000, 12_000)
    assert [point.users for point in soak.points] == sorted(point.users for point in soak.points)
    assert all(point.snapshot_bytes > 100_000 for point in soak.points)
    assert soak.recovery_seconds > 0
    assert soak_table(soak, sizes).row_count == len(soak.points)


def test_a_process_beyond_the_cap_is_no_result() -> None:
    with pytest.raises(BenchFailed, match="expected at most 1000 bytes, got "):
        run_soak(SoakSizes(users=3000, visits=1, interactions=1, points=2, cap_bytes=1000), quiet)
