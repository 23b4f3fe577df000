"""Downloads the pinned jars of `requirements/jars.txt` with Maven and checks their SHA-256.

Called by the Dockerfile's `jars` stage and by the end-to-end tests' images: `fetch_jars.py LIST FOLDER`. Maven's own
settings say where from; MAVEN_MIRROR (a URL), where set, is asked instead. Downloads nothing that the list does not
name, and leaves no jar in FOLDER that did not pass the check.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

MAVEN_TIMEOUT_SECONDS = 900
_LINE = re.compile(r"([\w.-]+):([\w.-]+):([\w.-]+)(?::([\w.-]+))? sha256:([0-9a-f]{64})")
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the list."""

    group: str
    artifact: str
    version: str
    classifier: str  # "" mostly
    sha256: str

    @property
    def name(self) -> str:
        """The file's name, as Maven copies it."""
        tail = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{tail}.jar"

    def element(self) -> str:
        """The jar as a dependency of a pom, without those of its own."""
        classifier = f"<classifier>{self.classifier}</classifier>" if self.classifier else ""
        anything = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        return (
            f"<dependency><groupId>{self.group}</groupId><artifactId>{self.artifact}</artifactId>"
            f"<version>{self.version}</version>{classifier}<exclusions>{anything}</exclusions></dependency>"
        )


def parse(text: str) -> list[Jar]:
    """The jars of a list; raises ValueError, with the line's number, for a line that is not one."""
    jars = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            form = "`group:artifact:version[:classifier] sha256:<64 hex digits>`"
            raise ValueError(f"line {number} is not {form}: {line}")
        jars.append(Jar(*found.groups("")))
    return jars


def wrong(jars: list[Jar], folder: Path) -> list[str]:
    """What in the folder is not as the list says, one sentence each."""
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    wanted = {jar.name: jar.sha256 for jar in jars}
    return [
        *(f"{name} is missing" for name in wanted.keys() - found.keys()),
        *(f"{name} is not in the list" for name in found.keys() - wanted.keys()),
        *(
            f"{name} has SHA-256 {found[name]}, the list says {wanted[name]}"
            for name in sorted(wanted.keys() & found.keys())
            if found[name] != wanted[name]
        ),
    ]


def _maven(jars: list[Jar], folder: Path, work: Path) -> None:
    pom = work / "pom.xml"
    elements = "".join(jar.element() for jar in jars)
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>io.sinkjob</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{elements}</dependencies></project>",
        encoding="utf-8",
    )
    command = ["mvn", "-q", "-B", "-f", str(pom), _PLUGIN, f"-DoutputDirectory={folder}"]
    mirror = os.environ.get("MAVEN_MIRROR", "")
    if mirror:
        settings = work / "settings.xml"
        settings.write_text(
            "<settings><mirrors><mirror><id>mirror</id><mirrorOf>*</mirrorOf>"
            f"<url>{escape(mirror)}</url></mirror></mirrors></settings>",
            encoding="utf-8",
        )
        command += ["-s", str(settings)]
    subprocess.run(command, check=True, timeout=MAVEN_TIMEOUT_SECONDS)


def main(arguments: list[str]) -> None:
    """Fill FOLDER with the jars of LIST, or exit with what is wrong."""
    listing, target = arguments
    jars = parse(Path(listing).read_text(encoding="utf-8"))
    folder = Path(target).resolve()
    # Beside the target, so that the rename at the end is one step: a checked folder, or none.
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        fetched = Path(work, "jars")
        _maven(jars, fetched, Path(work))
        found = wrong(jars, fetched)
        if found:
            sys.exit("\n".join(found))
        fetched.rename(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
