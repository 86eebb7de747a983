"""A worker whose surroundings are wrong says so in one line and exits non-zero; it never shows a traceback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="session")]

CASES = (
    "absent broker",
    "missing topics",
    "wrong partition count",
    "another deployment's topics",
    "another key",
    "session timeout beyond what the broker takes",
    "missing key file",
    "short key file",
    "world-readable key file",
    "wiped topics and an old snapshot",
    "replaced topics and an old snapshot",
    "wiped inputs under a journal",
    "altered first record of the journal",
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def refused(
    bench: Any, harness: Any, frozen: Any, refusals: Any, key_seed: int, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Mapping[str, Any]]:
    """All workers at once, each a ``hushstream worker`` process of its own: importing is what takes time."""
    folder = tmp_path_factory.mktemp("refused")
    surroundings = refusals.Surroundings(bench.bootstrap, bench.token, frozen, key_seed, folder)
    cases = await surroundings.cases(harness.free_port())
    assert set(cases) == set(CASES)
    yield dict(zip(cases, await asyncio.gather(*map(refusals.run, cases.values())), strict=True))


@pytest.mark.parametrize("case", CASES)
async def test_a_worker_says_in_one_line_what_is_wrong_and_exits_non_zero(refused, case):
    ended = refused[case]
    assert ended.code == 1, ended.output
    assert "Traceback" not in ended.output
    lines = [line for line in ended.output.splitlines() if line.startswith("hushstream")]
    assert len(lines) == 1, ended.output
    assert ended.says in lines[0]
