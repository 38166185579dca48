module testbed

go 1.25.0

require sigs.k8s.io/kueue v0.16.2

// The same Kubernetes as the one that it is tried on.
replace (
	k8s.io/api => k8s.io/api v0.35.8
	k8s.io/apiextensions-apiserver => k8s.io/apiextensions-apiserver v0.35.8
	k8s.io/apimachinery => k8s.io/apimachinery v0.35.8
	k8s.io/apiserver => k8s.io/apiserver v0.35.8
	k8s.io/cli-runtime => k8s.io/cli-runtime v0.35.8
	k8s.io/client-go => k8s.io/client-go v0.35.8
	k8s.io/component-base => k8s.io/component-base v0.35.8
	k8s.io/component-helpers => k8s.io/component-helpers v0.35.8
	k8s.io/kubectl => k8s.io/kubectl v0.35.8
	k8s.io/metrics => k8s.io/metrics v0.35.8
)
