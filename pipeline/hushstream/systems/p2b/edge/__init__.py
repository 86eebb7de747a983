"""P2B at the edge: learners of users, and the role that runs them on a stream."""
