"""Polls as a system that another package offers: how an open vote stands, under differential privacy."""

from importlib.resources import files

from hushstream.schemas import codec

codec.register(files("hushstream_poll") / "avro")
