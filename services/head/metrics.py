"""HeadMetrics: exports the run's instances and the status of its collections to Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rollyard.records.activity import Collection
from rollyard.services.head.registry import ServerRegistry

_COLLECTION = ("folder", "file")


class HeadMetrics:
    """Reads the registry and the collections at each scrape."""

    def __init__(self, registry: ServerRegistry, collections: Callable[[], Sequence[Collection]]) -> None:
        self._registry = registry
        self._collections = collections

    def collect(self) -> Iterable[Metric]:
        yield from self._server_metrics()
        yield from self._collection_metrics()

    def _server_metrics(self) -> Iterator[Metric]:
        requested = GaugeMetricFamily("rollyard_instances", "Instances that the config requests", labels=["server"])
        ready = GaugeMetricFamily(
            "rollyard_instances_ready", "Instances that are ready and send heartbeats", labels=["server"]
        )
        restarts = CounterMetricFamily("rollyard_restarts", "Restarts of instances that died", labels=["server"])
        ready_servers = [instance.server_name for instance in self._registry.instances() if instance.ready]
        for server, replicas in self._registry.replicas.items():
            requested.add_metric([server], replicas)
            ready.add_metric([server], ready_servers.count(server))
            restarts.add_metric([server], self._registry.restarts.get(server, 0))
        yield from (requested, ready, restarts)

    def _collection_metrics(self) -> Iterator[Metric]:
        def gauge(name: str, help_text: str, *extra: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"rollyard_collection_{name}", help_text, labels=[*_COLLECTION, *extra])

        rollouts = gauge("rollouts", "Rollouts of a collection: expected, measured, given_up, in_flight", "state")
        reward = gauge("reward_mean", "Mean reward of the measured rollouts")
        success = gauge("success_ratio", "Share of the measured rollouts that succeeded")
        prefix_mismatches = gauge(
            "token_break_ratio", "Share of later turns with a prefix mismatch in the token history"
        )
        eta = gauge("eta_seconds", "Time until all rollouts are measured at the current rate")
        oldest = gauge("oldest_seconds", "Age of the oldest rollout in flight")
        dataset_rollouts = gauge("dataset_rollouts", "Measured rollouts of one dataset of a mixture", "dataset")
        dataset_reward = gauge("dataset_reward_mean", "Mean reward of one dataset", "dataset")
        dataset_success = gauge("dataset_success_ratio", "Share of a dataset's rollouts that succeeded", "dataset")
        failed = CounterMetricFamily(
            "rollyard_collection_failed_attempts", "Failed attempts by kind", labels=[*_COLLECTION, "kind"]
        )
        for collection in self._collections():
            # The file name alone is not unique: two runs may both write a rollouts.jsonl, and series must not repeat.
            folder, _, file = collection.output.rpartition("/")
            path, status = (folder, file), collection.status
            states = {
                "expected": status.expected,
                "measured": status.measured,
                "given_up": status.failed,
                "in_flight": status.in_flight,
            }
            for state, count in states.items():
                rollouts.add_metric([*path, state], count)
            oldest.add_metric([*path], status.oldest_s)
            if status.mean_reward is not None:
                reward.add_metric([*path], status.mean_reward)
            if status.successes is not None and status.measured:
                success.add_metric([*path], status.successes / status.measured)
            if status.token_turns:
                prefix_mismatches.add_metric([*path], status.token_breaks / status.token_turns)
            if status.state == "running" and status.eta_s is not None:
                eta.add_metric([*path], status.eta_s)
            for name, dataset in status.datasets.items():
                dataset_rollouts.add_metric([*path, name], dataset.measured)
                dataset_reward.add_metric([*path, name], dataset.mean_reward)
                if dataset.successes is not None and dataset.measured:
                    dataset_success.add_metric([*path, name], dataset.successes / dataset.measured)
            for kind, count in status.failures.items():
                failed.add_metric([*path, kind], count)
        yield from (
            rollouts,
            reward,
            success,
            prefix_mismatches,
            eta,
            oldest,
            dataset_rollouts,
            dataset_reward,
            dataset_success,
            failed,
        )
