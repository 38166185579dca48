#!/usr/bin/env bash
# manifest.sh FILE: prints deploy/FILE as the chart makes it: muster.yaml or nodes.yaml. They are the chart with its defaults, for
# those who have no Helm; after a change of the chart: for f in muster nodes; do scripts/manifest.sh $f.yaml >deploy/$f.yaml; done
set -euo pipefail
source "$(dirname "$0")/lib.sh"

# plain OPTION...: what Helm makes, without the words of its own. Which cluster it is for it cannot know here.
plain() {
    local helm
    helm="$(helm)" || return 1
    "$helm" template muster "$ROOT/deploy/helm/muster" --namespace muster --kube-version 1.35 "$@" | sed '/^# Source: /d'
}

case "${1:-}" in
    muster.yaml)
        cat <<'HEAD'
# Muster in a cluster: a server in the namespace `muster`, whose jobs run in `muster-jobs`, with rights there alone.
# Made from deploy/helm/muster by scripts/manifest.sh. The image is named twice: `image` and `agent_image`.
#   sed 's#muster:0.1.0#REGISTRY/muster:0.1.0#' deploy/muster.yaml | kubectl apply -f -
---
apiVersion: v1
kind: Namespace
metadata:
  name: muster
  labels:
    app.kubernetes.io/name: muster
    app.kubernetes.io/instance: muster
    pod-security.kubernetes.io/enforce: restricted
HEAD
        plain
        ;;
    nodes.yaml)
        cat <<'HEAD'
# Optional: the server may see nodes and what runs on them. With it `muster nodes` shows the cluster, `muster why` says what would
# help, and gangs wait until they fit. Made from deploy/helm/muster by scripts/manifest.sh.
HEAD
        plain --set nodes=true --show-only templates/nodes.yaml
        ;;
    *) die "there is no manifest \`${1:-}\`" "scripts/manifest.sh muster.yaml or nodes.yaml" ;;
esac
