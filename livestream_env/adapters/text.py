"""Episodes for trainers that pass plain text: tools told in the system message, results as text.

The form is Hermes', which Qwen's chat templates write too: calls and results are JSON between tags.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from livestream_env.types import Message, ToolSpec, freeze

_TOLD = {
    "zh": (
        "\n\n# 工具\n\n你可以调用下列工具，每行是一个工具的 JSON 说明：\n"
        "<tools>\n{tools}\n</tools>\n\n调用时，每次调用单独写成一段，格式为：\n"
        '<tool_call>\n{{"name": "工具名", "arguments": {{"参数名": "参数值"}}}}\n</tool_call>\n'
        "不含调用的消息就是给观众的回复。"
    ),
    "en": (
        "\n\n# Tools\n\nYou may call these tools; each line describes one as JSON:\n<tools>\n"
        "{tools}\n</tools>\n\nWrite each call as a part of its own, in this form:\n"
        '<tool_call>\n{{"name": "the tool", "arguments": {{"parameter": "value"}}}}\n</tool_call>\n'
        "A message without calls is the reply to the viewers."
    ),
}


def with_tools_told(
    messages: Sequence[Message], tools: Sequence[ToolSpec], language: str
) -> tuple[Message, ...]:
    """Return the first messages with the tools described in the system message, made if needed."""
    if not tools:
        return tuple(messages)
    lines = "\n".join(_line(one.name, one.description, one.parameters.as_json) for one in tools)
    told = _TOLD["zh" if language == "zh" else "en"].format(tools=lines)
    first = messages[0] if messages else None
    if first is None or first.role != "system":
        return (Message("system", told.strip()), *messages)
    return (replace(first, content=first.content + told), *messages[1:])


@lru_cache(maxsize=256)
def _line(name: str, description: str, parameters: str) -> str:
    tool = ToolSpec(name, description, freeze(json.loads(parameters)))
    return json.dumps(tool.to_openai(), ensure_ascii=False)


def as_user_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return what an agent was told with tool results as text of one user message.

    Results in a row share a message, as in Hermes' templates; other messages stay as they are.
    """
    made: list[Message] = []
    results: list[str] = []
    for message in (*messages, None):
        if message is not None and message.role == "tool":
            results.append(f"<tool_response>\n{message.content}\n</tool_response>")
            continue
        if results:
            made.append(Message("user", "\n".join(results)))
            results = []
        if message is not None:
            made.append(message)
    return tuple(made)
