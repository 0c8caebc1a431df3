#!/bin/sh
# `make demo`: collects 16 rollouts for each of 200 Sokoban puzzles with the built-in policy, as a user would.
set -eu
refuse() { echo "demo.sh: $1" >&2; exit 2; }
[ $# -eq 0 ] || refuse "found the argument '$1', expected none"
command -v ng_run >/dev/null || refuse "ng_run is not on the path; run make demo, which sets everything up"
folder=results/demo-$(date +%Y%m%d-%H%M%S)
config=configs/sokoban_builtin.yaml
input=resources_servers/grl_sokoban/data/qwen3_4b_eval/test_examples_200.jsonl
mkdir -p "$folder" 2>/dev/null || refuse "cannot create $folder; run this in a writable folder"
: >"$folder/ng_run.log"

echo "\$ ng_run $config --colocate"
ng_run "$config" --colocate >"$folder/ng_run.log" 2>&1 &
stack=$!
stop() { kill "$stack" 2>/dev/null && wait "$stack" 2>/dev/null || true; }
trap stop EXIT
trap 'exit 130' INT TERM
until grep -q "servers ready!" "$folder/ng_run.log"; do
    kill -0 "$stack" 2>/dev/null || { cat "$folder/ng_run.log" >&2; wait "$stack"; exit $?; }
    sleep 0.1
done
cat "$folder/ng_run.log"

echo
echo "\$ ng_collect_rollouts --agent-name grl_sokoban_game_agent \\"
echo "    --input-jsonl-fpath $input \\"
echo "    --output-jsonl-fpath $folder/rollouts.jsonl \\"
echo "    --num-repeats 16 --num-samples-in-parallel 32 --responses-create-params.temperature 0.8"
ng_collect_rollouts --agent-name grl_sokoban_game_agent \
    --input-jsonl-fpath "$input" \
    --output-jsonl-fpath "$folder/rollouts.jsonl" \
    --num-repeats 16 --num-samples-in-parallel 32 --responses-create-params.temperature 0.8
echo
echo "The commands are in .venv/bin. To use your own model, see docs/models.md."
