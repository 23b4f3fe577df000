"""The CRD and the manifest's reference are what the models make of them today."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sinkruntime.spec.base import Model, OptionsModel
from sinkruntime.spec.crd import FILE_NAME, RULES, crd, crd_text
from sinkruntime.spec.crd import main as write_crd
from sinkruntime.spec.reference import main as write_reference
from sinkruntime.spec.reference import reference_text

ROOT = Path(__file__).resolve().parents[3]
# `kubectl apply` keeps the whole object in an annotation, which may not be larger.
CRD_BYTES_MAX = 256 * 1024


def test_the_crd_in_the_repository_is_the_one_that_the_models_make(tmp_path: Path) -> None:
    write_crd(str(tmp_path))
    assert (ROOT / "crds" / FILE_NAME).read_text(encoding="utf-8") == crd_text(), "run `make crds`"
    assert (tmp_path / FILE_NAME).read_text(encoding="utf-8") == crd_text()


def test_the_reference_in_the_repository_is_the_one_that_the_models_make(tmp_path: Path) -> None:
    write_reference(str(tmp_path / "manifest.md"))
    page = (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8")
    assert page == reference_text(), "run `python -m sinkruntime.spec.reference`"
    assert (tmp_path / "manifest.md").read_text(encoding="utf-8") == page


def test_the_crd_is_small_enough_to_be_applied() -> None:
    assert len(crd_text().encode()) < CRD_BYTES_MAX
    assert yaml.safe_load(crd_text()) == crd()


def schemas(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from schemas(schema[name], f"{path}[]")


def spec_schemas() -> list[tuple[str, dict[str, Any]]]:
    version = crd()["spec"]["versions"][0]
    return list(schemas(version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec"))


def test_the_schema_is_structural_and_says_nothing_by_default() -> None:
    for path, schema in spec_schemas():
        free = schema.get("x-kubernetes-preserve-unknown-fields", False)
        assert "type" in schema or free, f"{path} has no type"
        assert not {"$ref", "anyOf", "default", "title", "const", "nullable"} & schema.keys() - {"nullable"}, path
        if schema.get("type") == "object" and not free:
            assert ("properties" in schema) != ("additionalProperties" in schema), path


def test_every_text_list_and_map_of_the_schema_is_bounded() -> None:
    """The API server prices rules by the longest possible value; and no manifest is for ever long."""
    bounds = {"string": ("maxLength", "enum", "pattern"), "array": ("maxItems",)}
    unbounded = [
        path
        for path, schema in spec_schemas()
        if schema.get("type") in bounds and not any(name in schema for name in bounds[schema["type"]])
    ]
    assert unbounded == []


def test_every_rule_stands_at_a_model_of_the_manifest() -> None:
    placed = [rule["rule"] for _, schema in spec_schemas() for rule in schema.get("x-kubernetes-validations", [])]
    for rules in RULES.values():
        for rule, _ in rules:
            assert rule in placed


def models() -> list[type[Model]]:
    """All models of the manifest: those that its modules define."""
    ours = [model for model in Model.__subclasses__() if model.__module__.startswith("sinkruntime.spec.")]
    return [model for model in ours if model is not OptionsModel]


def test_every_field_has_a_description() -> None:
    fields = [(f"{model.__name__}.{name}", field) for model in models() for name, field in model.model_fields.items()]
    assert len(fields) > 80
    assert [name for name, field in fields if not field.description] == []


@pytest.mark.parametrize(
    "field", ["maxPending", "deadLetter", "ttlSecondsAfterFinished", "TargetAheadOfLedger", "1…16"]
)
def test_the_reference_names_every_field_and_what_may_stand_there(field: str) -> None:
    assert field in reference_text()


def test_every_field_of_the_models_is_in_the_reference() -> None:
    page = reference_text()
    fields = [field.alias or name for model in models() for name, field in model.model_fields.items()]
    names = set(fields) - {"status"}
    assert {name for name in names if f"`{name}" not in page and f"{name}:" not in page} == set()
