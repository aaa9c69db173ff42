"""Two sets of weights, two clusters: one rollout feeds both, each with its own rows and versions.

Needs the extra `tokens`. Run: python examples/two_clusters.py
"""

from __future__ import annotations

from loss_masks import byte_tokenizer
from shared_weights import policy, room_env

import livestream_env as le
from livestream_env.renderers import ChatTemplateRenderer

CLUSTERS = {"tool_caller": "small", "replier": "large"}


class Trainer:
    """Stands for the trainer of one cluster: it takes rows and publishes a checkpoint."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.step = 0

    @property
    def checkpoint(self) -> str:
        """The name of the weights that its engine serves."""
        return le.checkpoint_name(self.cluster, self.step)

    def train(self, rows: list[le.TrainingRow]) -> None:
        """Take a step on the trained tokens of the rows."""
        self.step += 1
        tokens = sum(sum(row.loss_mask) for row in rows)
        print(f"  {self.cluster}: {len(rows)} rows, {tokens} tokens -> {self.checkpoint}")


def main() -> None:
    """Play with both models, train each on its own rows; the last batch has one stale group."""
    renderers = {agent: ChatTemplateRenderer(byte_tokenizer()) for agent in CLUSTERS}
    players = {agent: policy(made, seed=3) for agent, made in renderers.items()}
    trainers = {agent: Trainer(cluster) for agent, cluster in CLUSTERS.items()}
    waiting: list[le.Trajectory] = []
    for seed in range(3):
        serving = {agent: trainer.checkpoint for agent, trainer in trainers.items()}
        group = le.rollout_group(room_env, le.AgentTeam(**players), size=4, seed=seed)
        waiting += [le.stamp_version(trajectory, serving) for trajectory in group]
        if seed == 1:
            trainers["replier"].step += 1  # its cluster trained on other rooms meanwhile
            continue
        current = {agent: trainer.checkpoint for agent, trainer in trainers.items()}
        rows = le.training_rows(
            waiting, renderers, flat="exclude", current_version=current, max_staleness=0
        )
        print(f"{len(rows)} rows; served by {', '.join(serving.values())}")
        for row in rows:
            if row.excluded and row.trajectory_id.endswith("#0"):
                print(f"  {row.agent} of {row.group_id} left out: {row.excluded}")
        split = le.split_rows(rows, CLUSTERS)
        for agent, cluster in CLUSTERS.items():
            trainers[agent].train(split[cluster])
        waiting = []


if __name__ == "__main__":
    main()
