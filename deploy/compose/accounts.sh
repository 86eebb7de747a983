#!/usr/bin/env bash
# Registers each account FOLDER/NAME/password that the broker does not know. Runs in the broker's network, because the
# broker's listener for administration is on loopback. A password never appears on a command line. accounts.sh [FOLDER
# [HOST:PORT [KAFKA-CONFIGS]]]
set -euo pipefail
umask 077
folder=${1:-/accounts}
configs=("${3:-/opt/kafka/bin/kafka-configs.sh}" --bootstrap-server "${2:-127.0.0.1:9094}" --entity-type users)
settings=$(mktemp)
trap 'rm -f "$settings"' EXIT

known=$("${configs[@]}" --describe)
for file in "$folder"/*/password; do
  name=$(basename "$(dirname "$file")")
  if ! grep -qF "user-principal '$name'" <<<"$known"; then
    printf 'SCRAM-SHA-512=password=%s\n' "$(<"$file")" >"$settings"
    "${configs[@]}" --alter --entity-name "$name" --add-config-file "$settings"
  fi
done
