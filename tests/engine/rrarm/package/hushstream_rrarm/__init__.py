"""Arms under randomised response, as a system of another package: one role, which answers and draws noise."""

from importlib.resources import files

from hushstream.schemas import codec

codec.register(files("hushstream_rrarm") / "avro")
