"""One agent with mixed rewards, or two agents with rewards of their own: which is learnt sooner?

    python benchmarks/learning_agents.py --seeds 50 51 52 53 54

Rooms, wording, teacher and model are those of `learning_rooms`. Every episode is one of two agents:
a tool caller looks things up until it has the reply rule, then a replier answers. Three ways of
training start from the same warm model, play the same tasks as often, with the same rewards, token
masks and estimator (`training_rows`), and differ in what a token is told:

- `one`: one model; each token has the group advantage of the episode's mean total;
- `shared`: one model; each token has the group advantage of its agent's own total;
- `two`: two models, each trained on its agent's tokens and own totals.

Fixed before seeds 50 to 54 were run, and not changed after: the settings below, which are those of
`learning_trl`; the seeds; the rooms of `evaluation_tasks`, 512 of each kind for each seed; that
every seed is run to its end and told. One run went before, of seed 500, measured on 256 other rooms
of the split `train`: 0.203 before, then 0.490 with `one`, 0.556 with `shared`, 0.546 with `two`.
Two agents count as easier to train here if on held-out seeds the mean reward after the last step is
higher with `two` than with `one` in at least 4 of the 5 seeds.
"""

from __future__ import annotations

import copy
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from learning_rooms import (
    SETUP,
    Taught,
    Teacher,
    chart,
    comment_of,
    compared,
    evaluation_tasks,
    make_model,
    make_tokenizer,
    means,
    run_seeds,
    training_tasks,
    warm_up,
)

import livestream_env as le
from livestream_env.adapters.lockstep import Ask, Ids, in_lockstep, up_to_end
from livestream_env.adapters.setup import Setup, TaskRow
from livestream_env.episode import TWO_AGENTS
from livestream_env.masking import END_TO_END
from livestream_env.renderers import ChatTemplateRenderer
from livestream_env.training import AGENTS, training_rows

ONE = {"host": END_TO_END}
ARMS: Mapping[str, Mapping[str, Any]] = {"one": ONE, "shared": AGENTS, "two": AGENTS}
"""What rows are made of, by the way of training."""
TASKS, SIZE = 12, 8
"""Tasks a step, and episodes of each."""
LONGEST = 16
"""Tokens of a turn."""
AT_ONCE = 256


# --- the teacher in two seats -----------------------------------------------------------------


def taught(setup: Setup, rows: Sequence[TaskRow], seed: int) -> list[le.Trajectory]:
    """Return the teacher's episodes."""
    teacher, env = Teacher(seed), setup.make_env(rows[0].room)
    played = []
    for row in rows:
        comment = comment_of(env, row)
        seats = {name: Taught(teacher, comment, name == TWO_AGENTS[0]) for name in TWO_AGENTS}
        played.append(le.rollout(env, le.AgentTeam(**seats), **setup.opening(row)))
    return played


# --- the policies -----------------------------------------------------------------------------


class _Prompt(tuple[int, ...]):
    """The ids that an agent goes on from."""

    agent: str


class Policies:
    """The model of each agent, which may be the same one, and their optimizers."""

    def __init__(self, model: Any, renderer: ChatTemplateRenderer, *, two: bool, rate: float):
        import torch

        self.models = dict.fromkeys(TWO_AGENTS, model)
        if two:
            self.models["replier"] = copy.deepcopy(model)
        self.own = list({id(one): one for one in self.models.values()}.values())
        self.optimizers = [torch.optim.AdamW(one.parameters(), lr=rate) for one in self.own]
        self.renderer, self.pad = renderer, renderer.tokenizer.pad_token_id

    def play(self, setup: Setup, rows: Sequence[TaskRow]) -> list[le.Trajectory]:
        """Play an episode of each row."""
        return in_lockstep(
            [functools.partial(self._episode, setup, row) for row in rows],
            self._generate,
            max_workers=AT_ONCE,
        )

    def _episode(self, setup: Setup, row: TaskRow, ask: Ask) -> le.Trajectory:
        def engine(agent: str, ids: Ids, stop: Ids) -> le.Sampled:
            prompt = _Prompt(ids)
            prompt.agent = agent
            return ask(prompt, stop)

        seats = {
            name: le.TokenAgent(functools.partial(engine, name), self.renderer)
            for name in TWO_AGENTS
        }
        env = setup.make_env(row.room)
        return le.rollout(env, le.AgentTeam(**seats), **setup.opening(row))

    def _generate(self, prompts: Sequence[Any], stop: Ids) -> list[le.Sampled]:
        made: dict[int, le.Sampled] = {}
        for agent in TWO_AGENTS:
            at = [i for i, prompt in enumerate(prompts) if prompt.agent == agent]
            if at:
                made |= zip(at, self._sampled(agent, [prompts[i] for i in at], stop), strict=True)
        return [made[i] for i in range(len(prompts))]

    def _sampled(self, agent: str, prompts: Sequence[Ids], stop: Ids) -> list[le.Sampled]:
        import torch

        longest = max(map(len, prompts))
        ids = torch.tensor([[self.pad] * (longest - len(one)) + list(one) for one in prompts])
        with torch.no_grad():
            made = self.models[agent].generate(
                input_ids=ids,
                attention_mask=(ids != self.pad).long(),
                do_sample=True,
                top_k=0,
                max_new_tokens=LONGEST,
                eos_token_id=list(stop),
            )
        return [up_to_end(one, None, stop) for one in made[:, longest:].tolist()]

    def train(self, rows: Sequence[le.TrainingRow]) -> None:
        """Take a step of the policy gradient, a mean over the trained tokens of each model."""
        for model, optimizer in zip(self.own, self.optimizers, strict=True):
            kept = [row for row in rows if row.excluded is None]
            own = [row for row in kept if self.models.get(row.agent, self.own[0]) is model]
            if not own:
                continue
            loss = self._loss(model, own)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def _loss(self, model: Any, rows: Sequence[le.TrainingRow]) -> Any:
        import torch

        longest = max(len(row.token_ids) for row in rows)

        def padded(values: Callable[[le.TrainingRow], Sequence[float]], fill: float) -> Any:
            return torch.tensor([[*values(r), *[fill] * (longest - len(values(r)))] for r in rows])

        ids = padded(lambda row: row.token_ids, self.pad)
        weights = padded(lambda row: row.advantages, 0.0)[:, 1:]
        logits = model(input_ids=ids, attention_mask=(ids != self.pad).long()).logits[:, :-1]
        chosen = logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
        return -(weights * chosen).sum() / sum(sum(row.loss_mask) for row in rows)


# --- a run ------------------------------------------------------------------------------------


def learn(
    seed: int,
    *,
    steps: int = 48,
    warm_steps: int = 1000,
    episodes: int = 1500,
    held_out: int = 512,
    learning_rate: float = 7e-4,
    sets: Mapping[str, Sequence[TaskRow]] | None = None,
) -> dict[str, Any]:
    """Train one seed in every way and return its figures."""
    import torch

    begun = time.time()
    torch.manual_seed(seed)
    setup = Setup(agents=AGENTS, **SETUP)
    tasks = training_tasks(seed, max(episodes, steps * TASKS))
    sets = evaluation_tasks(seed, held_out) if sets is None else sets
    played = taught(setup, tasks[:episodes], seed)
    tokenizer = make_tokenizer([t.messages[1].content for t in played])
    renderer = ChatTemplateRenderer(tokenizer)
    model = make_model(tokenizer, seed)
    rows = training_rows(played, renderer, agents=ONE, rubric=None, advantages=None)
    kept = [(row.token_ids, row.loss_mask) for row in rows if row.excluded is None]
    told: dict[str, Any] = {
        "seed": seed,
        "steps": steps,
        "warm_loss": round(warm_up(model, tokenizer, kept, warm_steps, seed), 4),
    }
    start = Policies(model, renderer, two=False, rate=learning_rate)
    before = {name: _measured(start, setup, given, seed) for name, given in sets.items()}
    ends: dict[str, dict[str, dict[int, float]]] = {}
    for arm, agents in ARMS.items():
        policies = Policies(copy.deepcopy(model), renderer, two=arm == "two", rate=learning_rate)
        torch.manual_seed(seed)
        trained = [
            _step(policies, setup, tasks[step * TASKS : (step + 1) * TASKS], agents)
            for step in range(steps)
        ]
        ends[arm] = {name: _measured(policies, setup, given, seed) for name, given in sets.items()}
        told[arm] = {"trained": [(at + 1, round(one, 4)) for at, one in enumerate(trained)]}
        told[arm] |= {name: compared(before[name], ends[arm][name]) for name in sets}
    for arm in ("shared", "two"):
        told[arm]["over_one"] = {
            name: compared(ends["one"][name], ends[arm][name]) for name in sets
        }
    return told | {"all_s": round(time.time() - begun)}


def _step(
    policies: Policies, setup: Setup, tasks: Sequence[TaskRow], agents: Mapping[str, Any]
) -> float:
    """Play and train groups; return their mean reward."""
    played = policies.play(setup, [row for row in tasks for _ in range(SIZE)])
    policies.train(training_rows(played, policies.renderer, agents=agents, rubric=None))
    return statistics.fmean(reward_of(one) for one in played)


def reward_of(trajectory: le.Trajectory) -> float:
    """Return the mean of the agents' totals; nothing fails here, and rooms have their key."""
    assert trajectory.reward is not None
    return trajectory.reward


def _measured(
    policies: Policies, setup: Setup, rows: Sequence[TaskRow], seed: int
) -> dict[int, float]:
    import torch

    torch.manual_seed(seed)
    played = policies.play(setup, rows)
    return {row.seed: reward_of(one) for row, one in zip(rows, played, strict=True)}


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the rewards before and after in every way, and how far above `one`, as Markdown."""
    head = ["seed", "set", "before", *ARMS, "`shared` over `one`", "`two` over `one`"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for run in runs:
        for name in ("seeds", "test"):
            cells = [str(run["seed"]), name, f"{run['one'][name]['before']:.3f}"]
            cells += [f"{run[arm][name]['after']:.3f}" for arm in ARMS]
            for arm in ("shared", "two"):
                over = run[arm]["over_one"][name]
                cells.append(f"{over['rise']:+.3f} ± {over['rise_se']:.3f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def curves(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return what was trained: `one` grey, `shared` light, `two` dark; as an SVG."""
    colours = {"one": "#999", "shared": "#9bd", "two": "#036"}
    lines = [(means(run[arm]["trained"]), colours[arm]) for run in runs for arm in ARMS]
    return chart(lines, max(run["steps"] for run in runs))


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    run_seeds(learn, Path(__file__).with_suffix(".json"), __doc__.splitlines()[0], table, curves)
