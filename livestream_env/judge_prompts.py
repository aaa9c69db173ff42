"""What a judge is asked, and what counts as its answer.

The text under judgement cannot speak to the judge: every piece is one JSON value on one line, in
which no control token and no delimiter survives, between lines that bear a nonce. The nonce is a
digest of all that is quoted, so no text can hold the nonce that it will be quoted with.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from fastjsonschema import JsonSchemaValueException

from livestream_env._resources import data_file
from livestream_env.errors import TemplateError
from livestream_env.judge_cases import MATERIALS, Case
from livestream_env.templates import changed_ns, render_file
from livestream_env.tools import compiled_schema
from livestream_env.words import clean_text

METRICS = ("correctness", "helpfulness", "rule", "tool_use", "fluency")
LANGUAGES = ("zh", "en")
LONGEST_ANSWER = 100_000


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """The standard that a judge goes by, from a template with a header."""

    name: str
    version: str
    """`correctness/zh@1#3fa1b2c4`: name, language, version, and a digest of the wording."""
    language: str
    scale: tuple[int, ...]
    """The scores that there are, ascending."""
    materials: tuple[str, ...]
    """The parts of a case that the judge is shown."""
    has_claims: bool
    """Whether the judge lists the statements of the reply before its reason."""
    criteria: str

    def value(self, score: int) -> float:
        """Map a score of the scale to [0, 1]."""
        return (score - self.scale[0]) / (self.scale[-1] - self.scale[0])


class Request(NamedTuple):
    """One question to a judge."""

    system: str
    user: str
    name: str
    schema: dict[str, Any]
    """JSON Schema of the answer."""
    version: str
    quoted: str
    """The texts under judgement, as they were before they were quoted."""

    def messages(self, remark: str | None = None) -> list[dict[str, str]]:
        """Return the messages; with a remark on a bad answer, the ones that ask again."""
        user = self.user if remark is None else f"{self.user}\n\n{remark}"
        return [{"role": "system", "content": self.system}, {"role": "user", "content": user}]


class Unreadable(ValueError):
    """An answer holds no verdict."""


# --- asking ----------------------------------------------------------------------------------


def load_prompt(prompt: str | os.PathLike[str], language: str) -> JudgePrompt:
    """Load a bundled prompt by the name of its metric, or a user's own by its path.

    Raises:
        TemplateError: there is no such file, or its header is not one.
    """
    is_bundled = prompt in METRICS
    path = data_file("judges") / language / f"{prompt}.j2" if is_bundled else Path(prompt)
    if not path.is_file():
        raise TemplateError(f"`{path}` is no prompt file of a judge")
    return _prompt(str(path), changed_ns(path), language)


@lru_cache(maxsize=64)
def _prompt(path: str, changed: int, language: str) -> JudgePrompt:
    header = _header(path)
    try:
        name, number = header.pop("name"), header.pop("version")
        scale = tuple(sorted({int(score) for score in header.pop("scale").split()}))
        materials = tuple(header.pop("materials").split())
    except (KeyError, ValueError) as error:
        raise TemplateError(
            f"the header of `{path}` has no usable {error}; it needs `name`, `version`, `scale`"
            " (whole numbers) and `materials`"
        ) from error
    has_claims = header.pop("claims", "no") == "yes"
    unknown = [*header, *sorted(set(materials) - set(MATERIALS))]
    if unknown or len(scale) < 2 or not materials:
        raise TemplateError(
            f"the header of `{path}` has unknown {unknown} or less than two scores; materials are"
            f" {', '.join(MATERIALS)}"
        )
    criteria = render_file(path, changed, {"scale": scale, "language": language}).strip()
    frame = (data_file("judges") / language / "frame.j2").read_text(encoding="utf-8")
    digest = sha256(f"{criteria}\n{frame}".encode()).hexdigest()[:8]
    version = f"{name}/{language}@{number}#{digest}"
    return JudgePrompt(name, version, language, scale, materials, has_claims, criteria)


def _header(path: str) -> dict[str, str]:
    text = Path(path).read_text(encoding="utf-8-sig")
    found = re.match(r"\s*\{#(.*?)#\}", text, re.DOTALL)
    lines = found[1].strip().split("\n") if found else []
    pairs = [line.partition(":") for line in lines]
    return {key.strip(): value.strip() for key, _, value in pairs}


def score_request(prompt: JudgePrompt, case: Case) -> Request:
    """Return the question that asks for a score."""
    claims = {"claims": {"type": "array", "items": _object(_CLAIM)}} if prompt.has_claims else {}
    score = {"type": "integer", "enum": list(prompt.scale)}
    schema = _object({**claims, "reason": {"type": "string"}, "score": score})
    return _request("frame", prompt, case.material(prompt.materials), schema)


def pair_request(prompt: JudgePrompt, first: Case, second: Case) -> Request:
    """Return the question which of two answers to one comment is better."""
    material = first.material([one for one in prompt.materials if one not in ("reply", "calls")])
    for name, case in (("first", first), ("second", second)):
        shown = [one for one in prompt.materials if one in ("reply", "calls")]
        material[name] = case.material(shown)
    better = {"type": "string", "enum": ["first", "second", "same"]}
    schema = _object({"reason": {"type": "string"}, "better": better})
    return _request("pair", prompt, material, schema)


_CLAIM = {
    "text": {"type": "string"},
    "source": {"type": "string"},
    "supported": {"type": "boolean"},
}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    names = list(properties)
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }


def _request(
    frame: str, prompt: JudgePrompt, material: dict[str, Any], schema: dict[str, Any]
) -> Request:
    quoted = json.dumps(material, ensure_ascii=False, sort_keys=True)
    nonce = sha256(quoted.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    path = data_file("judges") / prompt.language / f"{frame}.j2"
    values = {
        "criteria": prompt.criteria,
        "claims": prompt.has_claims,
        "scale": prompt.scale,
        "nonce": nonce,
    }
    return Request(
        system=render_file(str(path), changed_ns(path), values).strip(),
        user="\n".join(_block(name, value, nonce) for name, value in material.items()),
        name=f"judge_{prompt.name}",
        schema=schema,
        version=prompt.version,
        quoted="\n".join(_texts(material)),
    )


def _block(name: str, value: Any, nonce: str) -> str:
    return f"<<<{name} {nonce}>>>\n{quoted_json(value)}\n<<<end of {name} {nonce}>>>"


def remark_on(answer: str, problem: str, request: Request) -> str:
    """Return what a judge is told whose answer cannot be read; the answer is quoted too."""
    nonce = sha256(f"{answer}\n{request.user}".encode("utf-8", "surrogatepass")).hexdigest()[:24]
    required = ", ".join(request.schema["required"])
    return (
        f"{_block('earlier answer', answer[:LONGEST_REPEATED], nonce)}\n"
        f"This earlier answer could not be used: {problem}. Judge again, and output one JSON"
        f" object alone, with the keys {required} in this order."
    )


LONGEST_REPEATED = 2000


def quoted_json(value: Any) -> str:
    """Return JSON on one line in which no control token, delimiter or hidden character stands."""
    return _ACTIVE.sub(_escaped, clean_text(json.dumps(value, ensure_ascii=False)))


_ACTIVE = re.compile(r"[<>]|\[(?=/?[A-Z]|gMASK)|[^\x20-\x7e\u3000-\u9fff\uff00-\uffef]")


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character not in "<>[" and character.isprintable():
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


# --- reading ---------------------------------------------------------------------------------


def read_verdict(answer: str, request: Request) -> dict[str, Any]:
    """Return the JSON object with the verdict in an answer.

    Prose around it and a fence are passed over, and so is thinking: what counts stands behind its
    last end. What is cut off or broken, has two verdicts, or repeats one that stands in the text
    under judgement is none.

    Raises:
        Unreadable: there is no verdict, with what is wrong.
    """
    said = _after_thinking(answer)
    if len(said) > LONGEST_ANSWER:
        raise Unreadable(f"it is longer than {LONGEST_ANSWER} characters")
    found = list(_objects(said))
    key = request.schema["required"][-1]
    verdicts = [(text, value) for text, value in found if key in value]
    if len(verdicts) != 1:
        count = len(verdicts) or "none"
        raise Unreadable(f"it should hold one JSON object with `{key}`, and holds {count}")
    text, value = verdicts[0]
    if _squeezed(text) in _squeezed(request.quoted):
        raise Unreadable("it repeats what stands in the text under judgement")
    try:
        compiled_schema(json.dumps(_shallow(request.schema)))(value)
    except JsonSchemaValueException as error:
        raise Unreadable(f"`{error.path[-1]}`: {error.message[:200]}") from error
    return value


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _shallow(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what must hold of an answer: its keys and their types; it may say more."""
    parts = {
        key: {name: value for name, value in part.items() if name != "items"}
        for key, part in schema["properties"].items()
    }
    return {"type": "object", "required": schema["required"], "properties": parts}


def _after_thinking(answer: str) -> str:
    at = 0
    while (closed := _THINKING_ENDS.search(answer, _past_object(answer, at))) is not None:
        at = closed.end()
    if _THINKING_BEGINS.search(answer, _past_object(answer, at)):
        raise Unreadable("its thinking does not end")
    return answer[at:]


_THINKING_BEGINS = re.compile(
    r"<(?:seed:)?think(?:ing)?\s*>|\[THINK\]|<\|channel\|>(?!\s*final)", re.IGNORECASE
)
_THINKING_ENDS = re.compile(
    r"</(?:seed:)?think(?:ing)?\s*>|\[/THINK\]|<\|channel\|>\s*final\s*<\|message\|>", re.IGNORECASE
)


def _past_object(text: str, at: int) -> int:
    """Return the end of the object that begins here, in which a tag is quoted; `at` for none."""
    begins = _BEFORE_OBJECT.match(text, at)
    if begins is None:
        return at
    try:
        return _DECODER.raw_decode(text, begins.end())[1]
    except (ValueError, RecursionError):
        return at


_BEFORE_OBJECT = re.compile(r"\s*(?:```\w*\s*)?(?=\{)")


def _objects(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the JSON objects of a text that lie in no other, each with its text."""
    at = 0
    while (start := _OPENING.search(text, at)) is not None:
        try:
            value, at = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError) as error:
            raise Unreadable("its JSON is cut off or broken") from error
        yield text[start.start() : at], value


_OPENING = re.compile(r'\{\s*(?="|\})')


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice")
    return made


def _no_constant(name: str) -> float:
    raise ValueError(f"`{name}` is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct, parse_constant=_no_constant)
