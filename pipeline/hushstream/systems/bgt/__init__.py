"""BGTplanner: a federated recommender whose users send one fixed-size report of each of three kinds."""
