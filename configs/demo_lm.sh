#!/bin/sh
# `make demo-lm`: a small language model in vLLM plays Sokoban rooms that it has never seen. Runs in the root of the
# repository. ROOMS: number of rooms (default 100).
set -eu
refuse() { echo "demo_lm.sh: $1" >&2; exit 2; }
[ $# -eq 0 ] || refuse "found the argument '$1', expected none"
command -v ng_run >/dev/null && command -v vllm >/dev/null ||
    refuse "ng_run and vllm are not on the path; run make demo-lm, which sets everything up"
config=configs/sokoban_lm.yaml
[ -d examples/sokoban_policy/model ] || refuse "examples/sokoban_policy/model does not exist; run this in the root of the repository"
folder=results/demo-lm-$(date +%Y%m%d-%H%M%S)
mkdir -p "$folder" 2>/dev/null || refuse "cannot create $folder; run this in a writable folder"
: >"$folder/ng_run.log"

echo "\$ python -m examples.sokoban_policy.make_rooms --num-examples ${ROOMS:-100} --output $folder/rooms.jsonl"
python -m examples.sokoban_policy.make_rooms --num-examples "${ROOMS:-100}" --output "$folder/rooms.jsonl"
echo
echo "\$ ng_run $config --colocate    # vLLM starts in half a minute to two minutes"
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
echo "    --input-jsonl-fpath $folder/rooms.jsonl \\"
echo "    --output-jsonl-fpath $folder/rollouts.jsonl \\"
echo "    --num-repeats 1 --num-samples-in-parallel 32 --responses-create-params.temperature 0"
ng_collect_rollouts --agent-name grl_sokoban_game_agent \
    --input-jsonl-fpath "$folder/rooms.jsonl" \
    --output-jsonl-fpath "$folder/rollouts.jsonl" \
    --num-repeats 1 --num-samples-in-parallel 32 --responses-create-params.temperature 0
echo
echo "How the model was trained: examples/sokoban_policy/README.md. To watch it play:"
echo "    ng_viewer $folder/rollouts.jsonl"
