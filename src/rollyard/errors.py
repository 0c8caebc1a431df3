"""What the Python API raises. The commands print the same errors in one line.

`OperatorError`: an argument, a config or a plug-in is wrong. `RunError`: the call was right but cannot go on.
`Failure`: a server or a machine failed; `failure.kind` and `failure.problem` say how and where. All are RollyardErrors.
"""

from rollyard.services.errors import Failure, FailureKind, OperatorError, RollyardError, RunError

__all__ = ["Failure", "FailureKind", "OperatorError", "RollyardError", "RunError"]
