"""The kinds of boxes, by name."""

from __future__ import annotations

from typing import Literal

from rollyard.records.errors import OperatorError
from rollyard.services.sandbox.box import BoxBackend
from rollyard.services.sandbox.container_box import ContainerBoxes
from rollyard.services.sandbox.shell_box import LandlockBoxes, NamespaceBoxes

BackendName = Literal["auto", "namespaces", "landlock", "docker", "podman"]


async def backend_named(name: BackendName, network: str = "bridge") -> BoxBackend:
    """Return the backend, or for `auto` the first that works here: an engine's containers, else boxes of namespaces.

    Boxes of Landlock lack so much that they are chosen by name only. Raises OperatorError if there is none.
    """
    made: dict[str, BoxBackend] = {
        "docker": ContainerBoxes("docker", network),
        "podman": ContainerBoxes("podman", network),
        "namespaces": NamespaceBoxes(),
        "landlock": LandlockBoxes(),
    }
    names = ("docker", "podman", "namespaces") if name == "auto" else (name,)
    refused = []
    for each in names:
        try:
            await made[each].check()
        except OperatorError as error:
            refused.append(str(error))
        else:
            return made[each]
    raise OperatorError("; ".join(refused))
