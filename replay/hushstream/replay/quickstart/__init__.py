"""The quickstart: a deployment on an embedded broker to watch, to edit, and to kill a worker of."""
