"""Texts from template files, in Jinja's sandbox; an edited file is read anew."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from livestream_env.errors import TemplateError
from livestream_env.tools import to_json

if TYPE_CHECKING:
    import jinja2


def changed_ns(path: Path) -> int:
    """Return when the file was last changed, which tells an edited template; 0 for none."""
    return path.stat().st_mtime_ns if path.is_file() else 0


def render_file(path: str, changed: int, values: Mapping[str, Any]) -> str:
    """Render a template file; `changed` is its `changed_ns`.

    Raises:
        TemplateError: it cannot be read or rendered.
    """
    template = _template(path, changed)
    try:
        return template.render(**values)
    except Exception as error:  # whatever a template does
        raise TemplateError(
            f"template `{path}` cannot be rendered: {type(error).__name__}: {error}"
        ) from error


@lru_cache(maxsize=256)
def _template(path: str, changed: int) -> jinja2.Template:
    import jinja2.sandbox

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=False, autoescape=False
    )
    environment.filters["json"] = to_json
    try:
        return environment.from_string(Path(path).read_text(encoding="utf-8-sig"))
    except (jinja2.TemplateSyntaxError, OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"template `{path}` cannot be read: {error}") from error
