"""What an engine's Prometheus page says about its load."""

from __future__ import annotations

from rollyard.records.activity import EngineLoad
from rollyard.responses_api_models.upstream.engine_metrics import parsed

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a model"} 3.0
vllm:num_requests_running{engine="1",model_name="a model"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a model"} 1.0
vllm:num_requests_waiting{engine="1",model_name="a model"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="a model",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="a model"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a model"} 1.5e-02
vllm:num_preemptions_total{engine="0",model_name="a model"} 2.0
vllm:num_preemptions_created{engine="0",model_name="a model"} 1.7e+09
"""


def test_the_ranks_of_an_engine_are_summed_and_the_fullest_cache_counts() -> None:
    assert parsed(VLLM) == EngineLoad(running=7, waiting=1, kv_cache_usage=0.25, preemptions=2)


def test_sglangs_names_are_known() -> None:
    page = b'sglang:num_running_reqs{model_name="m"} 5.0\nsglang:num_queue_reqs{model_name="m"} 2.0\n'
    assert parsed(page + b'sglang:token_usage{model_name="m"} 0.5\n') == EngineLoad(
        running=5, waiting=2, kv_cache_usage=0.5
    )


def test_a_page_without_these_metrics_says_nothing_about_the_load() -> None:
    assert parsed(b"http_requests_total 5\n") is None
    assert parsed(b"<html>vllm:num_requests_running</html>") is None
