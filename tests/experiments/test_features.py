"""The experiment of declared features: its worlds are what they say, and its parts are those of the product."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from hushstream.features.kinds import Outcome
from hushstream.features.schema import declare
from hushstream.replay.experiments.findings import Scale
from hushstream.replay.studies.p2b.features import Line, Task, play, preferred, run_features
from hushstream.replay.worlds.mixed_table import ITEMS, EmbeddedUsers, MixedTable, catalogue
from hushstream.systems.p2b.edge.agent import Candidates
from hushstream.systems.p2b.server.prior import item_vectors


def test_a_visit_follows_from_seed_user_and_round_alone():
    for world in (MixedTable(3, 4), EmbeddedUsers(3, 4)):
        users = np.arange(50)
        together, turned = world.visits(users, 2), world.visits(users[::-1].copy(), 2)
        assert (together.rows == turned.rows[::-1]).all()
        assert together.chances == pytest.approx(turned.chances[::-1])
        assert world.schema.read(together.rows.tobytes()).tobytes() == together.rows.tobytes()


def test_the_mixed_table_is_the_one_that_is_described():
    """Shares over 20,000 users, each within five standard errors."""
    world = MixedTable(1)
    visits = world.visits(np.arange(20_000), 0)
    assert world.schema.cells + 1 == 83
    assert visits.chances.mean() == pytest.approx(0.08, abs=0.006)
    assert (visits.rows["country"] == 20).mean() == pytest.approx(0.03, abs=0.007)
    for name in ("age", "spend", "tenure"):
        assert (visits.rows[name] == 65535).mean() == pytest.approx(0.05, abs=0.008)
    tags = np.unpackbits(visits.rows["tags"], axis=1, bitorder="little")[:, :12].mean(axis=0)
    assert tags == pytest.approx(0.55 * np.arange(1, 13) ** -0.6, abs=0.02)
    again = world.visits(np.arange(20_000), 1)
    assert (visits.rows["device"] != again.rows["device"]).mean() == pytest.approx(1 - (0.8**2 + 0.2**2 / 4), abs=0.02)
    assert (visits.rows["tags"] == again.rows["tags"]).all()
    assert len(world.pairs) == 4
    encoded = world.schema.encode_columns({"age": np.array([200.0])})
    assert encoded.share("age", Outcome.CLIPPED) == 1.0


def test_effects_of_items_follow_their_features_as_far_as_the_world_says():
    """Share of the variance of items' mean effects that 14 coordinates explain; by chance 14 of 200, seeded."""
    found = []
    for alike in (0.0, 1.0):
        world = MixedTable(3, 200, alike=alike)
        chances = world.visits(np.arange(2_000), 0).chances
        effects = np.log(chances / (1 - chances)).mean(axis=0)
        places = item_vectors(declare(ITEMS), np.concatenate([declare(ITEMS).read(one) for one in _rows(world.items)]))
        places = np.hstack([np.ones((200, 1)), places])
        rest = effects - places @ np.linalg.lstsq(places, effects, rcond=None)[0]
        found.append(1 - rest.var() / effects.var())
    assert found[0] < 0.2
    assert found[1] > 0.8


def _rows(items):
    return [declare(ITEMS).encode(item).row for item in items]


def test_a_client_gives_users_of_a_catalogue_as_the_world_has_them():
    world, users = catalogue(users=60, arms=40, seed=3), np.arange(60)
    for number, context in enumerate(world.contexts(users, 1)):
        row = world.schema.read(world.schema.encode(context).row)
        assert row.tobytes() == world.visits(users, 1).rows[number : number + 1].tobytes(), number
    arms = np.full(60, 7)
    assert set(world.rewards(users, 1, arms)) <= {0.0, 1.0}
    assert (world.expected(users, 1, arms) == world.visits(users, 1).chances[:, 7]).all()


def test_slots_hold_what_candidates_choose():
    """Which turn a slot holds, in frequencies over 40,000 users each way: .013 is four standard errors, seeded."""
    pattern, chance, rng = [0, 1, 0, 1], 0.8, np.random.default_rng(0)
    users = 40_000
    clicks = np.tile(np.array(pattern)[:, None], (1, users))
    vectors = preferred(clicks, rng.random((users, 2)), chance)
    counted: Counter[int | None] = Counter()
    for _ in range(users):
        kept: Candidates[int] = Candidates()
        words = rng.integers(0, 1 << 63, 5, dtype=np.int64)
        for turn, click in enumerate(pattern):
            kept = kept.observe(turn, bool(click), chance, int(words[turn]) * 2)
        counted[kept.chosen(chance, int(words[4]) * 2)] += 1
    for turn in range(4):
        assert (vectors == turn).mean() == pytest.approx(counted[turn] / users, abs=0.013)


def test_with_almost_no_noise_linear_sums_keep_the_gain():
    """One small world at eps 200: above half of the non-private gain (.91 to 1.01 over ten seeds)."""
    task = Task("embedding", 3, 5, (Line("cold"), Line("raw", 4_000), Line("linear", 4_000, 200.0)), 400)
    cold, raw, linear = (values[0] for values in play(task).values())
    assert raw > cold + 0.02
    assert linear - cold > 0.5 * (raw - cold)
    assert play(task) == play(replace(task))


@pytest.mark.sweep
@pytest.mark.slow
def test_a_quick_run_has_every_form_beside_learners_alone():
    found = run_features(Scale(quick=True))
    assert {row["form"] for row in found.rows} == {"cold", "non-private", "linear sums", "codes"}
    for row in found.rows:
        private = row["form"] in ("linear sums", "codes")
        assert private == ("kept" in row) == ("joined" in row) == bool(row["marks"])
    assert {row["epsilon"] for row in found.rows if row["marks"]} == {1.0}
