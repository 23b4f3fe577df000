"""The catalog: opened, asked for a table, and what its errors mean.

Used by the sink, its writer and its committer. pyiceberg is imported when a catalog is opened. Catalogs are made from
the options alone: pyiceberg's own configuration files and environment variables are never read.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from sinkruntime.errors import ConfigurationError, TargetError
from sinkruntime.sinks.iceberg.options import CatalogType, Options

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

CONNECT_TIMEOUT_SECONDS = 5.0
READ_TIMEOUT_SECONDS = 60.0
#: A writer's view of a table may be this old. What it then writes is still right: field ids and specs never change.
TABLE_AGE_SECONDS = 5.0
TABLES_MAX = 256
#: Between the attempts to read.
PAUSES_SECONDS = (0.1, 0.3, 0.9)
FORMAT_VERSION = 2

T = TypeVar("T")

_tables: dict[tuple[object, ...], tuple[float, Table]] = {}
_lock = threading.Lock()


def open_catalog(options: Options) -> Catalog:
    """A catalog of its own; close it. Raises `ConfigurationError` or `TargetError`."""
    try:
        from pyiceberg.catalog import AVAILABLE_CATALOGS
        from pyiceberg.catalog import CatalogType as Kind
    except ModuleNotFoundError as error:
        message, advice = "tables need pyiceberg", "pip install 'sinkjob[iceberg]'"
        raise ConfigurationError("MissingModule", message, path="options.catalog", advice=advice) from error
    given = options.catalog
    properties = _properties(options)
    if options.create_table and given.sqlite_folder:
        os.makedirs(given.sqlite_folder, exist_ok=True)
    logging.getLogger("pyiceberg").setLevel(logging.WARNING)  # it tells of each file system that it makes

    def connect() -> Catalog:
        with talking(options):
            if given.type is CatalogType.REST:
                from sinkruntime.sinks.iceberg.rest import open_rest

                return open_rest(given.name, properties)
            return AVAILABLE_CATALOGS[Kind(given.type.value)](given.name, properties)

    return _again(connect)


@contextmanager
def opened(options: Options) -> Iterator[Catalog]:
    """A catalog for the time of a call."""
    catalog = open_catalog(options)
    try:
        yield catalog
    finally:
        catalog.close()


def load_table(catalog: Catalog, options: Options, name: str) -> Table:
    """The table as it is now. Raises `TargetError` where it is not there, or is of a kind that cannot be written."""

    def load() -> Table:
        with talking(options):
            return catalog.load_table(name)

    table = _again(load)
    check_format(table)
    return table


def _again(read: Callable[[], T]) -> T:
    """Read, a few times where the connection fails: a reading may be repeated, whatever became of it."""
    for pause_seconds in PAUSES_SECONDS:
        try:
            return read()
        except ConnectionError:
            time.sleep(pause_seconds)
    return read()


def check_format(table: Table) -> None:
    """Refuses tables whose format this sink cannot write."""
    version = table.metadata.format_version
    if version != FORMAT_VERSION:
        right = "upgrade it (`format-version` 2)" if version < FORMAT_VERSION else "only version 2 is supported"
        message = f"table `{'.'.join(table.name())}` has Iceberg's format version {version}: {right}"
        raise TargetError("UnsupportedTableFeature", message, path="options.table")
    kind = table.metadata.properties.get("write.format.default", "parquet")
    if kind.lower() != "parquet":
        message = f"table `{'.'.join(table.name())}` wants its files as {kind}; only parquet is supported"
        raise TargetError("UnsupportedTableFeature", message, path="options.table")


def recent_table(options: Options, name: str, fresh: bool = False) -> Table:
    """A table for writers, at most `TABLE_AGE_SECONDS` old unless `fresh`; shared by the tasks of a process."""
    key = (tuple(sorted(options.catalog.properties().items())), options.catalog.name, name)
    now = time.monotonic()
    with _lock:
        found = _tables.get(key)
    if found is not None and not fresh and now - found[0] < TABLE_AGE_SECONDS:
        return found[1]
    with opened(options) as catalog:
        table = load_table(catalog, options, name)
    with _lock:
        if len(_tables) >= TABLES_MAX:
            _tables.pop(min(_tables, key=lambda at: _tables[at][0]))
        _tables[key] = now, table
    return table


def _properties(options: Options) -> dict[str, str]:
    defaults = {
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        "s3.connect-timeout": str(CONNECT_TIMEOUT_SECONDS),
        "s3.request-timeout": str(READ_TIMEOUT_SECONDS),
    }
    given = options.catalog.properties()
    if options.catalog.type is CatalogType.SQL:
        defaults["init_catalog_tables"] = "true" if options.create_table else "false"
    if "s3.endpoint" in given:  # pyarrow would ask AWS for the region of a bucket that is not there
        defaults["s3.region"] = "us-east-1"
    return defaults | given


@contextmanager
def talking(options: Options) -> Iterator[None]:
    """Translates what a catalog raises when it is read. `ConnectionError`: it may pass. Never shows a secret."""
    from pyiceberg import exceptions as ice

    try:
        yield
    except (TargetError, ConfigurationError, ConnectionError):
        raise
    except (ice.NoSuchTableError, ice.NoSuchNamespaceError, ice.NoSuchIdentifierError) as error:
        advice = "" if options.create_table else "create it, or set `createTable: true`"
        message = f"there is no table `{options.table}`"
        raise TargetError("TableMissing", message, path="options.table", advice=advice) from error
    except (ice.UnauthorizedError, ice.ForbiddenError, ice.OAuthError, ice.AuthorizationExpiredError) as error:
        message = f"the catalog refuses the credentials: {hide(error, options)}"
        raise TargetError("PermissionDenied", message, path="options.catalog") from error
    except ice.NotInstalledError as error:
        raise ConfigurationError("MissingModule", hide(error, options), path="options.catalog") from error
    except Exception as error:
        _translate(error, options)
        raise


def _translate(error: Exception, options: Options) -> None:
    """Errors of the libraries beneath pyiceberg, by what they are called: not all of them are installed everywhere."""
    module = type(error).__module__.partition(".")[0]
    text = hide(error, options)
    if module == "sqlalchemy":
        if "no such table" in text or "does not exist" in text or "doesn't exist" in text:
            advice = "set `createTable: true`, or name the catalog's own database"
            message = f"the database has no Iceberg catalog: {text}"
            raise TargetError("CatalogMissing", message, path="options.catalog.uri", advice=advice) from None
        raise ConnectionError(f"the catalog's database: {text}") from None
    if module in ("requests", "urllib3", "pyiceberg", "thrift", "botocore") or isinstance(error, OSError):
        raise ConnectionError(f"the catalog: {text}") from None


def hide(error: BaseException, options: Options) -> str:
    """An error's text without the values of secret options."""
    text = f"{type(error).__name__}: {error}"
    for key, value in options.catalog.properties().items():
        if key not in ("type", "warehouse", "uri") and len(value) > 3:
            text = text.replace(value, "***")
    uri = options.catalog.uri.get_secret_value()
    before, at, _ = uri.partition("://")[2].rpartition("@")
    return text.replace(before, "***") if at and before else text
