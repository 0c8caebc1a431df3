"""ng_capacity: how many processes, cores and hosts a wished number of episodes in flight needs.

The formulas, for each kind of process (agent, model server, environment, collector). `python -m benchmarks.scale`
measures the costs in them, and compares what they predict with what it measured:

    conversation of call k   = prompt + k * turn                        bytes, k = 0 ... turns - 1
    sent                     = sum of the conversations of all calls    bytes per episode
    CPU per episode          = episode_ms + turns * (turn_ms + wake_ms / (1 + turns/s of the process * 3 ms))
                               + sent * kb_ms; an environment's own CPU is added
    duration of a turn       = model latency + environment CPU + CPU per turn of all kinds
    turns/s                  = episodes in flight / duration of a turn
    processes of a kind      = the larger of episodes/s * CPU per episode / utilization, because a process has one
                               thread, and files / open files, rounded up
    cores of a kind          = episodes/s * CPU per episode
    memory of a kind         = processes * base_mb + episodes in flight * (episode_kb + last conversation * copies)
    open files of a process  = episodes in flight * files / processes, and 100 for itself
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, Field

from rollyard.cli.options import Options, read_options, run_command
from rollyard.records.errors import OperatorError
from rollyard.records.script import EXIT_DONE
from rollyard.services.config.replicas import MEASURED, Measured, read_costs

EXAMPLE = "ng_capacity --in-flight 10000 --model-latency-s 2 --turns 20 --tokens-per-turn 400 --environment-ms 5"
OWN_FILES = 100
"""Files of a process without episodes: libraries, logs, the head's connection."""
TURN_BYTES = 300
"""What JSON adds to the text of a turn: a tool call, its result, and their keys."""


class Load(BaseModel):
    """The episodes that are wished."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    turns: int
    model_latency_s: float
    environment_ms: float
    prompt_bytes: float
    turn_bytes: float
    in_flight: float | None
    episodes_per_s: float | None
    """If the number in flight is not given."""

    @property
    def sent_kb(self) -> float:
        """Bytes that the model gets per episode."""
        return (self.turns * self.prompt_bytes + self.turns * (self.turns - 1) / 2 * self.turn_bytes) / 1000

    @property
    def conversation_kb(self) -> float:
        """Bytes of a complete episode."""
        return (self.prompt_bytes + self.turns * self.turn_bytes) / 1000


class Hosts(BaseModel):
    """What the processes may use."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cores_per_host: int = 32
    utilization: float = 0.7
    open_files: int = 65_536
    replicas: int = 1
    """Fewest processes of each server."""


class Need(BaseModel):
    """What one kind of process needs."""

    model_config = ConfigDict(frozen=True)

    processes: int
    cores: float
    """CPU seconds per second."""
    memory_mb: float
    open_files: int
    """Of the process with the most."""


class Capacity(BaseModel):
    """What a load needs, on hosts whose cores are as fast as the measured ones."""

    model_config = ConfigDict(frozen=True)

    in_flight: float
    turns_per_s: float
    episodes_per_s: float
    turn_s: float
    needs: dict[str, Need]
    cores: float
    """CPU seconds per second of all processes."""
    hosts: int
    memory_mb: float
    engine_mb_per_s: float
    """Megabytes per second to the engines and back."""
    network_mb_per_s: float
    """Megabytes per second if each request goes to another host."""
    measured: str


def capacity(load: Load, hosts: Hosts, measured: Measured) -> Capacity:
    kinds = measured.kinds()

    def cpu_s(name: str, turns_per_s: float = math.inf) -> float:
        own_ms = load.turns * load.environment_ms if name == "environment" else 0.0
        return (kinds[name].cpu_ms(load.turns, load.sent_kb, turns_per_s) + own_ms) / 1000

    turn_s = load.model_latency_s + sum(map(cpu_s, kinds)) / load.turns
    if load.in_flight is not None:
        in_flight = load.in_flight
        episodes_per_s = in_flight / (load.turns * turn_s)
    else:
        assert load.episodes_per_s is not None
        episodes_per_s = load.episodes_per_s
        in_flight = episodes_per_s * load.turns * turn_s
    turns_per_s = episodes_per_s * load.turns
    needs: dict[str, Need] = {}
    for name, costs in kinds.items():
        files = in_flight * costs.files
        least = 1 if name == "collector" else hosts.replicas
        processes = max(math.ceil(files / max(hosts.open_files - OWN_FILES, 1)), least)
        # With more processes, each wakes up more often, so that they use more CPU together.
        while (cores := episodes_per_s * cpu_s(name, turns_per_s / processes)) > hosts.utilization * processes:
            processes = math.ceil(cores / hosts.utilization)
        memory_mb = in_flight * (costs.episode_kb + load.conversation_kb * costs.copies) / 1000
        needs[name] = Need(
            processes=processes,
            cores=cores,
            memory_mb=processes * costs.base_mb + memory_mb,
            open_files=math.ceil(files / processes) + OWN_FILES,
        )
    cores = sum(need.cores for need in needs.values())
    engine_kb = load.sent_kb + load.turns * load.turn_bytes / 1000
    # The row to the agent, to the environment, and back as a rollout; the conversation to the verifier; and the tools.
    other_kb = 3 * load.conversation_kb + load.prompt_bytes / 1000 + load.turns * load.turn_bytes / 1000
    return Capacity(
        in_flight=in_flight,
        turns_per_s=turns_per_s,
        episodes_per_s=episodes_per_s,
        turn_s=turn_s,
        needs=needs,
        cores=cores,
        hosts=max(math.ceil(cores / hosts.utilization / hosts.cores_per_host), 1),
        memory_mb=sum(need.memory_mb for need in needs.values()),
        engine_mb_per_s=episodes_per_s * engine_kb / 1000,
        network_mb_per_s=episodes_per_s * (2 * engine_kb + other_kb) / 1000,
        measured=measured.measured,
    )


class CapacityOptions(Options):
    model_config = ConfigDict(allow_inf_nan=False)

    in_flight: int | None = Field(default=None, ge=1)
    """Episodes in flight. Pass this or --episodes-per-s."""
    episodes_per_s: float | None = Field(default=None, gt=0)
    """Completed episodes per second."""
    model_latency_s: float = Field(ge=0)
    """Time of a model call, in seconds."""
    turns: int = Field(ge=1)
    """Model calls per episode."""
    prompt_tokens: int = Field(default=1000, ge=0)
    """Tokens of the first prompt, with tools."""
    tokens_per_turn: int = Field(default=400, ge=0)
    """Tokens that a turn adds to the conversation: what the model generates, and what the environment responds."""
    bytes_per_token: float = Field(default=4.0, gt=0)
    """Bytes of a token in a conversation: 4 is usual for English text, and recorded token ids need more."""
    environment_ms: float = Field(default=0.0, ge=0)
    """CPU time of the environment's own code per step, in milliseconds."""
    cores_per_host: int = Field(default=32, ge=1)
    """Cores of a host that runs servers and collectors; engines are not included."""
    utilization: float = Field(default=0.7, gt=0, le=1)
    """Share of a core that a process may use. Above 0.8, requests wait for each other."""
    open_files: int = Field(default=65_536, ge=1024)
    """Limit of open files of a process (ulimit -Hn)."""
    costs: Path | None = None
    """Costs measured on other hosts: a JSON file that `python -m benchmarks.scale --costs FILE` wrote."""
    json_output: bool = Field(default=False, alias="json")
    """Print JSON."""

    def calculated(self) -> tuple[Capacity, Hosts]:
        load = Load(
            turns=self.turns,
            model_latency_s=self.model_latency_s,
            environment_ms=self.environment_ms,
            prompt_bytes=self.prompt_tokens * self.bytes_per_token,
            turn_bytes=self.tokens_per_turn * self.bytes_per_token + TURN_BYTES,
            in_flight=self.in_flight,
            episodes_per_s=self.episodes_per_s,
        )
        hosts = Hosts(cores_per_host=self.cores_per_host, utilization=self.utilization, open_files=self.open_files)
        return capacity(load, hosts, read_costs(self.costs or MEASURED)), hosts


def main() -> None:
    run_command("ng_capacity", CapacityOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Calculate the processes, cores and hosts that a number of episodes in flight needs, from measured costs."""
    options, _ = read_options(CapacityOptions, arguments)
    if (options.in_flight is None) == (options.episodes_per_s is None):
        given = "neither" if options.in_flight is None else "both"
        raise OperatorError(f"pass exactly one of --in-flight, --episodes-per-s; found {given}")
    try:
        found, hosts = options.calculated()
    except (OverflowError, ValueError) as error:  # ValueError: of infinity minus infinity
        raise OperatorError("the options are too large to calculate with; check their units") from error
    if options.json_output:
        print(orjson.dumps(found.model_dump(), option=orjson.OPT_INDENT_2).decode())
    else:
        print("\n".join(report(found, hosts)))
    return EXIT_DONE


def report(found: Capacity, hosts: Hosts) -> list[str]:
    lines = [
        f"{_number(found.in_flight)} episodes in flight, {_number(found.turns_per_s)} turns/s, "
        f"{_number(found.episodes_per_s)} episodes/s, {_number(found.turn_s)} s per turn",
        "",
        f"{'':<14}{'processes':>10}{'cores used':>12}{'memory':>12}{'open files each':>17}",
    ]
    for name, need in found.needs.items():
        lines.append(
            f"{name:<14}{need.processes:>10,}{need.cores:>12,.2f}{_size(need.memory_mb):>12}{need.open_files:>17,}"
        )
    processes = sum(need.processes for need in found.needs.values())
    lines += [
        f"{'together':<14}{processes:>10,}{found.cores:>12,.2f}{_size(found.memory_mb):>12}",
        "",
        f"hosts     {found.hosts:,}, each with {hosts.cores_per_host} cores, used to {100 * hosts.utilization:.0f} %; "
        "engines not included",
        f"network   {_number(found.engine_mb_per_s)} MB/s with the engines, "
        f"{_number(found.network_mb_per_s)} MB/s if every request goes to another host",
        f"measured  {found.measured}",
    ]
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _size(mb: float) -> str:
    return f"{mb / 1000:,.1f} GB" if mb >= 1000 else f"{mb:.0f} MB"
