"""Offers a deployment over HTTP: what `hushstream.client` does, for applications in any language."""
