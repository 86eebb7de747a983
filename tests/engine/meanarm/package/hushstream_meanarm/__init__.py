"""Mean arms as a system of another package: users are shown the arm with the best noised mean reward."""

from importlib.resources import files

from hushstream.schemas import codec

codec.register(files("hushstream_meanarm") / "avro")
