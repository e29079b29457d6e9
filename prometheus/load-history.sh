#!/bin/sh
# Loads a past into an empty Prometheus data folder: samples first, then the recorded series, level by level.
#   load-history.sh HISTORY_FOLDER DATA_FOLDER [PORT]
# HISTORY_FOLDER is what `stepscope history` wrote. A data folder that is in use already is left as it is. Blocks are
# built aside and moved in at the end, so that an interrupted load begins anew.
set -eu
history=$1 data=$2 port=${3:-9099}
aside=$data/.loading

if [ -d "$data/wal" ] || ls -d "$data"/0* >/dev/null 2>&1; then
  echo "history: $data holds data already, left as it is"
  exit 0
fi
if [ ! -f "$history/history.om" ]; then
  echo "history: no past to load" >&2
  exit 0
fi

rm -rf "$aside"
mkdir -p "$aside"
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || true' EXIT

# A generated past has no staleness markers: without the short lookback a series that ends would count for five minutes more.
serve() {
  prometheus --config.file="$history/empty.yml" --storage.tsdb.path="$aside" --log.level=error --query.lookback-delta=20s \
    --web.listen-address="127.0.0.1:$port" >/dev/null 2>"$history/prometheus.log" &
  pid=$!
  tries=0
  until promtool query instant "http://127.0.0.1:$port" 1 >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ "$tries" -gt 300 ] || ! kill -0 "$pid" 2>/dev/null; then
      echo "history: the helper Prometheus on 127.0.0.1:$port did not start:" >&2
      cat "$history/prometheus.log" >&2
      exit 1
    fi
    sleep 0.2
  done
}

stop() {
  kill "$pid"
  wait "$pid" || true
  pid=
}

promtool tsdb create-blocks-from openmetrics "$history/history.om" "$aside" >"$history/promtool.log"
for rules in "$history"/recording-*.yml; do
  serve
  promtool tsdb create-blocks-from rules --url="http://127.0.0.1:$port" --output-dir="$aside" \
    --start="$(cat "$history/start")" --end="$(cat "$history/end")" --eval-interval=15s "$rules" >>"$history/promtool.log" 2>&1
  stop
done

rm -rf "$aside/wal" "$aside/chunks_head" "$aside/lock" "$aside/queries.active"
mv "$aside"/* "$data"/
rmdir "$aside"
rm "$history/history.om"
echo "history: loaded"
