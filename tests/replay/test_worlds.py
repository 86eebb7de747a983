"""Worlds and draws: equal draws for equal seeds, and one function that plays every system."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from hushstream.features.schema import Outcome, declare
from hushstream.replay.catalogue import known_worlds, make_world, option_names, options_of, run_with, world_options
from hushstream.replay.checks import environment, throughput
from hushstream.replay.studies.p2b.run import P2BOptions, clear_rewards, clear_sums_of, run_p2b, written_out
from hushstream.replay.study import studies
from hushstream.replay.worlds.draws import Draws, philox_blocks
from hushstream.replay.worlds.movielens import film_world
from hushstream.replay.worlds.multilabel import chi2_scores, multilabel_world
from hushstream.replay.worlds.shop import DECLARATION, INTERESTS, ITEMS, shop
from hushstream.replay.worlds.synthetic import synthetic
from hushstream.replay.worlds.world import World, WorldError
from hushstream.schemas.errors import HushstreamError

FILM_OPTIONS = {
    "users": None,
    "rounds": 6,
    "dimension": 4,
    "arms": 4,
    "arms_by": "genres",
    "like_at": 4,
    "history": 0.5,
    "digits": 1,
    "seed": 0,
}
TEXT_OPTIONS = {
    "users": 40,
    "rounds": 10,
    "dimension": 6,
    "arms": 8,
    "digits": 1,
    "seed": 0,
}


def _world(kind: str, corpus, ratings) -> World:
    if kind == "multilabel":
        return multilabel_world(corpus, **TEXT_OPTIONS)
    if kind in ("genres", "groups"):
        return film_world(ratings, **{**FILM_OPTIONS, "arms_by": kind})
    variant, outcome = kind.split("-")
    return synthetic(variant=variant, outcome=outcome, users=300)


KINDS = [
    "softmax-clicks",
    "softmax-gaussian",
    "linear-clicks",
    "multilabel",
    "genres",
    "groups",
]


@pytest.fixture(params=KINDS)
def world(request, corpus, ratings) -> World:
    return _world(request.param, corpus, ratings)


def _allowed_arms(world: World, users: np.ndarray, round_index: int) -> np.ndarray:
    """One arm a user, a different one for neighbours, eligible."""
    masks = world.eligible(users, round_index)
    if masks is None:
        return (users + round_index) % world.arms
    bits = np.unpackbits(np.frombuffer(b"".join(masks), np.uint8).reshape(users.size, -1), axis=1, bitorder="little")
    return np.array([np.flatnonzero(row)[-1] for row in bits])


class TestEveryWorld:
    def test_is_a_world(self, world):
        assert isinstance(world, World)
        assert world.public

    def test_values_do_not_depend_on_order_or_cut(self, world):
        users = np.arange(world.users)
        shuffled = np.random.default_rng(1).permutation(users)
        for round_index in (world.rounds - 1, 0):
            arms = _allowed_arms(world, users, round_index)
            contexts = world.contexts(users, round_index)
            rewards = world.rewards(users, round_index, arms)
            assert np.array_equal(world.contexts(shuffled, round_index), contexts[shuffled])
            assert np.array_equal(world.rewards(shuffled, round_index, arms[shuffled]), rewards[shuffled])
            single = np.array([users[-1]])
            assert np.array_equal(world.contexts(single, round_index)[0], contexts[-1])
            assert world.rewards(single, round_index, arms[-1:])[0] == rewards[-1]

    def test_a_world_built_again_is_the_same(self, request, world, corpus, ratings):
        again = _world(request.node.callspec.params["world"], corpus, ratings)
        users = np.arange(world.users)
        arms = _allowed_arms(world, users, 1)
        assert np.array_equal(again.contexts(users, 1), world.contexts(users, 1))
        assert np.array_equal(again.rewards(users, 1, arms), world.rewards(users, 1, arms))

    def test_contexts_are_histograms_and_rewards_lie_in_the_unit_interval(self, world):
        users = np.arange(world.users)
        contexts = world.contexts(users, 0)
        assert contexts.shape == (world.users, world.dimension)
        assert contexts.dtype == np.float32
        assert contexts.min() >= 0.0
        assert np.allclose(contexts.sum(axis=1), 1.0, atol=1e-5)
        rewards = world.rewards(users, 0, _allowed_arms(world, users, 0))
        assert rewards.dtype == np.float64
        assert rewards.min() >= 0.0
        assert rewards.max() <= 1.0

    @pytest.mark.parametrize(("user", "round_index", "arm"), [(-1, 0, 0), (10**9, 0, 0), (0, -1, 0), (0, 10**9, 0)])
    def test_users_and_rounds_that_are_not_there_are_refused(self, world, user, round_index, arm):
        with pytest.raises(WorldError, match=r"must be in 0\.\."):
            world.contexts(np.array([user]), round_index)
        with pytest.raises(WorldError, match=r"must be in 0\.\."):
            world.rewards(np.array([user]), round_index, np.array([arm]))

    def test_unknown_arms_and_uneven_lengths_are_refused(self, world):
        with pytest.raises(WorldError, match="every arm must be in"):
            world.rewards(np.array([0]), 0, np.array([world.arms]))
        with pytest.raises(WorldError, match="one arm a user"):
            world.rewards(np.array([0, 1]), 0, np.array([0]))


class TestSynthetic:
    def test_grid_contexts_are_uniform_over_the_grid(self):
        # d=3, q=1: 66 points; chi-squared with 65 degrees of freedom, bound at false alarm 1e-6 (fixed seed);
        # a law in which one tenth of the points is drawn half as often gives a statistic above 500.
        world = synthetic(dimension=3, users=66_000)
        points, counts = np.unique(np.round(world.contexts(np.arange(66_000), 0) * 10), axis=0, return_counts=True)
        assert len(points) == 66
        assert ((counts - 1000.0) ** 2 / 1000.0).sum() < 135.0

    @pytest.mark.parametrize(
        "options",
        [
            {"variant": "softmax"},
            {"variant": "linear"},
            {"variant": "softmax", "outcome": "gaussian", "reward_scale": 0.1},
            {"variant": "linear", "noise_std": 0.2},
        ],
    )
    def test_expected_is_the_mean_of_the_rewards(self, options):
        # 200,000 rewards; 5 standard errors, false alarm 6e-7 each (fixed seed); an expectation that forgets
        # the clipping of the third and fourth world is off by more than 20 standard errors.
        world = synthetic(users=200_000, **options)
        users = np.arange(world.users)
        arms = users % world.arms
        difference = world.rewards(users, 3, arms) - world.expected(users, 3, arms)
        assert abs(difference.mean()) < 5 * difference.std() / np.sqrt(users.size)

    def test_a_user_answers_each_round_and_arm_afresh(self):
        world = synthetic(weight_scale=0.0, arms=2)
        users = np.arange(2000)
        first = world.rewards(users, 0, np.zeros(2000, dtype=int))
        for other in (
            world.rewards(users, 1, np.zeros(2000, dtype=int)),
            world.rewards(users, 0, np.ones(2000, dtype=int)),
        ):
            # Fair independent coins agree in 1,000 +- 22 of 2,000; 5 deviations, fixed seed.
            assert abs((first == other).sum() - 1000) < 112

    def test_the_cold_figure_of_the_demo_world_is_reached(self):
        # Known: .153. From world to world it varies with standard deviation .044, so the mean of 20 has .010:
        # the bounds lie three of these or more from .14 and from .15.
        assert 0.11 < np.mean([_cold_reward(synthetic(users=400, seed=seed)) for seed in range(20)]) < 0.18

    def test_bad_values_are_refused_with_what_was_expected(self):
        for options, message in (
            ({"variant": "cubic"}, "variant must be one of softmax, linear"),
            ({"dimension": 1}, "dimension must be in"),
            ({"reward_scale": 1.5}, "reward_scale must be in"),
            ({"noise_std": float("nan")}, "noise_std must be in"),
            ({"users": 0}, "users must be in"),
        ):
            with pytest.raises(WorldError, match=message):
                synthetic(**options)


def _cold_reward(world: World) -> float:
    """Mean expected reward of textbook LinUCB (alpha 1, ridge 1), each user alone and from nothing."""
    users = np.arange(world.users)
    count, arms, width = users.size, world.arms, world.dimension
    inverse = np.tile(np.eye(width), (count, arms, 1, 1))
    moment = np.zeros((count, arms, width))
    total = 0.0
    for round_index in range(world.rounds):
        x = world.contexts(users, round_index).astype(np.float64)
        projected = np.einsum("nkij,nj->nki", inverse, x)
        bonus = np.sqrt(np.einsum("nki,ni->nk", projected, x))
        chosen = (np.einsum("nki,nki->nk", projected, moment) + bonus).argmax(axis=1)
        total += world.expected(users, round_index, chosen).mean()
        rewards = world.rewards(users, round_index, chosen)
        step = projected[users, chosen]
        scale = 1.0 + np.einsum("ni,ni->n", step, x)
        inverse[users, chosen] -= step[:, :, None] * step[:, None, :] / scale[:, None, None]
        moment[users, chosen] += rewards[:, None] * x
    return total / world.rounds


class TestMultiLabel:
    def test_no_instance_is_dealt_twice_and_short_runs_begin_long_ones(self, corpus):
        long = multilabel_world(corpus, **TEXT_OPTIONS)
        short = multilabel_world(corpus, **{**TEXT_OPTIONS, "rounds": 4})
        assert np.unique(long.dealt).size == 400
        assert np.array_equal(long.dealt[:4], short.dealt)

    def test_the_reward_is_whether_the_label_is_true(self, corpus):
        world = multilabel_world(corpus, **TEXT_OPTIONS)
        users = np.arange(40)
        for arm, round_index in product(range(8), (0, 9)):
            truth = corpus.labels[world.dealt[round_index], corpus.label_names.index(world.labels[arm])]
            assert np.array_equal(world.rewards(users, round_index, np.full(40, arm)), truth)

    def test_arms_are_the_most_frequent_labels_in_an_order_that_the_seed_decides(self, corpus):
        worlds = [multilabel_world(corpus, **{**TEXT_OPTIONS, "seed": seed}) for seed in range(4)]
        frequency = corpus.labels[:, 12:].sum(axis=0)
        expected = {f"class{number + 1:02d}" for number in np.argsort(-frequency, kind="stable")[:8]}
        assert all(set(world.labels) == expected for world in worlds)
        assert len({world.labels for world in worlds}) > 1

    def test_word_scores_are_the_chi_squared_statistic_of_the_library(self, corpus):
        from sklearn.feature_selection import chi2

        words, labels = corpus.labels[:, :12], corpus.labels[:, 12:]
        library = np.mean([chi2(words, labels[:, label])[0] for label in range(22)], axis=0)
        assert np.allclose(chi2_scores(words, labels), library, rtol=1e-6)

    def test_more_instances_than_there_are_is_refused(self, corpus):
        with pytest.raises(WorldError, match="instances are dealt once"):
            multilabel_world(corpus, **{**TEXT_OPTIONS, "users": 41})


class TestFilms:
    def test_contexts_come_from_earlier_ratings_and_rewards_from_later_ones(self, ratings):
        world = film_world(ratings, **FILM_OPTIONS)
        later = np.zeros(ratings.users.size, dtype=bool)
        for user in range(40):
            mine = np.flatnonzero(ratings.users == user)
            ordered = mine[np.lexsort((ratings.items[mine], ratings.seconds[mine]))]
            later[ordered[len(ordered) // 2 :]] = True
        swapped = ratings.stars.copy()
        swapped[later] = 6 - swapped[later]
        other = film_world(type(ratings)(*_columns(ratings, stars=swapped)), **FILM_OPTIONS)
        assert np.array_equal(world.user_contexts, other.user_contexts)
        assert not np.array_equal(world.answers, other.answers)
        assert world.answer_count.sum() == ratings.genres[ratings.items[later], 1:].sum()

    def test_every_rating_answers_once_before_any_answers_again(self, ratings):
        world = film_world(ratings, **{**FILM_OPTIONS, "rounds": 40})
        count = int(world.answer_count[3, 2])
        user, arm = np.array([3]), np.array([2])
        seen = [world.rewards(user, round_index, arm)[0] for round_index in range(2 * count)]
        assert seen[:count] == seen[count:]
        assert np.mean(seen[:count]) == pytest.approx(world.expected(user, 0, arm)[0])

    def test_an_arm_without_ratings_is_not_eligible_and_is_refused(self, ratings):
        keep = (ratings.users != 0) | (ratings.items % 4 != 1)
        fewer = type(ratings)(*(column[keep] for column in _columns(ratings)[:4]), *_columns(ratings)[4:])
        genres = fewer.genres.copy()
        genres[:, 2] = np.arange(60) % 4 == 1
        world = film_world(type(ratings)(*_columns(fewer, genres=genres)), **FILM_OPTIONS)
        arm = world.kinds.index("loud")
        user = int(np.flatnonzero(world.answer_count[:, arm] == 0)[0])
        mask = world.eligible(np.array([user]), 0)[0]
        assert not mask[arm // 8] >> (arm % 8) & 1
        with pytest.raises(WorldError, match="not eligible"):
            world.rewards(np.array([user]), 0, np.array([arm]))

    def test_leaving_users_out_moves_nobody_elses_answers(self, ratings):
        all_users = film_world(ratings, **FILM_OPTIONS)
        half = film_world(ratings, **{**FILM_OPTIONS, "users": 20})
        users = np.arange(20)
        arms = _allowed_arms(half, users, 0)
        for round_index in range(6):
            assert np.array_equal(half.rewards(users, round_index, arms), all_users.rewards(users, round_index, arms))


def _columns(ratings, **replaced):
    names = ("users", "items", "stars", "seconds", "genres", "genre_names")
    return tuple(replaced.get(name, getattr(ratings, name)) for name in names)


class TestByName:
    def test_the_built_in_worlds_are_known(self):
        assert {"synthetic", "tmc2007", "ml-100k"} <= set(known_worlds())

    def test_options_reach_the_world(self):
        world = make_world("synthetic", dimension=4, arms=3, seed=9)
        assert (world.dimension, world.arms) == (4, 3)
        assert world_options("synthetic")["variant"] == "softmax"

    def test_an_unknown_option_is_refused_with_the_known_ones(self):
        with pytest.raises(WorldError, match=r"no option colour; known: variant, users, .*seed"):
            make_world("synthetic", colour="red")

    def test_an_unknown_world_is_refused_with_the_known_ones(self):
        with pytest.raises(WorldError, match=r"unknown world 'mars'; known: .*synthetic"):
            make_world("mars")


class TestRealFiles:
    def test_tmc2007_has_the_size_that_the_paper_gives(self, data_folder):
        world = make_world("tmc2007", data_dir=str(data_folder))
        assert world.table_labels.shape == (28_596, 20)
        assert (world.users, world.rounds, world.dimension) == (275, 100, 20)
        assert world.table_labels.mean(axis=0).max() == pytest.approx(0.566, abs=0.001)

    def test_ml_100k_has_the_users_that_its_readme_gives(self, data_folder):
        world = make_world("ml-100k", data_dir=str(data_folder))
        assert world.users == 943
        rated = Counter(line.split("\t")[0] for line in (data_folder / "ml-100k" / "u.data").open())
        assert world.answer_count.sum() == sum(count - count // 2 for count in rated.values())


# Known answers of philox4x32-10 from the Random123 distribution: counter, key, result.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_blocks_are_those_of_the_published_generator(counter, key, answer):
    words = philox_blocks(np.array(counter, dtype=np.uint64)[:, None], key)
    assert tuple(int(word) for word in words[:, 0]) == answer


def test_a_draw_depends_only_on_its_address():
    draws = Draws(3, "contexts")
    users = np.arange(30_000)
    whole = draws.uniforms(users, 4, 5)
    shuffled = np.random.default_rng(0).permutation(users)
    assert np.array_equal(draws.uniforms(shuffled, 4, 5), whole[shuffled])
    assert np.array_equal(draws.uniforms(np.array([29_999]), 4, 5)[0], whole[29_999])
    assert np.array_equal(draws.uniforms(users[:7], 4, 2), whole[:7, :2])


def test_another_seed_purpose_user_round_or_lane_gives_other_numbers():
    users = np.arange(50)
    base = Draws(3, "a").uniforms(users, 4, 2)
    others = [
        Draws(4, "a").uniforms(users, 4, 2),
        Draws(3, "b").uniforms(users, 4, 2),
        Draws(3, "a").uniforms(users + 50, 4, 2),
        Draws(3, "a").uniforms(users, 5, 2),
        Draws(3, "a").uniforms(users, 4, 2, np.ones(50, dtype=np.int64)),
    ]
    for other in others:
        assert not np.isin(other, base).any()


def test_uniforms_and_normals_have_their_moments():
    # Fixed seed; each bound is 5 standard errors of the mean of 200,000 draws (false alarm 6e-7 each, if the
    # seed were new); a mean off by 2 % of the deviation would be seen with probability above .999.
    users = np.arange(200_000)
    uniforms = Draws(1, "u").uniforms(users, 0, 1)[:, 0]
    normals = Draws(1, "n").normals(users, 0)
    root = np.sqrt(users.size)
    assert abs(uniforms.mean() - 0.5) < 5 * np.sqrt(1 / 12) / root
    assert abs((uniforms**2).mean() - 1 / 3) < 5 * np.sqrt(4 / 45) / root
    assert abs(normals.mean()) < 5 / root
    assert abs((normals**2).mean() - 1.0) < 5 * np.sqrt(2) / root
    assert uniforms.min() >= 0.0
    assert uniforms.max() < 1.0


RELATED = {"users": 3, "arms": 4, "dimension": 3, "pool": 20, "rounds": 2}


def test_one_function_plays_both_systems_and_tells_how_far_it_is():
    told = []
    found = run_with(
        options_of("colin", {"world": RELATED}), progress=lambda done, total, what: told.append((done, total))
    )
    assert (found.system, found.facts["interactions"], told[-1]) == ("colin", 6, (6, 6))
    small = {"world": {"users": 10, "rounds": 2}, "config": {"encoder": {"codes": 4}}, "conditions": ("cold",)}
    personal = run_with(options_of("p2b", small))
    assert personal.system == "p2b"
    assert set(personal.throughput) == set(found.throughput)
    assert personal.environment == found.environment == environment()


def test_users_alone_are_as_good_beside_a_run_whose_own_alpha_is_a_bad_one():
    """With the run's alpha of 5 the baseline would explore in vain, so that sharing looked better than it is."""
    options = {"world": {**RELATED, "rounds": 20}}
    learners = [{"learner": {"alpha": one}} for one in (0.1, 5.0)]
    runs = [run_with(options_of("colin", {**options, "config": one})) for one in learners]
    assert runs[0].payoff.reference == runs[1].payoff.reference


@pytest.mark.parametrize(
    ("system", "options", "says"),
    [
        ("foo", {}, "system: expected p2b or colin or pdap or pdol or bgt, got 'foo'"),
        ("colin", {"conditions": ("cold",)}, r"expected options of colin \(dataset, .*rounds.*\); got conditions"),
        ("p2b", {"rounds": 3, "colour": 1}, r"expected options of p2b \(.*\); got colour, rounds"),
    ],
)
def test_what_a_system_does_not_take_is_refused_by_name(system, options, says):
    with pytest.raises(HushstreamError, match=says):
        options_of(system, options)


def test_every_system_can_be_told_where_to_run_and_what_to_play():
    shared = {"dataset", "runner", "seed", "world", "config", "folder", "bootstrap", "security", "verify"}
    for system in studies():
        assert shared < set(option_names(system))


def test_what_an_application_tells_after_a_decision_is_an_event_beside_it():
    counts = {"decided": 9, "rewarded": 3, "shown": 5, "slot": 7}
    found = throughput(2.0, 10, [0.5, 1.5], counts, {"learner": 1_000_000})
    assert found == {
        "seconds": 2.0,
        "decisions": 10.0,
        "decisions_per_second": 5.0,
        "events_per_second": 9.0,
        "decision_seconds_p50": 1.0,
        "decision_seconds_p99": pytest.approx(1.49),
        "peak_memory_bytes_learner": 1_000_000.0,
    }
    assert throughput(2.0, 10, [1.0], {}, {})["events_per_second"] == 5.0


# The shop with named features: a world like the others, played beside a model without privacy.


def test_a_visit_is_the_same_in_whatever_order_it_is_asked_for():
    world = shop(users=300, seed=4)
    assert isinstance(world, World)
    users = np.arange(300)
    contexts, arms = world.contexts(users, 3), users % world.arms
    backwards = world.contexts(users[::-1], 3)[::-1]
    assert contexts.tolist() == backwards.tolist()
    assert world.rewards(users, 3, arms).tolist() == world.rewards(users[::-1], 3, arms[::-1])[::-1].tolist()
    alone = [world.rewards(users[n : n + 1], 3, arms[n : n + 1])[0] for n in range(20)]
    assert world.rewards(users, 3, arms)[:20].tolist() == alone


def test_what_visitors_tell_is_what_is_declared():
    """No value is unknown, missing or outside its range: whoever reads the example may take it as one."""
    schema = declare(DECLARATION)
    for values in shop(users=500, seed=1).contexts(np.arange(500), 0):
        assert set(values) == set(DECLARATION)
        assert Outcome.UNKNOWN not in (found := schema.encode(values).outcomes).values(), found
        assert not found


def test_an_interest_has_its_item():
    """The mean chance of an interest's item is above .3 with it and below .15 without, over some hundred visits."""
    world, users = shop(users=3_000, seed=2), np.arange(3_000)
    chances = world.visits(users, 0).chances
    for interest, item in (("cooking", "cookbook"), ("sport", "running shoes")):
        there = np.array([interest in one["interests"] for one in world.contexts(users, 0)])
        assert chances[there, ITEMS.index(item)].mean() > 0.3
        assert chances[~there, ITEMS.index(item)].mean() < 0.15
    assert len(INTERESTS) < len(ITEMS)


def test_fewer_items_are_the_first_ones_and_impossible_options_are_refused():
    users, arms = np.arange(50), np.full(50, 2)
    assert shop(users=50, arms=3).expected(users, 1, arms).tolist() == shop(users=50).expected(users, 1, arms).tolist()
    for options in ({"arms": 1}, {"arms": len(ITEMS) + 1}, {"users": 0}, {"rounds": 0}, {"seed": -1}):
        with pytest.raises(WorldError, match=f"shop: {next(iter(options))} must be"):
            shop(**options)


def test_a_model_of_everything_in_clear_is_ridge_regression():
    """Against the textbook's normal equations in float64, one item at a time."""
    world, users = shop(users=40, seed=3), np.arange(40)
    chosen = np.random.default_rng(0).integers(0, world.arms, (40, world.rounds))
    rewards = np.stack([world.rewards(users, turn, chosen[:, turn]) for turn in range(world.rounds)], axis=1)
    prior = clear_sums_of(world, users, chosen, rewards).prior()
    contexts = np.concatenate(
        [written_out(world.schema, world.visits(users, turn).rows) for turn in range(world.rounds)]
    )
    means = prior.means[prior.kinds]
    for arm in range(world.arms):
        mine = chosen.T.ravel() == arm
        gram = contexts[mine].T.astype(float) @ contexts[mine] + 5.0 * np.eye(contexts.shape[1])
        wanted = np.linalg.solve(gram, contexts[mine].T @ rewards.T.ravel()[mine])
        assert means[arm] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.slow
def test_a_replay_of_named_features_is_equal_and_stands_beside_a_model_without_privacy():
    """300 slots: users who start from everything in clear earn more than cold ones. Seeded, so it does not flake."""
    result = run_p2b(P2BOptions(dataset="shop", contributors=300, evaluated=50, seed=5))
    assert result.verify is not None
    assert all(check.equal and not check.changed for check in result.verify.values())
    private, own, exact = (row["mean_reward"] for row in result.rows.plain)
    assert exact > max(private, own + 0.05)
    assert result.headline is not None
    assert result.headline.ratio


def test_users_of_a_model_in_clear_have_the_coins_of_the_world():
    world, users = shop(users=80, seed=6), np.arange(60, 80)
    shown = np.zeros((60, world.rounds), dtype=np.int64)
    prior = clear_sums_of(world, np.arange(60), shown, np.zeros(shown.shape)).prior()
    first, second = (clear_rewards(world, prior, users, 1) for _ in range(2))
    assert first.tolist() == second.tolist()
    assert set(np.unique(first)) <= {0.0, 1.0}
