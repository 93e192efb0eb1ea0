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
// PYTORCH_ALLOC_CONF.
func FromEnv(env map[string]string, v Version, rocm bool) Environment {
	v = v.orLatest()
	order := []string{varCUDA}
	if v.sharedParser() {
		order = sharedOrder
	}
	c := Environment{Ignored: []string{}, Warnings: []string{}}
	warnf := func(format string, args ...any) { c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...)) }
	var read []string
	for _, name := range order {
		if name != varHIP || rocm {
			read = append(read, name)
		}
	}
	if rocm && !v.sharedParser() {
		read = append(read, varHIP)
	}
	for _, name := range read {
		if value, set := env[name]; set {
			c.Variable, c.Value = name, value
			break
		}
	}
	for _, name := range []string{varGeneric, varCUDA, varHIP} {
		value, set := env[name]
		if !set || name == c.Variable {
			continue
		}
		c.Ignored = append(c.Ignored, name)
		switch {
		case !slices.Contains(read, name) && name == varGeneric:
			warnf("PyTorch %s does not read %s for CUDA (2.10 and newer do); use %s.", v, varGeneric, varCUDA)
		case !slices.Contains(read, name):
			warnf("only ROCm builds read %s; use %s.", varHIP, varCUDA)
		case strings.TrimSpace(value) != strings.TrimSpace(c.Value):
			warnf("%s=%q has no effect: %s is set and wins whole, the two are not merged.", name, value, c.Variable)
		}
	}
	if c.Variable != "" && strings.TrimSpace(c.Value) == "" && len(c.Ignored) > 0 {
		warnf("%s is set but empty, and still wins: all options are at their defaults. Unset it.", c.Variable)
	}
	if value, set := env[varNoCaching]; set {
		c.CachingOff = cachingOff(value, v)
		switch {
		case c.CachingOff:
			warnf("%s=%s bypasses the allocator: every tensor is a cudaMalloc of its own and no option has an effect. Unset it.", varNoCaching, value)
		default:
			warnf("%s=%s does not turn caching off in PyTorch %s; only 1 does.", varNoCaching, value, v)
		}
	}
	return c
}

// sharedOrder is the order in which releases from 2.10 look for a string.
var sharedOrder = []string{varCUDA, varHIP, varGeneric}

// cachingOff reports whether a value of PYTORCH_NO_CUDA_MEMORY_CACHING that is
// set turns caching off: in any release up to 2.6 whatever the value, then if
// it is 1.
func cachingOff(value string, v Version) bool {
	return !v.AtLeast(2, 7) || value == "1"
}
