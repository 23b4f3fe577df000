#!/bin/bash
# Spark starts executors with the one argument `executor` and with SPARK_* variables; everything else goes to `sinkjob`.
set -euo pipefail
[ "${1:-}" = executor ] || exec sinkjob "$@"

# SPARK_JAVA_OPT_<number>=<option>: values may hold blanks, so they are taken by name.
options=()
while read -r name; do options+=("${!name}"); done < <(compgen -e | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4 -n)
exec java ${options[@]+"${options[@]}"} -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
