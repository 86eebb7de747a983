"""The report of a collaborative run: what it must show, exactly, and what it must never leave out."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from hushstream.privacy.promises.promise import REPRODUCIBLE
from hushstream.replay.catalogue import seeded_world
from hushstream.replay.report.parts import RoleCheck
from hushstream.replay.report.replayed import Column, RunCurve, RunResult, RunRows, document, table, write
from hushstream.replay.result import BadResult, Headline
from hushstream.replay.studies.colin.play import CollaborativeOptions, run_collaborative
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.configuration import CollaborativeConfig, ContinualConfig, FeatureConfig
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.relation import SocialGraph


def curve(at, ours, chance):
    lines = {"colin": tuple(ours), "random policy": tuple(chance)}
    return RunCurve(
        name="regret",
        title="Cumulative regret",
        caption="",
        what="Cumulative regret",
        across="interactions, all users",
        at=tuple(at),
        lines=lines,
        form="sum",
    )


@pytest.fixture(scope="module")
def made():
    config = CollaborativeConfig(
        deployment="small",
        arms=4,
        features=FeatureConfig(3),
        release=ContinualConfig(epsilon=2.0, horizon=64, rewards_per_user=30),
    )
    system = CollaborativeSystem.of(config, SocialGraph.of_edges([("ann", "bob", 1.0)]))
    return RunResult(
        system="colin",
        title="colin on colin (uniform): negative-digit, noise at the server",
        dataset="colin (uniform)",
        runner="direct",
        seed=3,
        deployment="small",
        config_digest=system.digest.hex(),
        facts={"mechanism": "negative-digit", "noise at": "server", "users": 2, "mean reward": 0.4375},
        reached="50 % of the regret of a policy that picks at random",
        headline=Headline("regret over that of a random policy", 0.5),
        privacy=system.guarantee().under_key(reproducible=True),
        rows=RunRows(
            "Regret.",
            (Column("policy"), Column("cumulative_regret", ".1f"), Column("of_random", ".0%")),
            (("colin", 3.25, 0.5), ("random policy", 6.5, 1.0)),
        ),
        curve=curve((2, 20), (0.5, 3.25), (0.75, 6.5)),
        counts={"decided": 20, "release": 5, "records_releases": 6},
        throughput={"seconds": 0.5, "decisions_per_second": 40.0},
        verify={"learner": RoleCheck(27, ties=1), "counter": RoleCheck(6), "aggregator": RoleCheck(6)},
        environment={"python": "3.11.2", "numpy": "2.2.0", "cores": 2},
    )


def shown(result):
    target = io.StringIO()
    Console(file=target, width=200, color_system=None).print(table(result))
    return target.getvalue()


def test_what_was_not_verified_is_said(made):
    unverified = replace(made, verify=None)
    assert "not asked for" in shown(unverified)
    assert document(unverified)["verify"] is None


def test_the_beginning_is_told_apart_from_the_end(made, tmp_path):
    at = range(1, 41)
    rising = curve(at, (4.0 + 0.1 * n if n > 2 else 2.0 * n for n in at), (2.0 * n for n in at))
    page = write(replace(made, curve=rising), tmp_path)[-1].read_text(encoding="utf-8")
    # Chance has 2 a step; ours 2, 2, then .1 from 4.3 on. The first tenth ends with the fifth row, the last has four.
    assert "<dt>First 5 interactions, all users</dt><dd>0.900 against 2.00<" in page
    assert "<dt>Last 4</dt><dd>0.100 against 2.00<" in page


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (lambda made: {"curve": replace(made.curve, at=(2, 2))}, "regret: expected a curve that rises"),
        (lambda made: {"curve": replace(made.curve, at=(2,))}, "regret: expected 1 values of each line"),
        (lambda made: {"counts": {"ages": 1}}, "privacy class, got ages"),
    ],
)
def test_what_no_run_gives_is_refused(made, changes, says):
    with pytest.raises(BadResult, match=says):
        replace(made, **changes(made))


# Runs.

SMALL = {"users": 4, "arms": 4, "dimension": 3, "pool": 20, "rounds": 6}


def test_a_run_gives_a_rising_curve_every_record_verified_and_says_that_its_key_is_seeded():
    result = run_collaborative(
        CollaborativeOptions(world=SMALL, rounds_per_phase=3, config={"privacy": {"epsilon": 8.0}})
    )
    assert result.facts["interactions"] == result.counts["reward_taken"] == 24
    assert result.curve.at == (4, 8, 12, 16, 20, 24)
    assert result.rows["random policy"]["cumulative_regret"] > 0
    assert all(check.changed == 0 < check.equal for check in result.verify.values())
    assert set(result.verify) == {"learner", "counter", "aggregator"}
    assert REPRODUCIBLE in result.privacy.marks


@pytest.mark.parametrize(
    ("noise_at", "changes"),
    [
        ("server", {"learner": {"clean_share": 0.05}}),
        ("learner", {"learner": {"clean_share": 0.05}}),
        ("server", {"privacy": {"units_per_person": 2}}),
        ("learner", {"privacy": {"units_per_person": 2}}),
    ],
)
def test_a_model_follows_each_phase_also_one_of_which_no_reward_counts(monkeypatch, noise_at, changes):
    monkeypatch.setattr("hushstream.replay.runners.to_end.MODEL_TIMEOUT_SECONDS", 5.0)
    config = {"release": {"noise_at": noise_at}, **changes}
    result = run_collaborative(CollaborativeOptions(world=SMALL, rounds_per_phase=1, config=config))
    assert result.facts["interactions"] == 24
    assert result.counts["model"] == 6
    assert all(check.changed == 0 < check.equal for check in result.verify.values())


def test_the_same_seed_gives_the_same_run_and_another_one_another(tmp_path):
    def run(seed, noise_at="server"):
        options = CollaborativeOptions(
            seed=seed, world=SMALL, rounds_per_phase=3, config={"release": {"noise_at": noise_at}}, verify=False
        )
        return run_collaborative(options)

    one = run(1)
    assert run(1).curve == one.curve != run(2).curve
    assert run(1, "learner").facts["noise at"] == "learner"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"config": {"public_dataset": True}}, "public_dataset: there is no such key"),
        ({"config": {"system": "p2b"}}, "config|context|features"),
        ({"dataset": "synthetic", "world": {}}, "dataset: expected a world of related users"),
        ({"runner": "cloud"}, "runner: expected direct or stream"),
        ({"rounds": 7}, "plan: expected at most the world's 6 rounds, got 7"),
        ({"rounds_per_phase": 0}, "plan: expected rounds and rounds a phase of at least 1"),
        ({"rounds_per_phase": 1001}, "rounds_per_phase: expected at most 1000 for 4 users"),
        ({"config": {"privacy": {"epsilon": 0}}}, "privacy.epsilon: expected a finite number above 0"),
        (
            {"config": {"release": {"horizon": 2}}},
            r"privacy.units_per_person: expected at most release.horizon \(2\), as each reward may be a step",
        ),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_anything_runs(options, says):
    with pytest.raises(HushstreamError, match=says):
        run_collaborative(CollaborativeOptions(**{"world": SMALL, "rounds_per_phase": 3, **options}))


def test_a_world_that_is_not_public_is_refused_as_regret_is_exact(monkeypatch):
    def private(name, options, seed):
        return replace(seeded_world(name, options, seed), public=False)

    monkeypatch.setattr("hushstream.replay.studies.colin.play.seeded_world", private)
    with pytest.raises(HushstreamError, match="dataset: expected a public one, as regret is an exact figure"):
        run_collaborative(CollaborativeOptions(world=SMALL, rounds_per_phase=3))
