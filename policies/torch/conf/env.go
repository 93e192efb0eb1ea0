package conf

import (
	"fmt"
	"slices"
	"strings"
)

// The environment variables that can hold a string, and the one that turns the
// allocator off.
const (
	varGeneric   = "PYTORCH_ALLOC_CONF"
	varCUDA      = "PYTORCH_CUDA_ALLOC_CONF"
	varHIP       = "PYTORCH_HIP_ALLOC_CONF"
	varNoCaching = "PYTORCH_NO_CUDA_MEMORY_CACHING"
)

// Environment says which environment variable a program obeys.
type Environment struct {
	// Variable is the name of the variable that counts, empty if none is set;
	// Value is what it holds.
	Variable string `json:"variable"`
	Value    string `json:"value"`
	// Ignored are the variables that are set but have no effect.
	Ignored []string `json:"ignored"`
	// CachingOff: PYTORCH_NO_CUDA_MEMORY_CACHING bypasses the allocator, so
	// that no option has an effect.
	CachingOff bool `json:"caching_off"`
	// Warnings are complete sentences for the user.
	Warnings []string `json:"warnings"`
}

// FromEnv says which variable release v obeys, given the environment. One
// variable wins whole: strings are never merged, and a variable that is set
// but empty wins too. rocm is for builds with ROCm.
//
// Up to 2.9 the CUDA allocator reads PYTORCH_CUDA_ALLOC_CONF only (ROCm: then
// PYTORCH_HIP_ALLOC_CONF). From 2.10 it also takes the generic
// PYTORCH_ALLOC_CONF, which 2.10 asks first and 2.11 last; this was observed on
// 2.11.0+cu130, and for 2.10 is read from its source (case R23).
func FromEnv(env map[string]string, v Version, rocm bool) Environment {
	v = v.orLatest()
	var order []string
	switch {
	case v.AtLeast(2, 11):
		order = []string{varCUDA, varHIP, varGeneric}
	case v.sharedParser():
		order = []string{varGeneric, varCUDA, varHIP}
	case rocm:
		order = []string{varCUDA, varHIP}
	default:
		order = []string{varCUDA}
	}
	c := Environment{Ignored: []string{}, Warnings: []string{}}
	warnf := func(format string, args ...any) { c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...)) }
	for _, name := range order {
		if value, set := env[name]; set {
			c.Variable, c.Value = name, value
			break
		}
	}
	if c.Variable == varHIP && !rocm {
		warnf("%s is meant for ROCm: a CUDA build obeys it for the options that all accelerators share, but not for backend, release_lock_…, graph_capture_… and pinned_… ones. Use %s.", varHIP, varCUDA)
	}
	if c.Variable == varGeneric && !v.AtLeast(2, 11) {
		if _, both := env[varCUDA]; both {
			warnf("both %s and %s are set: PyTorch %s takes backend, release_lock_…, graph_capture_… and pinned_… options from the latter and all others from the former. Set one only.", varGeneric, varCUDA, v)
		}
	}
	for _, name := range []string{varGeneric, varCUDA, varHIP} {
		value, set := env[name]
		if !set || name == c.Variable {
			continue
		}
		c.Ignored = append(c.Ignored, name)
		switch {
		case !slices.Contains(order, name) && name == varGeneric:
			warnf("PyTorch %s does not read %s for CUDA (2.10 and newer do); use %s.", v, varGeneric, varCUDA)
		case !slices.Contains(order, name):
			warnf("PyTorch %s reads %s in ROCm builds only; use %s.", v, varHIP, varCUDA)
		case name == varCUDA && c.Variable == varGeneric, strings.TrimSpace(value) == "":
		case strings.TrimSpace(value) != strings.TrimSpace(c.Value):
			warnf("%s=%q has no effect: %s is set and wins whole, the two are not merged.", name, value, c.Variable)
		}
	}
	if c.Variable != "" && strings.TrimSpace(c.Value) == "" && len(c.Ignored) > 0 {
		warnf("%s is set but empty, and still wins: all options are at their defaults. Unset it.", c.Variable)
	}
	if value, set := env[varNoCaching]; set {
		// Up to 2.6 any value counts, also 0.
		c.CachingOff = value == "1" || !v.AtLeast(2, 7)
		if c.CachingOff {
			warnf("%s=%s bypasses the allocator: every tensor is a cudaMalloc of its own and no option has an effect. Unset it.", varNoCaching, value)
		} else {
			warnf("%s=%s does not turn caching off in PyTorch %s (only 1 does, but in 2.6 and older any value does). Unset it.", varNoCaching, value, v)
		}
	}
	return c
}
