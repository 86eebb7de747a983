"""The error of benchmarks."""

from hushstream.schemas.errors import HushstreamError


class BenchFailed(HushstreamError):
    """A measurement failed; the message says which process ended, or which record did not arrive."""
