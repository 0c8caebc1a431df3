"""What a model server knows about the load of its engines: their Prometheus pages, and the attempts they reject."""

from __future__ import annotations

from rollyard.records.activity import EngineLoad
from rollyard.responses_api_models.upstream.engine_metrics import parsed
from rollyard.responses_api_models.vllm_model.app import VllmModel
from tests.support.scripted_engine import COMPLETION, Step, engine, model_server, post_json

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


async def test_attempts_that_are_rejected_because_of_the_load_count_although_the_call_succeeds() -> None:
    steps = (Step(status=429), Step(status=500), Step(status=503), COMPLETION)
    async with engine(*steps) as fake, model_server(VllmModel, base_url=fake.url, max_attempts=4) as server:
        answer, _ = await post_json(server, "/v1/responses", {"input": "hello"})
        assert answer.status == 200 and isinstance(server, VllmModel)
        assert server.upstream.replicas.rejected == 2
