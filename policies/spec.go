package policies

import "context"

// Spec is a parsed policy choice: it can make any number of policies, and it
// answers what others want to know of an allocator before it runs. Nobody
// outside an allocator's package needs to ask for its name.
type Spec struct {
	// Name is the registered name, such as "torch".
	Name string
	// Options is the text after the colon in normal form.
	Options string
	// Title is what the choice is called in a figure; empty where String is
	// right. See Label.
	Title string
	// Config is the configuration as a value, for those who know the
	// allocator's package (torch.ConfigOf); nil if there is nothing but
	// Options.
	Config any
	// Fraction is the memory fraction that the options themselves set
	// (PyTorch's per_process_memory_fraction); 0 = not set.
	Fraction float64
	// LimitOf turns a memory fraction in [0,1] of a device of total bytes into
	// a limit in bytes, 0 = none; nil means trunc(fraction × total), none at
	// 1.
	LimitOf func(fraction float64, total int64) int64
	// Notes say what a user should know about results of this policy, such as
	// that it is an approximation.
	Notes []string
	// Sizes tells, for a request of size > 0 bytes, the block that it is
	// rounded up to and what is taken from the device when no free block
	// serves it; segment is 0 where that depends on more than the request. nil
	// where even the block does.
	Sizes func(size int64) (block, segment int64)
	// Page is the bytes by which a segment of the small or the large pool
	// grows where it is mapped page by page; nil if segments never grow.
	Page func(small bool) int64
	// Steps lists the sizes at which the rules change, ascending within each
	// rule; nil if there are none worth naming.
	Steps func() []Step
	// Prepare completes a Spec whose policies must know the whole run before
	// they serve its first request; nil for all others, which are ready. The
	// result makes policies for that run only. The error is ctx's, or says why
	// the run cannot be prepared.
	Prepare func(ctx context.Context, run *Future) (*Spec, error)
	// New makes a policy. The error says why Env does not suit it.
	New func(Env) (Policy, error)
}

// String is what Parse takes.
func (s *Spec) String() string {
	if s.Options == "" {
		return s.Name
	}
	return s.Name + ":" + s.Options
}

// Label is what the choice is called in a figure or a table.
func (s *Spec) Label() string {
	if s.Title != "" {
		return s.Title
	}
	return s.String()
}

// Step is a request size at which an allocator's rules change.
type Step struct {
	At   int64 // bytes
	Text string
}

// Future is a run that is known in advance.
type Future struct {
	// Lifetimes are the run's requests, in the order of its Mallocs.
	Lifetimes []Lifetime
	// Calls is the number of Mallocs and Frees, the end of all lifetimes.
	Calls int64
	// Room is the bytes that may be taken: the lesser of limit and device; 0 =
	// unlimited.
	Room int64
}

// Lifetime is one request of a Future.
type Lifetime struct {
	// Size is the requested bytes, > 0.
	Size int64
	// Malloc and Free count the Mallocs and completed Frees before this
	// request's own; Free is Future.Calls if its bytes never come back.
	Malloc, Free int64
	// MallocUS and FreeUS are the times of these calls in µs; many calls may
	// share one. FreeUS is after all calls if there is no Free.
	MallocUS, FreeUS int64
}
