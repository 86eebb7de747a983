"""Runs one partition: chooses the records of each batch, and takes the batch through the steps of the protocol."""
