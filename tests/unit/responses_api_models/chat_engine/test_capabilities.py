"""What an engine can do is found out once, and asked again only where it may yet come out otherwise."""

from __future__ import annotations

import pytest

from rollyard.responses_api_models.chat_engine import capabilities
from rollyard.services.http.transport import Receive, Scope, Send
from rollyard.services.types import Json
from tests.support.token_clients import TEXT_TURN, open_episode, user_message
from tests.support.token_engine import Refused, TokenEngine


def mode(item: Json) -> str:
    found: str = item["token_trace"]["sampling"]["logprobs_mode"]
    return found


@pytest.mark.parametrize(("processed", "found"), [(True, "processed_logprobs"), (False, "raw_logprobs")])
async def test_what_the_engines_logprobs_are_is_found_out_at_the_first_turn_and_kept(
    processed: bool, found: str
) -> None:
    async with open_episode(TokenEngine([TEXT_TURN], processed_logprobs=processed), token_in="off") as player:
        assert mode(await player.ask()) == found
        asked = len(player.engine.requests)
        player.engine.processed_logprobs = not processed
        assert mode(await player.ask(user_message("on"))) == found
    assert player.engine.paths[asked:] == ["completions"]


@pytest.mark.parametrize("processed", [True, False])
async def test_an_engine_with_another_logprobs_mode_than_the_settings_demand_is_refused(processed: bool) -> None:
    found, wanted = ("processed_logprobs", "raw_logprobs")[:: 1 if processed else -1]
    async with open_episode(TokenEngine([TEXT_TURN], processed_logprobs=processed), logprobs_mode=wanted) as player:
        status, problem = await player.send("/v1/responses", {"input": "go"})
    assert (status, problem["type"]) == (400, "urn:rollyard:upstream_refused")
    assert f"runs with --logprobs-mode {found}; expected {wanted}" in problem["detail"]


async def test_each_engines_own_logprobs_mode_is_on_record() -> None:
    engines = TokenEngine([TEXT_TURN], processed_logprobs=True), TokenEngine([TEXT_TURN], processed_logprobs=False)
    async with open_episode(*engines) as player:
        found = {mode((await player.send("/v1/responses", {"input": "go"}))[1]["output"][-1]) for _ in range(4)}
    assert found == {"processed_logprobs", "raw_logprobs"}


class Logits(TokenEngine):
    """Gives logits for log-probabilities."""

    def _probe(self, body: Json) -> Json:
        answer = super()._probe(body)
        answer["choices"][0]["logprobs"]["top_logprobs"] = [{"a": 7.5 / body["temperature"]}]
        return answer


async def test_an_engine_that_gives_logits_is_refused() -> None:
    async with open_episode(Logits([TEXT_TURN])) as player:
        status, problem = await player.send("/v1/responses", {"input": "go"})
    assert status == 400
    assert "--logprobs-mode processed_logits; expected raw_logprobs or processed_logprobs" in problem["detail"]


async def test_of_an_engine_that_cannot_be_asked_the_mode_of_the_settings_is_on_record() -> None:
    async with open_episode(WithoutCompletions([TEXT_TURN]), logprobs_mode="raw_logprobs") as player:
        assert mode(await player.ask()) == "raw_logprobs"


class WithoutCompletions(TokenEngine):
    """Refuses or breaks there."""

    status = 404

    def _complete(self, body: Json) -> Json:
        raise Refused("no", self.status)


async def test_an_engine_that_cannot_tell_is_unknown_and_its_turns_count() -> None:
    async with open_episode(WithoutCompletions([TEXT_TURN])) as player:
        assert mode(await player.ask()) == "unknown"
        asked = len(player.engine.requests)
        assert mode(await player.ask(user_message("on"))) == "unknown"
    assert "/v1/completions" not in [path for path, _ in player.engine.requests[asked:]]


async def test_an_engine_that_fails_for_now_is_asked_again_at_the_next_turn() -> None:
    engine = WithoutCompletions([TEXT_TURN])
    engine.status = 503
    async with open_episode(engine, max_attempts=1) as player:
        assert mode(await player.ask()) == "unknown"
        player.engine = TokenEngine([TEXT_TURN])
        player.transport.mount("http://engine:0", player.engine)
        assert mode(await player.ask(user_message("on"))) == "processed_logprobs"


@pytest.mark.parametrize(
    ("scale_out", "token_in", "way"),
    [(True, "auto", "generate"), (False, "auto", "completions"), (True, "completions", "completions")],
)
async def test_the_way_in_is_the_settings_or_the_first_that_the_engine_has(
    scale_out: bool, token_in: str, way: str
) -> None:
    async with open_episode(TokenEngine([TEXT_TURN], has_token_endpoints=scale_out), token_in=token_in) as player:
        await player.ask()
        items = [await player.ask(user_message("on")) for _ in range(2)]
    assert [item["token_trace"]["way"] for item in items] == [way, way]
    looked = [body for path, body in player.engine.requests if path.endswith("/render") and "tools" not in body]
    assert len(looked) == (token_in == "auto")


async def test_an_engine_that_refused_at_first_contact_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "RETRY_AFTER_S", 0.0)
    async with open_episode(TokenEngine([TEXT_TURN], has_token_endpoints=False)) as player:
        await player.ask()
        assert (await player.ask(user_message("on")))["token_trace"]["way"] == "completions"
        player.engine.has_token_endpoints = True
        assert (await player.ask(user_message("and on")))["token_trace"]["way"] == "generate"
    async with open_episode(WithoutCompletions([TEXT_TURN]), token_in="off") as player:
        assert mode(await player.ask()) == "unknown"
        player.transport.mount("http://engine:0", TokenEngine([TEXT_TURN]))
        assert mode(await player.ask(user_message("on"))) == "processed_logprobs"


class Down(TokenEngine):
    """Answers no render for now."""

    down = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.down and scope["path"].endswith("/render"):
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await super().__call__(scope, receive, send)


async def test_an_engine_that_fails_while_it_is_asked_is_not_taken_for_one_without_the_endpoints() -> None:
    async with open_episode(Down([TEXT_TURN]), max_attempts=1) as player:
        failed, problem = await player.send("/v1/responses", {"input": "go"})
        assert isinstance(player.engine, Down)
        player.engine.down = False
        item = await player.ask()
    assert (failed, problem["type"]) == (502, "urn:rollyard:upstream_error")
    assert item["token_trace"]["way"] == "generate"
