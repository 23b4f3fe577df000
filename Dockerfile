# The images of sinkjob: targets `operator` (no JVM, no Spark; commits files), `driver` (Spark's driver and executors,
# committer pods), and `operator-all`, `driver-all`: the same with the clients of all sinks' targets. The classic builder
# and BuildKit both build it. --build-arg BASE: another Debian 12 image; MAVEN_MIRROR: another repository than Maven's
# own default.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS python
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 ca-certificates \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/debconf/* /var/lib/dpkg/*-old /usr/lib/python3*/test /usr/lib/python3*/pydoc_data \
      /usr/share/zoneinfo/posix /usr/share/zoneinfo/right \
 && groupadd --gid 185 sinkjob \
 && useradd --uid 185 --gid 185 --home-dir /tmp --no-create-home sinkjob
ENV PATH=/opt/sinkjob/bin:$PATH HOME=/tmp LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1
WORKDIR /tmp

FROM python AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv binutils
WORKDIR /build
COPY requirements/build.txt requirements/
RUN python3 -m venv --without-pip /opt/sinkjob \
 && python3 -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt
ENV INSTALL="/opt/build/bin/pip --python /opt/sinkjob/bin/python install --no-index --no-deps"

# Our own code: last and small, so that a change of it is a small layer.
FROM build AS package
COPY pyproject.toml README.md LICENSE ./
COPY sinkruntime sinkruntime
COPY operator operator
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels . && $INSTALL wheels/*

FROM build AS operator-build
COPY requirements/operator.txt requirements/
RUN /opt/build/bin/pip wheel --no-cache-dir --only-binary :all: --require-hashes --wheel-dir wheels -r requirements/operator.txt
COPY images/slim.py images/
RUN $INSTALL --no-compile wheels/* && python3 images/slim.py /opt/sinkjob/lib/python3*/site-packages

FROM python AS operator
COPY --from=operator-build /opt/sinkjob /opt/sinkjob
COPY --from=package /opt/sinkjob /opt/sinkjob
USER 185:185
ENTRYPOINT ["python", "-m", "sinkoperator"]

# Spark is published as source only, which the pinned tools of requirements/build.txt build.
FROM build AS driver-build
COPY requirements/driver.txt requirements/
RUN /opt/build/bin/pip wheel --no-cache-dir --only-binary :all: --no-binary pyspark --no-build-isolation --require-hashes --wheel-dir wheels -r requirements/driver.txt
COPY images/slim.py images/
RUN $INSTALL --no-compile wheels/* && python3 images/slim.py /opt/sinkjob/lib/python3*/site-packages

FROM build AS jars
RUN mkdir -p /usr/share/man/man1 && apt-get update && apt-get install -y --no-install-recommends maven
COPY requirements/jars.txt requirements/
COPY images/fetch_jars.py images/
ARG MAVEN_MIRROR=
RUN MAVEN_MIRROR="${MAVEN_MIRROR}" python3 images/fetch_jars.py requirements/jars.txt /jars

FROM python AS java
RUN mkdir -p /usr/share/man/man1 \
 && apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/debconf/* /var/lib/dpkg/*-old /usr/lib/jvm/*/lib/ct.sym \
 && ln -s /usr/lib/jvm/java-17-openjdk-* /usr/lib/jvm/java
ENV JAVA_HOME=/usr/lib/jvm/java SPARK_HOME=/opt/spark \
    PYSPARK_PYTHON=/opt/sinkjob/bin/python PYSPARK_DRIVER_PYTHON=/opt/sinkjob/bin/python

FROM java AS driver
COPY --from=driver-build /opt/sinkjob /opt/sinkjob
RUN ln -s /opt/sinkjob/lib/python3*/site-packages/pyspark /opt/spark
COPY --from=jars /jars /opt/spark/jars/
COPY images/driver-entrypoint.sh /opt/sinkjob/bin/driver-entrypoint
COPY --from=package /opt/sinkjob /opt/sinkjob
USER 185:185
ENTRYPOINT ["/opt/sinkjob/bin/driver-entrypoint"]

# Those with all clients come last: the classic builder builds every stage before its target. Thrift is published as
# source only, too.
FROM build AS operator-all-build
COPY requirements/operator-all.txt requirements/
RUN /opt/build/bin/pip wheel --no-cache-dir --only-binary :all: --no-binary thrift --no-build-isolation --require-hashes --wheel-dir wheels -r requirements/operator-all.txt
COPY images/slim.py images/
RUN $INSTALL --no-compile wheels/* && python3 images/slim.py /opt/sinkjob/lib/python3*/site-packages

FROM python AS operator-all
COPY --from=operator-all-build /opt/sinkjob /opt/sinkjob
COPY --from=package /opt/sinkjob /opt/sinkjob
USER 185:185
ENTRYPOINT ["python", "-m", "sinkoperator"]

FROM build AS driver-all-build
COPY requirements/driver-all.txt requirements/
RUN /opt/build/bin/pip wheel --no-cache-dir --only-binary :all: --no-binary pyspark,thrift --no-build-isolation --require-hashes --wheel-dir wheels -r requirements/driver-all.txt
COPY images/slim.py images/
RUN $INSTALL --no-compile wheels/* && python3 images/slim.py /opt/sinkjob/lib/python3*/site-packages

FROM java AS driver-all
COPY --from=driver-all-build /opt/sinkjob /opt/sinkjob
RUN ln -s /opt/sinkjob/lib/python3*/site-packages/pyspark /opt/spark
COPY --from=jars /jars /opt/spark/jars/
COPY images/driver-entrypoint.sh /opt/sinkjob/bin/driver-entrypoint
COPY --from=package /opt/sinkjob /opt/sinkjob
USER 185:185
ENTRYPOINT ["/opt/sinkjob/bin/driver-entrypoint"]
