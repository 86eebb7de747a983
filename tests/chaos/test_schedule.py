"""A schedule of faults is a function of its seed, can be repeated from its lines, and covers what it must."""

KINDS = ("counter", "related learner", "aggregator")


def test_a_seed_gives_one_schedule_and_every_line_gives_its_lane_back(schedule):
    lanes = schedule.draw_lanes(3, KINDS, 60, 5)
    assert lanes == schedule.draw_lanes(3, KINDS, 60, 5) != schedule.draw_lanes(4, KINDS, 60, 5)
    assert [schedule.parse(str(lane)) for lane in lanes] == lanes


def test_every_kind_is_killed_and_stopped_at_every_step_and_meets_every_other_fault(schedule):
    lanes = schedule.draw_lanes(3, KINDS, 60, 5)
    assert sum(len(lane.faults) for lane in lanes) >= 60
    for kind in KINDS:
        faults = [fault for lane in lanes if lane.kind == kind for fault in lane.faults]
        for operation in ("kill", "stop"):
            assert {f.step for f in faults if f.operation == operation} == set(schedule.steps_of(kind))
        assert {*schedule.ONCE, *schedule.last_of(kind), "clock"} <= {fault.operation for fault in faults}
        assert {f.amount > 0 for f in faults if f.operation == "clock"} == {True, False}


def test_marks_are_lost_where_there_are_some(schedule):
    last = {kind: schedule.last_of(kind) for kind in KINDS}
    assert last == {
        "counter": ("lost-inputs", "lost-marks"),
        "related learner": ("lost-inputs", "lost-marks"),
        "aggregator": ("lost-inputs",),
    }


def test_nothing_follows_a_fault_behind_which_bytes_differ_however_many_are_drawn(schedule):
    for seed in range(20):
        for lane in schedule.draw_lanes(seed, KINDS, 200, 5):
            assert len(lane.faults) == 5
            assert not {fault.operation for fault in lane.faults[:-1]} & {*schedule.LAST}
