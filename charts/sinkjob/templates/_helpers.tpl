{{- define "sinkjob.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "sinkjob.selector" -}}
app.kubernetes.io/name: sinkjob
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{/* Not managed-by=sinkjob: that is how the operator knows the objects of jobs. */}}
{{- define "sinkjob.labels" -}}
{{ include "sinkjob.selector" . }}
app.kubernetes.io/part-of: sinkjob
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "sinkjob.serviceAccount" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else if .Values.serviceAccount.create -}}
{{- include "sinkjob.name" . -}}
{{- else -}}
{{- fail "serviceAccount.name is missing: with serviceAccount.create=false name one that exists" -}}
{{- end -}}
{{- end -}}

{{- define "sinkjob.image" -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .chart.AppVersion) -}}
{{- end -}}

{{/* What the operator may do where jobs are. docs/install.md says why, line by line. */}}
{{- define "sinkjob.jobRules" -}}
- apiGroups: [sinkjob.io]
  resources: [sinkjobs]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [sinkjob.io]
  resources: [sinkjobs/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete, deletecollection]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, create]
{{- if .Values.rbac.serviceAccountTokens }}
- apiGroups: [""]
  resources: [serviceaccounts/token]
  verbs: [create]
{{- end }}
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
{{- end -}}
