"""The names that the page gives to whoever writes a client in another language, and what they catch."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

import pytest

from hushstream.schemas.partitioning import partition_of

COUNTS = (4, 12)
PAGE = (Path(__file__).parents[2] / "deploy" / "docs" / "reference" / "other-languages.md").read_text(encoding="utf-8")


class Vector(NamedTuple):
    """A row of the table."""

    name: str
    utf8: str
    digest: str
    partitions: tuple[int, int]


_ROW = re.compile(r"^\| `(.+?)`.* \| `([0-9a-f]+)` \| `([0-9a-f]{16})` \| (\d+) \| (\d+) \|$", re.MULTILINE)
VECTORS = [
    Vector(name, utf8, digest, (int(of_4), int(of_12))) for name, utf8, digest, of_4, of_12 in _ROW.findall(PAGE)
]


def digest(name: str) -> bytes:
    """Of 8 bytes, by the standard library."""
    return blake2b(name.encode(), digest_size=8).digest()


def test_there_are_ten_and_each_follows_from_the_rule():
    assert len({vector.name for vector in VECTORS}) == 10
    for vector in VECTORS:
        assert vector.name.encode().hex() == vector.utf8
        assert digest(vector.name).hex() == vector.digest
        number = int.from_bytes(digest(vector.name), "little")
        assert vector.partitions == tuple(number % count for count in COUNTS)
        assert vector.partitions == tuple(partition_of(vector.name, count) for count in COUNTS)


def little(found: bytes) -> int:
    return int.from_bytes(found, "little")


WRONG: dict[str, Callable[[str], int]] = {
    "truncated BLAKE2b-512": lambda name: little(blake2b(name.encode()).digest()[:8]),
    "truncated BLAKE2b-256": lambda name: little(blake2b(name.encode(), digest_size=32).digest()[:8]),
    "big-endian": lambda name: int.from_bytes(digest(name), "big"),
    "signed": lambda name: abs(int.from_bytes(digest(name), "little", signed=True)),
    "a double": lambda name: int(float(little(digest(name)))),
    "four bytes": lambda name: little(digest(name)[:4]),
    "composed text": lambda name: little(digest(normalize("NFC", name))),
    "decomposed text": lambda name: little(digest(normalize("NFD", name))),
    "lower case": lambda name: little(digest(name.lower())),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_client_puts_some_of_them_elsewhere(wrong: str):
    elsewhere = [
        vector.name
        for vector in VECTORS
        for count in COUNTS
        if WRONG[wrong](vector.name) % count != partition_of(vector.name, count)
    ]
    assert elsewhere


def test_some_names_do_not_tell_a_truncated_digest_from_the_right_one():
    """Why one name is not enough: a wrong digest can be right by chance."""
    truncated = WRONG["truncated BLAKE2b-512"]
    same = [vector.name for vector in VECTORS if truncated(vector.name) % 4 == vector.partitions[0]]
    assert same
    assert len(same) < len(VECTORS) // 2
