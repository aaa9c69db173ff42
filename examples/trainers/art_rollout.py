"""ART: rollouts of livestream rooms on three tasks, with a fake server in place of its backend.

In training, `await model.register(backend)` starts the server, and `backend.train(model, groups)`
trains what was gathered; see docs/trainers.md. Run it where ART is installed:
`python examples/trainers/art_rollout.py`.
"""

from __future__ import annotations

import asyncio
import json
import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # litellm would fetch it

import art
from fake_chat import serving
from openai.types.chat.chat_completion import Choice

from livestream_env.adapters.art import RoomRollout
from livestream_env.adapters.setup import task_rows

rollout = RoomRollout("snacks", embedder="lexical", masker="end_to_end")


async def main() -> None:
    """Gather a group of two for each of three tasks and print what ART trains of it."""
    with serving([]) as url:
        model = art.Model(
            name="host",
            project="rooms",
            inference_api_key="default",
            inference_base_url=f"{url}/v1",
        )
        for row in task_rows("snacks", count=3, embedder="lexical"):
            [group] = await art.gather_trajectory_groups(
                [art.TrajectoryGroup(rollout(model, row) for _ in range(2))],
                pbar_desc=None,
                max_exceptions=1,
            )
            one = group.trajectories[0]
            choices = sum(isinstance(said, Choice) for said in one.messages_and_choices)
            told = {"members": len(group), "choices": choices, "reward": one.reward}
            print(json.dumps({"comment": row.comment, **told}))


if __name__ == "__main__":
    asyncio.run(main())
