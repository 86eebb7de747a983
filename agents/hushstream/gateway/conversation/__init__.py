"""The gateway's calls for requests and feedback, for each kind of conversation that a system can declare."""
