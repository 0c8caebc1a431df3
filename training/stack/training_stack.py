"""TrainingStack: what a training run needs to know of the servers that it plays on."""

from __future__ import annotations

from dataclasses import dataclass

from rollyard.services.rollouts.collection import StackClients


@dataclass(frozen=True, slots=True)
class TrainingStack:
    """A running stack whose policy server has `trainer_endpoints`."""

    clients: StackClients
    """Clients of its servers and of its head."""
    policy_url: str
    """Address of the policy's model server, without a path."""
    token: str | None
    """Run token; None if the stack has none."""
    policy_servers: frozenset[str]
    """Names of the model servers through which agents call the policy."""
