#!/usr/bin/env bash
# Evaluates Qwen3-4B on 200 Sokoban puzzles, 16 rollouts each: serves the model with vLLM, starts the servers, collects with
# resume, and writes the report to data/qwen3_4b_eval/. One attempt; the same command continues an interrupted one.
# It stops only what it started.
#
#   ./run_qwen3_4b_eval.sh
#   MODEL_NAME=/path/to/model TENSOR_PARALLEL_SIZE=2 ./run_qwen3_4b_eval.sh limit=5 output_dir=/tmp/eval
#
# Settings that are not set in the environment:
set -eu
: "${MODEL_NAME:=Qwen/Qwen3-4B}"  # or a folder: /path/to/model
: "${TENSOR_PARALLEL_SIZE:=1}"
: "${GPU_MEMORY_UTILIZATION:=0.85}"
export MODEL_NAME TENSOR_PARALLEL_SIZE GPU_MEMORY_UTILIZATION

here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
PATH=$PATH:$here/../../.venv/bin
ng_eval=$(command -v ng_eval) || {
    echo "run_qwen3_4b_eval.sh: ng_eval was not found; run make setup, or activate the environment of Rollyard" >&2
    exit 2
}
exec "$(dirname -- "$(readlink -f -- "$ng_eval")")/python" -P "$here/run_evaluation.py" qwen3_4b_eval "$@"
