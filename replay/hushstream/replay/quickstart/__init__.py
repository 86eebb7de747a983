"""The first hour: a deployment on an embedded broker that one watches, kills a worker of, and edits."""
