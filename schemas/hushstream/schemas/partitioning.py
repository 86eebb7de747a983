"""Computes the partition of a user's records. Every writer of contexts and clicks uses this function alone."""

from __future__ import annotations

from hashlib import blake2b

from hushstream.schemas.errors import HushstreamError


def partition_of(user: str, partitions: int) -> int:
    """The partition of a user: BLAKE2b-64 of their UTF-8 name, as a little-endian integer, modulo the count.

    The rule is part of the format: it needs no state and is the same in every process and language. Another number of
    partitions makes another deployment.

    Raises:
        HushstreamError: the count is not positive.
    """
    if partitions < 1:
        raise HushstreamError(f"expected at least one partition, got {partitions}")
    # A name that is no valid UTF-8 still has a partition, because the codec refuses it.
    digest = blake2b(user.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % partitions
