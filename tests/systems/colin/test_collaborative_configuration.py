"""Collaborative deployments: impossible values are refused by name; graphs and relations are what papers say."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import yaml

from hushstream.agents.worker.deployment import KeySource, load, prepare, written
from hushstream.agents.worker.roles import role_work
from hushstream.cli.main import main
from hushstream.engine.configuration import ExplorationConfig, PartitionConfig, PrivacyConfig
from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.plan import Audience
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.keys import key_path, write_key
from hushstream.privacy.promises.page import page_text
from hushstream.privacy.promises.promise import Form
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.configuration import (
    CollaborationConfig,
    CollaborativeConfig,
    ContinualConfig,
    FeatureConfig,
    collaborative_digest,
)
from hushstream.systems.colin.deployment import RELATION, CollaborativeSystem, inputs_of, read_relation
from hushstream.systems.colin.plan import plan, share
from hushstream.systems.colin.relation import Relation, RelationError, SocialGraph
from hushstream.systems.colin.system import KIND, declare

MIXED = CollaborationConfig(clean_share=0.05)
GRAPH = SocialGraph.of_edges([("ann", "bob", 1.0)], ("ann", "bob", "cyd"))


def declared(graph=GRAPH, **changes):
    return declare(CollaborativeSystem.of(make(**changes), graph))


def make(**changes):
    return CollaborativeConfig(**{"deployment": "small", "arms": 4, "features": FeatureConfig(3), **changes})


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"mechanism": "noisy-reward", "noise_at": "learner", "noise": "gaussian"}, "release.noise"),
        ({"mechanism": "noisy-reward", "noise_at": "learner", "noise": "k-norm"}, "release.noise"),
        ({"mechanism": "blt", "noise": "k-norm"}, "release.noise"),
        ({"mechanism": "exact", "noise_at": "learner"}, "release.noise_at"),
        ({"mechanism": "blt"}, "release.noise"),
        ({"horizon": 100, "rewards_per_user": 101}, "privacy.units_per_person"),
        ({"noise_at": "learner", "seconds": 60}, "release.window_seconds"),
    ],
)
def test_values_that_do_not_go_together_name_the_field_to_change(values, field):
    with pytest.raises(ConfigurationError, match=rf"^{field}: expected "):
        ContinualConfig(**values)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"partitions": PartitionConfig(shuffler=2)}, "partitions.counter"),
        (
            {
                "learner": CollaborationConfig(alpha="lemma"),
                "release": ContinualConfig(mechanism="blt", noise="gaussian"),
            },
            "learner.alpha",
        ),
        (
            {
                "learner": CollaborationConfig(alpha="lemma"),
                "release": ContinualConfig(noise="k-norm"),
            },
            "learner.alpha",
        ),
        ({"learner": MIXED, "release": ContinualConfig(mechanism="blt", noise="gaussian")}, "learner.clean_share"),
        ({"learner": replace(MIXED, alpha="lemma"), "release": ContinualConfig(mechanism="exact")}, "learner.alpha"),
    ],
)
def test_what_only_other_deployments_may_have_is_refused_by_name(changes, field):
    with pytest.raises(ConfigurationError, match=rf"^{field}: expected "):
        make(**changes)


# The graph.


@pytest.mark.parametrize("option", ["--graph", "--users"])
@pytest.mark.parametrize("name", ["missing", "binary"])
def test_an_edge_list_that_cannot_be_read_is_refused_by_its_path(tmp_path, capsys, option, name):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "edges").write_text("ann,bob\n", encoding="utf-8")
    config = make(privacy=PrivacyConfig("unprotected"))
    (tmp_path / "deployment.yaml").write_text(yaml.safe_dump(written(config)), encoding="utf-8")
    files = {"--graph": tmp_path / "edges", option: tmp_path / name}
    words = [str(word) for pair in files.items() for word in pair]
    with pytest.raises(SystemExit) as ended:
        main(["prepare", str(tmp_path), str(tmp_path / "made"), *words])
    assert ended.value.code == 1
    assert f"{name}: expected a file of readable text, got " in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_a_user_without_any_tie_is_refused_where_colin_needs_one():
    config = make(learner=CollaborationConfig(self_weight=0.0))
    with pytest.raises(RelationError, match="expected a tie for every user, got none for 'cyd'"):
        CollaborativeSystem.of(config, GRAPH)
    assert CollaborativeSystem.of(make(), GRAPH).nodes == 3


def test_a_prepared_graph_is_read_back_and_another_one_is_refused(tmp_path):
    system = prepare(tmp_path, make(), inputs_of(GRAPH))
    again = load(tmp_path)
    assert again.digest == system.digest
    assert np.array_equal(again.core.graph.weights, GRAPH.weights)
    other = SocialGraph.of_edges([("ann", "cyd", 1.0)], GRAPH.users)
    with pytest.raises(ConfigurationError, match=r"relation\.json: expected the given graph or none, got another"):
        prepare(tmp_path, make(), inputs_of(other))
    with pytest.raises(ConfigurationError, match=r"deployment\.yaml: the configuration of a deployment is frozen"):
        prepare(tmp_path, make(arms=5), inputs_of(GRAPH))


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[]", b'[["ann"]]', b'[["ann"], [[0, 1, 1]]]', b"\xff"])
def test_a_missing_or_damaged_graph_is_refused_by_its_path(content):
    files = {} if content is None else {RELATION: content}
    with pytest.raises(ConfigurationError, match=r"^folder/relation\.json: expected users and their ties"):
        read_relation(Artefacts("folder", files))


# Keys.


def test_a_role_without_its_zones_key_or_of_another_system_is_refused(tmp_path):
    system = declared()
    for role, zone in (("learner", "edge"), ("counter", "counter")):
        with pytest.raises(HushstreamError, match=zone):
            role_work(role, system, KeySource(tmp_path))
    path = key_path(tmp_path, "counter")
    write_key(path)
    assert role_work("counter", system, KeySource(tmp_path)).topics.inputs == ("rewards",)
    path.chmod(0o644)
    with pytest.raises(HushstreamError, match="counter"):
        role_work("counter", system, KeySource(tmp_path))
    with pytest.raises(HushstreamError, match=r"expected a role of deployment small \(learner, counter, aggregator\)"):
        role_work("shuffler", system, KeySource(seed=1))
    edge = declared(release=ContinualConfig(noise_at="learner"))
    with pytest.raises(
        HushstreamError, match=r"expected a role of deployment small \(learner, aggregator\), got 'counter'"
    ):
        role_work("counter", edge, KeySource(seed=1))


# Sizes, digest, guarantee.


def test_records_too_large_to_publish_are_refused_before_anything_runs():
    big = FeatureConfig(128)
    many = SocialGraph.of_edges([], [f"user-{number}" for number in range(20)])
    with pytest.raises(ConfigurationError, match=r"expected a model \(4 \* users \* d \* \(d \+ 2\)\) of at most"):
        CollaborativeSystem.of(make(features=big), many)
    with pytest.raises(ConfigurationError, match="expected a release"):
        CollaborativeSystem.of(make(features=big, release=ContinualConfig(rows=4096)), GRAPH)
    with pytest.raises(ConfigurationError, match="expected a context"):
        CollaborativeSystem.of(make(features=big, arms=4096), GRAPH)


def test_every_tie_moves_the_digest_and_words_about_the_guarantee_do_not():
    base = make()
    heavier = SocialGraph.of_edges([("ann", "bob", 1.5)], GRAPH.users)
    renamed = SocialGraph.of_edges([("ann", "bob", 1.0)], ("ann", "bob", "dan"))
    assert len({collaborative_digest(base, graph.canonical()) for graph in (GRAPH, heavier, renamed)}) == 3
    said = replace(base, privacy=PrivacyConfig("unprotected"), mode="shadow")
    assert collaborative_digest(said, GRAPH.canonical()) == collaborative_digest(base, GRAPH.canonical())
    assert said == base


def guarantee(**release):
    values = {"mechanism": "negative-digit", "horizon": 64, "rewards_per_user": 10, **release}
    return CollaborativeSystem.of(make(release=ContinualConfig(**values)), GRAPH).guarantee()


def test_noise_at_the_edge_is_promised_there():
    assert guarantee(noise_at="learner").zone == "edge"
    noisy = guarantee(noise_at="learner", mechanism="noisy-reward", epsilon=2.0)
    assert noisy.zone == "edge"
    assert noisy.epsilon_micro == 2_000_000


def test_the_relation_matrix_does_not_enter_what_one_reward_moves():
    lone = CollaborativeSystem.of(make(), SocialGraph.of_edges([], ("ann", "bob")))
    tied = CollaborativeSystem.of(make(), SocialGraph.of_edges([("ann", "bob", 9.0)]))
    assert lone.guarantee().sensitivity == tied.guarantee().sensitivity > 2**24


def random_graph(users: int, seed: int) -> SocialGraph:
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((users, users)) * (rng.random((users, users)) < 0.4), 1)
    return SocialGraph(tuple(f"u{node:03}" for node in range(users)), upper + upper.T)


def complete(users: int) -> SocialGraph:
    return SocialGraph(tuple(map(str, range(users))), np.ones((users, users)) - np.eye(users))


def test_users_of_an_edge_list_are_sorted_unless_they_are_listed():
    text = "# friends\ncarol,alice\n\nbob\tcarol\t2.5\n"
    assert SocialGraph.parse(text).users == ("alice", "bob", "carol")
    listed = SocialGraph.parse(text, ["carol", "dave", "alice", "bob"])
    assert listed.users == ("carol", "dave", "alice", "bob")
    assert listed.index["bob"] == 3
    assert listed.weights.tolist() == [[0, 0, 1, 2.5], [0, 0, 0, 0], [1, 0, 0, 0], [2.5, 0, 0, 0]]


def test_a_graph_is_read_from_files(tmp_path):
    edges, users = tmp_path / "edges.csv", tmp_path / "users.txt"
    edges.write_text("b,ä\n", encoding="utf-8")
    users.write_text("c\nä\nb\n", encoding="utf-8")
    assert SocialGraph.read(edges, users).users == ("c", "ä", "b")
    with pytest.raises(RelationError, match="readable UTF-8 file"):
        SocialGraph.read(tmp_path / "none.csv")


def test_the_canonical_form_depends_on_the_graph_and_not_on_how_it_was_written():
    users = ["a", "b", "c"]
    one = SocialGraph.parse("a,b,2\nc,b", users).canonical()
    assert SocialGraph.parse("b,c,1.0\nb,a,2", users).canonical() == one
    others = ["a,b,2\nc,b,1.5", "a,b,2", "a,b,2\nc,b\na,c"]
    different = {SocialGraph.parse(text, users).canonical() for text in others}
    different.add(SocialGraph.parse("a,b,2\nc,b", ["b", "a", "c"]).canonical())
    assert len(different) == 4
    assert one not in different


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\na,x", "edge 2: expected listed users, got 'x'"),
        ("a,a", "edge 1: expected two users, got 'a' tied to itself"),
        ("a,b\nb,a,3", "edge 2: expected each pair once, got 'b' and 'a' again"),
        ("a,b,-1", "edge 1: expected a finite weight above 0, got -1"),
        ("a,b,0", "edge 1: expected a finite weight above 0, got 0"),
        ("a,b,nan", "edge 1: expected a finite weight above 0, got nan"),
        ("a,b,inf", "edge 1: expected a finite weight above 0, got inf"),
        ("a,b,heavy", "line 1: expected a number for the weight"),
        ("a,b\n\na", "line 3: expected user,user or user,user,weight, got 1 fields"),
        ("a,,1", "line 1: expected user,user"),
    ],
)
def test_a_bad_edge_is_refused_and_named(text, message):
    with pytest.raises(RelationError, match=message):
        SocialGraph.parse(text, ["a", "b", "c"])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[0, -1], [-1, 0]], "finite weights of at least 0, got another in row 0"),
        ([[0, np.nan], [np.nan, 0]], "finite weights"),
        ([[0, 1], [2, 0]], "symmetric weights"),
        ([[0, 1], [1, 3]], "no tie of a user to themselves, got another in row 1"),
        ([[0, 1]], "square matrix"),
        (np.zeros((3, 3)), "weights for 2 users, got 3"),
    ],
)
def test_bad_weights_are_refused_and_the_row_named(weights, message):
    with pytest.raises(RelationError, match=message):
        SocialGraph(("a", "b"), np.array(weights, dtype=float))


def test_users_must_be_there_and_differ():
    with pytest.raises(RelationError, match="each user once, got 'a' twice"):
        SocialGraph(("a", "b", "a"), np.zeros((3, 3)))
    with pytest.raises(RelationError, match="at least one user"):
        SocialGraph.parse("# nobody\n")


def test_colin_has_columns_that_sum_to_one_and_weights_in_proportion_to_ties():
    graph = SocialGraph.parse("a,b,3\nb,c,1")
    matrix = Relation.of(graph, "colin").matrix
    expected = np.array([[1 / 4, 3 / 5, 0], [3 / 4, 1 / 5, 1 / 2], [0, 1 / 5, 1 / 2]])
    assert np.allclose(matrix, expected, atol=1e-15)
    assert np.allclose(Relation.of(graph, "colin", self_weight=4).matrix[0, 0], 4 / 7, atol=1e-15)


def test_colin_refuses_matrices_that_are_not_column_stochastic():
    good = np.full((3, 3), 1 / 3)
    Relation("colin", good)
    for change, message in [
        ((1, 2, -0.1), "entries of at least 0 for colin, got another in row 1"),
        ((2, 1, 0.5), r"columns that sum to 1 for colin, got 1.16667 in 1"),
        ((0, 0, np.nan), "finite entries, got another in row 0"),
    ]:
        bad = good.copy()
        bad[change[0], change[1]] = change[2]
        with pytest.raises(RelationError, match=message):
            Relation("colin", bad)
    empty = good.copy()
    empty[:, 1] = 0
    with pytest.raises(RelationError, match="got 0 in 1"):
        Relation("colin", empty)


def test_a_user_without_any_tie_is_refused_by_name():
    graph = SocialGraph.parse("a,b", ["a", "b", "hermit"])
    with pytest.raises(RelationError, match="got none for 'hermit'"):
        Relation.of(graph, "colin", self_weight=0)
    assert Relation.of(graph, "colin").matrix[2].tolist() == [0, 0, 1]
    with pytest.raises(RelationError, match="self weight of at least 0, got nan"):
        Relation.of(graph, "colin", self_weight=float("nan"))
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(RelationError, match="relation: expected a finite tie weight of at least 0, got "):
            Relation.of(graph, "goblin", tie_weight=wrong)


def test_other_algorithms_are_refused_and_other_matrices_for_them():
    graph = complete(3)
    with pytest.raises(RelationError, match="expected linucb, colin or goblin, got 'lints'"):
        Relation.of(graph, "lints")
    with pytest.raises(RelationError, match="the identity for linucb, got another in row 1"):
        Relation("linucb", np.diag([1.0, 2.0, 1.0]))
    with pytest.raises(RelationError, match="a symmetric matrix for goblin"):
        Relation("goblin", np.array([[1.0, 0.5], [0.0, 1.0]]))


def test_goblin_squared_is_the_inverse_of_identity_plus_laplacian():
    graph = random_graph(12, 3)
    root = Relation.of(graph, "goblin").matrix
    regularised = np.eye(12) + np.diag(graph.weights.sum(axis=1)) - graph.weights
    assert np.allclose(root @ root @ regularised, np.eye(12), atol=1e-13)
    assert np.linalg.eigvalsh(root).min() > 0
    assert np.array_equal(Relation.goblin(graph.weights).matrix, root)


@pytest.mark.parametrize("users", [2, 5, 10, 100])
def test_on_a_complete_graph_goblin_has_its_closed_form_and_the_paper_twice_the_square_root_too_much(users):
    found = 3.0 * Relation.of(complete(users), "goblin").row_norms().max()
    assert found == pytest.approx(sqrt(2) * 3.0 / sqrt(users + 1), rel=1e-12)
    assert 2 * 3.0 / sqrt(users + 1) == pytest.approx(sqrt(2) * found, rel=1e-12)


def test_colin_has_the_sensitivity_of_its_two_extremes():
    lone = SocialGraph.parse("", ["a", "b", "c", "d"])
    assert Relation.of(lone, "colin").row_norms().max() == 1.0
    assert Relation.of(complete(4), "colin").row_norms().max() == pytest.approx(1 / sqrt(4), rel=1e-15)
    assert Relation.of(complete(4), "colin").row_norms(1).max() == pytest.approx(1.0, rel=1e-15)


@pytest.mark.parametrize("algorithm", ["linucb", "colin", "goblin"])
@pytest.mark.parametrize("order", [1, 2])
def test_no_reward_moves_a_projected_sum_further_than_its_users_row_and_some_reward_moves_it_so_far(algorithm, order):
    relation, rng = Relation.of(random_graph(8, 5), algorithm), np.random.default_rng(7)
    features = rng.standard_normal((200, 4))
    features /= np.linalg.norm(features, ord=order, axis=1, keepdims=True)
    bounds = relation.row_norms(order)
    for user in range(8):
        moved = [np.linalg.norm(np.kron(relation.matrix[user], row), ord=order) for row in features]
        assert max(moved) <= bounds[user] * (1 + 1e-12)
        assert max(moved) >= bounds[user] * (1 - 1e-12)


@pytest.mark.parametrize("share", [0.05, 0.9])
def test_what_dark_visits_show_is_clear_in_the_guarantee_and_only_clean_arms_are_public(share):
    kinds = [CollaborationConfig(), replace(MIXED, clean_share=share)]
    release, drawn = ContinualConfig(mechanism="noisy-reward"), ExplorationConfig("softmax")
    configs = [make(release=release, learner=learner, exploration=drawn) for learner in kinds]
    plain, mixed = (CollaborativeSystem.of(config, GRAPH).guarantee() for config in configs)
    said = ["only arms of clean visits are public" in page_facts(config) for config in configs]
    assert said == [False, True]
    assert not any("arm was shown" in fact for fact in mixed.not_protected)
    assert any("at dark visits follows from their own exact rewards" in fact for fact in mixed.conditions)
    assert [{one.form for one in found.contents if one.topic == "decisions"} for found in (plain, mixed)] == [
        {Form.PUBLIC},
        {Form.CLEAR},
    ]
    assert "arms shown at clean visits" in page_text(mixed)
    assert "arms shown at clean visits" not in page_text(plain)
    assert mixed.cost == plain.cost


def page_facts(config):
    return " ".join(fact.text for fact in KIND.facts(config, Artefacts("folder", {})))


def test_the_range_of_a_plan_begins_where_tied_users_have_independent_tastes():
    """In drawn worlds of 25 features at epsilon 1, all users tied, tastes independent, 20 users gained .04 +- .09 times
    what users alone gain and 10 users (goblin) .20 +- .03; the range began at .47, as if each were alone."""
    release, learner = ContinualConfig(mechanism="noisy-reward", rewards_per_user=200), CollaborationConfig()
    config = make(release=release, learner=learner, features=replace(make().features, dimension=25))
    lows = [plan(config, users, Audience(users, 200, 1.0)).values["this deployment"].low for users in (1, 10, 20)]
    assert lows == pytest.approx([lows[0], lows[0] / sqrt(10), lows[0] / sqrt(20)])
    assert lows[0] == 0.5 * share(config, 200, 0.15 / sqrt(2), 0.0) < 0.5 * share(config, 200, 0.15 / sqrt(2), 0.25)
    untied = plan(replace(config, learner=replace(learner, algorithm="linucb")), 20, Audience(20, 200, 1.0))
    assert untied.values["this deployment"].low == pytest.approx(lows[0])


def test_the_range_of_a_plan_ends_where_users_are_alike_rewards_scatter_and_arms_differ_little():
    """Nine drawn worlds of 16 users of nearly one taste, 120 clicks of 12 features each, at epsilon 2, gained .61 to
    1.71 times what users alone gain; the range ended at 1.21, where arms differ most."""
    release = ContinualConfig(mechanism="noisy-reward", epsilon=2.0, rewards_per_user=120)
    config = make(release=release, features=replace(make().features, dimension=12))
    found = plan(config, 16, Audience(16, 105, 365.0)).values["this deployment"]
    assert found.high == pytest.approx(1.1 * share(config, 105, 0.15 / sqrt(2), 0.25, alike=16))
    assert 1.71 < found.high < 1.8
    assert found.middle == share(config, 105, 0.15, 0.25) < 1
    noisy = replace(config, release=replace(release, epsilon=0.2), learner=replace(config.learner, algorithm="linucb"))
    most = plan(noisy, 16, Audience(16, 105, 365.0)).values["this deployment"].high
    assert most == 1.1 * share(noisy, 105, 0.15 * sqrt(2), 0.25), "where noise decides, large differences help"


def test_a_plan_does_not_call_a_deployment_with_dark_visits_useless():
    release = ContinualConfig(mechanism="noisy-reward", rewards_per_user=20)
    audience = Audience(1_000, 20)
    plain, mixed = (
        plan(make(release=release, learner=replace(learner, algorithm="linucb")), 3, audience)
        for learner in (CollaborationConfig(), MIXED)
    )
    assert (plain.beats, mixed.beats) == (False, None)
    assert [found.points[-1].units for found in (plain, mixed)] == [20, 1], "dark visits pay nothing"
    assert "(dark visits) follow each user's own exact rewards too" in mixed.verdict
    assert "If linked users' tastes differ, it can be far more" in mixed.verdict
