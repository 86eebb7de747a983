"""Every audit passes on the product.

False alarms: an audit fails on an honest mechanism with probability at most 1e-6, by its confidence bounds. Where a
paper claims more than holds, a row passes only if its attack breaks that claim.
"""

import pytest

from hushstream.replay.audits.catalogue import audit_names, make_audit

pytestmark = pytest.mark.slow


@pytest.mark.slow_statistics(
    keep=[
        "discrete-laplace",
        "discrete-gaussian",
        "k-norm",
        "randomised-response",
        "exponential",
        "binary-tree",
        "negative-digit-tree",
        "honaker-tree",
        "buffered-toeplitz",
        "slot-sums-fresh",
        "tuples",
        "paper",
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
