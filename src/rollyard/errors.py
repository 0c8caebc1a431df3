"""The exceptions of the Python API. The commands print the same errors in one line.

`OperatorError`: an argument, a config or a plug-in is invalid. `RunError`: the call was valid but cannot continue.
`Failure`: a server or a host failed; `failure.kind` and `failure.problem` describe it. All derive from RollyardError.
"""

from rollyard.records.errors import Failure, FailureKind, OperatorError, RollyardError, RunError

__all__ = ["Failure", "FailureKind", "OperatorError", "RollyardError", "RunError"]
