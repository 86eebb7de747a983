"""The collector's pace on a stream is measured by its worker, over all slots of the round that is timed."""

import pytest

from hushstream.replay.studies.bgt.bench import bgt_stream_rows


@pytest.mark.process
def test_a_collectors_worker_takes_all_slots_and_its_pace_is_told_of_clock_and_cpu():
    wall, cpu = bgt_stream_rows(lambda _: None, rounds=1, items=300, ratings=20, sent=3_000, short=5)
    assert (wall.unit, cpu.unit) == ("slots/s", "slots/CPU s")
    assert "300 items" in wall.name
    assert wall.value > 0
    assert cpu.value > 0
