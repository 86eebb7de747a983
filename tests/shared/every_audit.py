"""Every audit, made once: most of the time that the tests of their table take goes into that."""

import sys
from functools import cache, partial

import pytest

from hushstream.replay.audits.catalogue import audit_names, make_audit
from hushstream.replay.audits.row import Audit

DRAWS = ("discrete_laplace", "discrete_gaussian", "discrete_gaussian_joint", "discrete_k_norm_joint")
"""What draws noise, by its name in every module that calls it."""


@cache
def all_audits() -> tuple[Audit, ...]:
    """In the order of the table."""
    audits = tuple(map(make_audit, audit_names()))
    assert all(audit.test for audit in audits)
    return audits


def halve_all_noise(patch: pytest.MonkeyPatch) -> None:
    """All noise of all systems is drawn, and half of it is added."""
    for module in [module for name, module in sys.modules.items() if name.startswith("hushstream.")]:
        for name in DRAWS:
            if name in vars(module):
                patch.setattr(module, name, partial(_half_of, vars(module)[name]))


def _half_of(draw, *given):
    return draw(*given) // 2
