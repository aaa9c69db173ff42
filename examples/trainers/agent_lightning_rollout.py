"""Agent Lightning 1.0: the rollouts of three tasks, with a fake server in place of its gateway.

In training its controller sets the variables and starts `Agent` in a process for each rollout; see
docs/trainers.md. Nothing of Agent Lightning is imported: `python
examples/trainers/agent_lightning_rollout.py` runs anywhere.
"""

from __future__ import annotations

import json
import os
from typing import Any

from fake_chat import serving

from livestream_env.adapters.agent_lightning import LiveRoomAgent
from livestream_env.adapters.setup import Setup, task_rows


class Agent(LiveRoomAgent):
    """`agent_class="agent_lightning_rollout:Agent"`; `LIVESTREAM_SETUP` does it without a class."""

    setup = Setup("snacks", embedder="lexical", rubric="single4")


def main() -> None:
    """Play three rollouts and print the reward events."""
    events: list[dict[str, Any]] = []
    with serving(events) as url:
        os.environ |= {"AGL_OPENAI_BASE_URL": f"{url}/v1", "AGL_EVENT_URL": f"{url}/events"}
        for row in task_rows("snacks", count=3, embedder="lexical"):
            os.environ["LIVESTREAM_ROW"] = json.dumps(row.to_json())
            Agent().run()
            print(row.task_id, json.dumps(events[-1]))


if __name__ == "__main__":
    main()
