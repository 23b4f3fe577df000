"""Reads the options that `optionsFrom` refers to: from files and the environment, or as Kubernetes mounted them.

Called by `bind.py` for sinks, and by the driver for the source and the checkpoint. Values never appear in a message,
a repr or a log.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from sinkruntime.errors import ManifestError, Problem
from sinkruntime.spec.paths import FieldPath, path_text
from sinkruntime.spec.source import EnvRef, OptionsFrom

FILE_BYTES_MAX = 1024 * 1024  # a Secret holds no more


class Secrets(Mapping[str, str]):
    """Options by name; its repr shows the names only, and it can tell whether a text holds one of its values."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> str:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(sorted(self._values))})"

    def hide(self, text: str) -> str:
        """The text with each of the values replaced by `***`."""
        for value in sorted(filter(None, self._values.values()), key=len, reverse=True):
            text = text.replace(value, "***")
        return text


Objects = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True, repr=False)
class Places:
    """Where references are looked up.

    `secrets` and `config_maps` hold a directory for each object and in it a file for each key, as Kubernetes mounts
    them; or they are the objects themselves, keys and values by name. `base` is what a `fileRef` is relative to; None
    where there is a cluster, and then `envRef` is refused too.
    """

    secrets: Path | Objects
    config_maps: Path | Objects
    base: Path | None = None
    environ: Mapping[str, str] | None = None


def local_places(base: Path, environ: Mapping[str, str] | None = None) -> Places:
    """The places beside a manifest in the directory `base`; `environ` is this process's environment by default."""
    own = base / ".sinkjob"
    return Places(own / "secrets", own / "configmaps", base, os.environ if environ is None else environ)


def read_options_from(entries: Sequence[OptionsFrom], places: Places, path: FieldPath) -> Secrets:
    """All options that the entries refer to; `path` is that of the list. ManifestError with all that is wrong."""
    values: dict[str, str] = {}
    problems: list[Problem] = []
    for index, entry in enumerate(entries):
        here = path_text((*path, index))
        try:
            found = _read(entry, places)
        except _Unreadable as error:
            problems.append(Problem(here, None, error.message, error.expected))
            continue
        problems += [
            Problem(here, None, f"the option `{key}` comes from an earlier entry too", "keep one of them")
            for key in sorted(found.keys() & values.keys())
        ]
        values.update(found)
    if problems:
        raise ManifestError(problems)
    return Secrets(values)


class _Unreadable(Exception):
    """A reference that leads nowhere. Never holds a value."""

    def __init__(self, message: str, expected: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected


def _read(entry: OptionsFrom, places: Places) -> dict[str, str]:
    if entry.secret_ref is not None:
        return _object_keys(places.secrets, "Secret", entry.secret_ref.name)
    if entry.config_map_ref is not None:
        return _object_keys(places.config_maps, "ConfigMap", entry.config_map_ref.name)
    if places.base is None or places.environ is None:
        what = "a fileRef" if entry.file_ref is not None else "an envRef"
        raise _Unreadable(f"{what} is only for jobs that run without a cluster", "use a secretRef")
    if entry.file_ref is not None:
        return _file_options(places.base / entry.file_ref.path)
    return _environment_options(entry.env_ref or EnvRef(), places.environ)


def _object_keys(place: Path | Objects, kind: str, name: str) -> dict[str, str]:
    if isinstance(place, Mapping):
        if name not in place:
            raise _Unreadable(f"there is no {kind} `{name}`")
        return {key: value.removesuffix("\n") for key, value in place[name].items()}
    directory = place / name
    if not directory.is_dir():
        expected = f"without a cluster, put one file for each key into {directory}"
        raise _Unreadable(f"there is no {kind} `{name}`", expected)
    # Kubernetes keeps its own links in files that begin with two dots.
    files = [file for file in sorted(directory.iterdir()) if not file.name.startswith(".") and file.is_file()]
    return {file.name: _text(file).removesuffix("\n") for file in files}


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise _Unreadable(f"{file} is larger than {FILE_BYTES_MAX} bytes")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise _Unreadable(f"{file} cannot be read: {error.strerror}") from error
    except ValueError:
        # From None: the error would hold the content.
        raise _Unreadable(f"{file} is not UTF-8 text, or no path of a file") from None


def _file_options(file: Path) -> dict[str, str]:
    text = _text(file)
    if file.suffix in (".yaml", ".yml", ".json"):
        return _flat_mapping(file, text)
    options: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.strip().removeprefix("export ").strip()
        if not entry or entry.startswith("#"):
            continue
        key, equals, value = (part.strip() for part in entry.partition("="))
        if not equals or not key:
            raise _Unreadable(f"{file}, line {number}: not of the form KEY=VALUE")
        quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "'\""
        _add(options, file, number, key, value[1:-1] if quoted else value)
    return options


def _flat_mapping(file: Path, text: str) -> dict[str, str]:
    """A YAML or JSON mapping of text to text: no type is guessed, `no` and `0123` are what they are."""
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        # From None: the error would hold lines of the file.
        raise _Unreadable(f"{file}{where}: not valid YAML") from None
    if not isinstance(node, yaml.MappingNode):
        raise _Unreadable(f"{file}: not a mapping of options")
    options: dict[str, str] = {}
    for key, value in node.value:
        number = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or not isinstance(value, yaml.ScalarNode):
            raise _Unreadable(f"{file}, line {number}: an option's value must be text")
        _add(options, file, number, key.value, value.value)
    return options


def _add(options: dict[str, str], file: Path, line: int, key: str, value: str) -> None:
    if key in options:
        raise _Unreadable(f"{file}, line {line}: `{key}` is given twice")
    options[key] = value


def _environment_options(ref: EnvRef, environ: Mapping[str, str]) -> dict[str, str]:
    if ref.name is not None and ref.key is not None:
        if ref.name not in environ:
            raise _Unreadable(f"the environment variable {ref.name} is not set")
        return {ref.key: environ[ref.name]}
    prefix = ref.prefix or ""
    found = {
        name.removeprefix(prefix): value
        for name, value in environ.items()
        if name.startswith(prefix) and name != prefix
    }
    if not prefix or not found:
        raise _Unreadable(f"no environment variable begins with {prefix}")
    return found
