"""What three slots give on worlds, what malicious clients do to them, and the paper's planner."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.replay.studies.bgt.experiments import (
    EACH,
    LEVELS,
    PaperTask,
    Planner,
    play_paper,
    row_guarantee,
    total_rho,
)
from hushstream.replay.studies.bgt.play import Task, baseline_of, configuration, open_round, play_world, scored
from hushstream.replay.studies.bgt.worlds import make_world, tastes
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.edge.agent import Ratings, make_slots
from hushstream.systems.bgt.guarantee import squared_clip
from hushstream.systems.bgt.records import NOTHING
from hushstream.systems.bgt.server import Server


def test_on_movielens_three_slots_beat_what_costs_nothing_by_its_margin(data_dir):
    """Seeded, one split, on which the margin is .0161."""
    world = make_world("ml-100k", data_dir).without_features()
    played = play_world(Task("ml-100k", 10.0, 0), world)
    local, bias = (baseline_of(world, name, 0)[0] for name in ("alone", "user and item bias"))
    assert played.rmse < local - 0.014
    # No privacy at all gives no more than another .006.
    assert bias > played.rmse - 0.006


def test_where_there_are_factors_three_slots_find_them_and_where_users_are_few_they_do_no_harm():
    many, few = (play_world(Task("tastes", 10.0, 0), world) for world in (tastes(), tastes(users=300)))
    assert many.factors == 2
    assert many.after[2] < many.after[1] < many.after[0]
    assert few.kinds == ("items", "pairs", "items")
    assert few.rmse < few.after[0] + 0.002


@pytest.mark.parametrize(("spread", "ratings"), [(0.0, 10), (0.0, 60), (0.03, 10)])
def test_what_a_device_has_alone_never_loses_to_a_constant(spread, ratings):
    """Where users are alike, a mean of ten ratings shrunk as in other worlds lost .003 of .187 to a constant."""
    world = tastes(users=400, ratings=ratings, user_spread=spread, strength=0.03, factors=1, seed=777)
    assert baseline_of(world, "alone", 777)[0] <= baseline_of(world, "constant", 777)[0] + 1e-4


def test_lost_slots_cost_little_until_most_are_lost():
    world = tastes()
    errors = [play_world(Task("tastes", 10.0, 0, lost=lost), world).rmse for lost in (0.0, 0.2, 0.9)]
    assert errors[0] < errors[1] < errors[2]
    assert errors[2] < baseline_of(world, "alone", 0)[0]


@pytest.mark.parametrize("malicious", [10, 50])
def test_malicious_clients_move_an_item_by_no_more_than_their_clips(malicious):
    """Without noise: a slot in an honest one's place moves an item's sum by 2 C at most, and its mean by that over N.

    What popularity says of items moves as well, by far less than the slack of half that is there.
    """
    task = Task("tastes", None, 0)
    world = make_world(task.world)
    config = configuration(task, world)
    known = world.split(task.seed).known(config)
    honest = _learned(known, config, world.features)
    for item in np.argsort(-np.bincount(known.items, minlength=world.item_count), kind="stable")[:8].tolist():
        attacked = _learned(known, config, world.features, malicious, item)
        moved = honest.model.biases[item] - attacked.model.biases[item]
        assert 0 < moved < 2 * malicious / honest.counts[item]


def _learned(known: Ratings, config: BgtConfig, features: np.ndarray, malicious: int = 0, item: int = 0) -> Server:
    """The server after the round of items, where the first clients put all of their clip against one item."""
    server = Server(config, features)
    collector = open_round(server.asked, config, 0)
    slots = make_slots(known, collector.asked, config, np.arange(known.users, dtype=np.uint64))
    slots.items[:malicious], slots.values[:malicious], slots.weights[:malicious] = NOTHING, 0, 0
    if malicious:
        slots.items[:malicious, 0] = item
        slots.values[:malicious, 0] = -int(squared_clip("items", config.release) ** 0.5)
    collector.take(slots, [user.to_bytes(16, "big") for user in range(known.users)])
    server.take(collector.release())
    return server


def test_scores_are_those_of_their_definitions():
    found, truth = np.array([0.9, 0.2, 0.6, 0.4]), np.array([0.8, 0.8, 0.1, 0.3])
    rmse, f1, balanced = scored(found, truth)
    assert rmse == pytest.approx(np.sqrt((0.01 + 0.36 + 0.25 + 0.01) / 4))
    assert f1 == pytest.approx(0.5)
    assert balanced == pytest.approx(0.5)
    assert scored(np.ones(4), truth)[1:] == (pytest.approx(2 / 3), 0.5)


def test_the_planner_tries_every_level_and_then_hardly_prefers_any():
    """Rewards as large as any that were seen: probabilities stay in [.15, .35], as SD of rewards is far below 1."""
    for sign in ("printed", "mended"):
        planner = Planner(np.linspace(1 / 100, 1 / 70, LEVELS), 100, 943, sign, 0)
        draw, chosen = np.random.default_rng(0), []
        for _ in range(80):
            context = draw.random(4)
            chosen.append(planner.choose(context))
            planner.learn(chosen[-1], context, 0.001 * (chosen[-1] + draw.standard_normal()))
        assert chosen[: LEVELS * EACH] == [level for level in range(LEVELS) for _ in range(EACH)]
        chances = np.array(planner.probabilities)
        assert np.allclose(chances.sum(axis=1), 1)
        assert chances.min() > 0.15
        assert chances.max() < 0.35


def test_the_price_as_printed_rewards_spending_and_the_mended_one_saving():
    levels = np.linspace(1 / 100, 1 / 70, LEVELS)
    scores = {}
    for sign in ("printed", "mended"):
        planner = Planner(levels, 100, 100, sign, 0)
        for number in range(LEVELS * EACH + EACH):
            planner.learn(number % LEVELS, np.zeros(1), 0.0)
        planner.choose(np.zeros(1))
        planner._dual = 100.0
        scores[sign] = planner._scores(np.zeros(1))
    assert (np.diff(scores["printed"]) > 0).all()
    assert (np.diff(scores["mended"]) < 0).all()


@pytest.mark.slow_statistics
def test_the_papers_form_runs_as_long_as_its_budget():
    runs = {
        schedule: play_paper(PaperTask("tastes", schedule, "gaussian", 0, 20))
        for schedule in ("fedsgd", "even-100", "even-82", "planner", "adpml")
    }
    assert runs["fedsgd"].rounds == runs["even-100"].rounds == runs["adpml"].rounds == 20
    assert runs["even-82"].rounds == 16
    assert 14 <= runs["planner"].rounds <= 20
    assert runs["fedsgd"].rmse <= runs["even-100"].rmse
    assert total_rho() == pytest.approx(3.19, abs=0.01)
    assert row_guarantee().cost.delta_units == 1 << 80


def test_laplace_rows_are_worse_than_gaussian_ones_at_the_same_claim():
    gaussian, laplace = (play_paper(PaperTask("tastes", "even-82", law, 0, 20)).rmse for law in ("gaussian", "laplace"))
    assert gaussian < laplace
