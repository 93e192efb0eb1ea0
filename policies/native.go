package policies

// Native is implemented by a Policy whose real allocator reports counters
// under names of its own, such as JAX's Device.memory_stats().
type Native interface {
	// NativeStats returns those counters. It is for reports, not for hot
	// paths.
	NativeStats() map[string]int64
}
