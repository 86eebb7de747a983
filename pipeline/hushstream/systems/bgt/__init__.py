"""BGTplanner: a federated recommender whose users send one padded slot of each of three kinds."""
