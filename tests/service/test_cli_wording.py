"""The command line says what is wrong in its own words, whichever field of whichever input it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
import typer
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from service.access.schemas import TokenInput
from service.cli import wording
from service.cli.main import app
from service.hooks.schemas import ApproveInput
from service.imports.schemas import ImportInput
from service.jobs.schemas import JobInput, RerunInput, TreeInput
from service.repositories.schemas import CredentialInput, RepositoryInput
from service.statuses.schemas import ForgeInput
from service.webhooks.schemas import RotationInput, WebhookInput
from service.workers.schemas import EnrolmentInput

INPUTS: dict[str, tuple[type[BaseModel], ...]] = {
    "submit": (JobInput, TreeInput),
    "import": (ImportInput,),
    "rerun": (RerunInput,),
    "approve": (ApproveInput,),
    "repos add": (RepositoryInput, ForgeInput),
    "repos credential": (CredentialInput,),
    "tokens create": (TokenInput,),
    "webhooks add": (WebhookInput,),
    "webhooks rotate": (RotationInput,),
    "workers enroll": (EnrolmentInput,),
}
"""What each command builds of its options and arguments."""
CALLS = {"webhooks add": {"url": "TARGET-URL"}, "repos credential": {"credential": "--token"}}
"""How these commands call fields, as they tell `refusing`."""
NOT_ASKED = {"dry_run", "kind"}
"""Flags and choices of the command line's own, which cannot be wrong."""


def spoken(name: str) -> set[str]:
    """How a command calls its options and arguments."""
    command: Any = typer.main.get_command(app)
    for word in name.split():
        command = command.commands[word]
    return {word for one in command.params for word in (*one.opts, (one.name or "").upper(), one.metavar or "")}


@pytest.mark.parametrize("command", INPUTS)
def test_every_field_is_called_by_an_option_or_argument_that_there_is(command: str) -> None:
    """Or is the user's name, which is no option."""
    for model in INPUTS[command]:
        for field in model.model_fields.keys() - NOT_ASKED:
            name = wording.name_of([field], CALLS.get(command))
            assert name in spoken(command) | {"your user name"}, (model.__name__, field)


def patterns(schema: Any) -> Iterator[str]:
    """Every pattern in a JSON schema."""
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for value in schema.values():
            yield from patterns(value)
    if isinstance(schema, list):
        for value in schema:
            yield from patterns(value)


@pytest.mark.parametrize("model", sorted({one for several in INPUTS.values() for one in several}, key=str))
def test_every_pattern_has_words(model: type[BaseModel]) -> None:
    for pattern in patterns(model.model_json_schema()):
        assert not wording.reason(f"String should match pattern '{pattern}'").startswith("String"), pattern


@pytest.mark.parametrize(
    ("shape", "value", "said"),
    [
        (Field(ge=1), 0, "give 1 or more"),
        (Field(le=5), 6, "give 5 or less"),
        (Field(), "x", "give a whole number"),
        (Field(), 1.5, "give a whole number"),
        (Field(), "9" * 5000, "give a smaller number"),
    ],
)
def test_what_pydantic_says_of_numbers(shape: Any, value: object, said: str) -> None:
    assert reason_of(TypeAdapter(_annotated(int, shape)), value) == said


@pytest.mark.parametrize(
    ("kind", "shape", "value", "said"),
    [
        (str, Field(min_length=1), "", "give one that is not empty"),
        (list[int], Field(min_length=1), [], "give one that is not empty"),
        (str, Field(max_length=2), "xxx", "give 2 characters or less"),
        (bytes, Field(max_length=2), b"xxx", "give 2 bytes or less"),
        (list[int], Field(max_length=1), [1, 2], "give 1 or less, not 2"),
        (tuple[int, ...], Field(max_length=1), (1, 2), "give 1 or less, not 2"),
    ],
)
def test_what_pydantic_says_of_lengths(kind: Any, shape: Any, value: object, said: str) -> None:
    assert reason_of(TypeAdapter(_annotated(kind, shape)), value) == said


def _annotated(kind: Any, shape: Any) -> Any:
    return Annotated[kind, shape]


def reason_of(adapter: TypeAdapter[Any], value: object) -> str:
    with pytest.raises(ValidationError) as refused:
        adapter.validate_python(value)
    return wording.reason(refused.value.errors()[0]["msg"])


def test_a_secret_is_not_shown_and_a_long_value_is_cut() -> None:
    secret = [{"loc": ("forge", "credential"), "input": "hush", "msg": "String should have at most 2 characters"}]
    assert wording.complaints(secret) == "--credential: give 2 characters or less"
    assert len(wording.shown("x" * 10_000)) == wording.MOST_SHOWN


def test_what_a_service_does_not_understand_is_named_as_an_option() -> None:
    """Numbers in addresses are arguments."""
    told = [
        {"key": "path.job", "message": "Input should be greater than or equal to 1", "value": "0"},
        {"key": "query.job", "message": "Input should be greater than or equal to 1", "value": "0"},
        {"key": "body.trees.0.ref", "message": "Something new", "value": "''"},
    ]
    assert wording.refusals(told) == "JOB 0: give 1 or more; --job 0: give 1 or more; --tree '': Something new"
