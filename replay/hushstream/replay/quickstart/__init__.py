"""The quickstart: a deployment on an embedded broker; the user can watch it, edit it, and kill one of its workers."""
