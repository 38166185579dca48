{{- define "muster.labels" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* What has no namespace must not be another release's. */}}
{{- define "muster.nodes" -}}
{{ if ne .Release.Name .Release.Namespace }}{{ .Release.Namespace }}-{{ end }}{{ .Release.Name }}-nodes
{{- end }}

{{- define "muster.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "muster.claim" -}}
{{ .Values.storage.claim | default .Release.Name }}
{{- end }}

{{/* What `k8s` of the values says goes before what is known here: TOML allows no key twice. */}}
{{- define "muster.config" -}}
{{- $known := dict
  "namespace" (first .Values.jobs.namespaces)
  "address" (printf "https://%s.%s.svc:%v" .Release.Name .Release.Namespace .Values.service.port)
  "agent_image" (include "muster.image" .)
  "agent_image_pull" .Values.image.pullPolicy -}}
{{- if not (regexMatch "(?m)^\\s*\\[local\\]" .Values.config) -}}
[local]
enabled = false
{{ end -}}
{{- with .Values.image.pullSecrets }}{{ $_ := set $known "image_pull_secrets" . }}{{ end -}}
[k8s]
{{- range $key, $value := $known }}
{{- if not (regexMatch (printf "(?m)^\\s*%s\\s*=" $key) $.Values.k8s) }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- with .Values.k8s }}
{{ trim . }}
{{- end }}
{{- with .Values.config }}
{{ trim . }}
{{- end }}
{{- end }}
