"""One episode forked after its first turn: two continuations that do not see each other.

Run: python examples/fork_branches.py
"""

import livestream_env as le


def play_on(env: le.LiveRoomEnv, *actions: le.Action) -> le.Trajectory:
    """Take the actions and return the record."""
    for action in actions:
        env.step(action)
    return env.trajectory


def main() -> None:
    """Compare a branch that moves the product with one that only promises to."""
    env = le.LiveRoomEnv("snacks", comment="c14")
    observation, _ = env.reset(seed=0)
    print("viewer:", observation.comments[0].text)
    env.step(le.Action.call("get_reply_rule", intent="讲解顺序"))

    does = play_on(
        env.fork(at_turn=1),
        le.Action.call("move_product", link_no=7, position=1),
        le.Action.reply("七号已经排到最前面了"),
    )
    promises = play_on(env.fork(at_turn=1), le.Action.reply("好的，马上给您讲七号"))

    for name, branch in (("does", does), ("promises", promises)):
        assert branch.state is not None
        first = branch.state.product_order[0]
        print(f"{name}: {branch.reply} [{branch.stop_reason}], first in the list: {first}")
    same = does.turns[1].state_key == promises.turns[1].state_key
    print("both branches leave from one situation:", same)
    print("the trunk still stands after turn", len(env.episode.turns))


if __name__ == "__main__":
    main()
