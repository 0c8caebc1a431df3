from tests.unit.resources_servers.python_answers.sandboxes import sandbox

__all__ = ["sandbox"]
