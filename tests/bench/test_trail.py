"""From a reward to its model: worked out by hand, and read from the logs of a run."""

from hushstream.replay.bench.journal import Folded
from hushstream.replay.bench.trail import Trail

CLICKS_MS = (100, 101, 102, 103, 104, 105)


def _decisions(log_time_ms: int, clicks: tuple[int, int], slots: int = 0, models: tuple[int, int] = (0, 0)) -> Folded:
    return Folded(log_time_ms, (0, 0), clicks, 0, b"", models, slots)


def test_a_model_waits_from_the_last_click_before_its_last_slot_to_its_first_use() -> None:
    decisions = (
        _decisions(110, (0, 2), slots=2),
        _decisions(120, (2, 4), slots=1),
        _decisions(130, (4, 6), slots=1),
        _decisions(140, (0, 0), models=(1, 2)),
        _decisions(150, (0, 0), models=(2, 3)),
    )
    # The first window ends with the third slot (the tick between the slots is none), the second with the fourth.
    trail = Trail(decisions, CLICKS_MS, slots=(0, 1, 3, 4), windows=(4, 5), models=((1, 1), (2, 2)))
    assert trail.waits_ms() == [140 - 103, 150 - 105]


def test_a_click_counts_that_was_folded_in_an_earlier_batch_than_the_slot() -> None:
    decisions = (_decisions(110, (0, 3)), _decisions(120, (0, 0), slots=1), _decisions(125, (0, 0), models=(1, 2)))
    assert Trail(decisions, CLICKS_MS, slots=(0,), windows=(1,), models=((1, 1),)).waits_ms() == [125 - 102]


def test_models_before_the_first_reward_and_those_that_nobody_used_have_no_wait() -> None:
    decisions = (_decisions(110, (0, 0), slots=1), _decisions(120, (0, 1), slots=1, models=(1, 2)))
    trail = Trail(decisions, CLICKS_MS, slots=(0, 1), windows=(1, 2), models=((1, 1), (2, 2)))
    assert trail.waits_ms() == []
