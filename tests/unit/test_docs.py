"""What the handbook names is there: links, commands, config keys, modules."""

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from drumline.cli.lazy import LazyGroup
from drumline.cli.main import app
from drumline.config import parse_config
from drumline.config.describe import describe_config
from drumline.config.section import task_names

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])
CONFIGS = sorted(ROOT.glob("examples/*.yaml"))
SCRIPTS = sorted([*ROOT.glob("scripts/*.sh"), *ROOT.glob("scripts/*.sbatch")])
EXAMPLES = [yaml.safe_load(path.read_text()) for path in CONFIGS]
PYTHON = sorted(ROOT.glob("examples/*.py"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(?:#[^)]*)?\)")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"`(drumline(?:\.\w+)+)")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def commands(path: Path) -> Iterator[str]:
    """Command lines of drumline: of their own on a line, in a comment, or in backticks."""
    text = path.read_text().replace("\\\n#  ", " ").replace("\\\n", " ")
    for line in text.splitlines():
        bare = line.strip().removeprefix("#").strip()
        indented = line.startswith(("    ", "#  ", "$ "))
        if indented and bare.startswith("drumline "):
            yield bare.partition("  #")[0].strip()
    if path.suffix == ".md":
        found = re.findall(r"(?<!`)`(drumline [^`]+)`(?!`)", text)
        yield from (" ".join(command.split()) for command in found)


def _task(data: dict[str, Any]) -> str:
    return str(data["task"]["name"])


COMMANDS = [
    (named(path), command)
    for path in [*PAGES, *CONFIGS, *PYTHON, *SCRIPTS]
    for command in commands(path)
]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text())
    targets = [target for target in LINK.findall(text) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) > 30


@pytest.mark.parametrize(("where", "command"), COMMANDS)
def test_commands_parse(where: str, command: str) -> None:
    words = shlex.split(re.sub(r"\[[^\]]*\]|\.\.\.", "", command), comments=True)[1:]
    group: Any = get_command(app)
    context = group.make_context("drumline", [], resilient_parsing=True)
    while isinstance(group, LazyGroup) or hasattr(group, "commands"):
        if not words or words[0].startswith("-"):
            return
        assert words[0] in group.list_commands(context), f"{where}: no command {words[0]}"
        _, group, words = group.resolve_command(context, words)
    known = {option for parameter in group.params for option in parameter.opts}
    known |= {option for parameter in group.params for option in parameter.secondary_opts}
    known |= {"--help", "-h"}
    if group.name != "run":  # which hands options it does not know to the script
        asked = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert asked <= known, f"{where}: {command}"
    keys = [word.partition("=")[0] for word in words if re.fullmatch(r"[\w.]+=\S*", word)]
    config_keys = {key.name for task in task_names() for key in describe_config(task)}
    config_keys |= {key.name for data in EXAMPLES for key in describe_config(_task(data), data)}
    config_keys |= {name.removeprefix("task.") for name in config_keys}  # which may be left out
    assert set(keys) <= config_keys | {"key"}, f"{where}: {command}"


@pytest.mark.parametrize("path", CONFIGS, ids=named)
def test_example_configs_are_valid(path: Path) -> None:
    parse_config(yaml.safe_load(path.read_text()), source=named(path))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_configs_in_pages_are_valid(page: Path) -> None:
    for text in blocks(page, "yaml"):
        parse_config(yaml.safe_load(text), source=named(page))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_in_pages_compiles(page: Path) -> None:
    for text in blocks(page, "python"):
        compile(text, named(page), "exec")


def test_readme_shows_the_script_of_the_examples() -> None:
    (shown,) = blocks(ROOT / "README.md", "python")
    assert shown.strip() in (ROOT / "examples/own_model.py").read_text()


def test_modules_named_in_the_architecture_import() -> None:
    modules = sorted(set(MODULE.findall((ROOT / "docs/architecture.md").read_text())))
    assert len(modules) > 30
    for module in modules:
        import_module(module)


def test_every_room_is_in_the_architecture() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    rooms = [path for path in (ROOT / "src/drumline").iterdir() if (path / "__init__.py").is_file()]
    assert [room.name for room in rooms if f"`drumline.{room.name}" not in text] == []
