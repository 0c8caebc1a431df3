"""A real MLflow, in a store of files."""

from __future__ import annotations

from pathlib import Path

import orjson

from tests.track.files import COUNT, collection, track


async def test_numbers_over_the_rollouts_parameters_and_a_table_are_in_mlflows_store(tmp_path: Path) -> None:
    collection(tmp_path)
    store = tmp_path / "store"
    env = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_TRACKING_URI": store.as_uri(), "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = await track("+jsonl_fpath=rollouts.jsonl", "+to=mlflow", "+project=puzzles", cwd=tmp_path, env=env)
    assert done.status == 0, done.err
    assert f"{COUNT} rollouts tracked" in done.out
    (folder,) = [path.parent for path in store.glob("*/*/meta.yaml")]
    metrics = folder / "metrics"
    curve = [line.split() for line in (metrics / "reward/mean").read_text().splitlines()]
    assert [(int(step), float(value)) for _, value, step in curve] == [(50, 5.0), (100, 5.0), (120, 5.0)]
    assert float((metrics / "failed_attempts/timeout").read_text().split()[1]) == 2.0
    assert float((metrics / "success/rate").read_text().split()[1]) == 0.5
    assert (folder / "params/settings.world.level").read_text() == "3"
    table = orjson.loads((folder / "artifacts/rollouts.json").read_bytes())
    assert len(table["data"]) == 50
    assert "call: step" in table["data"][0][table["columns"].index("conversation")]
    assert "status: 3" in (folder / "meta.yaml").read_text()  # FINISHED
