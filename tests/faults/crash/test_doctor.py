"""ng_doctor's own rollout, through real processes."""

from __future__ import annotations

from pathlib import Path

from tests.support.commands import command


async def test_a_rollout_with_the_built_in_policy_uses_the_complete_stack_and_leaves_nothing(tmp_path: Path) -> None:
    done = await command("ng_doctor", cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    assert "ok      rollout" in done.out and "success; done" in done.out
    assert not any(tmp_path.iterdir())


async def test_a_rollout_of_the_users_run_is_collected_on_request(tmp_path: Path) -> None:
    config = "+config_paths=configs/sokoban_builtin.yaml"
    broken = "policy_model.responses_api_models.builtin_model.faults={error_rate: 1.0}"
    played = await command("ng_doctor", config, "+rollout=true", cwd=tmp_path)
    failed = await command("ng_doctor", config, "+rollout=true", broken, cwd=tmp_path)
    assert played.status == 0 and "with the built-in policy" not in played.out
    assert failed.status == 1 and "policy_model" in failed.out.rpartition("FAILED")[2], failed.out
