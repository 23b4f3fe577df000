"""Whatever the text, reading a manifest gives a job or a ManifestError; and what was read can be written again."""

import copy
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from sinkruntime.errors import ManifestError
from sinkruntime.spec.digest import revision
from sinkruntime.spec.load import parse_manifest, parse_object
from sinkruntime.spec.models import SinkJob
from sinkruntime.spec.quantities import Duration, Memory, Size

FULL: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "full.yaml").read_text(encoding="utf-8"))

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)
words = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=12)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30).filter(str.strip)
durations = st.builds("{}{}".format, st.integers(1, 8760), st.sampled_from(["ms", "s", "m", "h"]))
memory = st.builds("{}{}".format, st.integers(1, 1024), st.sampled_from("kmgt"))
scalars = st.dictionaries(words, texts | st.integers() | st.booleans(), max_size=3)
references = st.sampled_from(
    [
        {"secretRef": {"name": "a"}},
        {"configMapRef": {"name": "b"}},
        {"fileRef": {"path": "c"}},
        {"envRef": {"prefix": "D"}},
    ]
)


def fields(required: dict[str, st.SearchStrategy[Any]], **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(required, optional=optional)


sources = st.one_of(
    fields({"format": st.sampled_from(["csv", "parquet"]), "path": texts, "schema": texts}, options=scalars),
    fields(
        {"format": st.sampled_from(["kafka", "rate"])},
        options=scalars,
        optionsFrom=st.lists(references, max_size=2),
        watermark=fields({"column": texts, "delay": durations}),
    ),
)
manifests = fields(
    {
        "apiVersion": st.just("sinkjob.io/v1alpha1"),
        "kind": st.just("SinkJob"),
        "metadata": fields({"name": words}, namespace=words, labels=st.dictionaries(words, words, max_size=2)),
        "spec": fields(
            {
                "source": sources,
                "sinks": st.lists(
                    fields(
                        {"name": words, "type": st.sampled_from(["file", "console", "my.module:Sink"])},
                        guarantee=st.sampled_from(["ExactlyOnce", "AtLeastOnce"]),
                        options=st.dictionaries(words, json_values, max_size=3),
                        select=st.lists(texts, min_size=1, max_size=3),
                        onFailure=st.just("Fail"),
                        commit=fields({}, runOn=st.sampled_from(["Operator", "Driver", "Job"])),
                    ),
                    min_size=1,
                    max_size=3,
                    unique_by=lambda sink: sink["name"],
                ),
            },
            suspend=st.booleans(),
            transform=st.lists(fields({"sql": texts}) | fields({"python": st.just("a.b:c")}), max_size=2),
            trigger=fields({"type": st.just("ProcessingTime")}, interval=durations) | st.just({"type": "AvailableNow"}),
            commit=fields({}, maxPending=st.integers(1, 16), timeout=st.just("7s"), maxTimeout=st.just("1h")),
            driver=fields({}, memory=memory, cores=st.integers(1, 8), podTemplate=st.just({"spec": {}})),
            restartPolicy=fields({}, backoff=fields({}, factor=st.floats(1, 10))),
            ttlSecondsAfterFinished=st.integers(0, 1000),
            sparkConf=scalars,
        ),
    }
)


def job_or_none(text: str) -> SinkJob | None:
    """The job; None when it is refused. Every other exception escapes, and fails the test."""
    try:
        return parse_manifest(text, "job.yaml").job
    except ManifestError as error:
        refused = error
    assert refused.problems
    assert all(problem.message for problem in refused.problems)
    return None


@given(manifests)
def test_a_manifest_that_is_accepted_can_be_written_and_read_again(value: dict[str, Any]) -> None:
    job = job_or_none(yaml.safe_dump(value))
    if job is not None:
        written = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
        again = parse_object(written)
        assert again == job
        assert revision(again.spec) == revision(job.spec)
        # Defaults written out mean the same as defaults left out.
        whole = job.model_dump(mode="json", by_alias=True, exclude={"spec": {"trigger"}})
        assert revision(parse_object(whole).spec.model_copy(update={"trigger": job.spec.trigger})) == revision(job.spec)


@given(st.text(max_size=200))
def test_no_text_makes_another_exception(text: str) -> None:
    job_or_none(text)


@given(st.text("abk:{}[],&*!|>-? \n\t'\"#%@`~<=.0123\\xuU", max_size=80))
def test_no_text_made_of_yaml_signs_makes_another_exception(text: str) -> None:
    job_or_none(text)


@given(st.data())
def test_no_change_of_a_manifest_makes_another_exception(data: st.DataObject) -> None:
    manifest = copy.deepcopy(FULL)
    for _ in range(data.draw(st.integers(1, 3))):
        place: Any = manifest
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = data.draw(st.sampled_from(keys))
            inner = place[key]
            if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
                break
            place = inner
        match data.draw(st.sampled_from(["replace", "remove", "rename"])):
            case "replace":
                place[key] = data.draw(json_values)
            case "remove":
                del place[key]
            case "rename" if isinstance(place, dict):
                place[data.draw(st.text(max_size=10))] = place.pop(key)
        if not manifest:
            break
    job_or_none(yaml.safe_dump(manifest))


@given(st.integers(0, 365 * 24 * 3_600_000))
def test_a_duration_reads_as_it_was_written(milliseconds: int) -> None:
    assert Duration.parse(str(Duration(milliseconds))) == Duration(milliseconds)


@given(st.integers(0, 1024**5))
def test_a_size_reads_as_it_was_written(amount: int) -> None:
    assert Size.parse(str(Size(amount))) == Size(amount)


@given(st.integers(0, 1024**4).map(lambda kibibytes: kibibytes * 1024))
def test_an_amount_of_memory_reads_as_it_was_written(amount: int) -> None:
    assert Memory.parse(str(Memory(amount))) == Memory(amount)
