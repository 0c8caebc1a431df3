"""Trains a policy with plain PyTorch: POST /run of an agent plays, POST /weights/update of the model server syncs."""

import argparse
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

import torch
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
for name in ("model", "rows", "head", "token", "agent", "policy", "output"):
    parser.add_argument(f"--{name}", required=True)
for name, number in {"steps": 20, "tasks": 8, "group": 8, "max-tokens": 512, "learning-rate": 1e-5}.items():
    parser.add_argument(f"--{name}", type=type(number), default=number)
options = parser.parse_args()


def call(url, body=None):
    headers = {"content-type": "application/json", "authorization": f"Bearer {options.token}"}
    with urlopen(Request(url, body and json.dumps(body).encode(), headers), timeout=600) as answer:
        return json.load(answer)


def turns_with_advantages(group):
    rewards = [rollout["reward"] for rollout in group]
    mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards) + 1e-4
    turns = [(item, (each["reward"] - mean) / deviation) for each in group for item in each["response"]["output"]]
    return [turn for turn in turns if turn[0].get("generation_token_ids")]


rows = [json.loads(line) for line in Path(options.rows).read_text().splitlines()]
for row in rows:  # the ratios below are those of temperature 1
    row["responses_create_params"] |= {"temperature": 1.0, "max_output_tokens": options.max_tokens}
model = AutoModelForCausalLM.from_pretrained(options.model)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
servers = call(f"{options.head}/directory")["servers"]
for step in range(options.steps):
    tasks = [rows[(step * options.tasks + number) % len(rows)] for number in range(options.tasks)]
    with ThreadPoolExecutor(64) as pool:
        rollouts = list(pool.map(lambda row: call(f"{servers[options.agent][0]}/run", row), tasks * options.group))
    turns = [turn for task in range(len(tasks)) for turn in turns_with_advantages(rollouts[task :: len(tasks)])]
    drift = 0.0
    for turn, advantage in turns:
        prompt, ids = turn["prompt_token_ids"], torch.tensor(turn["generation_token_ids"])
        logits = model(torch.tensor([[*prompt, *ids.tolist()]])).logits[0, len(prompt) - 1 : -1]
        own = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
        ratio = (own - torch.tensor(turn["generation_log_probs"])).exp()
        (-torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean() / len(turns)).backward()
        drift = max(drift, (ratio - 1).abs().max().item())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    folder = Path(options.output).resolve() / f"step_{step + 1:06d}"
    model.save_pretrained(folder)
    update = call(f"{servers[options.policy][0]}/weights/update", {"path": str(folder), "version": folder.name})
    reward = statistics.fmean(rollout["reward"] for rollout in rollouts)
    print(json.dumps({"version": update["version"], "reward": reward, "drift": drift}), flush=True)
