"""The formats of records: Avro schemas, their codec, and what the declaration of a topic says."""
