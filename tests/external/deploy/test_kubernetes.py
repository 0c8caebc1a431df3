"""The manifest in examples/kubernetes: Kubernetes' schemas accept it, and its pods play on a real engine."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from rollyard.records.data_files import INSTALLED
from tests.external.deploy.host import CONFINED, TOKEN, USER, Host, confinement, secrets_folder, users_folder
from tests.external.deploy.pods import Cluster, Spec
from tests.support.stacks import keys_of, read_rows
from tests.support.waiting import eventually

FILE = INSTALLED / "examples/kubernetes/rollyard.yaml"
ITEMS: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())["items"]
PODS: dict[str, Spec] = {
    one["metadata"]["name"]: one["spec"]["template"] for one in ITEMS if "template" in one.get("spec", {})
}
SPECS: dict[str, Spec] = {name: template["spec"] for name, template in PODS.items()}
CONTAINERS = [
    (pod, container) for pod, spec in SPECS.items() for container in spec["containers"] if "livenessProbe" in container
]


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = (one for one in ITEMS if one["kind"] == kind)
    return found


@pytest.fixture(scope="module")
def cluster(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    sources = {
        "rollyard-results": users_folder(folder / "results"),
        "rollyard": secrets_folder(folder / "rollyard"),
    }
    config = of_kind("ConfigMap")
    for name, text in config["data"].items():
        assert config["metadata"]["name"] == "rollyard" and name not in ("rollyard_token", "policy_api_key")
        (sources["rollyard"] / name).write_text(text)
    host.docker("network", "create", "cluster")
    cluster = Cluster(host, "cluster", sources)
    service = of_kind("Service")
    try:
        for pod, spec in SPECS.items():
            labels = PODS[pod]["metadata"]["labels"].items()
            is_served = service["spec"]["selector"].items() <= labels
            cluster.start(pod, spec, [service["metadata"]["name"]] if is_served else [])
        yield cluster
    finally:
        cluster.remove()


@pytest.mark.smoke
@pytest.mark.skipif(importlib.util.find_spec("kubernetes_validate") is None, reason="needs make test-deploy")
@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_the_schemas_of_kubernetes_accept_every_part_and_find_nothing_unknown(version: str) -> None:
    import kubernetes_validate

    for item in ITEMS:
        kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.smoke
def test_every_pod_is_confined_and_belongs_to_the_policy_of_the_network() -> None:
    chosen = of_kind("NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items()
    for name, spec in SPECS.items():
        assert chosen <= PODS[name]["metadata"]["labels"].items()
        assert spec["automountServiceAccountToken"] is False
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            assert container["securityContext"] == {
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


def test_the_job_collects_into_the_volume_as_the_images_user(cluster: Cluster) -> None:
    file = cluster.sources["rollyard-results"] / "rollouts.jsonl"
    assert keys_of(read_rows(file)) == [(task, repeat) for task in range(5) for repeat in range(16)]
    assert file.stat().st_uid == USER


@pytest.mark.parametrize(("pod", "container"), CONTAINERS, ids=[one["name"] for _, one in CONTAINERS])
def test_probes_without_a_token_pass_and_nothing_can_do_more_than_it_needs(
    cluster: Cluster, pod: str, container: Spec
) -> None:
    for name, probe in container.items():
        if name.endswith("Probe"):
            assert eventually(name, lambda probe=probe: cluster.passes(pod, container, probe))  # type: ignore[misc]
    assert confinement(cluster.host, f"{pod}-{container['name']}") == CONFINED


def test_the_viewers_port_shows_the_page_to_who_has_the_token(cluster: Cluster) -> None:
    url = f"http://{cluster.address('rollyard-viewer')}:8080/api/overview"
    assert (cluster.host.get(url, TOKEN)[0], cluster.host.get(url)[0]) == (200, 401)


def test_a_killed_container_that_is_started_again_passes_its_probes_and_the_run_is_ready(cluster: Cluster) -> None:
    name, pod = "rollyard-servers-environment", "rollyard-servers"
    (container,) = (one for one in SPECS[pod]["containers"] if one["name"] == "environment")
    os.kill(cluster.host.inspect(name)["State"]["Pid"], signal.SIGKILL)
    eventually("its end", lambda: not cluster.host.inspect(name)["State"]["Running"])
    cluster.host.docker("start", name)  # as a kubelet does
    assert eventually("readiness", lambda: cluster.passes(pod, container, container["readinessProbe"]))
    job = SPECS["rollyard-collector"]
    waits_for_all = job["initContainers"][0]
    assert eventually(
        "the killed one is forgotten", lambda: "3 of 3 ready" in cluster.run("rollyard-collector", job, waits_for_all)
    )


def test_every_part_ends_within_its_grace_period(cluster: Cluster) -> None:
    for pod, container in reversed(CONTAINERS):
        name = f"{pod}-{container['name']}"
        cluster.host.docker("stop", "--time", str(SPECS[pod]["terminationGracePeriodSeconds"]), name)
        assert cluster.host.inspect(name)["State"]["ExitCode"] == 0, cluster.host.docker("logs", name)
