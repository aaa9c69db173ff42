"""OpenEnv: sessions that play by themselves, as TRL's `AsyncGRPOTrainer` takes them.

In training: `HarnessRolloutWorker(harness_session_factory=partial(RoomSessions, ...), ...)`; see
docs/trainers.md. Run it where OpenEnv is installed: `python examples/trainers/openenv_sessions.py`.
"""

from __future__ import annotations

from fake_chat import serving

from livestream_env.adapters.openenv_sessions import RoomSessions
from livestream_env.adapters.setup import task_rows


def main() -> None:
    """Play three tasks and print what is trained of them."""
    with serving([]) as url:
        sessions = RoomSessions(
            "snacks", base_url=f"{url}/v1", model="tiny", masker="reply", embedder="lexical"
        )
        for row in task_rows("snacks", count=3, embedder="lexical"):
            session = sessions.create(row)
            session.wait_for_completion()
            reward = session.verify([]).env_reward
            for turn in session.fetch_training_trace().turns:
                print(turn.node_id, "trained", sum(turn.loss_mask), "reward", reward)
            session.close()


if __name__ == "__main__":
    main()
