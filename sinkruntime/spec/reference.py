"""Writes docs/manifest.md from the models: `python -m sinkruntime.spec.reference`.

A test fails when the page in `docs/` is not what this makes. Every word about a field stands beside the field.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sinkruntime.spec.base import Matching, Model, spark_text
from sinkruntime.spec.models import SinkJob
from sinkruntime.spec.plaintext import HARMLESS_ENDINGS, SECRET_WORDS
from sinkruntime.spec.quantities import Duration, Memory, Size
from sinkruntime.spec.spark_conf import RULES

_HEAD = """\
<!-- Made by `python -m sinkruntime.spec.reference` from sinkruntime/spec; do not edit. -->
# The SinkJob manifest

One YAML document, `apiVersion: sinkjob.io/v1alpha1`, `kind: SinkJob`, the same on a laptop and on a cluster.
`sinkjob validate job.yaml` names everything that is wrong with it at once, with the line:

    job.yaml:12: spec.sinks[1].options.tabel: unknown option; did you mean `table`?

The smallest manifest:

```yaml
apiVersion: sinkjob.io/v1alpha1
kind: SinkJob
metadata: {name: first}
spec:
  source: {format: rate}
  sinks:
  - {name: screen, type: console}
```

## How values are written

* **Durations**: one whole number and one unit: `200ms`, `10s`, `5m`, `1h`. At most one year.
* **Sizes**: `512KiB`, `128MiB`, `1GiB`. **Memory**, as Spark writes it: `512m`, `1g`.
* **Null** is the field left out.
* **Text that looks like something else needs quotes.** YAML readers do not agree on `yes`, `no`, `on`, `off`, `y`, `n`,
  `0644`, `0x1F`, `1_000`: unquoted they are refused, so that a manifest means the same everywhere.
* Keys must be text, and none may stand twice. Anchors, aliases and `<<` work. One SinkJob per file.

## Secrets

Secret values never stand in a manifest: `optionsFrom` says where they are. It is a list, and each entry is one of

| entry | on a cluster | without one |
| --- | --- | --- |
| `secretRef: {name: lake}` | the keys of the Secret | the files in `.sinkjob/secrets/lake/`, one for each key |
| `configMapRef: {name: lake}` | the keys of the ConfigMap | the files in `.sinkjob/configmaps/lake/` |
| `fileRef: {path: lake.env}` | refused | `KEY=VALUE` lines, or a flat mapping in a `.yaml`, `.yml` or `.json` file |
| `envRef: {prefix: LAKE_}` | refused | `LAKE_password` becomes the option `password` |
| `envRef: {name: PGPASSWORD, key: password}` | refused | that variable becomes the option `password` |

An option may come from one place only. In `spec.sinks[].optionsFrom` a key with a dot sets a field of an option that
has fields: `catalog.token` is `token` in `catalog`. `.sinkjob` and relative paths are beside the manifest; one line
break at the end of a file in `.sinkjob` is not part of its value. Values from `fileRef` and `envRef` are text as it
stands, and are converted to what the option needs.
"""


def reference_text() -> str:
    """The page."""
    parts = [_HEAD, *_sections(SinkJob, ""), _secret_keys(), _spark_settings()]
    return "\n".join(parts)


def _sections(model: type[BaseModel], path: str) -> Iterator[str]:
    """A table of the model's fields, then one for each model within it, in the order of the manifest."""
    title = f"`{path}`" if path else "Fields"
    lines = [
        f"## {title}\n",
        inspect.cleandoc(model.__doc__ or ""),
        "",
        "| field | value | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    inner: list[tuple[type[BaseModel], str]] = []
    for name, field in model.model_fields.items():
        if name == "status":
            continue
        alias = field.alias or name
        description = (field.description or "").replace("|", "\\|")
        here = _below(path, alias, field)
        lines.append(f"| `{alias}` | {_value(field, here)} | {_default(field)} | {description} |")
        inner += [(part, here) for part in _models(field.annotation)]
    yield "\n".join(lines) + "\n"
    for part, part_path in inner:
        # optionsFrom occurs in three places and is described once, by the section on secrets.
        if not part_path.endswith("optionsFrom[]"):
            yield from _sections(part, part_path)


def _below(path: str, alias: str, field: FieldInfo) -> str:
    listed = "[]" if "tuple" in str(field.annotation) else ""
    return f"{path}.{alias}{listed}" if path else f"{alias}{listed}"


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


def _value(field: FieldInfo, path: str) -> str:
    if _models(field.annotation):
        anchor = "secrets" if path.endswith("optionsFrom[]") else re.sub(r"[^a-z0-9]", "", path.lower())
        return f"[{'list of fields' if path.endswith('[]') else 'fields'}](#{anchor})"
    bounds = _bounds(field.metadata)
    return " ".join(part for part in (_type(field.annotation), bounds) if part)


def _type(annotation: Any) -> str:
    """The kind of value in words; unions are only with null, which is "left out"."""
    names = {
        str: "text", int: "integer", float: "number", bool: "`true`, `false`", Any: "anything",
        Duration: "duration", Size: "size", Memory: "memory",
    }  # fmt: skip
    if annotation in names:
        return names[annotation]
    arguments = [part for part in get_args(annotation) if part is not type(None)]
    if str(annotation).startswith("typing.Literal"):
        return ", ".join(f"`{value}`" for value in arguments)
    if "dict[" in str(annotation):
        return "mapping"
    if str(annotation).startswith(("tuple[", "typing.Annotated[tuple[")):
        entry = next(part for part in _flat(annotation) if part is not Ellipsis)
        return f"list of {_type(entry)}"
    return _type(arguments[0])


def _flat(annotation: Any) -> tuple[Any, ...]:
    """The arguments of a tuple, however often it is annotated."""
    while str(annotation).startswith("typing.Annotated["):
        annotation = get_args(annotation)[0]
    return get_args(annotation)


def _bounds(metadata: list[Any]) -> str:
    low = next((item.ge for item in metadata if hasattr(item, "ge")), None)
    high = next((item.le for item in metadata if hasattr(item, "le")), None)
    shape = next((item.expected for item in metadata if isinstance(item, Matching)), None)
    if shape is not None:
        return f"({shape})"
    if low is not None and high is not None and high <= 10_000:
        return f"{low}…{high}"
    return f"≥ {low}" if low is not None else ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is None or field.default is PydanticUndefined or isinstance(field.default, BaseModel):
        return ""
    if field.default in ((), {}, ""):
        return "empty"
    text = field.default if isinstance(field.default, Duration | Size | Memory) else spark_text(field.default)
    return f"`{text}`"


def _secret_keys() -> str:
    endings = ", ".join(f"`{ending}`" for ending in HARMLESS_ENDINGS)
    return f"""\
## Which options count as secret

A value in `options` (however deep) or `sparkConf` is refused if the name of its key, or of one around it, matches
`{SECRET_WORDS}` in any case, unless that name ends with one of {endings}. `tokenizer` is no token. `true`,
`false` and empty values are no secrets. A URL or connection string with a password in it
(`//user:x@`, `?password=x`, `;password=x`, `AccountKey=x`) and a private key in PEM are refused under every name,
URLs in `deps` too.
"""


def _spark_settings() -> str:
    lines = ["## Settings of Spark that are refused\n", "| key | because | allowed |", "| --- | --- | --- |"]
    for rule in RULES:
        key = rule.pattern.replace("\\.", ".").replace(".*", "*")
        lines.append(f"| `{key}` | {rule.why} | {rule.allowed} |")
    why = "with a `jdbc` sink in `mode: xa`, two attempts of a task would prepare the same rows"
    lines.append(f"| `spark.speculation` | {why} | only false |")
    return "\n".join(lines) + "\n"


def main(path: str = "docs/manifest.md") -> None:
    """Write the page."""
    Path(path).write_text(reference_text(), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
