"""Every audit finds what it is there to find: its stated power says so, and where all noise is halved it fails.

Power: the quick runs of each row find half the noise with a probability above 1 - 1e-6, by the exact curve of the row.
False alarms: at most 1e-6 each (`test_coverage.py` runs all rows on the product). Flaws of one line, each with the row
that must fail on it, are in `tests/mutants/mutants.toml`.
"""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from every_audit import all_audits, halve_all_noise
from hushstream.privacy.amounts import Cost, epsilon_float
from hushstream.privacy.audits import AuditResult, epsilon_lower_bound, setting_of
from hushstream.replay.audits.catalogue import audit_names, make_audit
from hushstream.replay.audits.tests import ForkTest, NeighbourTest, PlacesTest, SizeTest, least_leak
from hushstream.replay.studies.colin import audits as colin
from hushstream.replay.studies.p2b.audits import FORGED

FALSE_ALARM = 1e-6
SURE = 1 - 1e-6

pytestmark = [
    pytest.mark.slow,
    pytest.mark.slow_statistics(
        keep=[
            "discrete-laplace",
            "discrete-gaussian-size",
            "k-norm",
            "tuples",
            "binary-tree",
            "gaussian-binary-tree",
            "buffered-toeplitz",
            "slot-sums-sampled",
            "linear-sums-counter",
            "lift",
            "server-negative-digit-laplace",
            "colin-paper",
            "pdap-blocks",
            "pdol-moments",
            "bgt-slots",
            "test_a_row_without_a_law_is_named",
            "test_places_that_share_noise_in_three_of_four_runs_are_found",
            "test_every_row_without_a_law_shows_its_power_but_papers_whose_true_price_nothing_exceeds",
            "test_the_papers_claim_is_broken_with_the_quick_runs",
            "test_a_leak_of_the_stated_share_is_found_in_nine_of_ten_audits",
        ]
    ),
]


def law_of(test):
    """The curves of a row's noise at every calibration; None where nothing of a known law protects."""
    if isinstance(test, NeighbourTest):
        return test.family
    return test.law.family if isinstance(test, SizeTest | PlacesTest) and test.law is not None else None


LAWLESS = {
    *(name for name in audit_names() if name.startswith(("forked-", "time-of-", "differenced-"))),
    *("tuples-unique", "p2b-paper", "pdap-dark", "pdap-dark-named", "pdap-paper", "pdol-paper", "bgt-paper"),
    *("shifted-window", "redrawn-noise", "redrawn-sums", "two-owners", "injected-reports"),
}
"""Rows whose attack is not on noise of one known law."""

NOT_NOISE = {
    *(f"linear-sums-{name}" for name in FORGED),
    *("randomised-response", "local-reward-response", "noisy-reward", "server-noisy-reward", "tuples"),
}
"""Rows of forged reports, which are refused whatever the noise is, and of random answers."""

KNOWN = [name for name in audit_names() if name not in LAWLESS]


def price_of_half(family, claim):
    """Half the noise costs twice epsilon, and of Gaussian noise four times rho; a rho of a quarter costs over 3."""
    return 2 * claim if family.epsilon(0.25) < 0.3 else family.epsilon(4 * setting_of(family, claim))


@pytest.mark.parametrize("name", KNOWN)
def test_half_the_noise_is_within_the_power_of_the_quick_runs(name):
    audit = make_audit(name)
    claim = epsilon_float(audit.test.claimed.epsilon_micro)
    least = audit.test.least(audit.runs, FALSE_ALARM, SURE)
    assert least is not None
    assert claim < least <= price_of_half(law_of(audit.test), claim)


@pytest.mark.parametrize("name", [name for name in KNOWN if name not in NOT_NOISE])
def test_half_the_noise_fails(name, monkeypatch):
    audit = make_audit(name)
    assert audit.test, "made before anything is broken: its claim is the product's"
    halve_all_noise(monkeypatch)
    row = audit("quick", FALSE_ALARM)
    assert (row.passed, row.verdict) == (False, "EXCEEDS the claim"), row.cells()


def test_a_row_without_a_law_is_named():
    assert {audit.name for audit in all_audits() if law_of(audit.test) is None} == LAWLESS


def test_places_that_share_noise_in_three_of_four_runs_are_found():
    """And on the coarsest lattice in all of them: more than a third of all draws are 0 there, and have no sign."""
    for audit in all_audits():
        if isinstance(audit.test, PlacesTest | ForkTest):
            assert audit.test.least_shared(audit.runs, FALSE_ALARM, SURE) <= 0.75, audit.name


def test_every_row_without_a_law_shows_its_power_but_papers_whose_true_price_nothing_exceeds():
    silent = set()
    for audit in map(make_audit, LAWLESS):
        result = AuditResult(Cost(0, 0), 0.0, audit.runs, FALSE_ALARM, (0, 0), remark="by the spread of its pairs")
        silent |= {audit.name} if audit.test.power(result) == "-" else set()
    assert silent == {"pdap-paper", "pdol-paper", "bgt-paper"}


def test_the_papers_claim_is_broken_with_the_quick_runs():
    """But for one audit in a million, with both rates at their 5e-7 quantiles on the bad side."""
    audit = make_audit("colin-paper")
    true_rate, false_rate = audit.test.rates(epsilon_float(audit.test.claimed.epsilon_micro))
    few = int(stats.binom.ppf(5e-7, audit.runs, true_rate))
    many = int(stats.binom.ppf(1 - 5e-7, audit.runs, false_rate))
    assert epsilon_lower_bound(few, many, audit.runs, Fraction(0), FALSE_ALARM) > colin.PAPER_EPSILON


@pytest.mark.parametrize(("claim", "runs"), [(1_000_000, 500), (2_000_000, 500), (693_148, 1_000)])
def test_a_leak_of_the_stated_share_is_found_in_nine_of_ten_audits(claim, runs):
    share = least_leak(Cost(claim), runs, FALSE_ALARM)
    hits = np.arange(runs + 1)
    proven = np.array([epsilon_lower_bound(int(one), 0, runs, Fraction(0), FALSE_ALARM) > claim / 1e6 for one in hits])
    assert float(stats.binom.pmf(hits, runs, share) @ proven) == pytest.approx(0.9, abs=1e-6)
