"""Worlds for collaborative bandits: the contract, the paper's recipe for users and graph, and Last.fm's conversion."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from hushstream.replay.catalogue import known_worlds, make_world
from hushstream.replay.datasets.builtin import DatasetError
from hushstream.replay.studies.colin.play import relation_graph
from hushstream.replay.studies.colin.worlds import (
    CollaborativeWorld,
    Listening,
    cluster_people,
    colin,
    columns_to_one,
    friendships_between,
    lastfm_world,
    number,
    pick_without_replacement,
    read_lastfm,
    relate,
    unit_rows,
)
from hushstream.replay.worlds.draws import Draws
from hushstream.replay.worlds.world import WorldError
from hushstream.schemas.errors import HushstreamError

VARIANTS = ("uniform", "nonnegative", "unit-sphere", "masked")


def _listening() -> Listening:
    """40 people in two circles of friends and one pair, 60 artists with 20 tags; person p likes tags near p."""
    generator = np.random.default_rng(3)
    tagged = np.array([(artist, (artist + shift) % 20) for artist in range(60) for shift in (0, 0, 1)])
    heard = np.array([(person, artist) for person in range(40) for artist in range(60) if (artist - person) % 20 < 4])
    circles = [range(19), range(19, 38), range(38, 40)]
    edges = {(a, b) for circle in circles for a in circle for b in circle if a != b and generator.random() < 0.9}
    edges |= {(38, 39), (0, 19)}
    both = sorted(edges | {(b, a) for a, b in edges})
    return number(heard, np.array(both), tagged)


@pytest.fixture(scope="module")
def listening() -> Listening:
    return _listening()


def _world(kind: str) -> CollaborativeWorld:
    if kind == "lastfm":
        return lastfm_world(_listening(), users=3, rounds=50, dimension=6, arms=8, seed=4)
    return colin(variant=kind, users=6, rounds=50, dimension=8, arms=5, pool=40, seed=4)


@pytest.fixture(scope="module", params=[*VARIANTS, "lastfm"])
def world(request) -> CollaborativeWorld:
    return _world(request.param)


def test_a_world_whose_own_ties_no_deployment_has_is_refused_with_what_plays_it():
    """A deployment's users have an own tie of 1; clusters of Last.fm have as many as friendships within."""
    ties = np.array([[3.0, 1.0], [1.0, 5.0]])
    clusters = SimpleNamespace(name="lastfm", users=2, relation=columns_to_one(ties), graph=ties - np.diag([3.0, 5.0]))
    with pytest.raises(HushstreamError, match=r"own tie is 1, .* state learner\.algorithm=goblin or linucb"):
        relation_graph(clusters, "colin")
    assert np.array_equal(relation_graph(clusters, "goblin").weights, clusters.graph)
    own = relation_graph(_world("uniform"), "colin").weights
    assert np.allclose(columns_to_one(own + np.eye(6)), _world("uniform").relation)


class TestEveryCollaborativeWorld:
    def test_keeps_the_contract_and_names_its_variant(self, world):
        assert isinstance(world, CollaborativeWorld)
        assert world.name.endswith(f"/{world.variant}")
        assert world.public
        assert world.dimension == world.arms * world.feature_dimension

    def test_a_context_is_the_matrix_of_the_shown_arms_row_by_row(self, world):
        users = np.arange(world.users)
        contexts = world.contexts(users, 3)
        assert contexts.dtype == np.float32
        assert contexts.shape == (world.users, world.dimension)
        shape = (world.users, world.arms, world.feature_dimension)
        assert np.array_equal(contexts.reshape(shape), world.features(users, 3))

    def test_values_do_not_depend_on_order_or_cut(self, world):
        users = np.arange(world.users)
        shuffled = np.random.default_rng(1).permutation(users)
        for round_index in (world.rounds - 1, 0):
            arms = (users + round_index) % world.arms
            contexts, rewards = world.contexts(users, round_index), world.rewards(users, round_index, arms)
            expected = world.expected(users, round_index, arms)
            assert np.array_equal(world.contexts(shuffled, round_index), contexts[shuffled])
            assert np.array_equal(world.rewards(shuffled, round_index, arms[shuffled]), rewards[shuffled])
            assert np.array_equal(world.expected(shuffled, round_index, arms[shuffled]), expected[shuffled])
            assert np.array_equal(world.contexts(users[-1:], round_index)[0], contexts[-1])
            assert world.rewards(users[-1:], round_index, arms[-1:])[0] == rewards[-1]

    def test_a_world_built_again_is_the_same(self, request, world):
        again = _world(request.node.callspec.params["world"])
        users = np.arange(world.users)
        arms = np.zeros(world.users, dtype=np.int64)
        assert np.array_equal(again.contexts(users, 2), world.contexts(users, 2))
        assert np.array_equal(again.rewards(users, 2, arms), world.rewards(users, 2, arms))
        assert np.array_equal(again.relation, world.relation)

    def test_no_feature_is_longer_than_1_and_rewards_lie_in_the_unit_interval(self, world):
        users = np.arange(world.users)
        longest = 0.0
        for round_index in range(20):
            rows = world.features(users, round_index).astype(np.float64)
            longest = max(longest, np.linalg.norm(rows, axis=2).max())
            for arm in range(world.arms):
                rewards = world.rewards(users, round_index, np.full(world.users, arm))
                assert rewards.min() >= 0.0
                assert rewards.max() <= 1.0
        assert 0.999999 < longest <= world.largest_feature_norm(2) <= 1.0
        assert world.largest_feature_norm(1) > longest

    def test_relation_has_columns_of_sum_1_and_the_graph_no_loops(self, world):
        assert world.relation.min() >= 0.0
        assert np.allclose(world.relation.sum(axis=0), 1.0, atol=1e-12)
        assert np.array_equal(world.graph, world.graph.T)
        assert not world.graph.diagonal().any()
        # Who is tied by the graph is tied by W, in both directions.
        off = ~np.eye(world.users, dtype=bool)
        assert np.array_equal((world.relation > 0)[off], (world.graph > 0)[off])

    def test_users_rounds_and_arms_that_are_not_there_are_refused(self, world):
        nobody, first = np.array([world.users]), np.array([0])
        with pytest.raises(WorldError, match=r"every user must be in 0\.\."):
            world.contexts(nobody, 0)
        with pytest.raises(WorldError, match=r"round must be in 0\.\."):
            world.rewards(first, world.rounds, first)
        with pytest.raises(WorldError, match=r"every arm must be in 0\.\."):
            world.rewards(first, 0, np.array([world.arms]))


class TestColin:
    def test_mean_rewards_weigh_the_users_parameters_by_the_row_of_w(self):
        world = colin(users=4, dimension=5, arms=3, pool=9, noise_std=0.0)
        users = np.arange(4)
        arms = np.array([0, 1, 2, 0])
        rows = world.features(users, 7)[users, arms].astype(np.float64)
        direct = [sum(world.relation[u, j] * rows[u] @ world.parameters[j] for j in range(4)) for u in range(4)]
        assert np.allclose(world.expected(users, 7, arms), np.clip(direct, 0, 1), atol=1e-12)
        assert np.allclose(np.linalg.norm(world.parameters, axis=1), 1.0)

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_expected_is_the_mean_of_rewards_clipping_included(self, variant):
        # 3,200 rewards: their mean differs from that of their expectations by 5 standard errors with
        # probability below 6e-7; without the clipping's correction it would be off by more in unit-sphere.
        world = colin(variant=variant, users=8, rounds=400, dimension=4, noise_std=0.3)
        users, arms = np.arange(8), np.arange(8)
        rewards = np.array([world.rewards(users, t, arms) for t in range(400)])
        expected = np.array([world.expected(users, t, arms) for t in range(400)])
        gap = rewards - expected
        assert abs(gap.mean()) < 5 * gap.std() / np.sqrt(gap.size)

    def test_the_arms_of_a_round_are_different_and_equally_likely(self):
        # 6,000 draws of 3 out of 6: chi-squared with 5 degrees of freedom exceeds 40 with probability 2e-7.
        world = colin(users=6, rounds=1000, dimension=3, arms=3, pool=6)
        counts: Counter[int] = Counter()
        for round_index in range(1000):
            shown = world.shown(np.arange(6), round_index)
            assert all(len(set(row)) == 3 for row in shown.tolist())
            counts.update(shown.ravel().tolist())
        assert sum((counts[arm] - 3000) ** 2 / 3000 for arm in range(6)) < 40

    def test_edges_below_the_quantile_are_deleted_and_nobodys_tie_to_himself(self):
        parameters = np.abs(np.random.default_rng(2).standard_normal((7, 4)))
        parameters /= np.linalg.norm(parameters, axis=1, keepdims=True)
        similar = parameters @ parameters.T
        pairs = similar[np.triu_indices(7, 1)]
        relation, graph = relate(parameters, 0.5)
        assert graph.sum() / 2 == (pairs >= np.quantile(pairs, 0.5)).sum() == 11
        kept = similar * (graph + np.eye(7))
        assert np.allclose(relation, kept / kept.sum(axis=0))

    def test_users_who_point_apart_have_no_edge(self):
        relation, graph = relate(np.array([[1.0, 0.0], [-1.0, 0.0]]), 0.0)
        assert np.array_equal(relation, np.eye(2))
        assert not graph.any()

    def test_only_signed_features_have_signs(self):
        for variant in VARIANTS:
            assert (colin(variant=variant).pool.min() < 0.0) == (variant == "unit-sphere")

    def test_masked_arms_come_in_groups(self):
        pool = colin(variant="masked").pool
        patterns = {tuple(row) for row in (pool > 0).tolist()}
        assert 2 <= len(patterns) <= 5

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"variant": "normal"}, "variant must be one of uniform, nonnegative, unit-sphere, masked, got 'normal'"),
            ({"users": 0}, r"users must be in 1\.\.1024, got 0"),
            ({"edge_quantile": 1.5}, r"edge_quantile must be in 0\.\.1, got 1.5"),
            ({"noise_std": -0.1}, "noise_std must be in"),
            ({"arms": 20, "pool": 10}, "arms must be at most pool = 10, got 20"),
        ],
    )
    def test_bad_options_are_refused(self, options, message):
        with pytest.raises(WorldError, match=message):
            colin(**options)


class TestLastfm:
    def test_one_artist_of_a_round_was_listened_to_and_it_alone_is_rewarded(self, listening):
        world = lastfm_world(listening, users=3, rounds=50, dimension=6, arms=8, seed=0)
        heard = {tuple(pair) for pair in listening.listened.tolist()}
        users = np.arange(3)
        for round_index in range(50):
            artists, place = world.shown(users, round_index)
            rewards = np.array([world.rewards(users, round_index, np.full(3, arm)) for arm in range(8)]).T
            assert np.array_equal(rewards.argmax(axis=1), place)
            assert (rewards.sum(axis=1) == 1.0).all()
            for user in users:
                shown = artists[user].tolist()
                people = np.flatnonzero(world.cluster_of == user)
                # Somebody of the cluster heard this artist and none of the others.
                assert any([(p, a) in heard for a in shown] == [i == place[user] for i in range(8)] for p in people)
                assert len(set(shown)) == 8

    def test_every_pair_of_a_cluster_comes_up_and_every_place_is_used(self, listening):
        world = lastfm_world(listening, users=3, rounds=4000, dimension=6, arms=8, seed=0)
        cluster = int(world.cluster_of[39])
        seen, places = set(), set()
        for round_index in range(4000):
            artists, place = world.shown(np.array([cluster]), round_index)
            seen.add(int(artists[0, place[0]]))
            places.add(int(place[0]))
        people = np.flatnonzero(world.cluster_of == cluster)
        assert seen == {a for p, a in listening.listened.tolist() if p in people}
        assert places == set(range(8))

    def test_small_components_are_clusters_of_their_own_and_the_largest_is_cut(self, listening):
        clusters = cluster_people(listening, 3)
        assert len({clusters[38], clusters[39]}) == 1
        circles = [set(clusters[:19].tolist()), set(clusters[19:38].tolist())]
        assert all(len(circle) == 1 for circle in circles)
        assert len({int(clusters[38]), *circles[0], *circles[1]}) == 3

    def test_friendships_between_clusters_are_counted_once(self, listening):
        counts = friendships_between(listening, cluster_people(listening, 3), 3)
        assert counts.trace() + np.triu(counts, 1).sum() == len(listening.friends) / 2
        assert np.triu(counts, 1).sum() == 1.0

    def test_too_few_or_too_many_clusters_are_refused(self, listening):
        for clusters in (1, 41):
            with pytest.raises(WorldError, match=rf"users must be in 2\.\.39 \(components, people\), got {clusters}"):
                cluster_people(listening, clusters)

    def test_a_friendship_in_one_direction_is_refused(self):
        heard = np.array([[1, 5], [2, 6]])
        with pytest.raises(WorldError, match="both directions"):
            number(heard, np.array([[1, 2]]), np.array([[5, 1], [6, 1]]))
        with pytest.raises(WorldError, match="every friend to have listened to an artist"):
            number(heard, np.array([[1, 3], [3, 1]]), np.array([[5, 1], [6, 1]]))

    def test_absent_files_are_refused_with_the_place(self, tmp_path):
        with pytest.raises(DatasetError, match=r"artists\.dat is missing"):
            read_lastfm(tmp_path)

    def test_absent_or_damaged_tag_assignments_are_refused(self, data_folder, tmp_path):
        source = data_folder / "hetrec2011-lastfm-2k"
        for name in ("artists.dat", "tags.dat", "user_artists.dat", "user_friends.dat"):
            (tmp_path / name).write_bytes((source / name).read_bytes())
        with pytest.raises(WorldError, match=r"tag assignments in .*user_taggedartists.dat, got no such file"):
            read_lastfm(tmp_path)
        (tmp_path / "user_taggedartists.dat").write_bytes((source / "user_taggedartists.dat").read_bytes())
        with pytest.raises(WorldError, match="expected 186479 rows as published, got 108469"):
            read_lastfm(tmp_path)
        (tmp_path / "user_taggedartists_2.dat").write_bytes(b"userID\n")
        with pytest.raises(DatasetError, match="expected 1881680 bytes, got 7"):
            read_lastfm(tmp_path)

    def test_the_published_data_give_the_papers_sizes(self, data_folder):
        world = make_world("lastfm", data_dir=str(data_folder))
        assert (world.users, world.arms, world.feature_dimension) == (100, 25, 25)
        assert (len(world.cluster_of), len(world.pool)) == (1892, 12_523)
        assert world.shares.sum() == pytest.approx(1.0)
        assert np.linalg.matrix_rank(world.relation) == 100


def test_both_worlds_are_known_by_name():
    assert {"colin", "lastfm"} <= set(known_worlds())


def test_every_set_is_equally_likely():
    # 20,000 draws of 2 out of 4 (6 sets): chi-squared with 5 degrees of freedom, above 40 with probability 2e-7.
    picked = pick_without_replacement(Draws(0, "test"), np.arange(20_000), 0, 2, 4)
    sets = Counter(tuple(sorted(row)) for row in picked.tolist())
    assert len(sets) == 6
    assert sum((count - 20_000 / 6) ** 2 / (20_000 / 6) for count in sets.values()) < 40


def test_rows_and_columns_without_a_scale_are_refused():
    with pytest.raises(WorldError, match="row of zeros"):
        unit_rows(np.zeros((1, 3)))
    with pytest.raises(WorldError, match="positive sum in each column"):
        columns_to_one(np.array([[1.0, 0.0], [1.0, 0.0]]))
    with pytest.raises(WorldError, match="weights >= 0"):
        columns_to_one(np.array([[1.0, -1.0], [1.0, 2.0]]))
