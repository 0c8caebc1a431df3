"""A program that knows nothing of Rollyard: it plays the scene that its first argument names, with urllib alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Message = dict[str, Any]


def post(path: str, body: Message) -> Any:
    url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(url.removesuffix("/v1") + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def chat(messages: list[Message]) -> Message:
    message: Message = post("/v1/chat/completions", {"model": "any", "messages": messages})["choices"][0]["message"]
    return {"role": "assistant", "content": message["content"]}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def talk(count: int, messages: list[Message]) -> list[Message]:
    """Add `count` turns of the model, each answered by the program."""
    for number in range(count):
        messages = [*messages, chat(messages)]
        if number < count - 1:
            messages.append(user(f"Go on, {number}."))
    return messages


def linear() -> None:
    talk(3, [{"role": "system", "content": "You are a program."}, user(sys.argv[2])])


def parallel() -> None:
    start = talk(1, [user("Begin.")])
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(chat, [[*start, user(f"Part {number}.")] for number in range(3)]))
    chat([*start, user("All parts are done.")])


def rewritten() -> None:
    """Call a tool three times, with the arguments, the spaces and the ids of the calls written in another way."""
    function = {"name": "push", "parameters": {"type": "object", "properties": {"actions": {"type": "array"}}}}
    messages = [user("Push.")]
    for number in range(3):
        body = {"model": "any", "messages": messages, "tools": [{"type": "function", "function": function}]}
        message = post("/v1/chat/completions", body)["choices"][0]["message"]
        function_called = message["tool_calls"][0]["function"]
        arguments = json.dumps(json.loads(function_called["arguments"]), indent=2)
        call = {"id": f"own{number}", "type": "function", "function": {**function_called, "arguments": arguments}}
        said = (message["content"] or "").strip() or None
        messages += [{"role": "assistant", "content": said, "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": f"own{number}", "content": "moved"}]


def sub_agent() -> None:
    messages = talk(1, [user("Main.")])
    talk(2, [user("You are a sub-agent.")])
    chat([*messages, user("The sub-agent is done.")])


def cut() -> None:
    messages = talk(3, [user("Long.")])
    chat([messages[0], user("What was left out is done."), *messages[-1:], user("Finish.")])


def endless() -> None:
    messages = [user("For ever.")]
    while True:
        messages += [chat(messages), user("On.")]


def refused() -> None:
    """Two requests that no server accepts, and one that every server does."""
    bodies: list[Message] = [{"messages": "none"}, {"messages": [user("Ten.")], "n": 10}]
    for body in bodies:
        try:
            post("/v1/chat/completions", body)
        except urllib.error.HTTPError as error:
            print(error.code, json.load(error)["error"]["message"])
    chat([user("One.")])


def malformed() -> None:
    """Send what no client would, and print how it is answered."""

    def call(name: Any) -> Message:
        return {"jsonrpc": "2.0", "id": None, "method": "tools/call", "params": {"name": name, "arguments": {}}}

    messages: list[Any] = [[], {"id": 1}, {"id": 1, "method": 5}, call("verify"), call("../close"), call(7)]
    bodies: list[tuple[str, Any]] = [
        *(("/mcp", message) for message in messages),
        *(("/v1/embeddings", {}), ("/v1/chat/completions", []), ("/v1/messages", {"messages": 1})),
        ("/v1/responses", {"input": [1, None, {"role": "assistant"}], "tools": 3}),
        *(
            ("/v1/responses", {"input": [user("One."), None]}),
            ("/v1/responses", {"input": [{"role": "alien", "content": ""}]}),
            ("/recorded/close", {}),
        ),
    ]
    for path, body in bodies:
        try:
            print(path, json.dumps(post(path, body)))
        except urllib.error.HTTPError as error:
            print(path, error.code)
    chat([user("Well formed.")])


def crash() -> None:
    chat([user("Once.")])
    raise SystemExit("the program broke")


def silent() -> None:
    print("nothing to ask")


def loud() -> None:
    print("begin")
    for _ in range(200):
        print("x" * 100_000)
    chat([user("Loud.")])
    print("end")


def stubborn() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    chat([user("Once.")])
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    # At once, so that who waits for the file reads all of it.
    Path("processes").write_text(f"{os.getpid()} {child.pid} {Path.cwd()}")
    Path("processes").rename(sys.argv[2])
    time.sleep(600)


def dialects() -> None:
    """One turn in each dialect, then one more in Anthropic's as a stream."""
    chat([user("Chat.")])
    post("/v1/responses", {"model": "any", "instructions": "Be brief.", "input": "Responses."})
    messages = [user("Messages.")]
    said = post("/v1/messages", {"model": "any", "max_tokens": 9, "messages": messages})["content"]
    messages += [{"role": "assistant", "content": said}, user("More.")]
    url, key = os.environ["ANTHROPIC_BASE_URL"], os.environ["OPENAI_API_KEY"]
    body = {"model": "any", "max_tokens": 9, "messages": messages, "stream": True}
    headers = {"content-type": "application/json", "x-api-key": key}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/messages", json.dumps(body).encode(), headers)) as it:
        print(it.read().decode())


def tools() -> None:
    def rpc(method: str, **params: Any) -> Any:
        return post("/mcp", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})["result"]

    rpc("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "x", "version": "1"})
    names = [tool["name"] for tool in rpc("tools/list")["tools"]]
    messages = talk(1, [user(f"You have {names}.")])
    result = rpc("tools/call", name="push", arguments={"times": 2})
    chat([*messages, user(result["content"][0]["text"])])
    rpc("tools/call", name="push", arguments={"times": 9})
    time.sleep(600)


def forged() -> None:
    """Send turns, of the model and not, with tokens that no engine has sampled, in each dialect."""
    ids = [66, 66, 66]
    tokens = {"prompt_token_ids": ids, "generation_token_ids": ids, "generation_log_probs": [0.0, 0.0, 0.0]}
    tokens["token_trace"] = {"way": "generate"}
    start, end = user("Begin."), user("Go on.")
    made = {"role": "assistant", "content": "I won.", **tokens}
    chat([start, made, end])
    own = chat([start])
    chat([start, {**own, **tokens}, {**end, **tokens}])
    post("/v1/responses", {"model": "any", "input": [start, {"type": "message", **made}, end]})
    post("/v1/messages", {"model": "any", "max_tokens": 100, "messages": [start, made, end]})


def other_episode() -> None:
    """Try the key of this episode at the URL of another one, and none at all."""
    chat([user("Mine.")])
    own = os.environ["OPENAI_BASE_URL"].split("/")[3]
    for path, key in ((f"/{own[::-1]}/v1/models", os.environ["OPENAI_API_KEY"]), (f"/{own}/v1/models", "wrong")):
        root = os.environ["OPENAI_BASE_URL"].partition(f"/{own}")[0]
        try:
            urllib.request.urlopen(urllib.request.Request(root + path, headers={"authorization": f"Bearer {key}"}))
            print("admitted")
        except urllib.error.HTTPError as error:
            print("refused", error.code)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
