"""GEM: four rooms of one seed at a time, with GEM's own wrappers, and a policy that is scripted.

Run it where GEM is installed (`pip install gem-llm requests`): `python
examples/trainers/gem_vector.py`.
"""

from __future__ import annotations

from functools import partial

import gem
from gem.wrappers.episode_tracking_wrapper import EpisodeTrackingWrapper
from gem.wrappers.observation_wrapper import ObservationWrapper

from livestream_env.adapters.gem import register

CALL = '<tool_call>\n{"name": "get_reply_rule", "arguments": {"intent": "价格咨询"}}\n</tool_call>'
SAID = (CALL, "亲，1号链接价格59.9元，以下单页为准")


def main() -> None:
    """Play the group of one seed and print what each member earns."""
    keeps_all = partial(ObservationWrapper, include_chat_template=False)
    rooms = gem.make_vec(
        [register()] * 4,
        wrappers=[keeps_all, EpisodeTrackingWrapper],
        room="snacks",
        comment="c02",
        embedder="lexical",
        rubric="single4",
    )
    observed, _ = rooms.reset(seed=[7] * 4)
    print(observed[0].split("##")[-2].strip())
    for text in SAID:
        _, rewards, terminated, truncated, _ = rooms.step([text] * 4)
        print("rewards", rewards.tolist(), "ended", (terminated | truncated).tolist())


if __name__ == "__main__":
    main()
