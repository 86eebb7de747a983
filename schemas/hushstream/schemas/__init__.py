"""What travels: Avro schemas, the declaration of every topic, and the codec."""
