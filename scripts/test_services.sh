#!/usr/bin/env bash
# Starts the PostgreSQL and Redis that tests talk to, where they are installed and not running.
# Fails with a remedy where it cannot: tests of the service are never skipped.
set -euo pipefail

postgresql_answers() { (exec 3<>/dev/tcp/127.0.0.1/5432) 2>/dev/null; }
redis_answers() { (exec 3<>/dev/tcp/127.0.0.1/6379) 2>/dev/null; }

wait_for() {
  for _ in $(seq 100); do
    if "$1"; then return; fi
    sleep 0.1
  done
  echo "$2" >&2
  exit 1
}

if [ -z "${DRUMLINE_TEST_POSTGRESQL:-}" ] && ! postgresql_answers; then
  if command -v pg_ctlcluster >/dev/null; then
    pg_ctlcluster --skip-systemctl-redirect "$(ls /etc/postgresql | sort -n | tail -1)" main start || true
  fi
  wait_for postgresql_answers "Tests need PostgreSQL on 127.0.0.1:5432 (apt install postgresql), \
or its URL in DRUMLINE_TEST_POSTGRESQL."
fi
if [ -z "${DRUMLINE_TEST_REDIS:-}" ] && ! redis_answers; then
  if command -v redis-server >/dev/null; then
    redis-server --daemonize yes --bind 127.0.0.1 --port 6379 --save "" --appendonly no >/dev/null
  fi
  wait_for redis_answers "Tests need Redis on 127.0.0.1:6379 (apt install redis-server), \
or its URL in DRUMLINE_TEST_REDIS."
fi
