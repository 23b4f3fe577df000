"""Removes from a virtual environment what an image never uses, then compiles the rest ahead.

Called by the Dockerfile's build stages: `slim.py SITE_PACKAGES`. Every rule must hit something wherever its package is
installed, so that a new release that moves a file fails the build instead of growing the image. Cuts no Python module
that our code, Spark's SQL or a sink imports. Spark loses Hive, MLlib, GraphX, Connect, YARN and its shells.
"""

import compileall
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

TIMEOUT_SECONDS = 600

#: What is imported at the end, where it is installed.
IMPORTED = [
    "aiohttp", "boto3.session", "confluent_kafka", "deltalake", "fastavro", "kopf", "kubernetes.aio.client.api_client",
    "kubernetes.aio.config", "numpy", "pandas", "psycopg", "pyarrow._azurefs", "pyarrow._gcsfs", "pyarrow.compute",
    "pyarrow.csv", "pyarrow.dataset", "pyarrow.fs", "pyarrow.orc", "pyarrow.parquet", "pydantic",
    "pyiceberg.catalog.rest", "pyiceberg.catalog.sql", "pymetastore", "pymysql", "pyspark.sql", "rich.table", "yaml",
    "zstandard",
]  # fmt: skip

#: Patterns by package folder: what is not read at run time, or serves other programs than ours.
PATTERNS = {
    "pyarrow": [
        "tests", "include", "includes", "src", "*.pyx", "*.pxi", "*.pxd", "libarrow_flight.so.*", "_flight.*.so",
        "libarrow_python_flight.so*", "_hdfs.*.so", "_pyarrow_cpp_tests.*.so",
    ],
    # Our calls are plain dictionaries: of the generated models and calls nothing is loaded.
    "kubernetes": ["client/api/*_api.py", "client/models/v*.py", "aio/client/api/*_api.py", "aio/client/models/v*.py"],
    "pandas": ["tests"],
    # Colours for source code in 500 languages, of which nothing is ever shown.
    "pygments": ["lexers/[a-z]*.py", "lexers/_*_builtins.py"],
    "pydantic": ["v1"],
    "boto3": ["examples", "data/[!s]*"],
    # Other databases than those that Iceberg's SQL catalogs are kept in.
    "sqlalchemy": ["dialects/mssql", "dialects/oracle", "testing"],
    "zstandard": ["_cffi.*.so"],
    "numpy": ["_core/tests", "lib/tests", "linalg/tests", "ma/tests", "random/tests", "f2py", "_core/include"],
    "pyspark": [
        "jars/connect-repl", "data", "examples", "licenses", "python/lib", "ml", "mllib", "sbin",
        "jars/hive-[!s]*", "jars/hive-se*", "jars/hive-sh*", "jars/spark-hive*", "jars/derby*", "jars/datanucleus-*",
        "jars/javax.jdo*", "jars/jdo-api*", "jars/libthrift*", "jars/libfb303*", "jars/HikariCP*", "jars/ST4*",
        "jars/antlr-runtime*", "jars/jpam*", "jars/super-csv*", "jars/opencsv*", "jars/commons-dbcp*",
        "jars/spark-mllib_*", "jars/breeze*", "jars/spire*", "jars/cats-kernel*", "jars/algebra*", "jars/arpack*",
        "jars/lapack*", "jars/blas*", "jars/JTransforms*", "jars/JLargeArrays*", "jars/spark-graphx*",
        "jars/spark-connect_*", "jars/spark-pipelines*", "jars/spark-yarn*", "jars/spark-repl*", "jars/jline*",
        "jars/scala-compiler*", "jars/netty-codec-native-quic*",
    ],
}  # fmt: skip

#: pyarrow's own S3 client, which only these use: all else goes by boto3.
ARROW_S3 = ["libarrow_s3.so.*", "_s3fs.*.so"]
ARROW_S3_USERS = ["deltalake", "pyiceberg"]

#: botocore describes 400 services; these are reached by storages, sinks and the ways to get credentials.
BOTOCORE_SERVICES = {
    "dynamodb", "firehose", "glue", "kinesis", "s3", "s3tables", "signin", "sqs", "sso", "sso-oidc", "sts",
}  # fmt: skip

#: Jars that carry native code for many platforms; what another platform's is, by its path in the jar.
NATIVE_JARS = ["rocksdbjni-*", "zstd-jni-*", "snappy-java-*", "lz4-java-*", "netty-tcnative-boringssl-static-*"]
_NATIVE = re.compile(r"\.(so|dll|jnilib|dylib|a)$")
_OTHER_SYSTEMS = re.compile(r"darwin|osx|mac|win|aix|freebsd|sunos|musl|android|\.(dll|jnilib|dylib)$")
_MACHINES = {"x86_64": r"x86_64|x86-64|amd64|linux64", "aarch64": r"aarch64|aarch_64"}


def remove(folder: Path, patterns: list[str]) -> list[str]:
    """Deletes what the patterns name; returns the patterns that named nothing."""
    idle = []
    for pattern in patterns:
        found = list(folder.glob(pattern))
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not found:
            idle.append(pattern)
    return idle


def merge_twins(folder: Path) -> None:
    """Makes links of libraries that a wheel holds several times under names of different length, as pyarrow's."""
    for library in sorted(folder.glob("*.so*")):
        twins = [twin for twin in folder.glob(f"{library.name}.*") if twin.read_bytes() == library.read_bytes()]
        for twin in twins:
            twin.unlink()
            twin.symlink_to(library.name)


def strip(site: Path) -> None:
    """Takes the symbols of the linker and of debuggers out of the libraries: a fifth of their size.

    Not out of those in `*.libs`: what auditwheel has edited there does not load after it.
    """
    found = (path for path in site.rglob("*.so*") if path.is_file() and not path.is_symlink())
    libraries = [str(path) for path in found if path.relative_to(site).parts[0].rpartition(".")[2] != "libs"]
    subprocess.run(["strip", "--strip-unneeded", *libraries], check=True, timeout=TIMEOUT_SECONDS)


def check_imports(site: Path) -> None:
    """Imports what was cut, with the environment's own Python; raises CalledProcessError where that fails."""
    names = [name for name in IMPORTED if (site / name.split(".")[0]).is_dir()]
    python = site.parents[2] / "bin" / "python"
    subprocess.run([python, "-c", "import " + ", ".join(names)], check=True, timeout=TIMEOUT_SECONDS)


def is_foreign(name: str, machine: str) -> bool:
    """Whether a path in a jar is a native library that this Linux machine cannot load."""
    if not _NATIVE.search(name):
        return False
    lower = name.lower()
    return bool(_OTHER_SYSTEMS.search(lower)) or not re.search(rf"(?<![a-z])({_MACHINES[machine]})", lower)


def cut_jar(jar: Path, machine: str) -> None:
    """Writes the jar again without the native libraries of other machines; raises ValueError if none would be left."""
    with zipfile.ZipFile(jar) as old:
        names = old.namelist()
        natives = [name for name in names if _NATIVE.search(name)]
        foreign = {name for name in natives if is_foreign(name, machine)}
        if natives and len(foreign) == len(natives):
            raise ValueError(f"{jar.name} would keep none of its native libraries: {', '.join(natives)}")
        if not foreign:
            return
        new = jar.with_suffix(".new")
        with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as out:
            for entry in old.infolist():
                if entry.filename not in foreign:
                    out.writestr(entry, old.read(entry.filename))
    new.replace(jar)


def _cut_botocore(folder: Path) -> list[str]:
    services = [path for path in (folder / "data").iterdir() if path.is_dir()]
    for service in services:
        if service.name not in BOTOCORE_SERVICES:
            shutil.rmtree(service)
    return sorted(BOTOCORE_SERVICES - {service.name for service in services})


def _cut_pyspark(folder: Path) -> list[str]:
    idle = []
    for pattern in NATIVE_JARS:
        found = list((folder / "jars").glob(pattern))
        idle += [] if found else [pattern]
        for jar in found:
            if not pattern.startswith("netty-"):
                cut_jar(jar, platform.machine())
            elif is_foreign(f"{jar.stem}.so", platform.machine()):  # a jar for each platform
                jar.unlink()
    return idle


def main(arguments: list[str]) -> None:
    """Slim the environment, or exit with the rules that hit nothing."""
    site = Path(arguments[0])
    special: dict[str, Callable[[Path], list[str]]] = {"botocore": _cut_botocore, "pyspark": _cut_pyspark}
    idle = []
    for package in sorted({*PATTERNS, *special}):
        folder = site / package
        if not folder.is_dir():
            continue
        patterns = PATTERNS.get(package, [])
        if package == "pyarrow" and not any((site / user).is_dir() for user in ARROW_S3_USERS):
            patterns = patterns + ARROW_S3
        idle += [f"{package}/{pattern}" for pattern in remove(folder, patterns)]
        if package in special:
            idle += [f"{package}: {rule}" for rule in special[package](folder)]
        merge_twins(folder)
    if idle:
        sys.exit("these rules hit nothing, so the packages have changed: " + ", ".join(idle))
    strip(site)
    check_imports(site)
    if not compileall.compile_dir(site, quiet=1, workers=0, invalidation_mode=None):
        sys.exit("a module could not be compiled")


if __name__ == "__main__":
    main(sys.argv[1:])
