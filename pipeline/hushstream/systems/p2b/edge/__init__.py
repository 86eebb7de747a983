"""P2B at the edge: the learner of each user, its policies, and the users of a learner partition."""
