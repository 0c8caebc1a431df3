"""Pods of a manifest as containers of an engine: the same users, limits, files, commands and probes; no cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.external.deploy.host import Host

Spec = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    """A network of an engine, and what its pods mount."""

    host: Host
    network: str
    sources: Mapping[str, Path]
    """Name of a ConfigMap, Secret or PersistentVolumeClaim -> the folder with its files."""

    def start(self, pod: str, spec: Spec, services: Iterable[str] = ()) -> None:
        """Run a pod's init containers, then start its containers. `services`: names under which other pods reach it."""
        aliases = [word for name in services for word in ("--network-alias", name)]
        holder = [
            "run",
            "--detach",
            "--name",
            pod,
            "--network",
            self.network,
            *aliases,
            "rollyard",
            "sleep",
            "infinity",
        ]
        self.host.docker(*holder)  # holds the pod's network, as Kubernetes' pause container does
        for container in spec.get("initContainers", ()):
            self.run(pod, spec, container)
        if spec.get("restartPolicy", "Always") == "Always":
            for container in spec["containers"]:
                self.host.docker("run", "--detach", *self._words(pod, spec, container))
        else:
            for container in spec["containers"]:
                self.run(pod, spec, container)

    def run(self, pod: str, spec: Spec, container: Spec) -> str:
        """Run a container to its end, and return what it prints."""
        return self.host.docker("run", "--rm", *self._words(pod, spec, container))

    def address(self, pod: str) -> str:
        return str(self.host.inspect(pod)["NetworkSettings"]["Networks"][self.network]["IPAddress"])

    def passes(self, pod: str, container: Spec, probe: Spec) -> bool:
        """Probe a container as a kubelet does, which has no token."""
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        action = probe.get("httpGet") or probe["tcpSocket"]
        status, _ = self.host.get(f"http://{self.address(pod)}:{ports[action['port']]}{action.get('path', '')}")
        return 200 <= status < 400 if "httpGet" in probe else status > 0

    def remove(self) -> None:
        listed = self.host.docker("ps", "--all", "--quiet", "--filter", "label=pod")
        holders = self.host.docker("ps", "--all", "--quiet", "--filter", f"network={self.network}")
        if found := [*listed.split(), *holders.split()]:
            self.host.docker("rm", "--force", *found)
        self.host.docker("network", "rm", self.network)

    def _words(self, pod: str, spec: Spec, container: Spec) -> Sequence[str]:
        context = {**spec["securityContext"], **container["securityContext"]}
        assert context["runAsNonRoot"] and context["seccompProfile"] == {"type": "RuntimeDefault"}
        limits = container["resources"]["limits"]
        environment = {one["name"]: one.get("value", self.address(pod)) for one in container["env"]}
        command = [*container.get("command", ()), *container.get("args", ())]
        for name, value in environment.items():
            command = [word.replace(f"$({name})", value) for word in command]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        return [
            *("--name", f"{pod}-{container['name']}", "--label", f"pod={pod}", "--network", f"container:{pod}"),
            *("--user", f"{context['runAsUser']}:{context['runAsGroup']}"),
            *(["--read-only"] if context["readOnlyRootFilesystem"] else []),
            *([] if context["allowPrivilegeEscalation"] else ["--security-opt", "no-new-privileges"]),
            *(word for name in context["capabilities"]["drop"] for word in ("--cap-drop", name)),
            *("--cpus", limits["cpu"], "--memory", _for_docker(limits["memory"])),
            *(word for name, value in environment.items() for word in ("--env", f"{name}={value}")),
            *(word for mount in container["volumeMounts"] for word in self._mount(volumes[mount["name"]], mount)),
            *(container["image"], *command),
        ]

    def _mount(self, volume: Spec, mount: Spec) -> tuple[str, str]:
        if (empty := volume.get("emptyDir")) is not None:
            return "--tmpfs", f"{mount['mountPath']}:mode=1777,size={_for_docker(empty['sizeLimit'])}"
        (reference,) = (value for key, value in volume.items() if key != "name")
        name = reference.get("name") or reference.get("secretName") or reference["claimName"]
        return "--volume", f"{self.sources[name]}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}"


def _for_docker(size: str) -> str:
    """Write a size of Kubernetes (2Gi, 256Mi) as Docker does."""
    return size.lower().removesuffix("i")
