"""HeadMetrics: what only the head knows of a run, for Prometheus: who is there, and how its collections go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rollyard.services.head.activity import Collection
from rollyard.services.head.registry import ServerRegistry

_COLLECTION = ("folder", "file")


class HeadMetrics:
    """Reads the roster and the collections when somebody asks."""

    def __init__(self, registry: ServerRegistry, collections: Callable[[], Sequence[Collection]]) -> None:
        self._registry = registry
        self._collections = collections

    def collect(self) -> Iterable[Metric]:
        """See `meters.Measured`."""
        yield from self._of_servers()
        yield from self._of_collections()

    def _of_servers(self) -> Iterator[Metric]:
        wanted = GaugeMetricFamily("rollyard_instances", "Instances that the config asks for", labels=["server"])
        ready = GaugeMetricFamily("rollyard_instances_ready", "Instances that are ready and heard", labels=["server"])
        restarts = CounterMetricFamily("rollyard_restarts", "Started again after it died", labels=["server"])
        there = [instance.server_name for instance in self._registry.instances() if instance.ready]
        for server, replicas in self._registry.replicas.items():
            wanted.add_metric([server], replicas)
            ready.add_metric([server], there.count(server))
            restarts.add_metric([server], self._registry.restarts.get(server, 0))
        yield from (wanted, ready, restarts)

    def _of_collections(self) -> Iterator[Metric]:
        def gauge(name: str, meaning: str, *more: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"rollyard_collection_{name}", meaning, labels=[*_COLLECTION, *more])

        rollouts = gauge("rollouts", "Rollouts of a collection: expected, measured, given_up, in_flight", "state")
        reward = gauge("reward_mean", "Mean reward over what is measured")
        success = gauge("success_ratio", "Share of the measured rollouts that succeeded")
        drift = gauge("token_break_ratio", "Share of later turns that break the trail of tokens")
        left = gauge("eta_seconds", "Until the rest is measured at the rate so far")
        oldest = gauge("oldest_seconds", "Age of the oldest rollout in flight")
        of_set = gauge("dataset_rollouts", "Measured rollouts of one data set of a mixture", "dataset")
        reward_of_set = gauge("dataset_reward_mean", "Mean reward of one data set", "dataset")
        success_of_set = gauge("dataset_success_ratio", "Share of a data set's rollouts that succeeded", "dataset")
        failed = CounterMetricFamily(
            "rollyard_collection_failed_attempts", "Failed attempts by kind", labels=[*_COLLECTION, "kind"]
        )
        for collection in self._collections():
            # Not the name alone: two runs may well write a rollouts.jsonl each, and a series may be there once only.
            folder, _, file = collection.output.rpartition("/")
            which, status = (folder, file), collection.status
            states = {
                "expected": status.expected,
                "measured": status.measured,
                "given_up": status.failed,
                "in_flight": status.in_flight,
            }
            for state, count in states.items():
                rollouts.add_metric([*which, state], count)
            oldest.add_metric([*which], status.oldest_s)
            if status.mean_reward is not None:
                reward.add_metric([*which], status.mean_reward)
            if status.successes is not None and status.measured:
                success.add_metric([*which], status.successes / status.measured)
            if status.token_turns:
                drift.add_metric([*which], status.token_breaks / status.token_turns)
            if status.state == "running" and status.eta_s is not None:
                left.add_metric([*which], status.eta_s)
            for name, found in status.datasets.items():
                of_set.add_metric([*which, name], found.measured)
                reward_of_set.add_metric([*which, name], found.mean_reward)
                if found.successes is not None and found.measured:
                    success_of_set.add_metric([*which, name], found.successes / found.measured)
            for kind, count in status.failures.items():
                failed.add_metric([*which, kind], count)
        yield from (rollouts, reward, success, drift, left, oldest, of_set, reward_of_set, success_of_set, failed)
