"""The contradictions that a manifest may hold although each of its fields is right: one named check each.

Called by `load.py` after the models were read. Never looks outside the manifest: no file, no sink's code, no target.
"""

from collections.abc import Callable, Iterator, Mapping

from sinkruntime.spec.checks_source import SOURCE_CHECKS
from sinkruntime.spec.models import SinkJob
from sinkruntime.spec.paths import FieldPath, Finding, suggestion
from sinkruntime.spec.plaintext import plaintext_secrets
from sinkruntime.spec.source import OptionsFrom
from sinkruntime.spec.spark_conf import refusal

Check = Callable[[SinkJob], Iterator[Finding]]


def sink_names_are_unique(job: SinkJob) -> Iterator[Finding]:
    """Case does not tell names apart: staged names may lie on a file system that does not either."""
    first: dict[str, int] = {}
    for index, sink in enumerate(job.spec.sinks):
        other = first.setdefault(sink.name.casefold(), index)
        if other != index:
            message = f"`{sink.name}` is the name of spec.sinks[{other}] too"
            yield Finding(("spec", "sinks", index, "name"), message, "give each sink a name of its own")


def dead_letter_goes_to_another_sink(job: SinkJob) -> Iterator[Finding]:
    names = [sink.name for sink in job.spec.sinks]
    for index, sink in enumerate(job.spec.sinks):
        if sink.dead_letter is None:
            continue
        path: FieldPath = ("spec", "sinks", index, "deadLetter", "sink")
        if sink.dead_letter.sink == sink.name:
            yield Finding(path, "a sink cannot take the rows that it refused itself", "name another sink of this job")
        elif sink.dead_letter.sink not in names:
            others = [name for name in names if name != sink.name]
            expected = suggestion(sink.dead_letter.sink, others) or "name another sink of this job"
            yield Finding(path, f"`{sink.dead_letter.sink}` is no sink of this job", expected)


def dead_letter_sink_has_none_itself(job: SinkJob) -> Iterator[Finding]:
    """Else refused rows of refused rows could go in a circle."""
    targets = {sink.dead_letter.sink: sink.name for sink in job.spec.sinks if sink.dead_letter}
    for index, sink in enumerate(job.spec.sinks):
        if sink.dead_letter and targets.get(sink.name, sink.name) != sink.name:
            message = f"this sink takes the refused rows of `{targets[sink.name]}` and cannot pass on its own"
            yield Finding(("spec", "sinks", index, "deadLetter"), message, "leave it out here")


def dead_letter_sink_takes_nothing_else(job: SinkJob) -> Iterator[Finding]:
    targets = {sink.dead_letter.sink for sink in job.spec.sinks if sink.dead_letter}
    for index, sink in enumerate(job.spec.sinks):
        for name, given in (("select", sink.select), ("where", sink.where)):
            if sink.name in targets and given is not None:
                message = "this sink takes refused rows only, as `sink`, `checkpoint`, `reason`, `message` and `row`"
                yield Finding(("spec", "sinks", index, name), message, "leave it out here")


def warn_only_at_least_once(job: SinkJob) -> Iterator[Finding]:
    for index, sink in enumerate(job.spec.sinks):
        if sink.on_failure == "Warn" and sink.guarantee != "AtLeastOnce":
            message = "`Warn` goes on without a checkpoint's rows, which no stronger guarantee than AtLeastOnce allows"
            expected = "set `guarantee: AtLeastOnce` or `onFailure: Fail`"
            yield Finding(("spec", "sinks", index, "onFailure"), message, expected)


def options_from_is_one_thing(job: SinkJob) -> Iterator[Finding]:
    for path, entry in _options_from(job):
        given = [name for name in ("secretRef", "configMapRef", "fileRef", "envRef") if _reference(entry, name)]
        if len(given) != 1:
            what = "has " + " and ".join(f"`{name}`" for name in given) if given else "is empty"
            expected = "give exactly one of secretRef, configMapRef, fileRef, envRef"
            yield Finding(path, f"an entry of optionsFrom {what}", expected)


def env_ref_is_prefix_or_name(job: SinkJob) -> Iterator[Finding]:
    for path, entry in _options_from(job):
        ref = entry.env_ref
        if ref is not None and (ref.prefix is not None, ref.name is not None, ref.key is not None) not in (
            (True, False, False),
            (False, True, True),
        ):
            yield Finding((*path, "envRef"), "needs either `prefix`, or `name` and `key`", "such as `prefix: LAKE_`")


def limits_grow(job: SinkJob) -> Iterator[Finding]:
    commit, backoff, scaling = job.spec.commit, job.spec.restart_policy.backoff, job.spec.dynamic_allocation
    pairs: tuple[tuple[FieldPath, object, str, object, bool], ...] = (
        (("commit", "maxTimeout"), commit.max_timeout, "timeout", commit.timeout, commit.max_timeout < commit.timeout),
        (
            ("commit", "retry", "maxBackoff"),
            commit.retry.max_backoff,
            "initialBackoff",
            commit.retry.initial_backoff,
            commit.retry.max_backoff < commit.retry.initial_backoff,
        ),
        (("restartPolicy", "backoff", "max"), backoff.max, "initial", backoff.initial, backoff.max < backoff.initial),
        (
            ("dynamicAllocation", "maxExecutors"),
            scaling.max_executors,
            "minExecutors",
            scaling.min_executors,
            scaling.max_executors < scaling.min_executors,
        ),
    )
    for path, most, other, least, wrong in pairs:
        if wrong:
            yield Finding(("spec", *path), f"{most} is less than `{other}` ({least})")


def executors_exist(job: SinkJob) -> Iterator[Finding]:
    if job.spec.executor.instances == 0 and not job.spec.dynamic_allocation.enabled:
        yield Finding(
            ("spec", "executor", "instances"), "without executors nothing runs", "at least 1, or dynamicAllocation"
        )


def spark_conf_keeps_the_guarantee(job: SinkJob) -> Iterator[Finding]:
    for key, value in job.spec.spark_conf.items():
        rule = refusal(key, value)
        if rule is not None:
            yield Finding(("spec", "sparkConf", key), f"is refused: {rule.why}", rule.allowed or "leave it out")


def speculation_without_prepared_transactions(job: SinkJob) -> Iterator[Finding]:
    """Two attempts of a task would hold locks on the same keys, and wait for each other."""
    conf = {key.lower(): value.strip().lower() for key, value in job.spec.spark_conf.items()}
    if conf.get("spark.speculation") != "true":
        return
    for index, sink in enumerate(job.spec.sinks):
        if sink.type == "jdbc" and sink.options.get("mode") == "xa":
            message = f"two attempts of a task would prepare the same rows in spec.sinks[{index}] (`mode: xa`)"
            yield Finding(("spec", "sparkConf", "spark.speculation"), message, "set it to false, or `mode: staging`")


def secrets_are_references(job: SinkJob) -> Iterator[Finding]:
    places: list[tuple[Mapping[str, object], FieldPath]] = [
        (job.spec.source.options, ("spec", "source", "options")),
        ({"path": job.spec.source.path}, ("spec", "source")),
        ({"location": job.spec.checkpoint.location}, ("spec", "checkpoint")),
        (job.spec.spark_conf, ("spec", "sparkConf")),
        ({"pyFiles": list(job.spec.deps.py_files), "jars": list(job.spec.deps.jars)}, ("spec", "deps")),
        *((sink.options, ("spec", "sinks", index, "options")) for index, sink in enumerate(job.spec.sinks)),
    ]
    for options, path in places:
        yield from plaintext_secrets(options, path)


CHECKS: tuple[Check, ...] = (
    *SOURCE_CHECKS,
    sink_names_are_unique,
    dead_letter_goes_to_another_sink,
    dead_letter_sink_has_none_itself,
    dead_letter_sink_takes_nothing_else,
    warn_only_at_least_once,
    options_from_is_one_thing,
    env_ref_is_prefix_or_name,
    limits_grow,
    executors_exist,
    spark_conf_keeps_the_guarantee,
    speculation_without_prepared_transactions,
    secrets_are_references,
)


def contradictions(job: SinkJob) -> list[Finding]:
    """What all checks find."""
    return [finding for check in CHECKS for finding in check(job)]


def _options_from(job: SinkJob) -> Iterator[tuple[FieldPath, OptionsFrom]]:
    places: list[tuple[FieldPath, tuple[OptionsFrom, ...]]] = [
        (("spec", "source"), job.spec.source.options_from),
        (("spec", "checkpoint"), job.spec.checkpoint.options_from),
        *((("spec", "sinks", index), sink.options_from) for index, sink in enumerate(job.spec.sinks)),
    ]
    for path, entries in places:
        for index, entry in enumerate(entries):
            yield (*path, "optionsFrom", index), entry


def _reference(entry: OptionsFrom, alias: str) -> object:
    references: dict[str, object] = {
        "secretRef": entry.secret_ref,
        "configMapRef": entry.config_map_ref,
        "fileRef": entry.file_ref,
        "envRef": entry.env_ref,
    }
    return references[alias]
