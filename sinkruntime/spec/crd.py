"""Makes the CustomResourceDefinition of SinkJob from the models: `python -m sinkruntime.spec.crd`.

Run by `make crds`; a test fails when the file in `crds/` is not what this makes. The schema holds no defaults: the
models fill them in, so that "left out" stays visible and a manifest is not rewritten by the API server.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from sinkruntime.spec.crd_status import COLUMNS, STATUS_SCHEMA
from sinkruntime.spec.models import API_GROUP, API_VERSION, KIND, SinkJob

#: A person's word comes with a new nonce; in the same edit, what is otherwise fixed may change.
_NEW_WORD = (
    "(has(self.recovery) && has(self.recovery.nonce) ? self.recovery.nonce : 0) != "
    "(has(oldSelf.recovery) && has(oldSelf.recovery.nonce) ? oldSelf.recovery.nonce : 0)"
)
_LOCATION = "(has({0}.checkpoint) && has({0}.checkpoint.location) ? {0}.checkpoint.location : '')"
_MODE = "(has({0}.mode) ? {0}.mode : 'Streaming')"

FILE_NAME = f"sinkjobs.{API_GROUP}.yaml"

# Contradictions that the API server can refuse by itself, by model; the rest is said in status by the operator,
# which runs the same checks as `sinkjob validate`.
RULES: dict[str, tuple[tuple[str, str], ...]] = {
    "TransformStep": (("has(self.sql) != has(self.python)", "a step has exactly one of sql and python"),),
    "OptionsFrom": (
        (
            "[has(self.secretRef), has(self.configMapRef), has(self.fileRef), has(self.envRef)]"
            ".filter(given, given).size() == 1",
            "give exactly one of secretRef, configMapRef, fileRef, envRef",
        ),
    ),
    "Trigger": (
        (
            "!(has(self.type) && self.type == 'AvailableNow' && has(self.interval))",
            "interval has no meaning with AvailableNow",
        ),
    ),
    "SinkSpec": (
        (
            "!(has(self.onFailure) && self.onFailure == 'Warn') "
            "|| (has(self.guarantee) && self.guarantee == 'AtLeastOnce')",
            "onFailure Warn needs guarantee AtLeastOnce",
        ),
        ("!has(self.deadLetter) || self.deadLetter.sink != self.name", "deadLetter.sink must be another sink"),
    ),
    "DynamicAllocation": (
        (
            "!has(self.minExecutors) || self.minExecutors <= (has(self.maxExecutors) ? self.maxExecutors : 4)",
            "maxExecutors is less than minExecutors",
        ),
    ),
    "SinkJobSpec": (
        (
            "!(has(self.mode) && self.mode == 'Batch') || !has(self.trigger)",
            "a Batch job makes one checkpoint and has no trigger",
        ),
        (
            "!(has(self.mode) && self.mode == 'Batch') || !has(self.outputMode) || self.outputMode == 'Append'",
            "a Batch job gives its whole result once: leave outputMode out",
        ),
        (
            "self.sinks.all(one, !has(one.deadLetter) || self.sinks.exists(other, other.name == one.deadLetter.sink))",
            "deadLetter.sink must be a sink of this job",
        ),
        (
            f"{_LOCATION.format('self')} == {_LOCATION.format('oldSelf')} || {_NEW_WORD}",
            "checkpoint.location holds the job's progress: change it together with recovery.nonce, or make a new job",
        ),
        (
            f"{_MODE.format('self')} == {_MODE.format('oldSelf')} || {_NEW_WORD}",
            "mode cannot change in the life of a job: change it together with recovery.nonce, or make a new job",
        ),
        (
            f"oldSelf.sinks.all(old, self.sinks.all(new, new.name != old.name || new.type == old.type)) || {_NEW_WORD}",
            "a sink keeps its type: give the new one another name, or change it together with recovery.nonce",
        ),
    ),
}
# `metadata` has no schema in a CRD; these rules stand at the root, which may look at the name.
ROOT_RULES = (
    ("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')", "metadata.name must not hold a dot"),
    ("self.metadata.name.size() <= 63", "metadata.name must be at most 63 characters"),
)


def crd() -> dict[str, Any]:
    """The whole definition, as the API server takes it."""
    schema = SinkJob.model_json_schema(by_alias=True)
    spec = _structural({"$ref": "#/$defs/SinkJobSpec"}, schema["$defs"])
    version = {
        "name": API_VERSION.partition("/")[2],
        "served": True,
        "storage": True,
        "additionalPrinterColumns": COLUMNS,
        "subresources": {"status": {}},
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": schema["description"],
                "required": ["spec"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": spec,
                    "status": STATUS_SCHEMA,
                },
                "x-kubernetes-validations": _validations(ROOT_RULES),
            }
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"sinkjobs.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": "sinkjobs",
                "singular": "sinkjob",
                "shortNames": ["sj"],
                "categories": ["sinkjob"],
            },
            "versions": [version],
        },
    }


def crd_text() -> str:
    """The definition as the file in `crds/` holds it."""
    body = yaml.dump(crd(), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return f"# Made by `make crds` from sinkruntime/spec; do not edit.\n{body}"


class _Dumper(yaml.SafeDumper):
    """Writes a value out each time that it occurs: anchors in a CRD are hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _validations(rules: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"rule": rule, "message": message} for rule, message in rules]


def _structural(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema as Kubernetes takes it: no references, no titles, no defaults, `null` as `nullable`."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        inner = _structural(definitions[name], definitions)
        if name in RULES:
            inner["x-kubernetes-validations"] = _validations(RULES[name])
        return {**inner, **_kept(schema)}
    if "anyOf" in schema:
        # The models' only unions are with null, which the API server reads as "left out".
        (one,) = [part for part in schema["anyOf"] if part != {"type": "null"}]
        return {**_structural(one, definitions), **_kept(schema), "nullable": True}
    result = _kept(schema)
    if "properties" in schema:
        result["properties"] = {key: _structural(part, definitions) for key, part in schema["properties"].items()}
    if "items" in schema:
        result["items"] = _structural(schema["items"], definitions)
    if isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _structural(schema["additionalProperties"], definitions)
    return result


_KEPT = (
    "description", "type", "enum", "format", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems",
    "maxItems", "maxProperties", "required", "x-kubernetes-preserve-unknown-fields",
)  # fmt: skip


def _kept(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: schema[key] for key in _KEPT if key in schema}


def main(directory: str = "crds") -> None:
    """Write the definition into `directory`."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    Path(directory, FILE_NAME).write_text(crd_text(), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
