"""rLLM: the flow of livestream rooms on three tasks, with a fake server in place of its gateway.

In training: `AgentTrainer(agent_flow=flow, evaluator=flow, train_dataset=..., config=...)`; see
docs/trainers.md. Run it where rLLM is installed: `python examples/trainers/rllm_flow.py`.
"""

from __future__ import annotations

import asyncio

from fake_chat import serving
from rllm.types import AgentConfig, Task

from livestream_env.adapters.rllm import RoomFlow
from livestream_env.adapters.setup import task_rows

flow = RoomFlow("snacks", embedder="lexical", masker="end_to_end", rubric="single4")


async def main() -> None:
    """Play three tasks and print what rLLM trains."""
    with serving([]) as url:
        config = AgentConfig(base_url=f"{url}/v1", model="tiny", session_uid="task:0")
        for row in task_rows("snacks", count=3, embedder="lexical"):
            task = Task(id=row.task_id, instruction="", metadata=row.to_json())
            episode = await flow.arun(task, config)
            flow.evaluate(task, episode)
            for one in episode.trajectories:
                print(task.id, one.name, len(one.steps), one.reward)


if __name__ == "__main__":
    asyncio.run(main())
