"""The error of benchmarks."""

from hushstream.schemas.errors import HushstreamError


class BenchFailed(HushstreamError):
    """A measurement could not be made; the message says which process ended or what did not come."""
