"""The server finds out an engine's capabilities once and asks again only where the result may change."""

from __future__ import annotations

import pytest

from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine import capabilities
from rollyard.services.http.transport import Receive, Scope, Send
from tests.support.token_clients import TEXT_TURN, open_episode, user_message
from tests.support.token_engine import Refused, TokenEngine


def mode(item: Json) -> str:
    found: str = item["token_trace"]["sampling"]["logprobs_mode"]
    return found


@pytest.mark.parametrize(("processed", "expected"), [(True, "processed_logprobs"), (False, "raw_logprobs")])
async def test_the_logprobs_mode_is_detected_at_the_first_turn_and_kept(processed: bool, expected: str) -> None:
    async with open_episode(TokenEngine([TEXT_TURN], processed_logprobs=processed), token_in="off") as client:
        assert mode(await client.ask()) == expected
        requests_before = len(client.engine.requests)
        client.engine.processed_logprobs = not processed
        assert mode(await client.ask(user_message("on"))) == expected
    assert client.engine.paths[requests_before:] == ["completions"]


@pytest.mark.parametrize("processed", [True, False])
async def test_an_engine_with_another_logprobs_mode_than_the_settings_require_is_refused(processed: bool) -> None:
    found, required = ("processed_logprobs", "raw_logprobs")[:: 1 if processed else -1]
    async with open_episode(TokenEngine([TEXT_TURN], processed_logprobs=processed), logprobs_mode=required) as client:
        status, problem = await client.send("/v1/responses", {"input": "go"})
    assert (status, problem["type"]) == (400, "urn:rollyard:upstream_refused")
    assert f"runs with --logprobs-mode {found}; expected {required}" in problem["detail"]


async def test_each_engines_own_logprobs_mode_is_recorded() -> None:
    engines = TokenEngine([TEXT_TURN], processed_logprobs=True), TokenEngine([TEXT_TURN], processed_logprobs=False)
    async with open_episode(*engines) as client:
        found = {mode((await client.send("/v1/responses", {"input": "go"}))[1]["output"][-1]) for _ in range(4)}
    assert found == {"processed_logprobs", "raw_logprobs"}


class Logits(TokenEngine):
    """Returns logits instead of log-probabilities."""

    def _probe(self, body: Json) -> Json:
        answer = super()._probe(body)
        answer["choices"][0]["logprobs"]["top_logprobs"] = [{"a": 7.5 / body["temperature"]}]
        return answer


async def test_an_engine_that_returns_logits_is_refused() -> None:
    async with open_episode(Logits([TEXT_TURN])) as client:
        status, problem = await client.send("/v1/responses", {"input": "go"})
    assert status == 400
    assert "--logprobs-mode processed_logits; expected raw_logprobs or processed_logprobs" in problem["detail"]


async def test_the_mode_from_the_settings_is_recorded_for_an_engine_that_cannot_be_probed() -> None:
    async with open_episode(WithoutCompletions([TEXT_TURN]), logprobs_mode="raw_logprobs") as client:
        assert mode(await client.ask()) == "raw_logprobs"


class WithoutCompletions(TokenEngine):
    """Answers /v1/completions with an error."""

    status = 404

    def _complete(self, body: Json) -> Json:
        raise Refused("no", self.status)


async def test_the_mode_of_an_engine_that_cannot_be_probed_is_unknown_and_its_turns_are_valid() -> None:
    async with open_episode(WithoutCompletions([TEXT_TURN])) as client:
        assert mode(await client.ask()) == "unknown"
        requests_before = len(client.engine.requests)
        assert mode(await client.ask(user_message("on"))) == "unknown"
    assert "/v1/completions" not in [path for path, _ in client.engine.requests[requests_before:]]


async def test_an_engine_whose_probe_fails_temporarily_is_probed_again_at_the_next_turn() -> None:
    engine = WithoutCompletions([TEXT_TURN])
    engine.status = 503
    async with open_episode(engine, max_attempts=1) as client:
        assert mode(await client.ask()) == "unknown"
        client.engine = TokenEngine([TEXT_TURN])
        client.transport.mount("http://engine:0", client.engine)
        assert mode(await client.ask(user_message("on"))) == "processed_logprobs"


@pytest.mark.parametrize(
    ("has_token_endpoints", "token_in", "backend"),
    [(True, "auto", "generate"), (False, "auto", "completions"), (True, "completions", "completions")],
)
async def test_the_token_backend_is_the_one_of_the_settings_or_the_first_that_the_engine_offers(
    has_token_endpoints: bool, token_in: str, backend: str
) -> None:
    async with open_episode(
        TokenEngine([TEXT_TURN], has_token_endpoints=has_token_endpoints), token_in=token_in
    ) as client:
        await client.ask()
        items = [await client.ask(user_message("on")) for _ in range(2)]
    assert [item["token_trace"]["way"] for item in items] == [backend, backend]
    probes = [body for path, body in client.engine.requests if path.endswith("/render") and "tools" not in body]
    assert len(probes) == (token_in == "auto")


async def test_an_engine_that_refused_the_first_probe_is_probed_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "RETRY_AFTER_S", 0.0)
    async with open_episode(TokenEngine([TEXT_TURN], has_token_endpoints=False)) as client:
        await client.ask()
        assert (await client.ask(user_message("on")))["token_trace"]["way"] == "completions"
        client.engine.has_token_endpoints = True
        assert (await client.ask(user_message("and on")))["token_trace"]["way"] == "generate"
    async with open_episode(WithoutCompletions([TEXT_TURN]), token_in="off") as client:
        assert mode(await client.ask()) == "unknown"
        client.transport.mount("http://engine:0", TokenEngine([TEXT_TURN]))
        assert mode(await client.ask(user_message("on"))) == "processed_logprobs"


class Down(TokenEngine):
    """Answers 503 to /render while `down` is set."""

    down = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.down and scope["path"].endswith("/render"):
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await super().__call__(scope, receive, send)


async def test_an_engine_whose_probe_fails_is_not_treated_as_one_without_the_endpoints() -> None:
    async with open_episode(Down([TEXT_TURN]), max_attempts=1) as client:
        failed, problem = await client.send("/v1/responses", {"input": "go"})
        assert isinstance(client.engine, Down)
        client.engine.down = False
        item = await client.ask()
    assert (failed, problem["type"]) == (502, "urn:rollyard:upstream_error")
    assert item["token_trace"]["way"] == "generate"
