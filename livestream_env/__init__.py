"""Gymnasium environments of e-commerce livestream rooms, for training LLM agents that host them.

Importing the package registers `LiveRoom-v0` and nothing more; every public name is loaded on
first use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from livestream_env.version import VERSION

if TYPE_CHECKING:
    from livestream_env.agents import RandomAgent as RandomAgent
    from livestream_env.agents import ScriptedAgent as ScriptedAgent
    from livestream_env.branches import rollout_branches as rollout_branches
    from livestream_env.chat import ChatClient as ChatClient
    from livestream_env.chat_agent import AsyncChatAgent as AsyncChatAgent
    from livestream_env.chat_agent import ChatAgent as ChatAgent
    from livestream_env.chat_agent import chat_agent_named as chat_agent_named
    from livestream_env.custom_tools import ToolContext as ToolContext
    from livestream_env.custom_tools import ToolOutput as ToolOutput
    from livestream_env.custom_tools import tool as tool
    from livestream_env.diagnostics import reward_report as reward_report
    from livestream_env.drivers import Agent as Agent
    from livestream_env.drivers import AsyncAgent as AsyncAgent
    from livestream_env.drivers import arollout as arollout
    from livestream_env.drivers import rollout as rollout
    from livestream_env.env import LiveRoomEnv as LiveRoomEnv
    from livestream_env.episode import Episode as Episode
    from livestream_env.episode import Seat as Seat
    from livestream_env.errors import BudgetExhausted as BudgetExhausted
    from livestream_env.errors import ChatError as ChatError
    from livestream_env.errors import ChatRefused as ChatRefused
    from livestream_env.errors import ChatTimeout as ChatTimeout
    from livestream_env.errors import CommentNotFound as CommentNotFound
    from livestream_env.errors import EmptyMaskError as EmptyMaskError
    from livestream_env.errors import GroupMismatch as GroupMismatch
    from livestream_env.errors import InvalidAction as InvalidAction
    from livestream_env.errors import Issue as Issue
    from livestream_env.errors import ItemNotFound as ItemNotFound
    from livestream_env.errors import LivestreamError as LivestreamError
    from livestream_env.errors import MixedVersions as MixedVersions
    from livestream_env.errors import PrefixMismatch as PrefixMismatch
    from livestream_env.errors import ReplayMismatch as ReplayMismatch
    from livestream_env.errors import ResetNeeded as ResetNeeded
    from livestream_env.errors import RoomError as RoomError
    from livestream_env.errors import RoomMismatch as RoomMismatch
    from livestream_env.errors import RoomNotFound as RoomNotFound
    from livestream_env.errors import SandboxError as SandboxError
    from livestream_env.errors import SandboxTimeout as SandboxTimeout
    from livestream_env.errors import SandboxUnavailable as SandboxUnavailable
    from livestream_env.errors import SessionLost as SessionLost
    from livestream_env.errors import SharedFileError as SharedFileError
    from livestream_env.errors import ToolError as ToolError
    from livestream_env.errors import UnsupportedTemplate as UnsupportedTemplate
    from livestream_env.evaluation import evaluate as evaluate
    from livestream_env.export import export_sft as export_sft
    from livestream_env.group_drivers import arollout_group as arollout_group
    from livestream_env.group_drivers import arollouts as arollouts
    from livestream_env.group_drivers import rollout_group as rollout_group
    from livestream_env.group_drivers import rollouts as rollouts
    from livestream_env.importers import load_trajectories as load_trajectories
    from livestream_env.judges import ChatJudge as ChatJudge
    from livestream_env.multi_agent import liveroom_aec as liveroom_aec
    from livestream_env.prefix import prefix_env as prefix_env
    from livestream_env.pricing import Quote as Quote
    from livestream_env.pricing import quote as quote
    from livestream_env.ray_driver import ray_rollouts as ray_rollouts
    from livestream_env.room_files import list_rooms as list_rooms
    from livestream_env.room_files import list_tasks as list_tasks
    from livestream_env.room_files import load_room as load_room
    from livestream_env.room_files import save_room as save_room
    from livestream_env.rooms import Room as Room
    from livestream_env.rooms import strip_room as strip_room
    from livestream_env.run_metrics import metrics as metrics
    from livestream_env.sandbox import LocalSandbox as LocalSandbox
    from livestream_env.sandbox import Sandbox as Sandbox
    from livestream_env.synthetic import make_room as make_room
    from livestream_env.team import AgentTeam as AgentTeam
    from livestream_env.token_agent import TokenAgent as TokenAgent
    from livestream_env.tokens import Sampled as Sampled
    from livestream_env.training import TrainingRow as TrainingRow
    from livestream_env.training import checkpoint_name as checkpoint_name
    from livestream_env.training import split_rows as split_rows
    from livestream_env.training import stamp_version as stamp_version
    from livestream_env.training import to_step_rows as to_step_rows
    from livestream_env.training import training_rows as training_rows
    from livestream_env.trajectory_log import TrajectoryLog as TrajectoryLog
    from livestream_env.trajectory_log import read_log as read_log
    from livestream_env.types import Action as Action
    from livestream_env.types import Fact as Fact
    from livestream_env.types import Message as Message
    from livestream_env.types import Observation as Observation
    from livestream_env.types import Rewards as Rewards
    from livestream_env.types import RoomView as RoomView
    from livestream_env.types import Score as Score
    from livestream_env.types import State as State
    from livestream_env.types import Status as Status
    from livestream_env.types import StopReason as StopReason
    from livestream_env.types import ToolCall as ToolCall
    from livestream_env.types import ToolResult as ToolResult
    from livestream_env.types import ToolSpec as ToolSpec
    from livestream_env.types import Trajectory as Trajectory
    from livestream_env.types import Turn as Turn
    from livestream_env.types import TurnEvent as TurnEvent
    from livestream_env.workflow import WorkflowAgent as WorkflowAgent

__version__ = VERSION
_MODULES = {
    "agents": ("RandomAgent", "ScriptedAgent"),
    "branches": ("rollout_branches",),
    "chat": ("ChatClient",),
    "chat_agent": ("AsyncChatAgent", "ChatAgent", "chat_agent_named"),
    "custom_tools": ("ToolContext", "ToolOutput", "tool"),
    "drivers": ("Agent", "AsyncAgent", "arollout", "rollout"),
    "env": ("LiveRoomEnv",),
    "episode": ("Episode", "Seat"),
    "errors": (
        "BudgetExhausted",
        "ChatError",
        "ChatRefused",
        "ChatTimeout",
        "CommentNotFound",
        "EmptyMaskError",
        "GroupMismatch",
        "InvalidAction",
        "Issue",
        "ItemNotFound",
        "LivestreamError",
        "MixedVersions",
        "PrefixMismatch",
        "ReplayMismatch",
        "ResetNeeded",
        "RoomError",
        "RoomMismatch",
        "RoomNotFound",
        "SandboxError",
        "SandboxTimeout",
        "SandboxUnavailable",
        "SessionLost",
        "SharedFileError",
        "ToolError",
        "UnsupportedTemplate",
    ),
    "diagnostics": ("reward_report",),
    "evaluation": ("evaluate",),
    "export": ("export_sft",),
    "group_drivers": ("arollout_group", "arollouts", "rollout_group", "rollouts"),
    "importers": ("load_trajectories",),
    "judges": ("ChatJudge",),
    "multi_agent": ("liveroom_aec",),
    "prefix": ("prefix_env",),
    "pricing": ("Quote", "quote"),
    "ray_driver": ("ray_rollouts",),
    "room_files": ("list_rooms", "list_tasks", "load_room", "save_room"),
    "rooms": ("Room", "strip_room"),
    "run_metrics": ("metrics",),
    "sandbox": ("LocalSandbox", "Sandbox"),
    "synthetic": ("make_room",),
    "team": ("AgentTeam",),
    "token_agent": ("TokenAgent",),
    "tokens": ("Sampled",),
    "trajectory_log": ("TrajectoryLog", "read_log"),
    "training": (
        "TrainingRow",
        "checkpoint_name",
        "split_rows",
        "stamp_version",
        "to_step_rows",
        "training_rows",
    ),
    "types": (
        "Action",
        "Fact",
        "Message",
        "Observation",
        "Rewards",
        "RoomView",
        "Score",
        "State",
        "Status",
        "StopReason",
        "ToolCall",
        "ToolResult",
        "ToolSpec",
        "Trajectory",
        "Turn",
        "TurnEvent",
    ),
    "workflow": ("WorkflowAgent",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_PLUGIN = ("LiveRoomHarness", "LiveRoomSeats", "LiveRoomTaskset")
"""What verifiers looks for in `__all__` of the package that an id names."""


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    home = "adapters.verifiers" if name in _PLUGIN else _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module `livestream_env` has no attribute `{name}`")
    value = getattr(import_module(f"livestream_env.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *sorted(_HOMES), *(_PLUGIN if "verifiers.v1" in sys.modules else ())]


gym.register(id="LiveRoom-v0", entry_point="livestream_env.env:LiveRoomEnv")
