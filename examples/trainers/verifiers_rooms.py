"""verifiers: three tasks of the taskset `livestream_env`, with a fake engine in place of vLLM.

prime-rl serves the same environment from its own TOML; see docs/trainers.md. Run it where verifiers
is installed: `python examples/trainers/verifiers_rooms.py`.
"""

from __future__ import annotations

import asyncio
import json
import tempfile

import verifiers.v1 as vf
from aiohttp import web
from fake_chat import SAID
from tiny_model import tiny_tokenizer

ROOM = {"room": "snacks", "embedder": "lexical", "masker": "end_to_end", "rubric": "single4"}
CONFIG = {"taskset": {"id": "livestream_env", "count": 3, "task": {"setup": ROOM}}}


async def generate(request: web.Request) -> web.Response:
    """Sample as vLLM's `/inference/v1/generate` would."""
    made, asked = tiny_tokenizer(), await request.json()
    turn = made.decode(asked["token_ids"]).count("<|im_start|>assistant") - 1
    ids = made(SAID[turn] + "<|im_end|>", add_special_tokens=False)["input_ids"]
    pairs = [{"token": f"token_id:{token}", "logprob": -0.5} for token in ids]
    choice = {"token_ids": ids, "finish_reason": "stop", "logprobs": {"content": pairs}}
    return web.json_response({"choices": [choice]})


async def serve() -> tuple[web.AppRunner, str]:
    """Start the fake engine on a free port; return it and its URL."""
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/inference/v1/generate", generate)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"


async def main() -> None:
    """Play three tasks and print what prime-rl would train."""
    engine, url = await serve()
    with tempfile.TemporaryDirectory() as folder:
        tiny_tokenizer().save_pretrained(folder)
        client = vf.TrainClientConfig(
            base_url=url,
            renderer={"name": "default", "tool_parser": "qwen3"},
            renderer_model_name=folder,
        )
        env = vf.load_environment(vf.resolve_env_config(CONFIG))
        context = vf.ModelContext(model="tiny", client=client)
        async with env.serving():
            tasks = list(env.taskset)
            episodes = await asyncio.gather(*(env.run_episode(one, context) for one in tasks))
    await engine.cleanup()
    for task, episode in zip(tasks, episodes, strict=True):
        (trace,) = episode.traces
        told = {
            "task": task.key,
            "tokens": sum(len(branch.token_ids) for branch in trace.branches),
            "trained": sum(sum(node.loss_weights["rl"]) for node in trace.nodes if node.sampled),
            "reward": trace.reward,
        }
        print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main())
