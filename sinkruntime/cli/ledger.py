"""`sinkjob ledger export` and `import`: a job's ledger as one file, for a backup or for another machine.

The file is JSON: the ledger in its written form (with its own checksum), its payload objects in base64, and the
manifests (without secrets) that pending checkpoints need. Neither command touches Spark's checkpoint or a target.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from sinkruntime.cli.jobs import job_argument, namespace_option, opened
from sinkruntime.errors import ConfigurationError, LedgerCorrupt, LedgerFormatTooNew
from sinkruntime.ledger.payloads import object_epoch
from sinkruntime.local.workspace import Workspace
from sinkruntime.protocol import codec
from sinkruntime.protocol.ledger import Ledger, Payload

FORMAT = 1
_NOT_OURS = "give a file that `sinkjob ledger export` wrote"


@click.group(short_help="Export or import a job's ledger.")
def ledger() -> None:
    """Export or import a job's ledger: its record of which checkpoints were decided and committed.

    Without its ledger a job cannot know what has arrived, and does not start. Move it together with Spark's checkpoint
    (`spec.checkpoint.location`): if one is older than the other, the next run says so and stops.
    """


@ledger.command("export")
@job_argument
@namespace_option
@click.option(
    "-f", "--file", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write here; default: stdout."
)
def export_(job: str, namespace: str | None, target: Path | None) -> None:
    """Write a job's ledger to a file, or to standard output."""
    where = target.absolute() if target else None
    with opened(job, namespace) as workspace:
        text = json.dumps(asyncio.run(_exported(workspace)), indent=1, ensure_ascii=False)
        if where is None:
            click.echo(text)
            return
        try:
            with where.open("x", encoding="utf-8") as file:
                file.write(f"{text}\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ConfigurationError("CannotWrite", f"{target} cannot be written: {error.strerror}") from error
        click.echo(f"the ledger of {workspace.name} is in {target}")


async def _exported(workspace: Workspace) -> dict[str, Any]:
    store = workspace.store
    stored = await store.load()
    if stored is None:
        raise ConfigurationError("NeverRun", f"{workspace.name} has no ledger in {workspace.root}")
    needed = {payload.pointer for payload in _payloads(stored.ledger) if payload.pointer}
    objects = {name: base64.b64encode(await store.get_object(name)).decode() for name in sorted(needed)}
    folder = workspace.root / "revisions"
    names = sorted({record.revision for record in stored.ledger.records})
    revisions = {name: _revision(folder / f"{name}.json") for name in names}
    return {
        "format": FORMAT,
        "job": workspace.name,
        "ledger": json.loads(codec.encode(stored.ledger)),
        "objects": objects,
        "revisions": revisions,
    }


def _revision(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"the manifest that a pending checkpoint was made under cannot be read: {path}"
        raise ConfigurationError("RevisionLost", message, advice="restore that file") from error


def _payloads(ledger: Ledger) -> list[Payload]:
    states = list(ledger.last.states.values()) if ledger.last else []
    return states + [part.payload for record in ledger.records for part in record.parts.values() if part.payload]


@ledger.command("import")
@job_argument
@namespace_option
@click.option(
    "-f", "--file", "source", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The exported file."
)
@click.option("--replace", is_flag=True, help="Replace a ledger that is there; it is kept beside, as ledger.json.old.")
def import_(job: str, namespace: str | None, source: Path, replace: bool) -> None:
    """Put an exported ledger where a run of this job finds it.

    Refuses while the job runs, the ledger of another job, a file whose checksum is wrong, and a ledger that is there
    already, unless --replace is given.
    """
    content, found = _read(source)
    with opened(job, namespace) as workspace:
        if found.job != workspace.name:
            message = f"{source} is the ledger of {found.job}, and this job is {workspace.name}"
            raise ConfigurationError("OtherJob", message, advice="give both the same namespace and name")
        with workspace.lock():
            path = workspace.store.folder / "ledger.json"
            if path.exists() and not replace:
                message = f"{workspace.name} has a ledger already: {path}"
                raise ConfigurationError("LedgerExists", message, advice="--replace puts this one in its place")
            asyncio.run(_imported(workspace, content, found, path))
        click.echo(f"imported: {workspace.name}, {found.decided} checkpoints decided, {len(found.pending)} pending")


def _read(source: Path) -> tuple[Mapping[str, Any], Ledger]:
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError("CannotRead", f"{source} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise LedgerCorrupt(f"{source} is not JSON, so it is torn or no export", _NOT_OURS) from error
    if not isinstance(content, dict) or not isinstance(content.get("format"), int) or "ledger" not in content:
        raise LedgerCorrupt(f"{source} is no exported ledger", _NOT_OURS)
    if content["format"] > FORMAT:
        raise LedgerFormatTooNew(f"{source} was written by a newer release", "import it with that release")
    try:
        return content, codec.decode(json.dumps(content["ledger"]))
    except codec.NewerFormat as error:
        raise LedgerFormatTooNew(f"{source}: {error}", "import it with the newer release") from error
    except codec.BadLedger as error:
        raise LedgerCorrupt(f"{source}: {error}", "export it again") from error


def _objects(content: Mapping[str, Any], found: Ledger) -> dict[str, bytes]:
    """The payload objects that the ledger points at, whole; whatever else is in the file is left out."""
    objects: dict[str, bytes] = {}
    for payload in _payloads(found):
        if payload.pointer is None:
            continue
        if object_epoch(payload.pointer) is None or Path(payload.pointer).name != payload.pointer:
            message = f"the ledger in the export names the payload object {payload.pointer!r}, which is no name of ours"
            raise LedgerCorrupt(message, _NOT_OURS)
        try:
            data = base64.b64decode(content["objects"][payload.pointer], validate=True)
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerCorrupt(f"the export lacks the payload object {payload.pointer}", "export it again") from error
        if hashlib.sha256(data).hexdigest() != payload.sha256:
            raise LedgerCorrupt(f"the payload object {payload.pointer} in the export is damaged", "export it again")
        objects[payload.pointer] = data
    return objects


async def _imported(workspace: Workspace, content: Mapping[str, Any], found: Ledger, path: Path) -> None:
    """Objects and manifests first, the ledger last: it never names what is not there."""
    store = workspace.store
    for name, data in _objects(content, found).items():
        await store.put_object(name, data)
    for name, manifest in content.get("revisions", {}).items():
        workspace.put_revision(Path(name).name, json.dumps(manifest))
    if path.exists():
        path.replace(path.with_suffix(".json.old"))
    await store.create(found)
