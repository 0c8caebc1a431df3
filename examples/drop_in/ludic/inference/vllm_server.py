"""Serves a model with vLLM on this machine: `python -m ludic.inference.vllm_server --model NAME`.

More options are passed to `vllm serve`. For training, the weights can be updated by everybody who reaches the port.
Therefore the server listens on 127.0.0.1, and with another --host, this needs --allow-weight-updates.
"""

import argparse
import ipaddress
import os
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", required=True, help="hub name or folder")
    parser.add_argument("--host", default="127.0.0.1", help="default %(default)s, which other hosts cannot reach")
    parser.add_argument("--port", default="8000", help="default %(default)s")
    parser.add_argument("--allow-weight-updates", action="store_true", help="also if --host is not this host's own")
    options, more = parser.parse_known_args()
    vllm = Path(sys.executable).with_name("vllm")
    if not vllm.exists():
        sys.exit("vLLM is not installed in this environment: pip install 'rollyard[vllm]'")
    command = [str(vllm), "serve", options.model, "--host", options.host, "--port", options.port]
    environ = {name: value for name, value in os.environ.items() if name != "VLLM_SERVER_DEV_MODE"}
    if options.allow_weight_updates or _is_loopback(options.host):
        environ["VLLM_SERVER_DEV_MODE"] = "1"
    # Training needs the log-probabilities of the distribution that was sampled, with its temperature.
    command += ["--generation-config", "vllm", "--enforce-eager", "--logprobs-mode", "processed_logprobs", *more]
    os.execve(vllm, command, environ)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    main()
