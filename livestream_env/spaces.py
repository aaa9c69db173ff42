"""Gymnasium spaces of messages and actions.

They are spaces of their own, not `Text`: real viewer text is any Unicode, and Gymnasium's
shared-memory vector environments would turn it into a constant (they refuse custom spaces
instead; pass `vector_kwargs={"shared_memory": False}`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from livestream_env.errors import InvalidAction
from livestream_env.parsing import to_action
from livestream_env.types import Action, CommentView, Message, Observation, ToolSpec

_REPLIES = {"zh": ("好的", "亲，看详情页哦", "有货的"), "en": ("sure", "see the page", "in stock")}


class ObservationSpace(gym.Space[Observation]):
    """Every `Observation`: messages with any text, tools, open comments."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(None, None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Observations are text: they cannot be flattened into an array."""
        return False

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a well-formed observation."""
        return (
            isinstance(x, Observation)
            and _all(x.messages, Message)
            and _all(x.tools, ToolSpec)
            and _all(x.comments, CommentView)
        )

    def sample(self, mask: Any = None, probability: Any = None) -> Observation:
        """Return an observation with one message of random text."""
        length = int(self.np_random.integers(0, 12))
        points = self.np_random.integers(0x4E00, 0x9FA5, size=length)
        return Observation((Message("user", "".join(map(chr, points))),))

    def to_jsonable(self, sample_n: Iterable[Observation]) -> list[Any]:
        """Return observations as JSON values."""
        from pydantic import TypeAdapter

        return [TypeAdapter(Observation).dump_python(one, mode="json") for one in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[Observation]:
        """Read what `to_jsonable` returned."""
        from pydantic import TypeAdapter

        return [TypeAdapter(Observation).validate_python(one) for one in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObservationSpace)

    def __repr__(self) -> str:
        return "ObservationSpace()"


class ActionSpace(gym.Space[Any]):
    """Everything `step` takes: an `Action`, a model's text, or an OpenAI assistant message."""

    def __init__(
        self, specs: Sequence[ToolSpec] = (), seed: int | np.random.Generator | None = None
    ) -> None:
        super().__init__(None, None, seed)
        self.specs = tuple(specs)

    @property
    def is_np_flattenable(self) -> bool:
        """Actions are text: they cannot be flattened into an array."""
        return False

    def contains(self, x: Any) -> bool:
        """Return whether `step` takes `x`."""
        try:
            to_action(x)
        except InvalidAction:
            return False
        return True

    def sample(self, mask: Any = None, probability: Any = None) -> Action:
        """Return a reply, or a call of a random tool with arguments that its schema allows."""
        return random_action(self.np_random, self.specs)

    def to_jsonable(self, sample_n: Iterable[Any]) -> list[Any]:
        """Return actions as JSON values."""
        from pydantic import TypeAdapter

        actions = [x if isinstance(x, Action) else to_action(x) for x in sample_n]
        return [TypeAdapter(Action).dump_python(action, mode="json") for action in actions]

    def from_jsonable(self, sample_n: list[Any]) -> list[Action]:
        """Read what `to_jsonable` returned."""
        from pydantic import TypeAdapter

        return [TypeAdapter(Action).validate_python(one) for one in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActionSpace) and self.specs == other.specs

    def __repr__(self) -> str:
        return f"ActionSpace({', '.join(spec.name for spec in self.specs)})"


def _all(items: Any, kind: type) -> bool:
    return isinstance(items, tuple) and all(isinstance(item, kind) for item in items)


def random_action(
    rng: np.random.Generator,
    specs: Sequence[ToolSpec],
    texts: Sequence[str] = ("包邮吗", "多少钱", "price"),
    *,
    language: str = "zh",
    reply_share: float = 0.25,
) -> Action:
    """Draw a reply with probability `reply_share`, else a call of one of the tools.

    Text arguments are drawn from `texts`, whole numbers from 1 to 12.
    """
    if not specs or rng.random() < reply_share:
        replies = _REPLIES[language]
        return Action.reply(replies[int(rng.integers(len(replies)))])
    spec = specs[int(rng.integers(len(specs)))]
    properties: Mapping[str, Any] = spec.parameters.get("properties", {})
    arguments = {name: _draw(rng, schema, texts) for name, schema in properties.items()}
    return Action.call(spec.name, **arguments)


def _draw(rng: np.random.Generator, schema: Mapping[str, Any], texts: Sequence[str]) -> Any:
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][int(rng.integers(len(schema["enum"])))]
    if "anyOf" in schema:
        return _draw(rng, schema["anyOf"][0], texts)
    kind = schema.get("type", "string")
    if kind in ("integer", "number"):
        low = math.ceil(schema.get("minimum", 1))
        return int(rng.integers(low, min(int(schema.get("maximum", low + 11)), low + 11) + 1))
    if kind == "boolean":
        return bool(rng.integers(2))
    if kind == "array":
        return [_draw(rng, schema.get("items", {}), texts)]
    if kind == "object":
        return {key: _draw(rng, one, texts) for key, one in schema.get("properties", {}).items()}
    return texts[int(rng.integers(len(texts)))]
