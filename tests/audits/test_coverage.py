"""Every mechanism, counter and release that there is or that a configuration accepts has a row of the catalogue.

The lists are taken from the code: a new one without a row fails here.
"""

import importlib
import inspect
import pkgutil
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import product
from typing import get_args, get_type_hints

import numpy as np
import pytest
from scipy import stats

import hushstream.privacy
from every_audit import all_audits
from hushstream.counting import Plan
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.audits import surprise_limit
from hushstream.privacy.mechanisms.rewards import LocalReward, RewardLaw
from hushstream.replay.audits.catalogue import audit_names, make_audit
from hushstream.replay.audits.recordings import AS_IT_WAS, BRANCHES, fresh_nonce
from hushstream.replay.audits.row import PLACES_RUNS
from hushstream.replay.audits.tests import ForkTest, requesting_epoch
from hushstream.replay.studies.colin.play import CALIBRATIONS, Exposure
from hushstream.replay.studies.p2b.audits import p2b
from hushstream.systems.catalogue import kinds
from hushstream.systems.colin.configuration import ContinualConfig, Mechanism, NoiseAt, NoiseLaw, local_reward_of
from hushstream.systems.p2b.configuration import ReleaseConfig, ReleaseMode, SumsRelease


def every_subject():
    return [subject for audit in all_audits() for subject in audit.subjects]


def subjects(kind):
    return [subject for subject in every_subject() if isinstance(subject, kind)]


def draws(function):
    return any(
        "KeyedStream" in str(parameter.annotation) for parameter in inspect.signature(function).parameters.values()
    )


def drawing_modules():
    """Modules of `hushstream.privacy` with something public that takes a keyed stream, and so draws from it."""
    for found in pkgutil.walk_packages(hushstream.privacy.__path__, "hushstream.privacy."):
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
                continue
            functions = vars(value).values() if inspect.isclass(value) else [value]
            if any(inspect.isfunction(one) and draws(one) for one in functions):
                yield module.__name__


def accepted(kind, **choices):
    """All values of a configuration's section that it does not refuse."""
    for chosen in product(*choices.values()):
        try:
            yield kind(**dict(zip(choices, chosen, strict=True)))
        except ConfigurationError:
            continue


def sections(kind):
    """A configuration's class, and those of all its sections."""
    yield kind
    for hint in get_type_hints(kind).values():
        for part in (hint, *get_args(hint)):
            if is_dataclass(part):
                yield from sections(part)


def test_names_are_unique():
    names = [audit.name for audit in all_audits()]
    assert len(set(names)) == len(names)


def test_every_module_that_draws_has_a_row():
    found = set(drawing_modules())
    assert {
        "hushstream.privacy.mechanisms.noise",
        "hushstream.privacy.mechanisms.rewards",
    } <= found
    audited = {getattr(subject, "__module__", None) for subject in every_subject()}
    assert found <= audited | {type(subject).__module__ for subject in every_subject()}


def test_every_law_of_a_local_reward_has_a_row():
    assert {local.law for local in subjects(LocalReward)} == set(get_args(RewardLaw))


def test_every_counter_has_a_row():
    def concrete(kind):
        own = (
            {kind.__qualname__} if not inspect.isabstract(kind) and kind.__module__.startswith("hushstream.") else set()
        )
        return own.union(*map(concrete, kind.__subclasses__()))

    assert {type(plan).__qualname__ for plan in subjects(Plan)} == concrete(Plan)


def test_every_release_mode_of_the_shuffler_has_a_row():
    """Fresh noise and a counter, with and without secret sampling; `auto` is one of these."""

    def released(release):
        return release.mode, p2b(release).window_tree is not None, release.sampling < 1

    modes, sums = get_args(ReleaseMode), get_args(SumsRelease)
    found = set(map(released, accepted(ReleaseConfig, mode=modes, sums=sums, sampling=(1.0, 0.5))))
    assert len(found) == 6
    rows = list(subjects(ReleaseConfig))
    assert found == set(map(released, (one for one in rows if one.form != "features")))
    assert {one.sums for one in rows if one.form == "features"} == {"fresh", "counter"}


def test_every_collaborative_release_has_a_row():
    """All but exact sums, which guarantee nothing; auto is one of these."""

    def released(release):
        law = local_reward_of(release).law if release.mechanism == "noisy-reward" else release.noise
        return release.noise_at, release.mechanism, law

    choices = {"noise_at": get_args(NoiseAt), "mechanism": get_args(Mechanism), "noise": get_args(NoiseLaw)}
    settings = accepted(ContinualConfig, **choices, epsilon=(1.0, 4.0))
    found = {released(release) for release in settings if release.mechanism not in ("auto", "exact")}
    assert len(found) == 18
    assert found == set(map(released, subjects(ContinualConfig)))


def test_every_section_with_an_epsilon_of_its_own_has_a_row():
    """Budgets limit what others spend: they release nothing."""
    priced = {
        section
        for kind in kinds().values()
        for section in sections(kind.config)
        if any(field.name == "epsilon" for field in fields(section)) and section.__name__ != "BudgetConfig"
    }
    assert len(priced) == 6
    assert priced <= {type(subject) for subject in every_subject()}


def test_every_calibration_of_a_paper_that_is_not_private_as_stated_has_a_row_that_must_break_it():
    rows = {audit.name for audit in all_audits() if audit.paper_claim is not None}
    assert rows == {"p2b-paper", "bgt-paper", "colin-paper", "pdap-paper", "pdol-paper"}
    assert [one.key for one in CALIBRATIONS if not one.as_stated] == ["paper"]
    assert len(subjects(Exposure)) == 1


# What every role that draws noise keeps to: other ids or contents have other noise, the same have the same.

FORKS = tuple(name for name in audit_names() if name.startswith("forked-"))
SAME = 0.5
"""Independent noise of one place agrees with at most this probability: that of a lattice of one step at epsilon 1."""


@cache
def fork_of(name):
    fork = make_audit(name).test
    assert isinstance(fork, ForkTest)
    return fork


AHEAD = ("forked-counted-windows", "forked-lift", "forked-node-negative-digit")
"""Protected by a suspected rollback alone."""


@pytest.fixture(scope="module", params=FORKS)
def fork(request):
    return request.param, fork_of(request.param)


def test_the_same_ids_and_contents_have_the_same_noise(fork):
    _, one = fork
    nonce = fresh_nonce()
    assert np.array_equal(one.play(AS_IT_WAS, nonce), one.play(AS_IT_WAS, nonce))


def test_other_ids_or_contents_have_other_noise(fork):
    """At least 100 numbers of two branches, of which less than two in three agree.

    Of independent draws at most half agree: more than 66 of 100 do by chance with probability 4e-4 at the coarsest
    lattice, and for the default noise of most rows never; three journals must all do so, so below 1e-10.
    """
    _, one = fork
    assert stats.binom.sf(66, 100, SAME) ** 3 < 1e-9
    for other in BRANCHES[1:]:
        assert any(_agreed(one, other) <= 0.66 for _ in range(3))


def _agreed(fork, other):
    """How much of the noise of two branches is the same."""
    same = []
    while sum(map(len, same)) < 100:
        nonce = fresh_nonce()
        here, there = fork.play(AS_IT_WAS, nonce), fork.play(requesting_epoch(other), nonce)
        same.append((here == there).ravel())
    return np.concatenate(same).mean()


@pytest.mark.parametrize(
    "name", [name for name in FORKS if name not in (*AHEAD, "forked-counters", "forked-edge-counters")]
)
def test_noise_that_is_named_by_ids_and_contents_needs_no_suspected_rollback(name):
    """The other branches of the audit each request an epoch. That changes nothing here: the names keep noise apart."""
    one = fork_of(name)
    for branch in BRANCHES[1:]:
        nonce = fresh_nonce()
        assert np.array_equal(one.play(branch, nonce), one.play(requesting_epoch(branch), nonce))


def test_two_branches_that_share_noise_are_found():
    """With probability above 1 - 1e-6: signs agree wherever there is one, on the coarsest lattice in one of two."""
    agreed = int(stats.binom.ppf(1e-6, PLACES_RUNS, 1 - SAME))
    places = len(BRANCHES) * 10
    assert agreed / 2 > surprise_limit(places, 1e-6)


def test_a_fork_that_meets_its_noise_again_fails_its_audit():
    honest = fork_of("forked-windows")
    blind = replace(honest, play=lambda branch, nonce: honest.play(AS_IT_WAS, nonce))
    found = blind(PLACES_RUNS, 1e-6)
    assert not found.passed
    assert "branch" in found.structure
    assert "share noise" in found.structure


def test_every_fork_is_among_them():
    forks = {audit.name for audit in all_audits() if isinstance(audit.test, ForkTest)}
    assert forks == set(FORKS)


@pytest.mark.parametrize("kind", kinds().values(), ids=lambda kind: kind.name)
def test_every_role_that_releases_with_noise_has_a_fork(kind):
    """Whoever enters charges into a ledger."""
    drawing = {role.name for role in kind.roles if any(topic.startswith("ledger") for topic in role.writes)}
    assert drawing
    assert {(kind.name, role) for role in drawing} == {
        (fork.system, fork.role) for fork in map(fork_of, FORKS) if fork.system == kind.name
    }


# Every audit passes on the product.


@pytest.mark.slow
@pytest.mark.slow_statistics(
    keep=[
        "discrete-laplace",
        "discrete-gaussian",
        "k-norm",
        "randomised-response",
        "binary-tree",
        "negative-digit-tree",
        "gaussian-binary-tree",
        "buffered-toeplitz",
        "slot-sums-fresh",
        "tuples",
        "p2b-paper",
        "lift",
        "forked-windows",
        "shifted-window",
        "redrawn-noise",
        "server-negative-digit-laplace",
        "noisy-reward",
        "colin-paper",
        "forked-noisy-rewards",
        "pdap-blocks",
        "pdol-blt",
        "pdol-moments",
        "bgt-slots",
        "bgt-paper",
    ]
)
@pytest.mark.parametrize("name", audit_names())
def test_the_product_keeps_its_claim(name):
    row = make_audit(name)("quick", 1e-6)
    assert row.passed, row.cells()
    assert row.result.strongest <= row.result.claimed.epsilon_micro / 1e6
