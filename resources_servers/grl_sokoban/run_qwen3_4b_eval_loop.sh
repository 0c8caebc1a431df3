#!/usr/bin/env bash
# Like run_qwen3_4b_eval.sh, but after a crash of vLLM, Ray or a server it waits 10 seconds and continues, up to 20
# attempts, until every rollout is collected.
set -eu
: "${MAX_ATTEMPTS:=20}"
: "${PAUSE_S:=10}"
export MAX_ATTEMPTS PAUSE_S
exec "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/run_qwen3_4b_eval.sh" "$@"
