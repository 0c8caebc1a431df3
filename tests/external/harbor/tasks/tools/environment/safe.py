"""An MCP server with one tool, over standard input and output."""

import json
import sys

TOOL = {
    "name": "code",
    "description": "The code of a safe.",
    "inputSchema": {"type": "object", "properties": {"safe": {"type": "string"}}, "required": ["safe"]},
}

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        answer["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {}}
    elif message["method"] == "tools/list":
        answer["result"] = {"tools": [TOOL]}
    elif message["method"] == "tools/call":
        safe = message["params"]["arguments"].get("safe")
        text = "7291" if safe == "north" else f"there is no safe {safe!r}"
        answer["result"] = {"content": [{"type": "text", "text": text}], "isError": safe != "north"}
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}), flush=True)
    print(json.dumps(answer), flush=True)
