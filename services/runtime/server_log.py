"""Log of a server process: INFO and above, to stderr, which the supervisor writes to the server's log file."""

from __future__ import annotations

import logging


def configure_log() -> None:
    """Log to stderr. uvicorn's messages come from `uvicorn.error`, whatever their level; they are logged here as
    `uvicorn`, so that a search for errors in the logs of a clean run finds nothing.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(_rename_uvicorn)


def _rename_uvicorn(record: logging.LogRecord) -> bool:
    if record.name == "uvicorn.error":
        record.name = "uvicorn"
    return True
