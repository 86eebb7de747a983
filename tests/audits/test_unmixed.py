"""Draws that are solved for in floats return to their lattice before their signs are tested, and alarms are counted."""

import json
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from typer.testing import CliRunner

from hushstream.cli.main import app
from hushstream.counting import BufferedToeplitz, Concentrated
from hushstream.privacy.amounts import Cost
from hushstream.privacy.audits import AuditResult, Noises, audit_structure
from hushstream.replay.audits import catalogue
from hushstream.replay.audits.catalogue import Calibration
from hushstream.replay.audits.readings import INNOVATION_STEPS, unmixed
from hushstream.replay.audits.row import Audit
from hushstream.replay.audits.tests import LEAVES
from hushstream.replay.studies.colin import audits
from hushstream.replay.studies.p2b.audits import p2b
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.configuration import plan_of
from hushstream.systems.p2b.configuration import ReleaseConfig

RUNS = 3_000
"""Of a thorough audit."""

MECHANISMS = {
    "binary": {"mechanism": "binary"},
    "negative-digit": {},
    "honaker": {"mechanism": "honaker", "noise": "gaussian"},
    "blt": {"mechanism": "blt", "noise": "gaussian"},
}


def plan_named(name):
    if name == "p2b":
        return p2b(ReleaseConfig(sums="counter", windows=LEAVES)).window_tree
    release = audits._release(horizon=LEAVES, rewards_per_user=LEAVES, **MECHANISMS[name])
    return plan_of(release, audits.ENTRY_FEATURES)


def alarms(drawn):
    """What the audit sees in draws (draws, runs): only independence is looked at."""
    return audit_structure(Noises(drawn.T, "draw {}".format), None, Cost(1_000_000)).structure


def with_roundings(solved, size):
    """The same, solved by a linear algebra whose errors all have one sign: the worst for a test of signs."""
    return replace(solved, solve=solved.solve + size * np.abs(solved.solve).max())


@pytest.mark.parametrize("name", ["p2b", "binary", "negative-digit"])
def test_draws_of_zero_do_not_alarm_however_they_are_rounded(name):
    """Two draws in three are 0, as at large epsilons. False alarm 1e-6; seeded."""
    plan = plan_named(name)
    left = plan.factorisation(LEAVES).left
    z = np.random.default_rng(7).choice([-1, 0, 0, 0, 0, 1], size=(left.shape[1], RUNS))
    rough = with_roundings(unmixed(plan, LEAVES), 1e-14)
    drawn = rough(left @ z)
    assert len(drawn) > 50
    assert np.isin(np.rint(drawn * rough.unit), [-1, 0, 1]).all()
    assert np.mean(drawn == 0) > 0.6
    assert not alarms(drawn)
    assert alarms(replace(rough, step=1e-18)(left @ z)), "without the lattice roundings agree with one another"


@pytest.mark.parametrize("name", ["honaker", "blt"])
def test_roundings_of_innovations_are_far_below_their_grid(name):
    """The error of a product of floats is at most n 2^-53 times the sum of sizes (Higham 2002, section 3.1).

    The inverse has an error of its own, of the same order times its condition: so a thousand times as much is allowed.
    """
    solved = unmixed(plan_named(name), LEAVES)
    largest = np.abs(solved.solve) @ (10 * solved.spreads)
    error = 1_000 * LEAVES * 2.0**-53 * largest.max()
    assert error < solved.step / 100
    assert solved.step == pytest.approx(solved.unit / INNOVATION_STEPS)
    rough, nothing = with_roundings(solved, 1e-14), np.zeros((LEAVES, RUNS))
    assert not np.any(rough(nothing + solved.step / 1e6))


@pytest.mark.parametrize("name", ["honaker", "blt"])
def test_independent_innovations_are_told_as_they_are(name):
    plan = plan_named(name)
    solved = unmixed(plan, LEAVES)
    left = plan.factorisation(LEAVES).left
    noise = solved.unit * np.random.default_rng(3).standard_normal((left.shape[1], RUNS))
    drawn = solved(left @ noise)
    assert drawn.std(axis=1) == pytest.approx(np.ones(LEAVES), rel=0.1)
    assert not alarms(drawn)
    drawn[5] = drawn[11]
    assert alarms(drawn) == "draw 5 and draw 11 share noise"


def test_gaussian_noise_of_a_few_lattice_units_is_refused():
    plan = BufferedToeplitz(budget=Concentrated(0.5, 1e-6), sensitivity=1, horizon=8)
    with pytest.raises(HushstreamError, match="expected Gaussian noise of 1024 lattice units or more, got"):
        unmixed(plan, 8)


def test_more_alarms_than_stated_are_told_from_chance():
    assert Calibration("row", 200, 0, 1e-6).as_stated
    assert Calibration("row", 200, 0, 1e-6).upper == pytest.approx(1 - 0.05 ** (1 / 200))
    assert not Calibration("row", 200, 1, 1e-6).as_stated, "it comes with probability 2e-4"
    assert Calibration("row", 200, 6, 0.01).as_stated
    assert not Calibration("row", 200, 10, 0.01).as_stated


def test_a_calibration_counts_alarms(monkeypatch):
    """Every third run of this row sees two places that share noise."""
    seen = cycle(["", "", "one and other share noise"])

    def run(runs, false_alarm):
        return AuditResult(Cost(1_000_000), 0.0, runs, false_alarm, (0, 0), None, next(seen))

    monkeypatch.setattr(catalogue, "make_audit", lambda name: Audit(name, "role", "told", 10, lambda: run))
    (row,) = catalogue.calibrate(7, ["counted-windows-each-draw"], processes=1)
    assert (row.alarms, row.times, row.structure) == (2, 7, "one and other share noise")
    assert not row.as_stated


def test_a_calibration_goes_on_where_it_was_stopped(monkeypatch, tmp_path):
    """Runs are written as they come: after an interrupt in the eighth, five are there, and seven more are run."""
    done, kept = [], tmp_path / "counts.json"

    def run(runs, false_alarm):
        done.append(len(done))
        if len(done) == 8:
            raise KeyboardInterrupt
        return AuditResult(Cost(1_000_000), 0.0, runs, false_alarm, (0, 0), None, "two share" if len(done) == 2 else "")

    monkeypatch.setattr(catalogue, "make_audit", lambda name: Audit(name, "role", "told", 10, lambda: run))
    names = ["counted-windows-each-draw"]
    with pytest.raises(KeyboardInterrupt):
        list(catalogue.calibrate(12, names, processes=1, kept=kept))
    (row,) = json.loads(kept.read_text(encoding="utf-8"))["counted"]
    assert (row["name"], row["blas"], row["times"], row["alarms"]) == (*names, catalogue.kernels(), 5, 1)
    (found,) = catalogue.calibrate(12, names, processes=1, kept=kept)
    assert (found.times, found.alarms, found.structure, len(done)) == (12, 1, "two share", 15)
    (again,) = catalogue.calibrate(12, names, processes=1, kept=kept)
    assert (again, len(done)) == (found, 15), "nothing is left to run"


def test_counts_under_another_blas_are_others(monkeypatch, tmp_path):
    kept = tmp_path / "counts.json"
    for kernels, times in (("openblas One", 3), ("openblas Two", 4), ("openblas One", 5)):
        monkeypatch.setattr(catalogue, "kernels", lambda said=kernels: said)
        list(catalogue.calibrate(times, ["discrete-laplace-size"], processes=1, kept=kept))
    counted = json.loads(kept.read_text(encoding="utf-8"))["counted"]
    assert [(one["blas"], one["times"]) for one in counted] == [("openblas One", 5), ("openblas Two", 4)]


def test_another_file_is_not_written_over(tmp_path):
    kept = tmp_path / "other.json"
    kept.write_text('{"rows": []}', encoding="utf-8")
    with pytest.raises(HushstreamError, match=r"other\.json: expected counts of alarms, as audit --calibrate keeps"):
        list(catalogue.calibrate(1, ["discrete-laplace-size"], processes=1, kept=kept))
    assert kept.read_text(encoding="utf-8") == '{"rows": []}'


def test_the_command_counts_alarms_and_names_the_linear_algebra():
    rows = ["--only", "discrete-laplace-size", "--quick"]
    answer = CliRunner().invoke(app, ["audit", "--calibrate", "2", *rows, "--json"])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert set(found) == {"effort", "blas", "as_stated", "audits"}
    assert (found["audits"][0]["alarms"], found["audits"][0]["times"]) == (0, 2)
    assert found["blas"] == catalogue.kernels()
    answer = CliRunner().invoke(app, ["audit", "--calibrate", "2", *rows])
    assert "as stated" in answer.stdout
    answer = CliRunner().invoke(app, ["audit", "--calibrate", "2"])
    assert answer.exit_code != 0
    assert "expected --calibrate with --all or --only" in str(answer.exception)
    answer = CliRunner().invoke(app, ["audit", *rows, "--counts", "counts.json"])
    assert "expected --counts with --calibrate" in str(answer.exception)
