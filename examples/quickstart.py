"""One comment (danmaku) of a bundled room, answered in three steps.

Run: python examples/quickstart.py
"""

import gymnasium as gym

import livestream_env as le

env = gym.make("livestream_env:LiveRoom-v0", room="snacks", comment="c10")
observation, info = env.reset(seed=0)
print("viewer:", observation.comments[0].text)
print("tools:", ", ".join(tool.name for tool in observation.tools))

actions = [
    le.Action.call("search_faq", query="付款后多久发货"),
    '{"name": "get_reply_rule", "arguments": {"intent": "发货物流"}}',  # a model's raw text
    le.Action.reply("亲，付款后48小时内发出，周日不出库"),
]
for action in actions:
    observation, reward, terminated, truncated, info = env.step(action)
    for message in observation.messages:
        print(f"{message.role}: {message.content}")
print("ended:", terminated, "because", info["stop_reason"])
env.close()
