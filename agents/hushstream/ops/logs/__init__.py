"""The ways out of what a deployment's logs lost: each is a plan that is printed before anybody acts on it."""
