"""What tests of parsing share."""

from __future__ import annotations

from livestream_env.types import Action, Trajectory, Turn


def can_be_recorded(action: Action) -> bool:
    trajectory = Trajectory(
        room_id="r",
        content_hash="h",
        comment_ids=("c1",),
        seed=1,
        prompts={},
        tools={},
        turns=(Turn("host", action),),
    )
    return Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory
