"""NeMo Gym: the agent server plays two task rows, with a fake in place of Gym's model server.

In training Gym starts the agent from its YAML; see docs/trainers.md. Run it where NeMo Gym is
installed: `python examples/trainers/nemo_gym_agent.py`.
"""

from __future__ import annotations

import json
import os

from fastapi.testclient import TestClient
from nemo_gym.config_types import BaseServerConfig, ModelServerRef
from nemo_gym.server_utils import ServerClient
from omegaconf import DictConfig

from livestream_env.adapters.nemo_gym import LiveRoomAgent, LiveRoomAgentConfig
from livestream_env.adapters.setup import task_rows

RULE = {"name": "get_reply_rule", "arguments": '{"intent": "闲聊互动"}'}


class Answer:
    """What Gym's client returns."""

    ok, cookies = True, None

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self) -> bytes:
        return self._body


class Model(ServerClient):
    """Looks the rule of small talk up, then says hello, as Gym's model server would tell it."""

    async def post(self, **asked: object) -> Answer:
        """Answer a request with items, whose last one tells the token ids."""
        items = asked["json"]["input"]  # type: ignore[index]
        ids = {"prompt_token_ids": [1] * 10 * len(items), "generation_token_ids": [1] * 10}
        ids["generation_log_probs"] = [-0.5] * 10
        said = {"type": "message", "role": "assistant", "id": "m", "status": "completed"}
        text = {"type": "output_text", "text": "亲，欢迎来到直播间", "annotations": []}
        item = {**said, "content": [text]}
        if not any(one["type"] == "function_call" for one in items):
            item = {"type": "function_call", "call_id": "c", **RULE}
        told = {"id": "r", "created_at": 0, "model": "tiny", "object": "response", "tools": []}
        told |= {"tool_choice": "auto", "parallel_tool_calls": True, "output": [item | ids]}
        return Answer(json.dumps(told).encode())


def main() -> None:
    """Serve the agent, post two rows to it and print what is trained."""
    os.environ["NEMO_GYM_CONFIG_DICT"] = "{}"
    server = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "live_room_agent"}
    model = ModelServerRef(type="responses_api_models", name="policy_model")
    setup = {"room": "snacks", "embedder": "lexical", "masker": "reply", "rubric": "single4"}
    head = BaseServerConfig(host="127.0.0.1", port=1)
    agent = LiveRoomAgent(
        config=LiveRoomAgentConfig(**server, model_server=model, setup=setup),
        server_client=Model(head_server_config=head, global_config_dict=DictConfig({})),
    )
    client = TestClient(agent.setup_webserver())
    for row in task_rows("snacks", count=2, embedder="lexical"):
        asked = {"responses_create_params": {"input": []}, **row.to_json()}
        told = client.post("/run", json=asked).json()
        trained = [one["type"] for one in told["response"]["output"] if "prompt_token_ids" in one]
        print(row.task_id, "reward", told["reward"], "trained", trained)


if __name__ == "__main__":
    main()
