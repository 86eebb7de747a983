"""Runs of vendors: a function of their task, whatever the number of processes, and sharing teaches what it should.

Seeds are fixed and shared by what is compared, so the outcomes are fixed: false alarms cannot come by chance.
"""

from dataclasses import replace

import numpy as np
import pytest

from hushstream.replay.runners.to_end import play_all
from hushstream.replay.studies.pdap.play import Task, make_world, play
from hushstream.replay.studies.pdap.worlds import vendors
from hushstream.replay.worlds.world import WorldError

SMALL = Task("blocks", 1.0, 6_000, 0, options=(("arms", 30),))


def greedy(**changes):
    return float(np.mean([play(replace(SMALL, seed=seed, **changes)).greedy for seed in range(3)]))


def test_a_run_is_a_function_of_its_task():
    assert play(SMALL) == play(SMALL)
    assert play(SMALL) != play(replace(SMALL, seed=1))


def test_processes_do_not_change_results():
    tasks = [SMALL, replace(SMALL, form="alone"), replace(SMALL, seed=2)]
    assert play_all(play, tasks, "test", processes=1) == play_all(play, tasks, "test", processes=2)


def test_sharing_without_noise_beats_keeping_apart_and_noise_costs():
    exact, blocks, tiny = greedy(form="exact"), greedy(), greedy(epsilon=0.01)
    apart = greedy(form="alone")
    assert exact > apart + 0.05
    assert exact > blocks > tiny


def test_counters_at_home_play():
    home = play(replace(SMALL, release=(("placement", "home"),), contexts=2_000))
    assert 0.05 < home.greedy < 1
    assert sorted(home.online) == [2_000]


def test_online_accuracy_is_read_at_the_checkpoints():
    assert sorted(play(SMALL).online) == [5_000, 6_000]


class TestWorlds:
    def test_specialised_vendors_own_their_quadrants_and_alike_ones_do_not(self):
        apart, alike = vendors(arms=500), vendors(arms=500, overlap=1.0)
        for world, least, most in ((apart, 0.9, 1.0), (alike, 0.2, 0.3)):
            left_low = ((world.centres < 0.5).all(axis=1) & (world.owners == 0)).sum() / 500
            assert least <= left_low <= most
        assert "specialised" in apart.name
        assert "overlapping" in alike.name

    def test_drift_changes_the_end_and_not_the_beginning(self):
        still, moving = vendors(arms=50), vendors(arms=50, drift=1.0)
        some = still.arrivals(200, np.random.default_rng(0))
        arms = np.arange(200)
        assert np.array_equal(still.means(some, arms, 0.0), moving.means(some, arms, 0.0))
        assert not np.allclose(still.means(some, arms, 1.0), moving.means(some, arms, 1.0))
        assert np.array_equal(still.means(some, arms, 0.0), still.means(some, arms, 1.0))

    def test_contexts_lie_in_the_square_and_homes_are_even(self):
        some = vendors().arrivals(8_000, np.random.default_rng(0))
        assert some.contexts.min() >= 0
        assert some.contexts.max() <= 1
        assert some.contexts.dtype == np.float32
        assert (np.abs(np.bincount(some.homes) - 2_000) < 300).all()

    @pytest.mark.parametrize("option", [{"vendors": 0}, {"arms": 0}, {"overlap": 1.5}, {"drift": -0.1}])
    def test_options_out_of_range_are_refused(self, option):
        with pytest.raises(WorldError, match=f"vendors: {next(iter(option))} must be"):
            vendors(**option)

    def test_films_of_movielens_are_shared_out(self, data_dir):
        world = make_world("ml-vendors", (("data_dir", data_dir),), 0)
        some = world.arrivals(500, np.random.default_rng(0))
        chances = world.means(some, np.arange(500), 0.5)
        assert np.bincount(world.owners).max() - np.bincount(world.owners).min() <= 1
        assert 0.02 <= chances.min() < chances.max() <= 0.98
        assert some.contexts.min() >= 0
        assert some.contexts.max() <= 1
