from __future__ import annotations

import pytest

from hushstream.agents.kafka.commits import journal_name, pack_mark, read_mark


def test_a_mark_is_read_back() -> None:
    name = journal_name(b"genesis")
    assert read_mark(pack_mark(name, 41), name) == 41


def test_a_mark_of_another_journal_is_worth_nothing() -> None:
    assert read_mark(pack_mark(journal_name(b"old"), 41), journal_name(b"new")) == 0


@pytest.mark.parametrize("metadata", [None, "", "x", "hushstream/1 n", "hushstream/1 n -3", "hushstream/2 n 3"])
def test_metadata_of_others_means_that_everything_is_sent_again(metadata: str | None) -> None:
    assert read_mark(metadata, "n") == 0
