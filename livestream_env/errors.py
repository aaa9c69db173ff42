"""The exceptions of the package.

    LivestreamError
    ├── RoomError            (ValueError)    a room file breaks the schema; all its faults at once
    ├── RoomNotFound         (LookupError)   no room of that name, path or pattern
    ├── CommentNotFound      (LookupError)   the room has no comment of that id
    ├── ItemNotFound         (LookupError)   the room has no product and no SKU of that id
    ├── InvalidAction        (TypeError)     `step` was given something that is no action
    ├── ResetNeeded          (gymnasium.error)  `step` before `reset` or after the end
    ├── TemplateError        (ValueError)    a prompt or result template cannot be read or rendered
    ├── UnsupportedTemplate  (ValueError)    a chat template cannot give exact token sequences
    ├── PrefixMismatch       (ValueError)    a template shows earlier turns otherwise than sampled
    ├── EmptyMaskError       (ValueError)    a masker would train no token
    ├── GroupMismatch        (ValueError)    the members of a group saw different first observations
    ├── MissingDependency    (ImportError)   an extra is not installed
    ├── ToolError            (RuntimeError)  raised by a tool: the policy's mistake
    ├── JudgeError           (RuntimeError)  a judge gave no verdict
    ├── ChatError            (RuntimeError)  a chat endpoint gave no usable answer
    │   ├── ChatRefused                      its content filter, or the model, refused
    │   └── ChatTimeout      (TimeoutError)  no answer within the time limits
    ├── BudgetExhausted      (RuntimeError)  a judge has spent what it may spend
    ├── MixedVersions        (ValueError)    judgements of several judges or prompts in one set
    ├── SharedFileError      (OSError)       a file of several processes cannot be shared safely
    └── SandboxError         (RuntimeError)  infrastructure failed: never a reward or a tool result
        ├── RoomMismatch                     the sandbox holds another room than the environment
        ├── SandboxTimeout    (TimeoutError)     no answer within the time limits
        ├── SandboxUnavailable (ConnectionError) it cannot be reached, or answers with a failure
        ├── SessionLost                      the sandbox no longer knows the episode
        └── ReplayMismatch    (LookupError)      the recording lacks what was asked

The caller's mistake raises at once; the policy's mistake becomes a tool result with an error code;
infrastructure's failure marks the trajectory.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import gymnasium.error


class LivestreamError(Exception):
    """Base of every exception of this package."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One fault of a room file."""

    path: str
    """Where: a JSON path such as `products[3].price`."""
    problem: str
    """What is wrong, with what was given."""
    remedy: str
    """What would be right."""

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}; {self.remedy}"


class RoomError(LivestreamError, ValueError):
    """A room breaks the schema; `issues` holds every fault found."""

    def __init__(self, source: str, issues: Sequence[Issue]) -> None:
        super().__init__(source, tuple(issues))
        self.source = source
        self.issues = tuple(issues)

    def __str__(self) -> str:
        count = len(self.issues)
        lines = "\n".join(f"  {issue}" for issue in self.issues)
        return f"`{self.source}` has {count} fault{'s' if count != 1 else ''}:\n{lines}"


class RoomNotFound(LivestreamError, LookupError):
    """No bundled room, file, folder or pattern of that name."""


class CommentNotFound(LivestreamError, LookupError):
    """The room has no comment of that id."""


class ItemNotFound(LivestreamError, LookupError):
    """The room has no product and no SKU of that id."""


class InvalidAction(LivestreamError, TypeError):
    """`step` was given something that is neither text, nor a message, nor an `Action`."""


class ResetNeeded(LivestreamError, gymnasium.error.ResetNeeded):
    """`step` was called before `reset` or after the episode had ended."""


class TemplateError(LivestreamError, ValueError):
    """A prompt or result template cannot be read or rendered."""


class UnsupportedTemplate(LivestreamError, ValueError):
    """A chat template or tokenizer cannot do what exact token sequences need."""


class PrefixMismatch(LivestreamError, ValueError):
    """The template shows earlier turns otherwise than they were sampled."""


class EmptyMaskError(LivestreamError, ValueError):
    """A masker would train no token of a sequence."""


class GroupMismatch(LivestreamError, ValueError):
    """The members of a group did not start from one comment and one first observation."""


class MissingDependency(LivestreamError, ImportError):
    """An optional dependency is not installed."""


class ToolError(LivestreamError, RuntimeError):
    """Raised by a tool: the policy asked for something wrong and is told so."""


class JudgeError(LivestreamError, RuntimeError):
    """A judge gave no verdict: the score is missing, never 0."""


class SandboxError(LivestreamError, RuntimeError):
    """Infrastructure failed; the trajectory is marked, the policy is not."""


class RoomMismatch(SandboxError):
    """The sandbox holds another room, or another version of it, than the environment."""


class SandboxTimeout(SandboxError, TimeoutError):
    """The sandbox gave no answer within the time limits."""


class SandboxUnavailable(SandboxError, ConnectionError):
    """The sandbox cannot be reached, or answers with a failure of its own."""


class SessionLost(SandboxError):
    """The sandbox no longer knows the episode, and it cannot be rebuilt."""


class ReplayMismatch(SandboxError, LookupError):
    """A recording does not hold the call or the episode that was asked for."""


class ChatError(LivestreamError, RuntimeError):
    """A chat endpoint gave no usable answer."""

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status of the answer, `None` where there was none."""
        self.code = code
        """The endpoint's own error code; `connection` where none could be made, `connection_lost`
        where it broke, `bad_answer` where the answer is no chat completion."""


class ChatRefused(ChatError):
    """The content filter of a chat endpoint, or its model, refused."""


class ChatTimeout(ChatError, TimeoutError):
    """A chat endpoint gave no answer within the time limits."""


class BudgetExhausted(LivestreamError, RuntimeError):
    """A judge has spent what it may spend."""


class MixedVersions(LivestreamError, ValueError):
    """One set holds judgements of several judges or several versions of a prompt."""


class SharedFileError(LivestreamError, OSError):
    """A file that several processes use is on a network file system, or is none of ours."""


def missing_dependency(package: str, *, extra: str) -> MissingDependency:
    """Make the error for a package that belongs to `extra`, with the command that installs it."""
    return MissingDependency(
        f"`{package}` is not installed; run `pip install 'livestream-env[{extra}]'`", name=package
    )


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return a sentence naming the nearest known name, or an empty string."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return f" Did you mean `{close[0]}`?" if close else ""
