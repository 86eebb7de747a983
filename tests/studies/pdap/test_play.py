"""Runs of vendors: a function of their task, whatever the number of processes, and sharing teaches what it should.

Seeds are fixed and shared by what is compared, so the outcomes are fixed: false alarms cannot come by chance.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hushstream.counting import PureEpsilon
from hushstream.counting.tree import BinaryTree
from hushstream.replay.runners.grid import play_all
from hushstream.replay.studies.pdap.forms import HORIZON, TreeNoise
from hushstream.replay.studies.pdap.play import Task, make_world, play
from hushstream.replay.studies.pdap.worlds.vendors import vendors
from hushstream.replay.worlds.world import WorldError

SMALL = Task("blocks", 1.0, 6_000, 0, options=(("arms", 30),))


def greedy(**changes):
    return float(np.mean([play(replace(SMALL, seed=seed, **changes)).greedy for seed in range(3)]))


def test_a_run_is_a_function_of_its_task():
    assert play(SMALL) == play(SMALL)
    assert play(SMALL) != play(replace(SMALL, seed=1))


def test_processes_do_not_change_results():
    tasks = [SMALL, replace(SMALL, form="binary"), replace(SMALL, seed=2)]
    assert play_all(play, tasks, "test", processes=1) == play_all(play, tasks, "test", processes=2)


def test_sharing_without_noise_beats_keeping_apart_and_noise_costs():
    exact, blocks, tiny = greedy(form="exact"), greedy(), greedy(epsilon=0.01)
    apart = greedy(form="alone-exact")
    assert exact > apart + 0.05
    assert exact > blocks > tiny


def test_blocks_beat_counters_released_after_each_event():
    assert greedy(epsilon=0.3) > greedy(epsilon=0.3, form="binary") + 0.05


def test_every_form_and_placement_plays():
    for form in ("own-statistics", "alone-blocks", "negative-digit", "exponential"):
        assert 0.05 < play(replace(SMALL, form=form, contexts=2_000)).greedy < 1
    home = play(replace(SMALL, release=(("placement", "home"),), contexts=2_000))
    assert 0.05 < home.greedy < 1
    assert sorted(home.online) == [2_000]


def test_online_accuracy_is_read_at_the_checkpoints():
    assert sorted(play(SMALL).online) == [5_000, 6_000]


class TestTrees:
    @pytest.mark.parametrize("kind", ["binary", "negative-digit"])
    def test_noise_has_the_variance_of_its_nodes(self, kind):
        # 20,000 counters: the variance of a sum of Laplace draws is known to within 1.6 % (one standard error, at one
        # node); the bound is six of them. A forgotten level factor is off by a factor of 25 or more.
        tree = TreeNoise(kind, 0.5, 0)
        for leaves in (1, 7, 1000):
            noise, nodes = tree.prefixes(np.arange(20_000), np.full(20_000, leaves))
            assert np.var(noise) == pytest.approx(nodes[0] * tree.variance, rel=0.1)
            assert len(set(nodes.tolist())) == 1

    def test_a_binary_prefix_has_a_node_for_each_one_of_its_length(self):
        tree = TreeNoise("binary", 1.0, 0)
        _, nodes = tree.prefixes(np.zeros(4, dtype=np.int64), np.array([1, 3, 8, 1023]))
        assert nodes.tolist() == [1, 2, 1, 10]
        plan = BinaryTree(budget=PureEpsilon(1.0), horizon=HORIZON)
        assert tree.levels == plan.levels
        assert tree.variance == pytest.approx(plan.noise.variance)

    def test_prefixes_that_share_nodes_share_their_noise(self):
        tree = TreeNoise("binary", 0.5, 0)
        noise, _ = tree.prefixes(np.zeros(3, dtype=np.int64), np.array([4, 2, 6]))
        again, _ = tree.prefixes(np.zeros(1, dtype=np.int64), np.array([4]))
        assert noise[0] == again[0]
        # 6 = 4 + the node of the leaves 5 and 6, which is not that of 1 and 2.
        assert noise[2] - noise[0] != noise[1]


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
