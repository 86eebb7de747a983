from __future__ import annotations

from collections import Counter

import pytest

from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.partitioning import partition_of


def test_the_partition_of_a_user_never_changes():
    # Computed with `b2sum -l 64` of coreutils.
    users = ["", "anna", "user-000123", "Ünal", "\ud800"]
    assert [partition_of(user, 1_000_003) for user in users] == [984010, 742119, 893255, 764462, 909672]


def test_users_spread_evenly():
    # 16 cells of 1,000 expected: chi-square with 15 degrees of freedom exceeds 56.5 with probability 1e-6.
    # The users are fixed, so this cannot flake; a rule that leaves one cell empty gives at least 1,000.
    counts = Counter(partition_of(f"user-{number}", 16) for number in range(16_000))
    assert sum((counts[cell] - 1000) ** 2 / 1000 for cell in range(16)) < 56.5


def test_no_partitions_is_refused():
    with pytest.raises(HushstreamError, match="got 0"):
        partition_of("anna", 0)
