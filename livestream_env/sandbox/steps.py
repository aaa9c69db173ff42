"""One source for `call` and `acall` of a sandbox around another.

What such a sandbox does is a generator: it yields the calls that the inner one is to run, and the
seconds to wait; it returns the result.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from livestream_env.types import ToolCall, ToolResult

if TYPE_CHECKING:
    from livestream_env.sandbox import Sandbox

Steps = Generator[ToolCall | float, Any, ToolResult]


def run_steps(steps: Steps, inner: Sandbox) -> ToolResult:
    """Run the steps to their end, calls on `inner`."""
    try:
        asked = next(steps)
        while True:
            try:
                answer = None
                if isinstance(asked, float):
                    time.sleep(asked)
                else:
                    answer = inner.call(asked)
            except BaseException as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as stop:
        result: ToolResult = stop.value
        return result
    finally:
        steps.close()


async def arun_steps(steps: Steps, inner: Sandbox) -> ToolResult:
    """Run the steps as `run_steps` does, awaiting waits and `inner.acall` where there is one."""
    run = getattr(inner, "acall", inner.call)
    try:
        asked = next(steps)
        while True:
            try:
                answer: Any = asyncio.sleep(asked) if isinstance(asked, float) else run(asked)
                answer = await answer if inspect.isawaitable(answer) else answer
            except BaseException as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as stop:
        result: ToolResult = stop.value
        return result
    finally:
        steps.close()
