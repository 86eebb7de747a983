"""Social graphs and the relation matrices that collaborative bandits take from them."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from hushstream.systems.colin.relation import Relation, RelationError, SocialGraph


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
