"""The sandbox of the programming environments' tests, which starts with the first test that uses it."""

from tests.unit.resources_servers.python_answers.sandboxes import sandbox

__all__ = ["sandbox"]
