"""A first turn is sent as the engine's rendered token ids, so that each token has a version; otherwise as messages."""

from __future__ import annotations

from rollyard.records.types import Json
from tests.support.token_clients import CALL_TURN, TEXT_TURN, open_episode, user_message
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import encode
from tests.unit.responses_api_models.chat_engine.token_history.test_turn_breaks import IMAGE


class Versioned(TokenEngine):
    """Reports which weights sampled which tokens, as vLLM does."""

    def _generate(self, body: Json) -> Json:
        answer = super()._generate(body)
        half = len(answer["choices"][0]["token_ids"]) // 2
        ends = {"version": "default", "start": 0, "end": half}, {"version": "step-1", "start": half, "end": 2 * half}
        answer["choices"][0]["weight_versions"] = list(ends)
        return answer


async def test_a_first_turn_takes_three_requests_and_uses_the_templates_prompt() -> None:
    async with open_episode(TokenEngine([CALL_TURN]), params={"tools": []}) as client:
        await client.ask()
        requests_before = len(client.engine.requests)
        client.conversation.output.clear()
        status, response = await client.send("/v1/responses", {"input": [user_message("go up")]})
    assert status == 200
    assert client.engine.paths[requests_before:] == ["render", "generate", "derender"]
    item = response["output"][-1]
    assert item["prompt_token_ids"] == encode("<|im_start|>user\ngo up<|im_end|>\n<|im_start|>assistant\n")
    assert item["token_trace"]["way"] == "generate"


async def test_each_token_of_a_single_turn_has_its_weight_version() -> None:
    async with open_episode(Versioned([TEXT_TURN])) as client:
        sampling = (await client.ask())["token_trace"]["sampling"]
    assert [span["version"] for span in sampling["weight_versions"]] == ["0", "step-1"]
    assert (sampling["policy_version"], sampling["policy_version_end"]) == ("0", "step-1")
    assert sampling["version_of"] == "token"


async def test_an_engine_without_version_spans_gets_messages_and_the_record_says_so() -> None:
    for backend in ["completions", "off"]:
        async with open_episode(TokenEngine([TEXT_TURN]), token_in=backend) as client:
            trace = (await client.ask())["token_trace"]
        assert (trace["way"], trace["sampling"]["version_of"]) == ("chat", "turn")


CHAT_ONLY: list[Json] = [
    *({"echo": True}, {"continue_final_message": True}, {"truncate_prompt_tokens": 9}, {"prompt_logprobs": 1}),
    *({"add_generation_prompt": False}, {"input": [{"role": "user", "content": [IMAGE]}]}),
]


async def test_requests_that_only_the_chat_endpoint_supports_are_sent_as_messages() -> None:
    for params in CHAT_ONLY:
        async with open_episode(TokenEngine([TEXT_TURN]), params=params) as client:
            one = await client.ask()
            two = await client.ask(user_message("on"))
        assert [item["token_trace"]["way"] for item in (one, two)] == ["chat", "chat"]
        assert "break" not in one["token_trace"]
        assert two["token_trace"]["break"]["reason"] in (*params, "not_text")


async def test_both_backends_give_the_same_response_for_a_first_turn() -> None:
    for script in [[CALL_TURN], [TEXT_TURN], [encode("<think>hm</think>the box")]]:
        results = []
        for backend in ("off", "generate"):
            async with open_episode(TokenEngine(script), token_in=backend) as client:
                item = await client.ask()
            response = client.responses[0]
            names = ("type", "name", "arguments", "content", "summary", "status")
            visible = [{key: one.get(key) for key in names} for one in response["output"]]
            results.append(
                (visible, response["status"], response["usage"], item["generation_log_probs"], sorted(response))
            )
        assert results[0] == results[1]


async def test_a_request_that_does_not_sample_exactly_one_turn_is_refused() -> None:
    fields = {"n": 2, "best_of": 2, "use_beam_search": True, "logprob_token_ids": [5]}
    async with open_episode(TokenEngine([TEXT_TURN])) as client:
        for name, value in fields.items():
            request = {"messages": [user_message("hi")], name: value}
            status, problem = await client.send("/v1/chat/completions", request)
            assert (status, problem["type"]) == (400, "urn:rollyard:bad_request")
            assert problem["detail"].startswith(name)
    assert not client.engine.requests


async def test_fields_with_values_that_mean_one_turn_are_accepted() -> None:
    async with open_episode(TokenEngine([TEXT_TURN])) as client:
        fields = {"n": 1, "best_of": 1, "use_beam_search": False, "logprob_token_ids": []}
        status, _ = await client.send("/v1/chat/completions", {"messages": [user_message("hi")], **fields})
    assert status == 200
