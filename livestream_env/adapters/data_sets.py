"""Data sets of task rows: what a trainer reads before it plays an episode of each.

A row decides the first observation. Trainers repeat it for the members of a group, which then
differ in what the policy samples alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args

from livestream_env.adapters.setup import Setup, TaskRow
from livestream_env.errors import did_you_mean
from livestream_env.export import write_rows

DataFormat = Literal["jsonl", "trl", "verl", "openrlhf", "slime", "nemo_gym"]
DATA_FORMATS: tuple[DataFormat, ...] = get_args(DataFormat)
LOOP = "liveroom"
"""The name that verl's rows and `adapters.verl` know the agent loop by."""
SOURCE = "livestream_env"
AGENT = "live_room_agent"
"""The name that rows of NeMo Gym and its YAML know the agent server by."""


def data_rows(
    rows: Iterable[TaskRow], format: DataFormat = "jsonl", *, setup: Setup | None = None
) -> Iterator[dict[str, Any]]:
    """Yield each task row in the columns of a trainer.

    `jsonl` is the row itself, `trl` has the episode's first messages beside it, as SkyRL takes it
    too, `verl` has the columns of its `RLHFDataset`, the row in `extra_info`, `openrlhf` has the
    row as JSON text in `label`, `slime` has it in `metadata`, and `nemo_gym` has the messages in
    `responses_create_params` beside the row. Environments ask for the first messages again; these
    are for the trainer's filters and logs.

    Args:
        setup: where the first messages come from, by default an environment of the row's room.

    Raises:
        ValueError: no format has that name.
        SandboxError: the first messages cannot be had.
    """
    if format not in DATA_FORMATS:
        hint = did_you_mean(format, DATA_FORMATS)
        raise ValueError(f"no format `{format}`; use {', '.join(DATA_FORMATS)}.{hint}")
    return _data_rows(rows, format, setup)


def _data_rows(
    rows: Iterable[TaskRow], format: DataFormat, setup: Setup | None
) -> Iterator[dict[str, Any]]:
    for index, row in enumerate(rows):
        told = row.to_json()
        if format == "jsonl":
            yield told
            continue
        setup = setup or Setup(row.room)
        prompt = _first_messages(setup, row)
        if format == "trl":
            yield {"prompt": prompt, **told}
        elif format == "openrlhf":
            yield {"input": prompt, "label": json.dumps(told, ensure_ascii=False)}
        elif format == "slime":
            yield {"prompt": prompt, "metadata": told}
        elif format == "nemo_gym":
            agent = {"type": "responses_api_agents", "name": AGENT}
            yield {"responses_create_params": {"input": prompt}, "agent_ref": agent, **told}
        else:
            yield {
                "data_source": SOURCE,
                "agent_name": LOOP,
                "prompt": prompt,
                "reward_model": {"style": "rule", "ground_truth": ""},
                "extra_info": {"index": index, **told},
            }


def _first_messages(setup: Setup, row: TaskRow) -> list[dict[str, Any]]:
    env = setup.make_env(row.room)
    try:
        observation, _ = env.reset(**setup.opening(row))
    finally:
        env.close()
    return [message.to_openai() for message in observation.messages]


def write_data_set(
    rows: Iterable[TaskRow],
    path: str | os.PathLike[str],
    format: DataFormat = "jsonl",
    *,
    setup: Setup | None = None,
) -> int:
    """Write a data set, parquet for `verl`, else JSON Lines, and return how many rows it has.

    Raises:
        MissingDependency: `pyarrow` is needed for parquet.
    """
    made = data_rows(rows, format, setup=setup)
    return write_rows(made, path, schema=_verl_schema if format == "verl" else None)


def _verl_schema(pa: Any) -> Any:
    text = pa.string()
    told = {"room": text, "seed": pa.int64(), "comment": pa.list_(text)}
    return pa.schema(
        {
            "data_source": text,
            "agent_name": text,
            "prompt": pa.list_(pa.struct({"role": text, "content": text})),
            "reward_model": pa.struct({"style": text, "ground_truth": text}),
            "extra_info": pa.struct({"index": pa.int64(), **told}),
        }
    )
